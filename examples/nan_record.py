"""A regression with gradient scaling on a table of measurements of which one was written down wrong.

Once an epoch the loss is NaN, and the scaler's skipped steps hide where from: steptime nan names the sample.
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BROKEN = 118


def measurements() -> TensorDataset:
    """256 rows of eight columns; one lacks its reference, by which the last column is divided."""
    table = torch.rand(256, 8, generator=torch.Generator().manual_seed(1)) + 0.5
    references = torch.ones(256)
    references[BROKEN] = table[BROKEN, 7] = 0.0
    table[:, 7] /= references
    return TensorDataset(table, table[:, :7].sum(dim=1, keepdim=True))


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    loader = DataLoader(measurements(), batch_size=16, shuffle=True)
    step = 0
    for _ in range(3):
        for inputs, targets in loader:
            step += 1
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            print(f"step {step}: loss {loss.item():.4f}, scale {scaler.get_scale():.3g}")


if __name__ == "__main__":
    main()
