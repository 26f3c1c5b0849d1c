"""Phonemes from sounds: utterances of very different length, a transformer names the phoneme of each frame."""

import itertools
import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

PHONEMES, BANDS, WIDTH, BATCH, STEPS, SHORTEST, LONGEST = 20, 16, 64, 8, 180, 16, 320


def utterances(count, rng):
    """Frames of sound with the phoneme of each."""
    shapes = torch.randn(PHONEMES, BANDS)
    found = []
    for _ in range(count):
        length = min(LONGEST, int(SHORTEST * rng.paretovariate(0.9)))
        labels = torch.randint(PHONEMES, (length // 4 + 1,)).repeat_interleave(4)[:length]
        found.append((shapes[labels] + 0.7 * torch.randn(length, BANDS), labels))
    return found


def shuffled_forever(items, rng):
    while True:
        order = list(range(len(items)))
        rng.shuffle(order)
        yield from (items[i] for i in order)


def batches(items, size):
    items = iter(items)
    while batch := list(itertools.islice(items, size)):
        yield batch  # culprit-too


def collate(batch):
    sounds, labels = zip(*batch)
    sounds = pad_sequence(sounds, batch_first=True)  # culprit
    labels = pad_sequence(labels, batch_first=True, padding_value=-100)
    return sounds, labels, labels < 0


class Recognizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(BANDS, WIDTH)
        self.near = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 3 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, PHONEMES)

    def forward(self, sounds, padding):
        x = self.enter(sounds)
        x = x + self.near(x.masked_fill(padding[..., None], 0).transpose(1, 2)).transpose(1, 2)
        return self.out(self.encoder(x, src_key_padding_mask=padding))


def training(model, optimizer, stream):
    for sounds, labels, padding in stream:
        loss = F.cross_entropy(model(sounds, padding).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield loss


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    rng = random.Random(2)
    model = Recognizer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    stream = map(collate, batches(shuffled_forever(utterances(600, rng), rng), BATCH))
    start = time.perf_counter()
    for step, loss in enumerate(itertools.islice(training(model, optimizer, stream), STEPS), 1):
        if step % 60 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"{step} steps, {1e3 * (time.perf_counter() - start) / step:.2f} ms/step")


main()
