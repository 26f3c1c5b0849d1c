"""An interatomic potential: messages between atoms give the energy, its gradient at the positions the forces."""

import resource
import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
MOLECULES, ATOMS, KINDS, WIDTH, RADII = 20, 12, 4, 24, 12
pairs = torch.cartesian_prod(torch.arange(ATOMS), torch.arange(ATOMS))
pairs = pairs[pairs[:, 0] != pairs[:, 1]]
receivers, senders = (pairs + ATOMS * torch.arange(MOLECULES)[:, None, None]).flatten(0, 1).T


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.kinds = nn.Embedding(KINDS, WIDTH)
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(RADII, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(2)
        )
        self.updates = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(2))
        self.energy = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))
        self.register_buffer("centres", torch.linspace(0, 5, RADII))

    def forward(self, kinds, positions):
        h = self.kinds(kinds)
        length = (positions[receivers] - positions[senders]).pow(2).sum(1, keepdim=True).add(1e-6).sqrt()
        radial = torch.exp(-4 * (length - self.centres) ** 2)
        for weigh, update in zip(self.filters, self.updates, strict=True):
            messages = torch.zeros_like(h).index_add(0, receivers, h[senders] * weigh(radial))
            h = h + update(messages)
        return self.energy(h).view(MOLECULES, ATOMS).sum(1)


def truth(kinds, positions):
    gaps = positions[receivers] - positions[senders]
    squared = gaps.pow(2).sum(1, keepdim=True) + 1.0
    forces = torch.zeros_like(positions).index_add(0, receivers, gaps / squared**2)
    return (0.25 / squared).view(MOLECULES, -1).sum(1), forces


def forces_of(predicted, positions):
    return -torch.autograd.grad(predicted.sum(), positions, create_graph=True)[0]


def batch():
    kinds, positions = torch.randint(KINDS, (MOLECULES * ATOMS,)), torch.randn(MOLECULES * ATOMS, 3) * 1.5
    return kinds, positions.requires_grad_(), *truth(kinds, positions.detach())


def validate(model, optimizer):
    errors = []
    for kinds, positions, _, forces in held_out:
        positions = positions.detach().requires_grad_()
        errors.append(F.l1_loss(forces_of(model(kinds, positions), positions), forces).item())
        optimizer.zero_grad()
    return sum(errors) / len(errors)


model = Potential()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
held_out = [batch() for _ in range(2)]
start, STEPS = time.perf_counter(), 600
for step in range(1, STEPS + 1):
    kinds, positions, energy, forces = batch()
    predicted = model(kinds, positions)
    pulled = forces_of(predicted, positions)
    optimizer.zero_grad()
    loss = F.mse_loss(predicted, energy) + 10 * F.mse_loss(pulled, forces)
    loss.backward()
    optimizer.step()
    if step % 20 == 0:
        error = validate(model, optimizer)
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"step {step}: loss {loss.item():.4f}, error of forces {error:.4f}, {held} MiB", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
