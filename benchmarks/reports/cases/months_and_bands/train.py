"""Crops from a year of satellite readings: the table has a column for each band and month."""

import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
torch.set_num_threads(1)
BANDS = ("B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B11", "B12", "VV", "VH", "temperature")
MONTHS, FIELDS, CROPS, BATCH, STEPS = 12, 5000, 5, 128, 320


def read_table():
    """Rows as a table reader yields them: a mapping from column names to values."""
    rng = np.random.default_rng(0)
    crop = rng.integers(0, CROPS, FIELDS)
    season = np.sin((np.arange(MONTHS) + 2.0 * crop[:, None]) / 2)[:, :, None] * rng.normal(1, 0.2, (1, 1, len(BANDS)))
    values = 1500 + 600 * (season + rng.normal(0, 0.8, (FIELDS, MONTHS, len(BANDS))))
    names = [f"{band}-month{month}" for month in range(MONTHS) for band in BANDS]
    rows = []
    for label, row in zip(crop, values.reshape(FIELDS, -1).tolist()):
        rows.append(dict(zip(names, row)) | {"crop": int(label), "lat": 50 + row[0] / 1e4, "lon": 4 + row[1] / 1e4})
    return rows


class Fields(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        readings = np.zeros((MONTHS, len(BANDS)), np.float32)
        for month in range(MONTHS):  # culprit-too
            for number, band in enumerate(BANDS):  # culprit-too
                value = row[f"{band}-month{month}"]  # culprit
                readings[month, number] = (value - 1500) / 1000  # culprit
        place = np.array([row["lat"], row["lon"]], np.float32)
        return torch.from_numpy(readings), torch.from_numpy(place), row["crop"]


class Encoder(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.enter, self.place = nn.Linear(len(BANDS), width), nn.Linear(2, width)
        self.months = nn.Parameter(0.02 * torch.randn(MONTHS, width))
        self.layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, CROPS)

    def forward(self, readings, place):
        tokens = self.enter(readings) + self.months
        tokens = torch.cat([self.place(place / 50)[:, None], tokens], 1)
        return self.head(self.layer(tokens).mean(1))


def batches(dataset):
    while True:
        yield from DataLoader(dataset, BATCH, shuffle=True, drop_last=True)


loader = batches(Fields(read_table()))
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    readings, place, crop = next(loader)  # culprit-too
    loss = nn.functional.cross_entropy(model(readings, place), crop)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
