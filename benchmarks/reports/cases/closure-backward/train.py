"""A physics-informed network: Burgers' equation, trained by L-BFGS through a small trainer."""

import itertools
import time

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, INSIDE, EDGE = 48, 2500, 200


class Burgers(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [2, WIDTH, WIDTH, WIDTH, 1]
        layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.Tanh())]
        self.layers = nn.Sequential(*layers[:-1])

    def residual(self, points):
        points.requires_grad_()
        u = self.layers(points)
        first = torch.autograd.grad(u.sum(), points, create_graph=True)[0]
        u_x, u_t = first[:, :1], first[:, 1:]
        u_xx = torch.autograd.grad(u_x.sum(), points, create_graph=True)[0][:, :1]
        return u_t + u * u_x - 0.01 / torch.pi * u_xx

    def training_step(self, batch):
        inside, edge, wanted = batch
        return self.residual(inside).pow(2).mean() + (self.layers(edge) - wanted).pow(2).mean()


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.loss = model, optimizer, None

    def forward_backward(self, batch):
        self.optimizer.zero_grad()
        self.loss = self.model.training_step(batch)
        self.loss.backward()
        return self.loss

    def run_batch(self, batch):
        loss = self.forward_backward(batch)  # culprit
        self.optimizer.step(lambda: self.forward_backward(batch))  # culprit-too
        return loss.item()


def points():
    inside = torch.rand(INSIDE, 2) * torch.tensor([2.0, 1.0]) - torch.tensor([1.0, 0.0])
    edge = torch.rand(EDGE, 2) * torch.tensor([2.0, 0.0]) - torch.tensor([1.0, 0.0])
    return inside, edge, -torch.sin(torch.pi * edge[:, :1])


model = Burgers()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2, history_size=20)
trainer, batch = Trainer(model, optimizer), points()
start, STEPS = time.perf_counter(), 180
for step in range(1, STEPS + 1):
    loss = trainer.run_batch(batch)
    if step % 20 == 0:
        print(f"step {step}: loss {loss:.6f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
