"""Regression on a table that lies in memory as tensors."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
ROWS, FEATURES, BATCH = 40_000, 20, 1024


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.BatchNorm1d(FEATURES),
            nn.Linear(FEATURES, 128),
            nn.ReLU(),
            nn.Linear(128, 128),
            nn.ReLU(),
            nn.Linear(128, 5),
        )

    def forward(self, x):
        return self.net(x)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        total = sum(nn.functional.mse_loss(model(x), y, reduction="sum").item() for x, y in loader)
    model.train()
    return total / (len(loader) * BATCH * 5)


x = torch.randn(ROWS, FEATURES)
y = torch.tanh(x @ torch.randn(FEATURES, 5)) + 0.05 * torch.randn(ROWS, 5)
cut = ROWS - 2 * BATCH
train = DataLoader(TensorDataset(x[:cut], y[:cut]), batch_size=BATCH, shuffle=True, drop_last=True)  # culprit
valid = [(x[cut:][i : i + BATCH], y[cut:][i : i + BATCH]) for i in (0, BATCH)]
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)
start, done = time.perf_counter(), 0
for epoch in range(7):
    for xb, yb in train:  # culprit-too
        loss = nn.functional.mse_loss(model(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
    error = evaluate(model, valid)
    plateau.step(error)
    print(f"epoch {epoch}: train {loss.item():.4f} valid {error:.4f}", flush=True)
print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")
