"""A job whose own modes count every function and operator of torch, and whose dataset counts what it is asked."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

STEPS_PER_EPOCH, EPOCHS = 40, 6
functions: Counter[str] = Counter()
operators: Counter[str] = Counter()
asked: Counter[str] = Counter()


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        functions[getattr(function, "__name__", str(function))] += 1
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        operators[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.rows = torch.randn(8 * STEPS_PER_EPOCH, 16)

    def __len__(self):
        asked["length"] += 1
        return len(self.rows)

    def __getitem__(self, index):
        asked["item"] += 1
        return self.rows[index], torch.ones(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU())
        self.outer = torch.nn.Linear(32, 1)

    def forward(self, rows):
        return self.outer(checkpoint(self.inner, rows, use_reentrant=False))


torch.manual_seed(0)
net, loader = Net(), torch.utils.data.DataLoader(Rows(), 8, shuffle=True)
optimizer, scaler = torch.optim.Adam(net.parameters(), 0.01), torch.amp.GradScaler("cpu", init_scale=8.0)
with contextlib.ExitStack() as modes:
    for each in (Functions(), Operators()):
        modes.enter_context(each)
    for _ in range(EPOCHS):
        for rows, wanted in loader:
            loss = torch.nn.functional.mse_loss(net(rows), wanted)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        with torch.no_grad():
            net.eval()
            net(rows)
            net.train()
seen = {"loss": loss.item().hex(), "functions": functions, "operators": operators, "asked": asked}
json.dump(seen, sys.stdout, sort_keys=True)
