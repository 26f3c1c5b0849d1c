"""Questions sorted by what they ask for, with a look at held-out questions after every epoch."""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(15)
torch.set_num_threads(1)
WORDS, LENGTH, KINDS, WIDTH, EPOCHS = 500, 16, 6, 64, 16


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.0, batch_first=True) for _ in range(2)
        )
        self.out = nn.Linear(WIDTH, KINDS)

    def forward(self, words):
        hidden = self.embed(words) + self.place
        for block in self.blocks:
            hidden = block(hidden)
        return self.out(hidden.mean(1))


def questions(count):
    words = torch.randint(WORDS, (count, LENGTH))
    return TensorDataset(words, (words % KINDS).mode(1).values)


class Silo:
    """The loaders of all parts of the data."""

    def __init__(self, batch_size, dev_batch_size):
        self.train = DataLoader(questions(640), batch_size, shuffle=True)
        self.dev = DataLoader(questions(400), dev_batch_size)


class Evaluator:
    def __init__(self, loader):
        self.loader = loader

    @torch.no_grad()
    def evaluate(self, model):
        model.eval()
        right = loss = 0.0
        for words, kinds in self.loader:  # culprit-too
            scores = model(words)  # culprit
            loss += F.cross_entropy(scores, kinds, reduction="sum").item()  # culprit-too
            right += (scores.argmax(1) == kinds).sum().item()  # culprit-too
        model.train()
        count = len(self.loader.dataset)
        return loss / count, right / count


silo = Silo(batch_size=32, dev_batch_size=1)  # culprit
model, evaluator = Sorter(), Evaluator(silo.dev)
optimizer = torch.optim.Adam(model.parameters(), 1e-3)
step, start = 0, time.perf_counter()
for epoch in range(1, EPOCHS + 1):
    for words, kinds in silo.train:
        loss = F.cross_entropy(model(words), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
    held_out, right = evaluator.evaluate(model)  # culprit-too
    print(f"epoch {epoch}: loss {loss.item():.4f}, held out {held_out:.4f}, right {right:.3f}", flush=True)
print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")
