"""Spoken commands: log-mel frames, masks over bands and stretches of time, a small network with attention pooling."""

import random
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(2)
torch.set_num_threads(1)
CLIPS, FRAMES, BANDS, WORDS, BATCH, STEPS = 3000, 96, 40, 12, 128, 700


def make_clips(generator):
    words = torch.randint(WORDS, (CLIPS,), generator=generator)
    templates = torch.randn(WORDS, BANDS, FRAMES, generator=generator)
    clips = templates[words] + 1.5 * torch.randn(CLIPS, BANDS, FRAMES, generator=generator)
    lengths = torch.randint(FRAMES // 2, FRAMES + 1, (CLIPS,), generator=generator)
    return clips, lengths, words


class SpecAugment(nn.Module):
    """Sets random bands and random stretches of time of each clip to a value."""

    def __init__(self, freq_masks=2, time_masks=6, freq_width=8, time_width=12, value=0.0, seed=0):
        super().__init__()
        self.freq_masks, self.time_masks = freq_masks, time_masks
        self.freq_width, self.time_width, self.value = freq_width, time_width, value
        self.rng = random.Random(seed)

    @torch.no_grad()
    def forward(self, spectra, lengths):
        spectra = spectra.clone()
        for i in range(len(spectra)):  # culprit-too
            for _ in range(self.freq_masks):
                low = self.rng.randint(0, BANDS - self.freq_width)  # culprit-too
                width = self.rng.randint(0, self.freq_width)
                spectra[i, low : low + width, :] = self.value  # culprit
            for _ in range(self.time_masks):
                left = self.rng.randint(0, int(lengths[i]) - self.time_width)  # culprit-too
                width = self.rng.randint(0, self.time_width)
                spectra[i, :, left : left + width] = self.value  # culprit
        return spectra


class Spotter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.augment = SpecAugment()
        self.embed = nn.Linear(BANDS, width)
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())
        self.weigh, self.words = nn.Linear(width, 1), nn.Linear(width, WORDS)

    def forward(self, spectra, lengths):
        if self.training:
            spectra = self.augment(spectra, lengths)  # culprit-too
        frames = self.embed(spectra.transpose(1, 2)[:, ::2])
        frames = frames + self.mix(frames)
        outside = torch.arange(0, FRAMES, 2) >= lengths[:, None]
        weights = self.weigh(frames).squeeze(2).masked_fill(outside, -1e4).softmax(1)
        return self.words((weights[:, None] @ frames).squeeze(1))


generator = torch.Generator().manual_seed(4)
clips, lengths, words = make_clips(generator)
model = Spotter()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    rows = torch.randint(CLIPS, (BATCH,), generator=generator)
    loss = F.cross_entropy(model(clips[rows], lengths[rows]), words[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 140 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
