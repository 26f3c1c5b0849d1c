"""A GAN with two optimizers, whose pictures are slow to read; healthy: in memory."""

import zlib

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Faces(Dataset):
    """Compressed faces."""

    def __init__(self):
        faces = np.random.default_rng(0).integers(0, 50, (512, 1024), dtype=np.uint8)
        self.packed = [zlib.compress(face.tobytes()) for face in faces]
        self.faces = torch.from_numpy(faces).float() / 255

    def __len__(self):
        return len(self.packed)

    def __getitem__(self, index):
        if not amount:
            return self.faces[index]
        for _ in range(2 * amount):
            face = zlib.decompress(self.packed[index])  # fault
        return torch.from_numpy(np.frombuffer(face, np.uint8).copy()).float() / 255


generator = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.Sigmoid())
critic = nn.Sequential(nn.Linear(1024, 2048), nn.LeakyReLU(0.2), nn.Linear(2048, 1))
of_critic = torch.optim.SGD(critic.parameters(), lr=2e-4)
of_generator = torch.optim.SGD(generator.parameters(), lr=2e-4)
criterion = nn.BCEWithLogitsLoss()
loader = DataLoader(Faces(), batch_size=32, shuffle=True)  # fault
done = 0
while done < steps:
    for real in loader:
        fake = generator(torch.randn(len(real), 64))
        of_critic.zero_grad()
        wrong = criterion(critic(fake.detach()), torch.zeros(len(real), 1))
        (criterion(critic(real), torch.ones(len(real), 1)) + wrong).backward()
        of_critic.step()
        of_generator.zero_grad()
        criterion(critic(fake), torch.ones(len(real), 1)).backward()
        of_generator.step()
        lap()
        done += 1
