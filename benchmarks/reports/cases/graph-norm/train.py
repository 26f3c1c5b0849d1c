"""Node classification on one fixed graph with a three-layer graph convolutional net."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
NODES, EDGES, FEATURES, CLASSES = 4000, 50_000, 32, 8


def symmetric_norm(edges, nodes):
    """The normalized adjacency D^-1/2 (A + I) D^-1/2 as a sparse matrix."""
    loops = torch.arange(nodes)
    row, col = torch.cat([edges, loops.expand(2, -1)], 1)
    degree = torch.zeros(nodes).index_add_(0, col, torch.ones(len(col)))
    scale = degree.rsqrt()
    weight = scale[row] * scale[col]
    matrix = torch.sparse_coo_tensor(torch.stack([col, row]), weight, (nodes, nodes))
    return matrix.coalesce()  # culprit-too


class GraphConv(nn.Module):
    def __init__(self, width_in, width_out, cached=False):
        super().__init__()
        self.linear, self.bias = nn.Linear(width_in, width_out, bias=False), nn.Parameter(torch.zeros(width_out))
        self.cached, self.kept = cached, None

    def forward(self, x, edges):
        adjacency = self.kept
        if adjacency is None:
            adjacency = symmetric_norm(edges, len(x))  # culprit
            if self.cached:
                self.kept = adjacency
        return torch.sparse.mm(adjacency, self.linear(x)) + self.bias


class GCN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        widths = [FEATURES, hidden, hidden, CLASSES]
        self.convs = nn.ModuleList(GraphConv(a, b) for a, b in zip(widths, widths[1:]))  # culprit-too
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(2))

    def forward(self, x, edges):
        for conv, norm in zip(self.convs, self.norms):
            x = nn.functional.dropout(norm(conv(x, edges)).relu(), 0.3, self.training)
        return self.convs[-1](x, edges)


features, labels = torch.randn(NODES, FEATURES), torch.randint(0, CLASSES, (NODES,))
edges = torch.randint(0, NODES, (2, EDGES // 2))
edges = torch.cat([edges, edges.flip(0)], 1)
split = torch.rand(NODES)
train, valid = split < 0.6, split > 0.8
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
start, best, STEPS = time.perf_counter(), 0.0, 150
for epoch in range(1, STEPS + 1):
    model.train()
    loss = nn.functional.cross_entropy(model(features, edges)[train], labels[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 25 == 0:
        model.eval()
        with torch.no_grad():
            right = (model(features, edges)[valid].argmax(1) == labels[valid]).float().mean().item()
        best = max(best, right)
        print(f"epoch {epoch}: loss {loss.item():.4f} valid {right:.3f} best {best:.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
