"""Heads and labels of the words of sentences: a dependency parser with bilinear scores."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(10)
torch.set_num_threads(1)
WORDS, LABELS, LENGTH, BATCH, WIDTH, STEPS = 600, 36, 20, 16, 64, 200


class Parser(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.read = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)
        self.as_head, self.as_child = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.arc = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH)
        self.label = nn.Bilinear(WIDTH, WIDTH, LABELS)  # culprit

    def forward(self, words, heads):
        read = self.read(self.embed(words))[0]
        head, child = F.relu(self.as_head(read)), F.relu(self.as_child(read))
        arcs = child @ self.arc @ head.transpose(1, 2)
        chosen = head.gather(1, heads[..., None].expand_as(head))
        return arcs, self.label(chosen, child)  # culprit


def sentences():
    """Words, the place of each word's head, and the label of the arc between them."""
    words = torch.randint(WORDS, (BATCH, LENGTH))
    heads = (torch.arange(LENGTH) + 1 + words % 3) % LENGTH
    labels = (words + words.gather(1, heads)) % LABELS
    return words, heads, labels


parser = Parser()
optimizer = torch.optim.Adam(parser.parameters(), 2e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    words, heads, labels = sentences()
    arcs, scores = parser(words, heads)  # culprit-too
    loss = F.cross_entropy(arcs.flatten(0, 1), heads.flatten())
    loss = loss + F.cross_entropy(scores.flatten(0, 1), labels.flatten())
    optimizer.zero_grad()
    loss.backward()  # culprit-too
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
