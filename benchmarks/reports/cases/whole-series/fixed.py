"""Forecasting from long hourly series: windows are cut at random places."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
rng = np.random.default_rng(0)
SERIES, HOURS, PAST, NEXT, BATCH = 40, 16_000, 72, 24, 16


def add_time_features(entry):
    hours = entry["start"] + np.arange(len(entry["target"]))
    angle = 2 * np.pi * hours
    rows = [np.sin(angle / 24), np.cos(angle / 24), np.sin(angle / 168), np.cos(angle / 168)]
    return {**entry, "features": np.stack(rows).astype(np.float32)}


def add_age(entry):
    age = np.log10(2.0 + np.arange(len(entry["target"]))).astype(np.float32)
    return {**entry, "features": np.vstack([entry["features"], age[None]])}


def add_observed(entry):
    known = ~np.isnan(entry["target"])
    return {
        **entry,
        "target": np.where(known, entry["target"], 0.0).astype(np.float32),
        "observed": known.astype(np.float32),
    }


def split(entry):
    at = int(rng.integers(PAST, HOURS - NEXT))
    past, both = slice(at - PAST, at), slice(at - PAST, at + NEXT)
    scale = np.abs(entry["target"][past]).mean() + 1e-3
    return (
        np.vstack([entry["target"][None, past] / scale, entry["observed"][None, past]]),
        entry["features"][:, both].copy(),
        entry["target"][both][PAST:] / scale,
    )


class Windows(Dataset):
    def __init__(self, entries, per_epoch):
        self.entries, self.per_epoch = entries, per_epoch
        self.steps = [add_time_features, add_age, add_observed]
        self.prepared = [self.prepare(entry) for entry in entries]

    def __len__(self):
        return self.per_epoch

    def prepare(self, entry):
        for step in self.steps:
            entry = step(entry)
        return entry

    def __getitem__(self, i):
        entry = self.prepared[i % len(self.entries)]
        return split(entry)


class Model(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * PAST + 5 * (PAST + NEXT), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
        )
        self.mean, self.spread = nn.Linear(width, NEXT), nn.Linear(width, NEXT)

    def forward(self, past, features):
        h = self.net(torch.cat([past.flatten(1), features.flatten(1)], 1))
        return torch.distributions.StudentT(
            4.0, self.mean(h), nn.functional.softplus(self.spread(h)) + 1e-3, validate_args=False
        )


hours = np.arange(HOURS)
entries = []
for i in range(SERIES):
    target = 5 + np.sin(2 * np.pi * (hours + i) / 24) + 0.3 * rng.normal(size=HOURS)
    target[rng.random(HOURS) < 0.01] = np.nan
    entries.append({"target": target.astype(np.float32), "start": 24 * i, "item_id": f"S{i}"})
loader = DataLoader(Windows(entries, 50 * BATCH), BATCH, shuffle=True)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-8)
start, done = time.perf_counter(), 0
for epoch in range(4):
    total = 0.0
    for past, features, future in loader:
        loss = -model(past, features).log_prob(future).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        total += loss.item()
        done += 1
    print(f"epoch {epoch}: loss {total / len(loader):.4f}", flush=True)
print(f"{done} steps, {1e3 * (time.perf_counter() - start) / done:.2f} ms/step")
