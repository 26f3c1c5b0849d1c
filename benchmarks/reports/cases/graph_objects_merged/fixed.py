"""Counting triangles in random graphs with a graph isomorphism network; the graphs come from a library of objects."""

import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

torch.manual_seed(0)
torch.set_num_threads(1)
GRAPHS, NODES, BATCH, EPOCHS, WIDTH = 1200, 14, 48, 36, 32


class Graph:
    """An undirected graph as dictionaries of neighbours, with attributes of nodes and edges."""

    def __init__(self):
        self.nodes, self.neighbours = {}, {}

    def add_node(self, node, **attributes):
        self.nodes.setdefault(node, {}).update(attributes)
        self.neighbours.setdefault(node, {})

    def add_edge(self, one, other, **attributes):
        self.add_node(one)
        self.add_node(other)
        shared = self.neighbours[one].setdefault(other, {})
        shared.update(attributes)
        self.neighbours[other][one] = shared

    def edges(self):
        return [(a, b, data) for a, around in self.neighbours.items() for b, data in around.items() if a <= b]


def random_graph(rng):
    graph, density = Graph(), rng.uniform(0.2, 0.6)
    for node in range(NODES):
        graph.add_node(node, kind=rng.randrange(3))
    for one in range(NODES):
        for other in range(one):
            if rng.random() < density:
                graph.add_edge(other, one, weight=rng.random())
    return graph


def to_item(graph):
    """Tensors for the network beside the graph that they were made of."""
    pairs = [(a, b) for a, b, _ in graph.edges()]
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).reshape(-1, 2).T
    adjacency = torch.zeros(NODES, NODES)
    adjacency[edges[0], edges[1]] = 1
    triangles = (adjacency @ adjacency @ adjacency).trace() / 6
    kinds = torch.tensor([graph.nodes[n]["kind"] for n in range(NODES)])
    return {"graph": graph, "kinds": kinds, "edges": edges, "target": triangles / 50}


def collate(items):
    batch = {}
    for key in [key for key in items[0] if key != "graph"]:
        values = [item[key] for item in items]
        if key == "edges":
            batch[key] = torch.cat([edges + i * NODES for i, edges in enumerate(values)], 1)
        else:
            batch[key] = torch.stack(values)
    return batch


class GIN(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.kinds = nn.Embedding(3, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, batch):
        x, (source, sink) = self.kinds(batch["kinds"]).flatten(0, 1), batch["edges"]
        for layer in self.layers:
            x = F.relu(layer(x + torch.zeros_like(x).index_add(0, sink, x.index_select(0, source))))
        return self.head(x.view(len(batch["target"]), NODES, WIDTH).sum(1)).squeeze(1)


rng = random.Random(0)
items = [to_item(random_graph(rng)) for _ in range(GRAPHS)]
loader = DataLoader(items, batch_size=BATCH, shuffle=True, collate_fn=collate)
model = GIN()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start, steps = time.perf_counter(), 0
for epoch in range(1, EPOCHS + 1):
    for batch in loader:
        loss = F.l1_loss(model(batch), batch["target"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    if epoch % 6 == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
