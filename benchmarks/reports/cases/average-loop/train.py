"""A deep convolution-like net with batch norms, trained with an exponential moving average of its weights."""

import copy
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)


class Unit(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix, self.norm, self.act = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width), nn.SiLU()

    def forward(self, x):
        return x + self.act(self.norm(self.mix(x)))


class Net(nn.Module):
    def __init__(self, depth=90, width=32):
        super().__init__()
        self.stem, self.units, self.head = (
            nn.Linear(20, width),
            nn.Sequential(*(Unit(width) for _ in range(depth))),
            nn.Linear(width, 5),
        )

    def forward(self, x):
        return self.head(self.units(self.stem(x)))


class Average:
    def __init__(self, model, decay=0.999, tau=200):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.updates, self.decay = 0, lambda n: decay * (1 - math.exp(-n / tau))

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        d = self.decay(self.updates)
        state = model.state_dict()  # culprit-too
        for key, value in self.model.state_dict().items():  # culprit-too
            if value.dtype.is_floating_point:
                value *= d  # culprit
                value += (1 - d) * state[key].detach()  # culprit


x = torch.randn(4096, 20)
y = (x[:, :5] + 0.3 * torch.randn(4096, 5)).argmax(1)
loader = DataLoader(TensorDataset(x[:3584], y[:3584]), batch_size=128, shuffle=True)
model = Net()
average = Average(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=168)
start, done = time.perf_counter(), 0
for epoch in range(6):
    model.train()
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb, label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        average.update(model)
        done += 1
    with torch.no_grad():
        right = (average.model(x[3584:]).argmax(1) == y[3584:]).float().mean().item()
    print(f"epoch {epoch}: loss {loss.item():.3f} averaged model {right:.3f}", flush=True)
print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")
