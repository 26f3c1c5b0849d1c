"""A compiled model in a plain loop; argv: backend. 20 steps, and the number of graphs is printed."""

import sys

import torch
from finger import Finger


class Net(torch.nn.Module):
    """A class of the user's own, so that its forward is compiled."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, inputs):
        """Two layers."""
        return self.last(self.first(inputs).relu())


torch.manual_seed(13)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
compiled = torch.compile(model, backend=sys.argv[1])
finger = Finger()
for _ in range(20):
    inputs = torch.randn(16, 16)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(compiled(inputs), inputs[:, :4].argmax(1))
    loss.backward()
    optimizer.step()
    finger.loss(loss)
finger.show(*model.parameters())
counters = torch._dynamo.utils.counters
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
