"""Embeddings of small tomographic volumes by triplets: an anchor, one of the same particle, one of another."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(8)
torch.set_num_threads(1)
PARTICLES, SIZE, TRIPLETS, STEPS = 20, 12, 4, 280


def make_particles(generator):
    shapes = torch.randn(PARTICLES, 1, SIZE // 2, SIZE // 2, SIZE // 2, generator=generator)
    return F.interpolate(shapes, size=(SIZE,) * 3, mode="trilinear")


class Triplets:
    """Noisy copies of particles, turned by quarters."""

    def __init__(self, particles, generator):
        self.particles, self.generator = particles, generator

    def volume(self, which):
        turns = int(torch.randint(4, (), generator=self.generator))
        clean = self.particles[which].rot90(turns, (2, 3))
        return clean + 0.5 * torch.randn(clean.shape, generator=self.generator)

    def batch(self):
        columns = []
        for _ in range(TRIPLETS):
            same, other = torch.randperm(PARTICLES, generator=self.generator)[:2].tolist()
            columns.append((self.volume(same), self.volume(same), self.volume(other)))
        anchor, positive, negative = (torch.stack(column) for column in zip(*columns))
        return {"anchor": anchor, "positive": positive, "negative": negative}


class Embedder(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv3d(1, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.LeakyReLU(),
            nn.Conv3d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.LeakyReLU(),
        )
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(32 * 27, 1024), nn.LeakyReLU(), nn.Linear(1024, 1024), nn.LeakyReLU(),
            nn.Linear(1024, width),
        )

    def forward(self, volumes):
        return F.normalize(self.head(self.convolutions(volumes)), dim=1)


class Trainer:
    def __init__(self, model, data):
        self.model, self.data = model, data
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        self.criterion = nn.TripletMarginLoss(margin=0.5)

    def embed(self, batch):
        volumes = torch.cat([batch["anchor"], batch["positive"], batch["negative"]])
        return self.model(volumes).chunk(3)

    def step(self):
        anchor, positive, negative = self.embed(self.data.batch())
        loss = self.criterion(anchor, positive, negative)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


generator = torch.Generator().manual_seed(0)
trainer = Trainer(Embedder(), Triplets(make_particles(generator), generator))
start, total = time.perf_counter(), 0.0
for step in range(1, STEPS + 1):
    total += trainer.step().item()
    if step % 40 == 0:
        print(f"step {step}: mean loss {total / 40:.4f}", flush=True)
        total = 0.0
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
