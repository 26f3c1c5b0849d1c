"""A compiled model waits for slow items; healthy: fast ones. Compiled, with a loader."""

import numpy as np
import torch
from stopwatch import amount, lap, steps
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Spectra(Dataset):
    """Sounds, of which the spectrum is computed when they are read."""

    def __init__(self):
        self.sounds = np.random.default_rng(0).normal(size=(1024, 1024)).astype(np.float32)

    def __len__(self):
        return len(self.sounds)

    def __getitem__(self, index):
        sound = self.sounds[index]
        spectrum = sound[:513]
        for _ in range(amount):
            spectrum = np.abs(np.fft.rfft(sound)).astype(np.float32)  # fault
        return torch.from_numpy(spectrum), index % 10


model = nn.Sequential(nn.Linear(513, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10))
compiled = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Spectra(), batch_size=32, shuffle=True)  # fault
done = 0
while done < steps:
    for spectra, labels in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(compiled(spectra), labels)
        loss.backward()
        optimizer.step()
        lap()
        done += 1
