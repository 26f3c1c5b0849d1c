"""Poses: heat maps of joints are the targets, drawn by the data set for each item."""

import math
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
SIZE, CELL, JOINTS, SIGMA, BATCH, IMAGES, EPOCHS = 96, 2, 14, 2.2, 8, 200, 8
REACH = math.sqrt(2 * 4.6052) * SIGMA


def put(heat, joint, center_x, center_y):
    """Draw a bell at the place of a joint, where it is above one hundredth."""
    height, width = heat.shape[1:]
    left, right = max(0, int(center_x - REACH)), min(width, int(center_x + REACH) + 1)
    top, bottom = max(0, int(center_y - REACH)), min(height, int(center_y + REACH) + 1)
    for y in range(top, bottom):  # culprit-too
        for x in range(left, right):  # culprit-too
            far = ((x - center_x) ** 2 + (y - center_y) ** 2) / (2 * SIGMA**2)  # culprit
            if far <= 4.6052:  # culprit-too
                heat[joint, y, x] = max(heat[joint, y, x], math.exp(-far))  # culprit


class Poses(Dataset):
    def __init__(self):
        rng = np.random.default_rng(0)
        self.joints = rng.uniform(10, SIZE - 10, (IMAGES, JOINTS, 2))
        self.images = rng.normal(0, 0.2, (IMAGES, 3, SIZE, SIZE)).astype(np.float32)
        for image, joints in zip(self.images, self.joints.astype(int)):
            for joint, (x, y) in enumerate(joints):
                image[joint % 3, y - 2 : y + 3, x - 2 : x + 3] += 1 + joint / JOINTS

    def __len__(self):
        return IMAGES

    def __getitem__(self, i):
        flip = torch.rand(()) < 0.5
        joints = self.joints[i].copy()
        image = self.images[i]
        if flip:
            image, joints[:, 0] = image[:, :, ::-1].copy(), SIZE - 1 - joints[:, 0]
        heat = np.zeros((JOINTS, SIZE // CELL, SIZE // CELL), np.float32)
        for joint, (x, y) in enumerate(joints / CELL):
            put(heat, joint, x, y)  # culprit
        return torch.from_numpy(image), torch.from_numpy(heat)


def network():
    layers, width = [nn.Conv2d(3, 16, 5, CELL, 2), nn.ReLU()], 16
    for _ in range(2):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, JOINTS, 1))


loader = DataLoader(Poses(), batch_size=BATCH, shuffle=True)
model = network()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
steps, start = 0, time.perf_counter()
for epoch in range(EPOCHS):
    for images, heat in loader:  # culprit-too
        loss = 100 * (model(images) - heat).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
