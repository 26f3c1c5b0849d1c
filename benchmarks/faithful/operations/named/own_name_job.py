"""A job that has a module called steptime of its own, which it imports after torch, step by step anew."""

import importlib
import sys
from pathlib import Path

import torch

sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from training import STEPS, Net, do, notify, pace, train

import steptime


def own_module(step):
    again = importlib.import_module("steptime")
    return (
        steptime.scaled(step),
        again.SCALE,
        Path(again.__file__).parent.name,
        sorted(name for name in vars(again) if not name.startswith("__")),
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS):
        batch = torch.randn(8, 16), torch.randn(8, 4)
        notify("own name training", step, "loss", train(model, optimizer, batch))
        do("own module called steptime", step, own_module, step)
        pace(step)
    notify("own name training", STEPS, "weights", dict(model.state_dict()))
