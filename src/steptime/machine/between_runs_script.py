"""A small fixed training job, of which fresh processes are compared. Run by path with the user's interpreter: no part
of steptime is imported here. Answers with one JSON object on stdout: seconds of a step, the mean of a second of them.

    python between_runs_script.py DEVICE
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import nn

SECONDS, WARM_UP = 1.0, 0.3
WIDTH, DEPTH, BATCH = 256, 6, 128


def main() -> None:
    device = sys.argv[1]
    layers = [module for _ in range(DEPTH) for module in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(BATCH, WIDTH, device=device)

    def steps(seconds: float) -> float:
        """Mean step over `seconds` seconds, in seconds."""
        start, done = time.perf_counter(), 0
        while time.perf_counter() < start + seconds:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            done += 1
        return (time.perf_counter() - start) / done

    steps(WARM_UP)
    print(json.dumps({"step": steps(SECONDS)}))


if __name__ == "__main__":
    main()
