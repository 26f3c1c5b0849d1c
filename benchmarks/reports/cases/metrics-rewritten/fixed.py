"""Autoencoder for sensor readings, with metrics in a CSV file and a learning-rate monitor."""

import csv
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
SENSORS, BATCH, STEPS = 64, 128, 700


class CsvLogger:
    """Keeps the metrics of the run; writes them with their columns, which may get more in time."""

    def __init__(self, folder, flush_every=1):
        self.path, self.rows, self.flush_every, self.calls = Path(folder) / "metrics.csv", [], flush_every, 0

    def log_metrics(self, metrics, step):
        self.rows.append({"step": step, **{k: float(v) for k, v in metrics.items()}})
        self.calls += 1
        if self.calls % self.flush_every == 0:
            self.save()

    def save(self):
        columns = sorted({key for row in self.rows for key in row})
        with self.path.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=columns)
            writer.writeheader()
            writer.writerows(self.rows)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(SENSORS, 128), nn.GELU(), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 8)
        )
        self.decoder = nn.Sequential(
            nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, SENSORS)
        )

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), code


class Trainer:
    def __init__(self, folder):
        self.model = Autoencoder()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, STEPS)
        self.logger = CsvLogger(folder, flush_every=100)

    def step(self, x, number):
        rebuilt, code = self.model(x)
        loss = nn.functional.smooth_l1_loss(rebuilt, x)
        sparsity = code.abs().mean()
        self.optimizer.zero_grad()
        (loss + 1e-3 * sparsity).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        metrics = {"loss": loss, "sparsity": sparsity, "grad_norm": norm, "lr": self.schedule.get_last_lr()[0]}
        self.logger.log_metrics(metrics, number)
        return loss


mixing = torch.randn(8, SENSORS)
with tempfile.TemporaryDirectory() as folder:
    trainer, start = Trainer(folder), time.perf_counter()
    for number in range(1, STEPS + 1):
        loss = trainer.step(torch.tanh(torch.randn(BATCH, 8) @ mixing), number)
        if number % 175 == 0:
            torch.save(trainer.model.state_dict(), Path(folder) / "last.pt")
            print(f"step {number}: loss {loss.item():.4f}", flush=True)
    print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
