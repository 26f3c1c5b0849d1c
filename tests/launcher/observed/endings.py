"""A job that ends in the way that its first argument names, in a process that trains when the second says "torch"."""

import os
import signal
import sys
import time
from typing import Any


def train() -> tuple[Any, Any]:
    import torch

    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(12):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    return torch, model


def end(how: str) -> None:
    torch: Any
    model: Any
    torch, model = train() if sys.argv[2] == "torch" else (object(), object())
    if how == "raise":
        raise ValueError("as planned")
    if how == "chain":
        try:
            end("raise")
        except ValueError as error:
            raise RuntimeError("a consequence") from error
    if how == "forward":
        model(torch.ones(3, 5))
    if how == "backward":
        model(torch.ones(3, 4)).backward()
    if how == "words":
        raise SystemExit("it ends with words")
    if how == "abort":
        os.abort()
    if how == "hard":
        os._exit(5)
    if how.startswith("SIG"):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.kill(os.getpid(), getattr(signal, how))
        time.sleep(60)
    sys.exit(int(how) if how.isdigit() else 0)


end(sys.argv[1])
