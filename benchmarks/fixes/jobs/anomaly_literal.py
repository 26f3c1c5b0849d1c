"""Anomaly detection was switched on by a literal True, which a patch can take back."""

import torch
from torch import nn

torch.manual_seed(0)
torch.autograd.set_detect_anomaly(True)
batches = torch.randn(16, 128, 256)
labels = torch.randint(10, (16, 128))
layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(12)]
model = nn.Sequential(*layers, nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    loss = nn.functional.cross_entropy(model(batches[step % 16]), labels[step % 16])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
