"""Fine tuning of a fixed network by adapters whose matrices are Kronecker products of small ones."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, OUTER, BLOCKS, TOKENS, STEPS = 512, 8, 6, 32, 400
INNER = WIDTH // OUTER


class Adapted(nn.Module):
    """A fixed linear layer; what is learned is the change of its matrix, a product of two small matrices."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.outer = nn.Parameter(torch.randn(OUTER, OUTER) * 0.1)
        self.inner = nn.Parameter(torch.zeros(INNER, INNER))

    def change(self):
        return torch.kron(self.outer, self.inner)  # culprit

    def forward(self, x):
        return F.linear(x, self.base.weight + self.change(), self.base.bias)  # culprit


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.adapted = nn.LayerNorm(WIDTH), Adapted()

    def forward(self, x):
        return x + F.gelu(self.adapted(self.norm(x)))  # culprit-too


model = nn.Sequential(*(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 10))
teacher = nn.Linear(WIDTH, 10)
optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    tokens = torch.randn(TOKENS, WIDTH)
    with torch.no_grad():
        labels = teacher(tokens.roll(1, 1)).argmax(1)
    loss = F.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
