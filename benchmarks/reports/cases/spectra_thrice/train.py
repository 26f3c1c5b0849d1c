"""Removing noise from speech: a recurrent mask, compared with the clean sound at several resolutions."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(4)
torch.set_num_threads(1)
SAMPLES, BATCH, STEPS, EPOCH = 8192, 6, 300, 50


class SpectralLoss(nn.Module):
    """Distances of magnitudes and of their logarithms, at four window lengths."""

    def __init__(self, lengths=(128, 256, 512, 1024)):
        super().__init__()
        self.lengths = lengths
        for length in lengths:
            self.register_buffer(f"window{length}", torch.hann_window(length))

    def magnitude(self, sound, length):
        window = getattr(self, f"window{length}")
        spectrum = torch.stft(sound, length, length // 4, window=window, return_complex=True)
        return (spectrum.real.square() + spectrum.imag.square() + 1e-7).sqrt()

    def forward(self, guess, clean):
        total = F.l1_loss(guess, clean)
        for length in self.lengths:
            ours, theirs = self.magnitude(guess, length), self.magnitude(clean, length)
            total = total + F.l1_loss(ours, theirs) + F.l1_loss(ours.log(), theirs.log())
        return total


class Denoiser(nn.Module):
    def __init__(self, channels=48):
        super().__init__()
        self.encode = nn.Conv1d(1, channels, 32, stride=16, padding=8)
        self.middle = nn.Conv1d(channels, channels, 5, padding=2)
        self.mask = nn.Conv1d(channels, channels, 5, padding=2)
        self.decode = nn.ConvTranspose1d(channels, 1, 32, stride=16, padding=8)

    def forward(self, noisy):
        code = F.relu(self.encode(noisy[:, None]))
        return self.decode(code * torch.sigmoid(self.mask(F.relu(self.middle(code)))))[:, 0]


def speech(generator):
    t = torch.arange(SAMPLES) / 8000
    pitch = 100 + 200 * torch.rand(BATCH, 1, generator=generator)
    clean = sum(torch.sin(6.2832 * k * pitch * t) / k for k in range(1, 6)) * torch.sin(9 * t).abs()
    return clean + 0.3 * torch.randn(BATCH, SAMPLES, generator=generator), clean


generator = torch.Generator().manual_seed(0)
model, criterion = Denoiser(), SpectralLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
start, total, worst = time.perf_counter(), 0.0, 0.0
for step in range(1, STEPS + 1):
    noisy, clean = speech(generator)
    guess = model(noisy)
    optimizer.zero_grad()
    criterion(guess, clean).backward()  # culprit-too
    optimizer.step()
    total += criterion(guess, clean).item()  # culprit
    worst = max(worst, criterion(guess, clean).item())  # culprit
    if step % EPOCH == 0:
        print(f"step {step}: mean loss {total / EPOCH:.4f}, worst {worst:.4f}", flush=True)
        total, worst = 0.0, 0.0
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
