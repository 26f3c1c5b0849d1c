"""Masks for images: files of images and masks are found by their number."""
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def make(folder, count):
    for kind in ("images", "masks"):
        (folder / kind).mkdir()
    for number in range(count):
        torch.save(torch.randn(3, 24, 24), folder / "images" / f"{number:05d}_scan.pt")
        torch.save((torch.rand(24, 24) < 0.5).float(), folder / "masks" / f"{number:05d}_mask.pt")


class Scans(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.images = {each.name.split("_")[0]: each for each in (folder / "images").iterdir()}
        self.masks = {each.name.split("_")[0]: each for each in (folder / "masks").iterdir()}
        self.names = sorted(self.images)

    def __len__(self):
        return len(self.names)

    def __getitem__(self, i):
        name = self.names[i]
        return torch.load(self.images[name]), torch.load(self.masks[name])


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, 900)
        loader = DataLoader(Scans(folder), batch_size=8, shuffle=True)
        net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
                            nn.Conv2d(32, 1, 1))
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        for step, (image, mask) in enumerate(loader):
            loss = nn.functional.binary_cross_entropy_with_logits(net(image).squeeze(1), mask)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if step % 20 == 0:
                print(f"{step}: {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
