"""Names for short pieces of tunes: convolutions over notes, one settings file for all machines."""

import contextlib
import time
from dataclasses import dataclass, fields

import torch
from torch import nn
from torch.nn import functional as F

SETTINGS = """
precision = 32
batch = 16
steps = 160
rate = 0.02
width = 24
threads = 1
"""


@dataclass
class Settings:
    precision: str
    batch: int
    steps: int
    rate: float
    width: int
    threads: int

    @classmethod
    def read(cls, text):
        given = dict(map(str.strip, line.split("=")) for line in text.strip().splitlines())
        kinds = {"str": str, "int": int, "float": float}
        return cls(**{f.name: kinds.get(f.type, f.type)(given[f.name]) for f in fields(cls)})


class Precision:
    """How a forward runs on a device."""

    kinds = {"16-mixed": torch.float16, "bf16-mixed": torch.bfloat16, "32": None}

    def __init__(self, name, device):
        self.kind, self.device = self.kinds[name], device

    def forward(self):
        if self.kind is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self.kind)


class Stage(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 5, padding=2)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        return x + F.gelu(self.norm(self.conv(x)))


def network(width, names):
    return nn.Sequential(
        nn.Conv1d(12, width, 1), Stage(width), Stage(width), nn.MaxPool1d(2), Stage(width), Stage(width),
        nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4 * width, names),
    )


def tunes(names, batch, length=64, seed=0):
    """Melodies walk up and down as their name says."""
    generator = torch.Generator().manual_seed(seed)
    walks = torch.randint(-2, 3, (names, 8), generator=generator)
    while True:
        labels = torch.randint(names, (batch,), generator=generator)
        steps = walks[labels].repeat(1, length // 8)
        slips = torch.rand(steps.shape, generator=generator) < 0.1
        notes = (torch.where(slips, 1, steps).cumsum(1) + labels[:, None]) % 12
        yield F.one_hot(notes, 12).float().transpose(1, 2), labels


def trainer(net, precision, rate):
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)

    def update(notes, labels):
        with precision.forward():
            logits = net(notes)
        loss = F.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return update


def main():
    settings = Settings.read(SETTINGS)
    torch.manual_seed(0)
    torch.set_num_threads(settings.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = network(settings.width, 20).to(device)
    update = trainer(net, Precision(settings.precision, device), settings.rate)
    stream, start = tunes(20, settings.batch), time.perf_counter()
    for step in range(1, settings.steps + 1):
        loss = update(*(tensor.to(device) for tensor in next(stream)))
        if step % 40 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"{settings.steps} steps, {1e3 * (time.perf_counter() - start) / settings.steps:.2f} ms/step")


main()
