"""A head on features of a frozen backbone: the features of each picture lie in a file of their own."""

import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(1)
torch.set_num_threads(1)
PICTURES, CLASSES, BATCH, EPOCHS = 192, 6, 16, 20


def backbone():
    net = nn.Sequential(
        nn.Conv2d(3, 24, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2, padding=1), nn.ReLU(),
        nn.Conv2d(48, 64, 3, padding=1), nn.ReLU(),
    )
    return net.eval().requires_grad_(False)


def make_pictures(generator):
    labels = torch.randint(CLASSES, (PICTURES,), generator=generator)
    stripes = torch.sin(torch.arange(64) * (labels[:, None] + 1) / 4)
    noise = 0.7 * torch.randn(PICTURES, 3, 64, 64, generator=generator)
    return stripes[:, None, None, :] + noise, labels


def extract(net, pictures, folder, batch_size=48):
    """Runs the backbone once over all pictures and writes the map of each to a file."""
    for first in range(0, len(pictures), batch_size):
        with torch.no_grad():
            maps = net(pictures[first : first + batch_size])
        for offset, features in enumerate(maps):
            torch.save(features, folder / f"{first + offset:05d}.pt")  # culprit


class FeatureFiles(Dataset):
    def __init__(self, folder, labels):
        self.files, self.labels = sorted(folder.glob("*.pt")), labels

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        features = torch.load(self.files[i])  # culprit-too
        if torch.rand(()) < 0.5:
            features = features.flip(-1)
        return features, self.labels[i]


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.reduce = nn.Conv2d(64, 24, 1)
        self.mix = nn.Sequential(nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 32, 3, padding=1), nn.ReLU())
        self.classes = nn.Linear(32, CLASSES)

    def forward(self, maps):
        return self.classes(self.mix(self.reduce(maps)).mean((2, 3)))


def train(folder, labels):
    loader = DataLoader(FeatureFiles(folder, labels), batch_size=BATCH, shuffle=True)
    model = Head()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    start, steps = time.perf_counter(), 0
    for epoch in range(1, EPOCHS + 1):
        right = 0
        for maps, target in loader:
            logits = model(maps)
            loss = nn.functional.cross_entropy(logits, target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (logits.argmax(1) == target).sum().item()
            steps += 1
        if epoch % 4 == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f} right {right / PICTURES:.3f}", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


if __name__ == "__main__":
    pictures, labels = make_pictures(torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as name:
        extract(backbone(), pictures, Path(name))
        train(Path(name), labels)
