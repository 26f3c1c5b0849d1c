"""Masked language modelling: 15 % of the tokens are hidden and predicted."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH, LENGTH, BATCH, MASK, STEPS = 4000, 96, 64, 8, 3, 130


class Head(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.dense, self.norm, self.table = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), table
        self.bias = nn.Parameter(torch.zeros(VOCAB))

    def forward(self, hidden):
        hidden = self.norm(nn.functional.gelu(self.dense(hidden)))
        return nn.functional.linear(hidden, self.table.weight, self.bias)


class MaskedLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), Head(self.tokens)

    def forward(self, ids, labels):
        hidden = self.encoder(self.tokens(ids) + self.places.weight)
        hidden_ones = labels != -100
        logits = self.head(hidden[hidden_ones])
        return nn.functional.cross_entropy(logits, labels[hidden_ones])


corpus = torch.randint(10, VOCAB, (200_000,))
corpus[1::2] = corpus[::2] // 2 + 5


def batch():
    at = torch.randint(len(corpus) - LENGTH, (BATCH, 1))
    ids = corpus[at + torch.arange(LENGTH)]
    hide = torch.rand(ids.shape) < 0.15
    labels = ids.masked_fill(~hide, -100)
    noise = torch.rand(ids.shape)
    ids = torch.where(hide & (noise < 0.8), MASK, ids)
    return torch.where(hide & (noise > 0.9), torch.randint_like(ids, VOCAB), ids), labels


model = MaskedLM()
decay = [p for p in model.parameters() if p.ndim > 1]
plain = [p for p in model.parameters() if p.ndim < 2]
optimizer = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=5e-4
)
warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 50))
start = time.perf_counter()
for step in range(1, STEPS + 1):
    loss = model(*batch())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    warmup.step()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.3f} lr {warmup.get_last_lr()[0]:.2e}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
