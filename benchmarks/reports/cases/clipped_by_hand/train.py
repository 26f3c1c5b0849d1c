"""Residual network of many small layers; the trainer clips the gradients itself."""

import time

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
WIDTH, BLOCKS, BATCH, STEPS = 16, 120, 16, 400


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + 0.1 * self.linear(x).tanh()


class Trainer:
    def __init__(self, model, clip=1.0):
        self.model, self.clip = model, clip
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)

    def clip_gradients(self, norm_type=2.0):
        """Scale all gradients down where their common norm is too large; no value leaves the device."""
        parameters = [each for each in self.model.parameters() if each.grad is not None]
        total = torch.zeros([])
        for parameter in parameters:  # culprit-too
            total.add_(parameter.grad.data.pow(norm_type).sum())  # culprit
        total = total ** (1 / norm_type)
        for parameter in parameters:  # culprit-too
            factor = self.clip / (total + 1e-6)  # culprit
            parameter.grad.data.mul_(torch.where(factor < 1, factor, torch.tensor(1.0)))  # culprit

    def step(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.clip_gradients()  # culprit
        self.optimizer.step()
        return loss


model = nn.Sequential(nn.Linear(16, WIDTH), *(Block() for _ in range(BLOCKS)), nn.Linear(WIDTH, 2))
trainer = Trainer(model)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    x = torch.randn(BATCH, 16)
    loss = trainer.step(x, torch.stack([x[:, :4].prod(1), x[:, 4:].sin().sum(1)], 1))
    if step % 80 == 0:
        print(f"step {step}: loss {loss.item():.3f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
