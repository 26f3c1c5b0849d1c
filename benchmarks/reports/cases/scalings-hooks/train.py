"""A frozen language model with mixed low-rank adapters: a small head weighs the experts of every layer."""

import functools
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH, LAYERS, EXPERTS, RANK, LENGTH, BATCH = 200, 96, 6, 4, 4, 32, 8


class MixedLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, RANK) * 0.1)
        self.up = nn.Parameter(torch.zeros(EXPERTS, RANK, WIDTH))

    def forward(self, x, scalings):
        experts = torch.einsum("btw,ewr,erv->betv", x, self.down, self.up)
        return F.gelu(self.base(x) + (scalings[:, :, None, None] * experts).sum(1))


def inject(index, scalings, module, args, kwargs):
    kwargs["scalings"] = scalings[:, index].softmax(1)
    return args, kwargs


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(VOCAB, WIDTH), nn.LayerNorm(WIDTH)
        self.words.requires_grad_(False)
        self.layers = nn.ModuleList(MixedLinear() for _ in range(LAYERS))
        self.head, self.out = nn.Linear(WIDTH, LAYERS * EXPERTS), nn.Linear(WIDTH, VOCAB)

    def body(self, x, **kwargs):
        for layer in self.layers:
            x = x + layer(self.norm(x), **kwargs)
        return x

    def forward(self, ids):
        x = self.words(ids)
        with torch.no_grad():
            hidden = self.body(x, scalings=torch.full((len(ids), EXPERTS), 1 / EXPERTS))
        scalings = self.head(hidden.mean(1)).view(-1, LAYERS, EXPERTS)
        for index, layer in enumerate(self.layers):
            hook = functools.partial(inject, index, scalings)
            handle = layer.register_forward_pre_hook(hook, with_kwargs=True)  # culprit
        try:
            return self.out(self.body(x))  # culprit-too
        finally:
            handle.remove()  # culprit-too


model = Mixture()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
start, STEPS = time.perf_counter(), 300
for step in range(1, STEPS + 1):
    ids = (torch.randint(VOCAB, (BATCH, 1)) + torch.arange(LENGTH + 1) * torch.randint(1, 4, (BATCH, 1))) % VOCAB
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
