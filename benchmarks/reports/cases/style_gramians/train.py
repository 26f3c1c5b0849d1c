"""Texture network: a small network repaints pictures in the style of one painting."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
SIDE, STYLE_SIDE, BATCH, STEPS = 48, 192, 2, 240


class Features(nn.Module):
    """A fixed network that describes pictures at three scales."""

    def __init__(self):
        super().__init__()
        widths = (3, 16, 32, 48)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:]))
        self.requires_grad_(False)

    def forward(self, x):
        found = []
        for layer in self.layers:
            x = F.relu(layer(x))
            found.append(x)
            x = F.avg_pool2d(x, 2)
        return found


def gram(features):
    count, channels, height, width = features.shape
    flat = features.reshape(count, channels, height * width)
    return flat @ flat.transpose(1, 2) / (channels * height * width)


class StyleLoss(nn.Module):
    def __init__(self, features, painting):
        super().__init__()
        self.features = features
        self.register_buffer("painting", painting)

    def forward(self, repainted, pictures):
        ours, theirs = self.features(repainted), self.features(pictures)
        style = self.features(self.painting)  # culprit
        loss = (ours[1] - theirs[1]).square().mean()
        for our, wanted in zip(ours, style):
            loss = loss + 300 * (gram(our) - gram(wanted)).square().sum((1, 2)).mean()  # culprit-too
        return loss


class Painter(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 24, 5, padding=2)
        self.middle = nn.Conv2d(24, 24, 3, padding=1)
        self.last = nn.Conv2d(24, 3, 5, padding=2)

    def forward(self, x):
        return x + self.last(F.relu(self.middle(F.relu(self.first(x)))))


def pictures(count, side):
    small = torch.rand(count, 3, side // 8, side // 8)
    return F.interpolate(small, side, mode="bilinear")


painting = torch.sin(40 * pictures(1, STYLE_SIDE))
painter = Painter()
criterion = StyleLoss(Features(), painting)
optimizer = torch.optim.Adam(painter.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    batch = pictures(BATCH, SIDE)
    loss = criterion(painter(batch), batch)  # culprit-too
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
