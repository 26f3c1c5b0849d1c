"""Speech to characters: an encoder, a decoder with teacher forcing, and the error rates of each batch."""

import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
LETTERS, SPACE, LONGEST, WIDTH, BATCH, STEPS = 28, 0, 90, 48, 12, 180


def distance(one, other):
    """Edits that turn a sequence into another."""
    row = list(range(len(other) + 1))
    for i, left in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, right in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (left != right))
    return row[-1]


def words_of(letters):
    return "".join(chr(97 + each) if each != SPACE else " " for each in letters).split()


class Errors:
    """Rates of wrong characters and of wrong words."""

    def __call__(self, logits, texts):
        letters = words = wrong_letters = wrong_words = 0
        for guess, text in zip(logits.argmax(2).tolist(), texts.tolist()):
            wrong_letters += distance(guess, text)
            letters += len(text)
            wrong_words += distance(words_of(guess), words_of(text))
            words += len(words_of(text))
        return wrong_letters / letters, wrong_words / max(words, 1)


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv1d(20, WIDTH, 5, padding=2), nn.ReLU(), nn.Conv1d(WIDTH, WIDTH, 1))
        self.embed = nn.Embedding(LETTERS, WIDTH)
        self.decoder = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.mix = nn.Linear(2 * WIDTH, WIDTH)
        self.score = nn.Linear(WIDTH, LETTERS)
        self.errors = Errors()

    def forward(self, sound, texts):
        heard = self.encoder(sound.transpose(1, 2)).transpose(1, 2)
        before = F.pad(texts[:, :-1], (1, 0))
        states, _ = self.decoder(self.embed(before))
        logits = self.score(torch.tanh(self.mix(torch.cat([states, heard], 2))))
        loss = F.cross_entropy(logits.flatten(0, 1), texts.flatten())
        letters = words = None
        if not self.training:
            letters, words = self.errors(logits, texts)
        return loss, letters, words


def batch(rng, codes):
    texts = torch.from_numpy(rng.integers(0, LETTERS, (BATCH, LONGEST)) * (rng.random((BATCH, LONGEST)) > 0.15))
    sound = codes[texts] + 0.1 * torch.randn(BATCH, LONGEST, 20)
    return sound, texts


rng = np.random.default_rng(0)
codes = torch.randn(LETTERS, 20)
model = Recognizer()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
held_out = batch(rng, codes)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    model.train()
    loss, letters, words = model(*batch(rng, codes))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 45 == 0:
        model.eval()
        with torch.no_grad():
            loss, letters, words = model(*held_out)
        print(f"step {step}: loss {loss.item():.3f}, letters {letters:.2f}, words {words:.2f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
