"""A loop that evaluates its model before it trains it, and accumulates gradients over four batches."""

import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
model.eval()
with torch.no_grad():
    for _ in range(8):
        model(torch.randn(4, 8))
model.train()
for _ in range(40):
    for _ in range(4):
        (model(torch.randn(4, 8)).square().mean() / 4).backward()
    optimizer.step()
    optimizer.zero_grad()
