"""Energies and forces of small clusters of atoms from fingerprints, whose derivatives give the forces."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(4)
torch.set_num_threads(1)
CLUSTERS, FEATURES, BATCH, EPOCHS = 384, 12, 32, 28


class Clusters(Dataset):
    """Atoms in random places; fingerprints are sums of Gaussians of the distances, with their derivatives."""

    def __init__(self, generator):
        self.centers = torch.linspace(0.5, 3.0, FEATURES)
        atoms = torch.randint(5, 12, (CLUSTERS,), generator=generator).tolist()
        self.items = [self.describe(torch.rand(n, 3, generator=generator) * 2.5) for n in atoms]

    def fingerprints(self, places):
        away = (places[:, None] - places).square().sum(2).add(1e-6).sqrt()
        mask = 1 - torch.eye(len(places))
        return (torch.exp(-2 * (away[:, :, None] - self.centers).square()) * mask[:, :, None]).sum(1)

    def describe(self, places):
        atoms = len(places)
        primes = torch.autograd.functional.jacobian(self.fingerprints, places)
        primes = primes.reshape(atoms * FEATURES, atoms * 3)
        places = places.requires_grad_()
        pairs = (places[:, None] - places).square().sum(2)
        energy = (1 / (0.5 + pairs)).sum() / 2
        (slope,) = torch.autograd.grad(energy, places)
        return self.fingerprints(places).detach(), primes, energy.detach(), -slope

    def __len__(self):
        return CLUSTERS

    def __getitem__(self, i):
        return self.items[i]


def factorize(items):
    """One batch of all atoms; the derivatives become the blocks of one large matrix."""
    fingerprints, primes, energies, forces = zip(*items)
    owner = torch.repeat_interleave(torch.arange(len(items)), torch.tensor([len(f) for f in fingerprints]))
    joined = torch.zeros(0, 0)
    for block in primes:
        right = torch.zeros(len(joined), block.shape[1])  # culprit-too
        below = torch.zeros(len(block), joined.shape[1])  # culprit-too
        joined = torch.cat([torch.cat([joined, right], 1), torch.cat([below, block], 1)])  # culprit
    return torch.cat(fingerprints), joined, owner, torch.stack(energies), torch.cat(forces)


class Potential(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(FEATURES, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, fingerprints, primes, owner, count):
        fingerprints = fingerprints.requires_grad_()
        energies = torch.zeros(count).index_add(0, owner, self.net(fingerprints).squeeze(1))
        (slope,) = torch.autograd.grad(energies.sum(), fingerprints, create_graph=True)
        return energies, -(slope.reshape(1, -1) @ primes).reshape(-1, 3)


clusters = Clusters(torch.Generator().manual_seed(1))
loader = DataLoader(clusters, batch_size=BATCH, shuffle=True, collate_fn=factorize)  # culprit-too
model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
start, steps = time.perf_counter(), 0
for epoch in range(1, EPOCHS + 1):
    for fingerprints, primes, owner, energies, forces in loader:
        predicted, pulled = model(fingerprints, primes, owner, len(energies))
        loss = nn.functional.mse_loss(predicted, energies) + 0.1 * nn.functional.mse_loss(pulled, forces)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    if epoch % 7 == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
