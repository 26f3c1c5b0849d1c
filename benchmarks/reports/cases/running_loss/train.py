"""Forecast of a boiler's temperature by a recurrent network with a cell of its own, unrolled over windows."""

import time

import torch
from torch import nn

torch.manual_seed(2)
torch.set_num_threads(1)
SENSORS, WIDTH, WINDOW, BATCH, STEPS = 6, 32, 60, 16, 800


class Cell(nn.Module):
    """A gated cell with a leak that is learned."""

    def __init__(self):
        super().__init__()
        self.gates = nn.Linear(SENSORS + WIDTH, 2 * WIDTH)
        self.leak = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x, state):
        new, gate = self.gates(torch.cat([x, state], 1)).chunk(2, 1)
        gate = torch.sigmoid(gate) * torch.sigmoid(self.leak)
        return state + gate * (torch.tanh(new) - state)


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.out = Cell(), nn.Linear(WIDTH, 1)

    def forward(self, readings):
        state, outputs = readings.new_zeros(len(readings), WIDTH), []
        for t in range(WINDOW):
            state = self.cell(readings[:, t], state)
            outputs.append(self.out(state))
        return torch.cat(outputs, 1)


def boiler(generator):
    """One long record of all sensors; the first is the temperature."""
    drive = torch.randn(20_000, SENSORS, generator=generator).cumsum(0)
    drive = drive - drive.roll(200, 0)
    return drive / drive.std(0)


class Trainer:
    def __init__(self, model, record, generator):
        self.model, self.record, self.generator = model, record, generator
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        self.total_loss = torch.zeros(())

    def batch(self):
        first = torch.randint(len(self.record) - WINDOW - 1, (BATCH,), generator=self.generator)
        rows = first[:, None] + torch.arange(WINDOW + 1)
        return self.record[rows]

    def step(self):
        window = self.batch()
        loss = nn.functional.mse_loss(self.model(window[:, :-1]), window[:, 1:, 0])
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss  # culprit-too

    def train(self):
        for step in range(1, STEPS + 1):
            self.total_loss += self.step()  # culprit
            if step % 100 == 0:
                print(f"step {step}: mean loss so far {self.total_loss.item() / step:.4f}", flush=True)


generator = torch.Generator().manual_seed(0)
trainer = Trainer(Forecaster(), boiler(generator), generator)
start = time.perf_counter()
trainer.train()
print(f"{STEPS} steps, {1e3 * (time.perf_counter() - start) / STEPS:.2f} ms/step")
