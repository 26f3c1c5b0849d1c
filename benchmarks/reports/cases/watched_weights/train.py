"""A recommender learns to complete baskets; a dashboard follows its weights and gradients."""

import json
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F


class Dashboard:
    """Collects what is logged and writes it line by line."""

    def __init__(self, path):
        self.file = path.open("w")
        self.row = {}

    def stage(self, name, value):
        self.row[name] = value

    def log(self, step, **values):
        json.dump({"step": step, **values, **self.row}, self.file)
        self.file.write("\n")
        self.row = {}


class Watch:
    """Hooks on a model that stage histograms of its weights and gradients."""

    def __init__(self, dashboard, bins=64):
        self.dashboard, self.bins, self.calls = dashboard, bins, {}

    def __call__(self, model, log_freq=1000):
        self.log_freq = log_freq
        for name, parameter in model.named_parameters():
            parameter.register_hook(lambda grad, name=name: self.note(f"gradients/{name}", grad))
        model.register_forward_hook(self.after_forward)

    def after_forward(self, model, inputs, output):
        if model.training:
            for name, parameter in model.named_parameters():
                self.note(f"parameters/{name}", parameter.detach())  # culprit-too

    def note(self, name, tensor):
        self.calls[name] = self.calls.get(name, -1) + 1
        if self.calls[name] % self.log_freq == 0:
            self.dashboard.stage(name, self.histogram(tensor))  # culprit-too

    def histogram(self, tensor):
        flat = tensor.flatten().float()
        flat = flat[torch.isfinite(flat)]  # culprit-too
        low, high = flat.min().item(), flat.max().item()
        counts = torch.histc(flat, bins=self.bins, min=low, max=high)  # culprit
        return {"counts": counts.int().tolist(), "edges": torch.linspace(low, high, self.bins + 1).tolist()}


class BasketModel(nn.Module):
    def __init__(self, goods, width=128):
        super().__init__()
        self.goods = nn.Parameter(torch.randn(goods, width) / width**0.5)
        self.mix = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, 4 * width), nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, baskets):
        return self.mix(F.embedding(baskets, self.goods).mean(dim=1)) @ self.goods.T


def baskets(goods, batch):
    """Goods whose numbers are near are bought together."""
    while True:
        centre = torch.randint(goods, (batch, 1))
        yield (centre + torch.randint(-20, 21, (batch, 6))) % goods


def run(folder, steps=200, goods=3000, batch=48):
    torch.manual_seed(12)
    torch.set_num_threads(1)
    dashboard, model = Dashboard(folder / "run.jsonl"), BasketModel(goods)
    Watch(dashboard)(model, log_freq=5)  # culprit-too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    stream, start = baskets(goods, batch), time.perf_counter()
    for step in range(1, steps + 1):
        basket = next(stream)
        loss = F.cross_entropy(model(basket[:, 1:]), basket[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dashboard.log(step, loss=loss.item())
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"{steps} steps, {1e3 * (time.perf_counter() - start) / steps:.2f} ms/step")


with tempfile.TemporaryDirectory() as place:
    run(Path(place))
