"""Streamflow of river basins from daily weather: an LSTM with static attributes of the basin (rainfall-runoff)."""

import logging
import time

import numpy as np
import torch
from torch import nn

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
LOG = logging.getLogger("runoff")
torch.manual_seed(0)
torch.set_num_threads(1)
BASINS, DAYS, WINDOW, FORCINGS, STATICS, BATCH, STEPS = 40, 2000, 40, 5, 6, 20, 250


def simulate(rng):
    """Weather and discharge of every basin: a leaking bucket with a wet and a dry season."""
    season = 1 + np.sin(np.arange(DAYS) * 2 * np.pi / 365)
    weather = rng.gamma(0.5, 2.0, (BASINS, DAYS, FORCINGS)).astype(np.float32) * season[None, :, None].astype(np.float32)
    statics = rng.random((BASINS, STATICS), dtype=np.float32)
    discharge, storage = np.zeros((BASINS, DAYS), np.float32), np.ones(BASINS, np.float32)
    for day in range(DAYS):
        storage = storage + weather[:, day, 0]
        discharge[:, day] = storage * (0.02 + 0.1 * statics[:, 0])
        storage = storage - discharge[:, day]
    return weather, statics, discharge


class Basins:
    def __init__(self, weather, statics, discharge):
        self.weather, self.statics, self.discharge = weather, statics, discharge
        self.center, self.spread = weather.mean((0, 1)), weather.std((0, 1))
        self.scale = discharge.std(1)
        LOG.info("%d basins, %d days", *discharge.shape)

    def window(self, basin, last):
        raw = self.weather[basin, last - WINDOW : last]
        LOG.debug(f"basin {basin}, day {last}: forcings {raw}")  # culprit
        scaled = (raw - self.center) / self.spread
        inputs = np.concatenate([scaled, np.broadcast_to(self.statics[basin], (WINDOW, STATICS))], 1)
        return inputs, self.discharge[basin, last] / self.scale[basin]

    def batch(self, rng):
        chosen = zip(rng.integers(BASINS, size=BATCH), rng.integers(WINDOW, DAYS, size=BATCH))
        inputs, targets = zip(*(self.window(basin, last) for basin, last in chosen))  # culprit-too
        return torch.from_numpy(np.stack(inputs)), torch.from_numpy(np.array(targets))


class Runoff(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.lstm = nn.LSTM(FORCINGS + STATICS, hidden, batch_first=True)
        self.dropout, self.head = nn.Dropout(0.3), nn.Linear(hidden, 1)

    def forward(self, inputs):
        _, (state, cell) = self.lstm(inputs)
        LOG.debug(f"state {state[0]} cell {cell[0]}")  # culprit
        return self.head(self.dropout(state[0])).squeeze(1)


rng = np.random.default_rng(5)
basins, model = Basins(*simulate(rng)), Runoff()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
start = time.perf_counter()
for step in range(1, STEPS + 1):
    inputs, targets = basins.batch(rng)
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0:
        LOG.info("step %d: loss %.4f", step, loss.item())
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
