"""The optimizer updates many small tensors one by one; healthy: few tensors, all at once. No loader at all."""

import torch
from stopwatch import amount, lap, steps
from torch import nn

torch.manual_seed(0)
experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(16 * amount))
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 16))
optimizer = torch.optim.AdamW([*model.parameters(), *experts.parameters()], foreach=False, fused=not amount)  # fault
data, labels = torch.randn(16, 64, 512), torch.randint(16, (16, 64))
for expert in experts:
    for parameter in expert.parameters():
        parameter.grad = torch.zeros_like(parameter)
for step in range(steps):
    loss = nn.functional.cross_entropy(model(data[step % 16]), labels[step % 16])
    optimizer.zero_grad(set_to_none=not amount)
    loss.backward()
    optimizer.step()
    lap()
