"""System identification: a neural state-space model of a tank system, unrolled over windows of measurements."""

import time

import torch
from torch import nn

torch.manual_seed(6)
torch.set_num_threads(1)
STATES, INPUTS, HORIZON, WINDOWS, DEV, BATCH, EPOCHS = 4, 2, 40, 96, 40, 32, 220


def measure(count, generator):
    """Windows of inputs and levels of coupled tanks."""
    inputs = torch.rand(count, HORIZON, INPUTS, generator=generator)
    level, levels = torch.rand(count, STATES, generator=generator), []
    for t in range(HORIZON):
        flow = 0.3 * level.clamp_min(0).sqrt()
        inflow = torch.cat([inputs[:, t], flow[:, :2]], 1)
        level = level + 0.2 * (inflow - flow)
        levels.append(level)
    return {"inputs": inputs, "levels": torch.stack(levels, 1)}


class StateSpace(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.step = nn.Sequential(
            nn.Linear(STATES + INPUTS, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, STATES)
        )

    def forward(self, data):
        level, levels = data["levels"][:, 0], []
        for t in range(1, HORIZON):
            level = level + self.step(torch.cat([level, data["inputs"][:, t]], 1))
            levels.append(level)
        return torch.stack(levels, 1)


class Problem(nn.Module):
    """Weighted sum of objectives, as a dictionary for the logger."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, data, name):
        predicted = self.model(data)
        fit = nn.functional.mse_loss(predicted, data["levels"][:, 1:])
        smooth = predicted.diff(dim=1).square().mean()
        return {f"{name}_fit": fit, f"{name}_smooth": smooth, f"{name}_loss": fit + 0.01 * smooth}


class Trainer:
    def __init__(self, problem, train, dev):
        self.problem, self.train_data, self.dev_data = problem, train, dev
        self.optimizer = torch.optim.Adam(problem.parameters(), lr=1e-3)
        self.history, self.best = [], None

    def epoch(self):
        self.problem.train()
        for rows in torch.randperm(WINDOWS).split(BATCH):
            output = self.problem({key: value[rows] for key, value in self.train_data.items()}, "train")
            self.optimizer.zero_grad()
            output["train_loss"].backward()
            self.optimizer.step()
        self.problem.eval()
        output |= self.problem(self.dev_data, "dev")
        return {name: value.detach() for name, value in output.items()}

    def train(self):
        for epoch in range(1, EPOCHS + 1):
            output = self.epoch()
            self.history.append(output)
            if self.best is None or output["dev_loss"] < self.best:
                self.best = output["dev_loss"]
            if epoch % 40 == 0:
                print(f"epoch {epoch}: dev {output['dev_loss'].item():.5f} best {self.best.item():.5f}", flush=True)


generator = torch.Generator().manual_seed(0)
trainer = Trainer(Problem(StateSpace()), measure(WINDOWS, generator), measure(DEV, generator))
start = time.perf_counter()
trainer.train()
steps = EPOCHS * WINDOWS // BATCH
print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")
