"""An image GAN with a convolutional generator and a small discriminator."""

import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
LATENT, BATCH, STEPS = 64, 16, 150


class Generator(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.start = nn.Linear(LATENT, width * 16)
        self.width = width
        up = lambda a, b: nn.Sequential(
            nn.Upsample(scale_factor=2), nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()
        )
        self.net = nn.Sequential(
            up(width, width),
            up(width, 32),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 1, 3, padding=1),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.net(self.start(z).view(len(z), self.width, 4, 4))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(16, 32, 4, 2, 1),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            nn.Linear(32 * 16, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(1)


def real_pictures():
    grid = torch.linspace(-1, 1, 16)
    centre = torch.rand(BATCH, 2, 1, 1) - 0.5
    return (
        torch.exp(-8 * ((grid[None, :, None] - centre[:, 0]) ** 2 + (grid[None, None] - centre[:, 1]) ** 2))[:, None]
        * 2
        - 1
    )


netG, netD = Generator(), Discriminator()
optG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))
optD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
criterion, fixed_noise = nn.BCEWithLogitsLoss(), torch.randn(8, LATENT)
ones, zeros = torch.ones(BATCH), torch.zeros(BATCH)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    # two updates of the discriminator for one of the generator
    for _ in range(2):
        optD.zero_grad()
        fake = netG(torch.randn(BATCH, LATENT))
        lossD = criterion(netD(real_pictures()), ones) + criterion(netD(fake.detach()), zeros)
        lossD.backward()
        optD.step()
    optG.zero_grad()
    fake = netG(torch.randn(BATCH, LATENT))
    lossG = criterion(netD(fake), ones)
    lossG.backward()
    optG.step()
    if step % 25 == 0:
        netG.eval()
        with torch.no_grad():
            spread = netG(fixed_noise).std().item()
        netG.train()
        print(f"step {step}: D {lossD.item():.3f} G {lossG.item():.3f} spread {spread:.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
