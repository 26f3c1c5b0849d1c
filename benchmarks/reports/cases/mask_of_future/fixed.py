"""A language model over long pages of letters; each letter attends to itself and those before it."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
LETTERS, PAGE, WIDTH, HEADS, LAYERS, BATCH, STEPS = 64, 1024, 32, 2, 2, 2, 130


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        count, length, _ = x.shape
        parts = self.enter(x).view(count, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.leave(found.transpose(1, 2).reshape(count, length, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.attention, self.between = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mix = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mix(self.between(x))


class Letters(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.places = nn.Embedding(LETTERS, WIDTH), nn.Embedding(PAGE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, LETTERS)

    def forward(self, page):
        x = self.letters(page) + self.places.weight[: page.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def pages(generator):
    start = torch.randint(LETTERS, (BATCH, 1), generator=generator)
    steps = torch.randint(1, 4, (BATCH, PAGE + 1), generator=generator)
    return (start + steps.cumsum(1)) % LETTERS


generator = torch.Generator().manual_seed(0)
model = Letters()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    page = pages(generator)
    logits = model(page[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, LETTERS), page[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 26 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
