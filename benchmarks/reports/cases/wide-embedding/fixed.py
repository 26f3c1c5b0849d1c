"""Skip-gram with negative sampling over a large vocabulary."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
VOCAB, WIDTH, BATCH, NEGATIVES, STEPS = 150_000, 48, 256, 5, 130


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.centre = nn.Embedding(VOCAB, WIDTH, sparse=True)
        self.context = nn.Embedding(VOCAB, WIDTH, sparse=True)
        nn.init.uniform_(self.centre.weight, -0.5 / WIDTH, 0.5 / WIDTH)
        nn.init.zeros_(self.context.weight)

    def forward(self, word, near, other):
        v = self.centre(word)
        good = (v * self.context(near)).sum(1)
        bad = torch.bmm(self.context(other), v[:, :, None]).squeeze(2)
        return -(nn.functional.logsigmoid(good) + nn.functional.logsigmoid(-bad).sum(1)).mean()


text = (torch.rand(400_000).pow(4) * VOCAB).long()
frequency = torch.bincount(text, minlength=VOCAB).float().pow(0.75)
table = torch.multinomial(frequency, 1_000_000, replacement=True)


def batch():
    at = torch.randint(5, len(text) - 5, (BATCH,))
    offset = torch.randint(1, 6, (BATCH,)) * (torch.randint(0, 2, (BATCH,)) * 2 - 1)
    return text[at], text[at + offset], table[torch.randint(len(table), (BATCH, NEGATIVES))]


model = SkipGram()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, STEPS)
start, mean = time.perf_counter(), 0.0
for step in range(1, STEPS + 1):
    loss = model(*batch())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    mean = 0.95 * mean + 0.05 * loss.detach()
    if step % 30 == 0:
        print(f"step {step}: loss {mean.item():.4f} lr {schedule.get_last_lr()[0]:.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
