"""Depth from pictures: trained on small crops, checked on whole pictures after every epoch."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(5)
torch.set_num_threads(1)
CROP, HEIGHT, WIDTH, BATCH, CHECKED, EPOCHS, STEPS = 40, 320, 448, 12, 2, 6, 25


class Depth(nn.Module):
    def __init__(self, channels=24, depth=5):
        super().__init__()
        self.enter = nn.Conv2d(3, channels, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.GroupNorm(4, channels), nn.SiLU())
            for _ in range(depth)
        )
        self.leave = nn.Conv2d(channels, 1, 1)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = x + block(x)
        return F.softplus(self.leave(x))


def scene(count, height, width, generator):
    coarse = torch.rand(count, 1, height // 8, width // 8, generator=generator)
    depth = F.interpolate(coarse, (height, width), mode="bilinear")
    light = torch.rand(count, 3, 1, 1, generator=generator)
    return light * (1 - depth) + 0.1 * torch.randn(count, 3, height, width, generator=generator), depth


class Trainer:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)
        self.model = Depth()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.whole = scene(CHECKED, HEIGHT, WIDTH, torch.Generator().manual_seed(1))

    def train_epoch(self):
        self.model.train()
        for _ in range(STEPS):
            picture, depth = scene(BATCH, CROP, CROP, self.generator)
            loss = F.l1_loss(self.model(picture), depth)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def valid_epoch(self):
        self.model.eval()
        picture, depth = self.whole
        guess = self.model(picture)
        error = (guess - depth).abs()
        return error.mean().item(), (error / depth.clamp_min(0.1)).mean().item()

    def train(self):
        for epoch in range(1, EPOCHS + 1):
            self.train_epoch()
            error, relative = self.valid_epoch()
            if epoch % 2 == 0:
                print(f"epoch {epoch}: error {error:.4f} relative {relative:.4f}", flush=True)


trainer = Trainer()
start = time.perf_counter()
trainer.train()
done = EPOCHS * STEPS
print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")
