"""Whole jobs, built like what people report: work that grows, that is done again, that is cut into too many pieces. And
honest jobs that look alike, of which nothing of the kind is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from preloading import python

pytest.importorskip("torch")

HEAD = """
import math
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler
torch.manual_seed(0)
torch.set_num_threads(1)
def mlp(width=64): return nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, width))
def train(net, batches, optimizer, each=lambda step: None):
    for step, x in enumerate(batches):
        loss = net(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        each(step)
"""
JOBS = {
    "position-table-in-forward": (
        "computed-again", "positions(200, 64)",
        """
def positions(length, width):
    rows = [torch.sin(torch.arange(width) / 10000 ** (row / length)) for row in range(length)]
    return torch.stack(rows)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = mlp()
    def forward(self, x):
        x = x + positions(200, 64)
        return self.body(x)
net = Net()
train(net, (torch.randn(4, 200, 64) for _ in range(60)), torch.optim.SGD(net.parameters(), lr=1e-3))
""",
    ),
    "mel-filters-in-items": (
        "computed-again", "filters",
        """
import numpy
def filters(rate):
    found = numpy.zeros((20, 2000))
    for row in range(20):
        found[row] = numpy.maximum(0, 1 - numpy.abs(numpy.arange(2000) - row * rate / 900) / 40)
    return found
class Waves(Dataset):
    def __len__(self): return 480
    def __getitem__(self, at):
        wave = numpy.random.default_rng(at).standard_normal(2000)
        bank = filters(8000 + at % 2)
        return torch.from_numpy(bank @ wave).float()
net = mlp(20)
train(net, DataLoader(Waves(), batch_size=8), torch.optim.SGD(net.parameters(), lr=1e-3))
""",
    ),
    "adjacency-in-the-loop": (
        "computed-again", "a = ",
        """
edges = torch.randint(0, 400, (2, 4000))
x, w = torch.randn(400, 64), nn.Linear(64, 64)
optimizer = torch.optim.SGD(w.parameters(), lr=1e-3)
for step in range(80):
    a = torch.zeros(400, 400).index_put((edges[0], edges[1]), torch.ones(4000), accumulate=True).matrix_power(3)
    loss = (a @ w(x)).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    ),
    "hooks-that-pile-up": (
        "steps-changed", "",
        """
net = mlp()
def look(module, arguments, result): [math.sin(each) for each in range(300)]
train(net, (torch.randn(8, 64) for _ in range(160)), torch.optim.SGD(net.parameters(), lr=1e-3),
      lambda step: net.register_forward_hook(look))
""",
    ),
    "a-list-that-is-searched": (
        "steps-changed", "",
        """
net, seen = mlp(), []
def each(step):
    for number in range(20):
        if (step, number) not in seen:
            seen.append((step, number))
train(net, (torch.randn(8, 64) for _ in range(240)), torch.optim.SGD(net.parameters(), lr=1e-3), each)
""",
    ),
    "memory-that-is-never-detached": (
        "steps-changed", "memory = ",
        """
cell, out = nn.LSTMCell(16, 48), nn.Linear(48, 16)
memory = torch.zeros(4, 48), torch.zeros(4, 48)
for step in range(110):
    memory = cell(torch.randn(4, 16), memory)
    loss = out(memory[0]).square().mean()
    loss.backward(retain_graph=True)
    for each in (*cell.parameters(), *out.parameters()):
        each.data.add_(each.grad, alpha=-1e-3); each.grad = None
""",
    ),
    "weighted-iterator-in-each-step": (
        "iterator-in-step", "next(iter(",
        """
data = TensorDataset(torch.randn(40_000, 64))
loader = DataLoader(data, batch_size=16, sampler=WeightedRandomSampler(torch.rand(40_000), 40_000))
def draw():
    return next(iter(loader))[0]
net = mlp()
train(net, (draw() for _ in range(60)), torch.optim.SGD(net.parameters(), lr=1e-3))
""",
    ),
    "a-sum-of-losses-in-a-short-epoch": (
        "memory-leak", "total += loss",
        """
net = mlp()
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for epoch in range(2):
    total = 0.0
    for x in torch.randn(32, 8, 64):
        loss = net(x).square().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        total += loss
    print(epoch, total.item())
""",
    ),
    "an-optimizer-in-each-step": (
        "optimizer-in-step", "torch.optim.Adam(",
        """
net = mlp()
for step in range(80):
    optimizer = torch.optim.Adam([{"params": [each]} for each in net.parameters()])
    loss = net(torch.randn(8, 64)).square().mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
""",
    ),
    "a-list-that-is-converted-for-each-item": (
        "goes-through-all", "np.random.choice",
        """
import numpy as np
class Pairs(Dataset):
    def __init__(self): self.names = [word for word in range(30_000)]
    def __len__(self): return 400
    def __getitem__(self, at):
        others = np.random.choice(self.names, 8)
        return torch.from_numpy(others / 30_000).float()
net = mlp(8)
train(net, DataLoader(Pairs(), batch_size=8), torch.optim.SGD(net.parameters(), lr=1e-3))
""",
    ),
    "a-sample-that-is-copied-whole": (
        "goes-through-all", "copy.deepcopy",
        """
import copy
class Crops(Dataset):
    def __init__(self): self.held = [{"image": torch.randn(400_000), "at": [1, 2]} for _ in range(8)]
    def __len__(self): return 320
    def __getitem__(self, at):
        item = copy.deepcopy(self.held[at % 8])
        item["image"] = item["image"][:64]
        return item["image"]
net = mlp()
train(net, DataLoader(Crops(), batch_size=4), torch.optim.SGD(net.parameters(), lr=1e-3))
""",
    ),
    "a-folder-that-is-searched-for-each-item": (
        "goes-through-all", ".glob(",
        """
import pathlib, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
for number in range(400): (folder / f"{number:03d}_scan.txt").write_text(str(number))
class Scans(Dataset):
    def __len__(self): return 320
    def __getitem__(self, at):
        (path,) = folder.glob(f"{at:03d}_*")
        return torch.full((64,), float(path.name[:3]))
net = mlp()
train(net, DataLoader(Scans(), batch_size=4), torch.optim.SGD(net.parameters(), lr=1e-3))
""",
    ),
    "the-stack-read-for-each-event": (
        "goes-through-all", "inspect.stack",
        """
import inspect
def place(): return inspect.stack()[1].lineno
net, seen = mlp(), [0]
def each(step): seen[0] = place() + place()
train(net, (torch.randn(8, 64) for _ in range(80)), torch.optim.SGD(net.parameters(), lr=1e-3), each)
""",
    ),
    "distributions-that-check-their-arguments": (
        "argument-checks", "Normal(",
        """
from torch.distributions import Normal
net = mlp(4)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
for step in range(80):
    mean, loss = net(torch.randn(8, 4)), 0.0
    for _ in range(20):
        policy = Normal(mean, torch.ones(4))
        loss = loss - policy.log_prob(torch.randn(8, 4)).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
    ),
    "a-group-for-each-tensor": (
        "many-groups", "torch.optim.Adam",
        """
net = nn.Sequential(*(nn.Linear(16, 16) for _ in range(60)))
groups = [{"params": [each], "weight_decay": 0.01 * (each.ndim > 1)} for each in net.parameters()]
train(net, (torch.randn(4, 16) for _ in range(80)), torch.optim.Adam(groups, foreach=True))
""",
    ),
}  # fmt: skip
HONEST = {
    "kept-tables-and-detached-states": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.sin(torch.arange(200)[:, None] / 7 + torch.arange(64)))
        self.cell, self.body = nn.GRUCell(64, 64), mlp()
        self.state = None
    def forward(self, x):
        h = (x + self.table[: x.shape[1]]).mean(1)
        mask = torch.rand_like(h) > 0.1
        self.state = self.cell(h * mask, self.state.detach() if self.state is not None else None)
        return self.body(self.state)
net = Net()
average = {name: each.detach().clone() for name, each in net.named_parameters()}
def follow(step):
    for name, each in net.named_parameters():
        average[name].lerp_(each.detach(), 0.01)
train(net, (torch.randn(8, 200, 64) for _ in range(90)), torch.optim.AdamW(net.parameters()), follow)
""",
    "what-is-listed-and-joined-once-and-unchecked": """
import copy, pathlib, tempfile
import numpy as np
from torch.distributions import Distribution, Normal
Distribution.set_default_validate_args(False)
folder = pathlib.Path(tempfile.mkdtemp())
for number in range(400): (folder / f"{number:03d}_scan.txt").write_text(str(number))
class Scans(Dataset):
    def __init__(self):
        self.paths = {path.name[:3]: path for path in folder.iterdir()}
        self.table, self.rows = np.arange(30_000), [number for number in range(30_000)]
        self.held = [{"image": torch.randn(400_000)} for _ in range(8)]
    def __len__(self): return 320
    def __getitem__(self, at):
        path, item = self.paths[f"{at:03d}"], dict(self.held[at % 8])
        others = self.table[np.random.randint(0, len(self.table), 64)]
        return item["image"][:64] + float(path.name[:3]) + self.rows[at] + torch.from_numpy(others)
net = mlp()
def each(step): Normal(torch.zeros(8), torch.ones(8)).log_prob(torch.randn(8))
train(net, DataLoader(Scans(), batch_size=4), torch.optim.SGD(net.parameters(), lr=1e-3), each)
""",
    "an-iterator-that-goes-on-and-two-groups": """
def forever(loader):
    while True:
        yield from loader
data = TensorDataset(torch.randn(4000, 64))
other = forever(DataLoader(data, batch_size=16, shuffle=True))
net = mlp()
weights = [each for each in net.parameters() if each.ndim > 1]
groups = [{"params": weights, "weight_decay": 0.01},
          {"params": [each for each in net.parameters() if each.ndim == 1], "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups)
for (x,) in DataLoader(data, batch_size=40, shuffle=True):
    noise = torch.zeros(16, 64).normal_()
    loss = net(x).square().mean() + net(next(other)[0] + noise).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
""",
}
KINDS = {
    "computed-again", "steps-changed", "iterator-in-step", "many-groups", "memory-leak", "goes-through-all",
    "argument-checks",
}  # fmt: skip
QUICK = {
    "a-list-that-is-converted-for-each-item",
    "a-sum-of-losses-in-a-short-epoch",
    "position-table-in-forward",
    "weighted-iterator-in-each-step",
}
"""Kinds that a busy machine does not disturb: none of those that are judged by how the steps' times grow."""


def findings(folder: Path, body: str, job: str) -> list[dict[str, Any]]:
    script, report = folder / "job.py", folder / "report.json"
    script.write_text(HEAD + body, encoding="utf-8")
    words = ["run", "--no-peaks", "--quiet", "--recording", str(folder / "recording"), "-o", str(report)]
    command = [python(), "-m", "steptime", *words, "--", job, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["findings"]
    return found


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in JOBS]
)
def test_the_kind_is_told_with_its_line(tmp_path: Path, name: str) -> None:
    wanted, line, body = JOBS[name]
    found = [
        each
        for each in findings(tmp_path, body, python() if name in QUICK else sys.executable)
        if each["name"] == wanted
    ]
    assert found
    assert not line or line in found[0]["line"]["text"]


@pytest.mark.slow
@pytest.mark.parametrize("name", HONEST)
def test_of_an_honest_job_nothing_of_the_kind_is_said(tmp_path: Path, name: str) -> None:
    found = findings(tmp_path, HONEST[name], sys.executable)
    assert KINDS.isdisjoint(each["name"] for each in found if each["weight"] != "note" or each["name"] == "memory-leak")
