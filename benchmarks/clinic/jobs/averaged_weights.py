"""A moving average of the weights, parameter by parameter; healthy: torch._foreach. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 128), nn.ReLU()) for _ in range(24)), nn.Linear(128, 10))
parameters = list(model.parameters())
averages = [parameter.detach().clone() for parameter in parameters]
optimizer = torch.optim.SGD(parameters, lr=0.01, foreach=True)
data, labels = torch.randn(16, 256, 128), torch.randint(10, (16, 256))


@torch.no_grad()
def update_averages():
    if not amount:
        torch._foreach_lerp_(averages, parameters, 0.001)
    for _ in range(amount):
        for average, parameter in zip(averages, parameters, strict=True):
            average.mul_(0.999).add_(parameter, alpha=0.001)  # fault


for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_averages()  # fault
    lap()
