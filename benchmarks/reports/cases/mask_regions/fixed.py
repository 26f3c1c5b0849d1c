"""Spoken commands: log-mel frames, masks over bands and stretches of time, a small network with attention pooling."""

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
        self.rng = torch.Generator().manual_seed(seed)

    def draw(self, clips, masks, most):
        return (torch.rand(clips, masks, 1, generator=self.rng) * (most + 1)).long()

    @torch.no_grad()
    def forward(self, spectra, lengths):
        places, frames = len(spectra), torch.arange(FRAMES)
        low = self.draw(places, self.freq_masks, BANDS - self.freq_width)
        bands = torch.arange(BANDS)
        in_band = ((bands >= low) & (bands < low + self.draw(places, self.freq_masks, self.freq_width))).any(1)
        left = self.draw(places, self.time_masks, (lengths - self.time_width)[:, None, None])
        in_time = ((frames >= left) & (frames < left + self.draw(places, self.time_masks, self.time_width))).any(1)
        return spectra.masked_fill(in_band[:, :, None] | in_time[:, None, :], self.value)


class Spotter(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.augment = SpecAugment()
        self.embed = nn.Linear(BANDS, width)
        self.mix = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())
        self.weigh, self.words = nn.Linear(width, 1), nn.Linear(width, WORDS)

    def forward(self, spectra, lengths):
        if self.training:
            spectra = self.augment(spectra, lengths)
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
