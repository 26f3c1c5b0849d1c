"""Nothing is wrong: two heads, two losses, a scheduler and clipped gradients, in a plain loop."""

import torch
from stopwatch import lap, steps
from torch import nn

torch.manual_seed(0)
trunk = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
heads = nn.ModuleList([nn.Linear(1024, 10), nn.Linear(1024, 1)])
parameters = [*trunk.parameters(), *heads.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
data, labels, values = torch.randn(16, 128, 512), torch.randint(10, (16, 128)), torch.randn(16, 128, 1)
for step in range(steps):
    hidden = trunk(data[step % 16])
    loss = nn.functional.cross_entropy(heads[0](hidden), labels[step % 16])
    loss = loss + nn.functional.mse_loss(heads[1](hidden), values[step % 16])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    scheduler.step()
    lap()
