"""Segmentation of volumes; the loaded volumes are cached in memory, crops are random."""

import copy
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
SIZE, CROP = 64, 16


def load(i):
    """One volume with its label, as if read from disk."""
    generator = torch.Generator().manual_seed(i)
    image = torch.randn(1, SIZE, SIZE, SIZE, generator=generator)
    return {
        "image": image,
        "label": (image > 0.8).float(),
        "meta": {"name": f"case{i:03}", "spacing": [1.0, 1.0, 2.5], "affine": torch.eye(4)},
    }


class Scale:
    random = False

    def __call__(self, data):
        data["image"] = (data["image"] - data["image"].mean()) / data["image"].std()
        return data


class RandomCrop:
    random = True

    def __call__(self, data):
        z, y, x = torch.randint(0, SIZE - CROP, (3,)).tolist()
        for key in ("image", "label"):
            data[key] = data[key][:, z : z + CROP, y : y + CROP, x : x + CROP]
        return data


class RandomFlip:
    random = True

    def __call__(self, data):
        if torch.rand(()) < 0.5:
            for key in ("image", "label"):
                data[key] = data[key].flip(-1)
        return data


class CachedDataset(Dataset):
    """Applies what is not random once, and what is random at each access."""

    def __init__(self, count, transforms):
        self.fixed = [t for t in transforms if not t.random]
        self.random = [t for t in transforms if t.random]
        self.cache = []
        for i in range(count):
            item = load(i)
            for t in self.fixed:
                item = t(item)
            self.cache.append(item)

    def __len__(self):
        return len(self.cache)

    def __getitem__(self, i):
        item = copy.deepcopy(self.cache[i])  # culprit
        for t in self.random:
            item = t(item)
        return item["image"], item["label"]


class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv3d(1, width, 3, 2, 1),
            nn.InstanceNorm3d(width),
            nn.PReLU(),
            nn.Conv3d(width, 2 * width, 3, 2, 1),
            nn.PReLU(),
        )
        self.up = nn.Sequential(
            nn.ConvTranspose3d(2 * width, width, 2, 2), nn.PReLU(), nn.ConvTranspose3d(width, 1, 2, 2)
        )

    def forward(self, x):
        return self.up(self.down(x))


def dice_ce(logits, label):
    p = logits.sigmoid()
    overlap = 2 * (p * label).sum((1, 2, 3, 4)) / (p.sum((1, 2, 3, 4)) + label.sum((1, 2, 3, 4)) + 1)
    return 1 - overlap.mean() + nn.functional.binary_cross_entropy_with_logits(logits, label)


loader = DataLoader(CachedDataset(24, [Scale(), RandomCrop(), RandomFlip()]), batch_size=8, shuffle=True)
net = Net()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
start, done = time.perf_counter(), 0
for epoch in range(60):
    for image, label in loader:
        loss = dice_ce(net(image), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
    if epoch % 15 == 14:
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}", flush=True)
print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")
