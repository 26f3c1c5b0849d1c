"""Another length in every step, and long pointwise formulas: compiling each of them never pays."""

import torch
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        x = self.wide(x)
        if len(x) % 2:  # another graph for odd lengths
            x = x + 1
        x = 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x * x * x)))
        return self.narrow(x)


model = nn.Sequential(*(Block() for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    batch = torch.randn(256 + 7 * (step % 61), 64)
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
