"""Gravitational waves: signals of two detectors are whitened, made noisy and given to an embedding network."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
np.random.seed(0)
BINS, DETECTORS, BATCH = 6000, 2, 48
frequencies = np.linspace(20.0, 1024.0, BINS, dtype=np.float32)
asd = 1.0 + (60.0 / frequencies) ** 4 + (frequencies / 500.0) ** 2


def waveform(mass, phase):
    f = np.linspace(20.0, 1024.0, BINS)
    wave = (f / 20.0) ** (-7 / 6) * np.exp(1j * (phase + 0.6 * mass * (f / 20.0) ** (-5 / 3)))
    return (20 * wave).astype(np.complex64)


class Waveforms(Dataset):
    def __init__(self, n=400):
        self.targets = np.random.rand(n, 2).astype(np.float32)
        self.waves = np.stack([waveform(20 + 40 * m, 6 * p) for m, p in self.targets])

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, index):
        return repacked(noisy(whitened(projected(self.waves[index])))), self.targets[index]


def projected(wave):
    shifts = np.random.rand(DETECTORS, 1).astype(np.float32) * np.float32(0.02)
    angles = np.float32(-2 * np.pi) * frequencies * shifts
    return wave * torch.polar(torch.ones(DETECTORS, BINS), torch.from_numpy(angles)).numpy()


def whitened(strain):
    return strain / asd


def noisy(strain):
    return strain + torch.randn(DETECTORS, BINS, 2).numpy().view(np.complex64)[:, :, 0]


def repacked(strain):
    return torch.from_numpy(np.concatenate([strain.real, strain.imag]))


model = nn.Sequential(
    nn.Flatten(), nn.Linear(2 * DETECTORS * BINS, 64), nn.ELU(), nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 2)
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
loader = DataLoader(Waveforms(), batch_size=BATCH, shuffle=True, drop_last=True)
start, step, STEPS = time.perf_counter(), 0, 120
while step < STEPS:
    for strain, wanted in loader:
        loss = nn.functional.mse_loss(model(strain), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
        if step == STEPS:
            break
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
