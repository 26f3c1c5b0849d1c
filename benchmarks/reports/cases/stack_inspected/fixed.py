"""Multi-task regression with a structured event log."""
import inspect
import sys
import time

import torch
from torch import nn


class EventLog:
    """Events in memory, each with the place that it came from."""

    def __init__(self, light=False):
        self.events, self.light = [], light

    def place(self):
        if self.light:
            frame = sys._getframe(2)
            return frame.f_code.co_filename, frame.f_lineno
        caller = inspect.stack()[2]
        return caller.filename, caller.lineno

    def event(self, key, **values):
        file, line = self.place()
        self.events.append({"key": key, "time": time.time(), "at": f"{file}:{line}", **values})


class Heads(nn.Module):
    def __init__(self, tasks=4):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 384), nn.GELU())
        self.heads = nn.ModuleDict({f"task{k}": nn.Linear(384, 1) for k in range(tasks)})

    def forward(self, x):
        h = self.trunk(x)
        return {name: head(h).squeeze(1) for name, head in self.heads.items()}


def losses(out, y, log):
    parts = {}
    for k, (name, value) in enumerate(out.items()):
        parts[name] = nn.functional.smooth_l1_loss(value, y[:, k])
        log.event("loss", task=name, value=parts[name].detach())
    return parts


def train(net, opt, log, steps):
    for i in range(steps):
        x, y = torch.randn(128, 96), torch.randn(128, 4)
        total = sum(losses(net(x), y, log).values())
        opt.zero_grad()
        total.backward()
        opt.step()
        log.event("step", number=i, lr=opt.param_groups[0]["lr"])
        if i % 40 == 0:
            print(f"{i}: {total.item():.3f}", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    net = Heads()
    train(net, torch.optim.Adam(net.parameters(), lr=1e-3), EventLog(light=True), 90)
