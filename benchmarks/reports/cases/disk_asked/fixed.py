"""Regression with a record of the machine's state next to each loss."""

import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH, WIDTH, STEPS, ROW_EVERY = 64, 384, 800, 50


def machine_state():
    """Free room on the disk in MiB, as the system's own tool tells it."""
    answer = subprocess.run(["df", "-Pk", "."], capture_output=True, text=True, check=True)
    return {"disk_free": int(answer.stdout.splitlines()[-1].split()[-3]) / 1024}


class Record:
    def __init__(self, path):
        self.file, self.pending, self.rows = path.open("w"), [], 0

    def log(self, step, loss):
        self.pending.append(loss)
        if step % ROW_EVERY == 0:
            mean = sum(each.item() for each in self.pending) / len(self.pending)
            self.file.write(f"{step},{mean:.5f},{machine_state()['disk_free']:.0f}\n")
            self.rows += 1
            self.pending.clear()


def train(folder):
    record = Record(folder / "record.csv")
    model = nn.Sequential(
        nn.Linear(32, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(),
        nn.Linear(WIDTH, 4),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    start = time.perf_counter()
    for step in range(1, STEPS + 1):
        x = torch.randn(BATCH, 32)
        loss = F.mse_loss(model(x), torch.sin(x[:, :4] * x[:, 4:8]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record.log(step, loss.detach())
        if step % 200 == 0:
            print(f"step {step}: loss {loss.item():.4f}, {record.rows} rows", flush=True)
    print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")


with tempfile.TemporaryDirectory() as place:
    train(Path(place))
