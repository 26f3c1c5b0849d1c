"""Classification of photographs: large originals lie on disk, the network wants small ones."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(5)
torch.set_num_threads(1)
HEIGHT, WIDTH, SMALL, PHOTOS, CLASSES, BATCH, EPOCHS = 480, 640, 64, 120, 6, 8, 12


def take_photos(folder):
    rng = np.random.default_rng(0)
    ys, xs = np.mgrid[:HEIGHT, :WIDTH]
    for i in range(PHOTOS):
        label = i % CLASSES
        wave = np.sin((xs * (label + 1) + ys * (CLASSES - label)) / 60 + rng.uniform(0, 6))
        photo = (127 + 80 * wave[..., None] * rng.uniform(0.5, 1, 3)).astype(np.uint8)
        np.save(folder / f"{i:04}_{label}.npy", photo)


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, value):
        for transform in self.transforms:
            value = transform(value)
        return value


def load(path):
    return torch.from_numpy(np.load(path)).permute(2, 0, 1)


def resize(image):
    return F.interpolate(image[None].float(), (SMALL, SMALL), mode="bilinear", antialias=True)[0]


def flip(image):
    return image.flip(-1) if torch.rand(()) < 0.5 else image


def normalize(image):
    return (image - 127.5) / 64


class Photos(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.npy"))
        self.small = {}
        self.read, self.transform = Compose(load, resize), Compose(flip, normalize)

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        path = self.paths[i]
        if i not in self.small:
            self.small[i] = self.read(path)
        return self.transform(self.small[i]), int(path.stem.split("_")[1])


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return F.relu(x + self.body(x))


def network():
    layers = [nn.Conv2d(3, 24, 5, 4, 2), nn.ReLU(), Residual(24), Residual(24), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, Residual(48), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, CLASSES))


def train(folder):
    loader = DataLoader(Photos(folder), batch_size=BATCH, shuffle=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    steps, start = 0, time.perf_counter()
    for epoch in range(EPOCHS):
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
        if epoch % 3 == 2:
            print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


with tempfile.TemporaryDirectory() as place:
    take_photos(Path(place))
    train(Path(place))
