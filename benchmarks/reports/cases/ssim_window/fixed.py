"""Removal of rain from pictures, judged by their structural similarity to the dry ones."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
SIDE, BATCH, STEPS, WINDOW = 96, 4, 120, 21


def bell(size, sigma=3.5):
    offsets = torch.arange(size) - size // 2
    weights = torch.exp(-(offsets**2) / (2 * sigma**2))
    return weights / weights.sum()


class Similarity(nn.Module):
    """One minus the structural similarity of two batches of colour pictures."""

    def __init__(self, window):
        super().__init__()
        row = bell(window)
        self.register_buffer("kernel", row.expand(3, 1, 1, -1).contiguous())

    def blur(self, pictures):
        along = F.conv2d(pictures, self.kernel, groups=3)
        return F.conv2d(along, self.kernel.transpose(2, 3), groups=3)

    def forward(self, one, other):
        mean1, mean2 = self.blur(one), self.blur(other)
        var1 = self.blur(one * one) - mean1**2
        var2 = self.blur(other * other) - mean2**2
        both = self.blur(one * other) - mean1 * mean2
        brightness = (2 * mean1 * mean2 + 1e-4) / (mean1**2 + mean2**2 + 1e-4)
        return 1 - (brightness * (2 * both + 9e-4) / (var1 + var2 + 9e-4)).mean()


class Dryer(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, pictures):
        return torch.sigmoid(self.layers(pictures))


def pictures():
    """Smooth colours, and the same behind streaks of rain."""
    dry = F.interpolate(torch.rand(BATCH, 3, 8, 8), size=SIDE, mode="bilinear")
    drops = torch.rand(BATCH, 1, SIDE // 12, SIDE).gt(0.9).float().repeat_interleave(12, 2)
    return dry, (dry + 0.5 * drops).clamp(0, 1)


dryer, criterion = Dryer(), Similarity(WINDOW)
optimizer = torch.optim.Adam(dryer.parameters(), 3e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    dry, wet = pictures()
    cleaned = dryer(wet)
    loss = criterion(cleaned, dry) + F.l1_loss(cleaned, dry)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 30 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
