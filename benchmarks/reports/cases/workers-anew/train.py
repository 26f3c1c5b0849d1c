"""Pose estimation with short epochs; two loader processes make the heat maps."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
JOINTS, SIDE = 8, 24


class Poses(Dataset):
    def __init__(self, count):
        rng = np.random.default_rng(0)
        self.joints = rng.uniform(4, SIDE - 4, (count, JOINTS, 2)).astype(np.float32)
        self.index = {f"person{i:05}": [float(v) for v in self.joints[i].ravel()] for i in range(count)}
        self.axis = np.arange(SIDE, dtype=np.float32)

    def __len__(self):
        return len(self.joints)

    def __getitem__(self, i):
        x, y = self.joints[i, :, 0, None, None], self.joints[i, :, 1, None, None]
        maps = np.exp(-((self.axis[None, None] - x) ** 2 + (self.axis[None, :, None] - y) ** 2) / 4)
        picture = maps.max(0, keepdims=True) + np.random.default_rng(i).normal(0, 0.1, (1, SIDE, SIDE))
        return torch.from_numpy(picture.astype(np.float32)), torch.from_numpy(maps)


class Net(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, JOINTS, 1),
        )

    def forward(self, x):
        return self.net(x)


def main():
    loader = DataLoader(Poses(160), batch_size=20, shuffle=True, num_workers=2)  # culprit
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [25, 35], 0.1)
    start, done = time.perf_counter(), 0
    for epoch in range(40):
        for picture, maps in loader:  # culprit-too
            loss = nn.functional.mse_loss(model(picture), maps)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
        schedule.step()
        if epoch % 10 == 9:
            print(f"epoch {epoch + 1}: loss {loss.item():.5f} lr {schedule.get_last_lr()[0]:.0e}", flush=True)
    print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")


if __name__ == "__main__":
    main()
