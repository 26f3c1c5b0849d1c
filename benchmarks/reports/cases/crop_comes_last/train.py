"""Segmentation of vessels in scans whose voxels differ in size; patches of one spacing go into a small U-Net."""

import random
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SCANS, BATCH, PATCH, SPACING, EPOCHS = 20, 2, 24, 1.0, 18


class Scan:
    """A volume with its label and the millimetres between its voxels."""

    def __init__(self, image, label, spacing):
        self.image, self.label, self.spacing = image, label, spacing

    def each(self, function):
        return Scan(function(self.image, "trilinear"), function(self.label, "nearest"), self.spacing)


class ScaleIntensity:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def __call__(self, scan):
        image = ((scan.image - self.low) / (self.high - self.low)).clamp(0, 1)
        return Scan(image, scan.label, scan.spacing)


class Spacing:
    """Resamples a scan so that its voxels are of the wanted size."""

    def __init__(self, wanted):
        self.wanted = wanted

    def __call__(self, scan):
        size = [round(length * scan.spacing / self.wanted) for length in scan.image.shape[1:]]
        done = scan.each(lambda volume, mode: F.interpolate(volume[None], size, mode=mode)[0])
        done.spacing = self.wanted
        return done


class RandomCrop:
    """Cuts a cube of some millimetres."""

    def __init__(self, edge):
        self.edge = edge

    def __call__(self, scan):
        edge = round(self.edge / scan.spacing)
        corner = [random.randint(0, length - edge) for length in scan.image.shape[1:]]
        x, y, z = (slice(at, at + edge) for at in corner)
        return scan.each(lambda volume, _: volume[:, x, y, z])


class RandomFlip:
    def __call__(self, scan):
        axes = [axis for axis in (1, 2, 3) if random.random() < 0.5]
        return scan.each(lambda volume, _: volume.flip(axes)) if axes else scan


class Pipeline:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, scan):
        for step in self.steps:
            scan = step(scan)  # culprit-too
        return scan


class Scans(Dataset):
    def __init__(self, scans, pipeline):
        self.scans, self.pipeline = scans, pipeline

    def __len__(self):
        return len(self.scans)

    def __getitem__(self, i):
        scan = self.pipeline(self.scans[i])  # culprit-too
        return scan.image, scan.label


class SmallUNet(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, width, 3, padding=1), nn.ReLU())
        self.low = nn.Sequential(nn.MaxPool3d(2), nn.Conv3d(width, 2 * width, 3, padding=1), nn.ReLU())
        self.back = nn.ConvTranspose3d(2 * width, width, 2, 2)
        self.last = nn.Conv3d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        fine = self.first(x)
        return self.last(torch.cat([fine, self.back(self.low(fine))], dim=1))


def acquire(number):
    generator = torch.Generator().manual_seed(number)
    edge = 60 + 4 * (number % 4)
    grid = torch.stack(torch.meshgrid(*[torch.linspace(-1, 1, edge)] * 3, indexing="ij"))
    along = F.normalize(torch.randn(3, generator=generator), dim=0)
    through = 0.6 * torch.rand(3, generator=generator) - 0.3
    offset = grid - through.view(3, 1, 1, 1)
    distance = torch.linalg.cross(offset, along.view(3, 1, 1, 1).expand_as(offset), dim=0).norm(dim=0)
    label = (distance < 0.25).float()[None]
    image = 100 * label + 60 * torch.randn(label.shape, generator=generator)
    return Scan(image, label, 96 / edge)


def dice_loss(logits, labels):
    chance = logits.sigmoid()
    return 1 - (2 * (chance * labels).sum() + 1) / (chance.sum() + labels.sum() + 1)


def main():
    torch.manual_seed(0)
    random.seed(0)
    torch.set_num_threads(1)
    pipeline = Pipeline([ScaleIntensity(-100, 250), Spacing(SPACING), RandomFlip(), RandomCrop(PATCH)])  # culprit
    loader = DataLoader(Scans([acquire(i) for i in range(SCANS)], pipeline), batch_size=BATCH, shuffle=True)
    net = SmallUNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    steps, start = 0, time.perf_counter()
    for epoch in range(EPOCHS):
        for images, labels in loader:
            logits = net(images)
            loss = dice_loss(logits, labels) + F.binary_cross_entropy_with_logits(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        if epoch % 6 == 5:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


main()
