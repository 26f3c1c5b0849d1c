"""Prints all that a watch must not change: losses, random streams, what is saved, what is compiled, a traceback."""

import copy
import hashlib
import io
import random
import sys
import traceback

import torch
from planted import Network
from torch import nn


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x, fail=False):
        if fail:
            raise RuntimeError("on purpose")
        return self.linear(x)


def digest(data):
    return hashlib.sha256(data).hexdigest()[:16]


def saved(model):
    buffer = io.BytesIO()
    torch.save(model, buffer)
    size = len(buffer.getvalue())
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    fields = [sorted(each.__dict__) for whole in (loaded, copy.deepcopy(model)) for each in whole.modules()]
    return size, digest(repr(fields).encode())


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random.seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), Failing(), nn.Linear(8, 1))
    other = torch.compile(Network(), backend="aot_eager")
    optimizer = torch.optim.AdamW([*model.parameters(), *other.parameters()], lr=0.01)
    for step in range(12):
        x = torch.randn(4, 8)
        loss = model(x).square().mean() + other(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(step, loss.item().hex(), norm.item().hex(), random.random())
    print("rng", digest(torch.get_rng_state().numpy().tobytes()))
    print("saved", *saved(model))
    print("state", digest(b"".join(each.detach().numpy().tobytes() for each in model.parameters())))
    print("hooks", [len(each._forward_hooks) + len(each._backward_hooks) for each in model.modules()])
    counters = torch._dynamo.utils.counters
    print("compiled", dict(counters["stats"]), dict(counters["graph_break"]))
    try:
        model[2](torch.randn(1, 8), fail=True)
    except RuntimeError:
        print(len(traceback.extract_tb(sys.exc_info()[2])))
    try:
        (torch.randn(3, requires_grad=True) * 2).backward()
    except RuntimeError:
        print([frame.name for frame in traceback.extract_tb(sys.exc_info()[2])])


if __name__ == "__main__":
    main()
