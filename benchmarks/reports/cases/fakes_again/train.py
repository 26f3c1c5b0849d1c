"""Generation of small pictures: a generator, a critic, and a sheet of samples for the log."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
NOISE, SIDE, BATCH, STEPS = 32, 32, 12, 140


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.seed = nn.Linear(NOISE, 64 * 8 * 8)
        self.body = nn.Sequential(
            nn.Conv2d(64, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(64, 48, 3, padding=1), nn.GroupNorm(8, 48), nn.ReLU(), nn.Upsample(scale_factor=2),
            nn.Conv2d(48, 24, 3, padding=1), nn.ReLU(), nn.Conv2d(24, 3, 3, padding=1), nn.Tanh(),
        )

    def forward(self, noise):
        return self.body(self.seed(noise).unflatten(1, (64, 8, 8)))


class Critic(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 32, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(32 * 8 * 8, 1),
        )


def pictures():
    small = torch.rand(BATCH, 3, 4, 4) * 2 - 1
    return F.interpolate(small, SIDE, mode="bilinear")


class Adversaries:
    def __init__(self):
        self.generator, self.critic = Generator(), Critic()
        self.learn = torch.optim.Adam(self.generator.parameters(), lr=1e-4, betas=(0.5, 0.999))
        self.judge = torch.optim.Adam(self.critic.parameters(), lr=1e-4, betas=(0.5, 0.999))

    def training_step(self, real):
        noise = torch.randn(len(real), NOISE)
        self.sheet = self.generator(noise)[:6].detach()  # culprit
        fake = self.generator(noise).detach()  # culprit
        wrong = F.softplus(-self.critic(real)).mean() + F.softplus(self.critic(fake)).mean()
        self.judge.zero_grad()
        wrong.backward()
        self.judge.step()
        self.critic.requires_grad_(False)
        loss = F.softplus(-self.critic(self.generator(noise))).mean()  # culprit-too
        self.learn.zero_grad()
        loss.backward()
        self.learn.step()
        self.critic.requires_grad_(True)
        return wrong, loss


adversaries = Adversaries()
start = time.perf_counter()
for step in range(1, STEPS + 1):
    wrong, loss = adversaries.training_step(pictures())
    if step % 35 == 0:
        spread = adversaries.sheet.std().item()
        print(f"step {step}: critic {wrong.item():.4f}, generator {loss.item():.4f}, sheet {spread:.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
