"""Which changes pay, in one process: variants of one training step in turns, each block from an idle device to an idle
one, with the step as it is once more as control. Weights and optimizer state are shared; nothing of steptime is used.

    python benchmarks/device/variants.py gpt --seconds 15            # a line of JSON a variant
    python benchmarks/device/variants.py gpt --compile-only          # fills the compiler's caches and ends

wall_ms: a step, until the device has nothing to do. host_ms: until its last launch: near wall_ms, the host decides.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from programs import DEVICE, PROGRAMS, program
from torch import Tensor, nn
from torch.nn import functional

BLOCK = 0.15
"""Seconds of a block."""


@dataclass(frozen=True)
class Variant:
    precision: str
    autocast: torch.dtype | None
    model: nn.Module | Callable[..., Tensor]
    optimizer: torch.optim.Optimizer
    inputs: Tensor


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def variants(name: str) -> tuple[dict[str, Variant], Tensor]:
    """All of a program, and its targets. Compiling a convolutional network twice would take half of the time."""
    model, inputs, wanted = program(name)
    plain = torch.optim.AdamW(model.parameters(), 1e-4)
    fused = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    compiled = torch.compile(model)
    found = {
        "base": Variant("highest", None, model, plain, inputs),
        "again": Variant("highest", None, model, plain, inputs),
        "tf32": Variant("high", None, model, plain, inputs),
        "bf16": Variant("highest", torch.bfloat16, model, plain, inputs),
        "fused": Variant("highest", None, model, fused, inputs),
        "bf16+compile+fused": Variant("high", torch.bfloat16, compiled, fused, inputs),
    }
    if inputs.dim() == 4:
        last = inputs.to(memory_format=torch.channels_last)
        found["bf16+channels_last+fused"] = Variant("high", torch.bfloat16, model, fused, last)
    else:
        found["compile"] = Variant("highest", None, compiled, plain, inputs)
    return found, wanted


def steps(variant: Variant, wanted: Tensor, count: int) -> tuple[float, float]:
    """ms of a step: of the wall clock, and of the host."""
    torch.set_float32_matmul_precision(variant.precision)
    dtype = variant.autocast
    synchronize()
    start = time.perf_counter()
    for _ in range(count):
        with torch.autocast(DEVICE, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = functional.cross_entropy(variant.model(variant.inputs).float(), wanted)
        loss.backward()
        variant.optimizer.step()
        variant.optimizer.zero_grad(set_to_none=True)
    host = time.perf_counter()
    synchronize()
    return 1e3 * (time.perf_counter() - start) / count, 1e3 * (host - start) / count


def first_calls(found: dict[str, Variant], wanted: Tensor) -> dict[str, float]:
    """Seconds of each one's first three steps."""
    taken = {}
    for name, variant in found.items():
        start = time.perf_counter()
        steps(variant, wanted, 3)
        taken[name] = time.perf_counter() - start
    return taken


def measured(found: dict[str, Variant], wanted: Tensor, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Blocks of all, three rounds at least, in an order that turns around from round to round."""
    count = max(4, int(1e3 * BLOCK / max(steps(found["base"], wanted, 5)[0], 0.1)))
    rows: dict[str, list[tuple[float, float]]] = {name: [] for name in found}
    order, end = list(found), time.monotonic() + seconds
    while time.monotonic() < end or len(rows["base"]) < 3:
        for name in order:
            rows[name].append(steps(found[name], wanted, count))
        order.reverse()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", choices=(*PROGRAMS, "tiny"))
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    found, wanted = variants(options.name)
    if options.name == "resnet" or DEVICE == "cpu":  # convolutions: minutes of compiling; a CPU: needs a C++ compiler
        found = {name: each for name, each in found.items() if "compile" not in name}
    if options.compile_only:
        found = {name: each for name, each in found.items() if "compile" in name}
    built = first_calls(found, wanted)
    if options.compile_only:
        print(json.dumps({"program": options.name, "compiled_s": built}))
        return
    rows = measured(found, wanted, options.seconds)
    base = [wall for wall, _ in rows["base"]]
    for name, blocks in rows.items():
        ratios = [first / wall for first, (wall, _) in zip(base, blocks, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        row = {
            "program": options.name,
            "variant": name,
            "first_s": round(built[name], 2),
            "blocks": len(blocks),
            "wall_ms": round(statistics.median(wall for wall, _ in blocks), 3),
            "host_ms": round(statistics.median(host for _, host in blocks), 3),
            "speedup": round(statistics.median(ratios), 4),
            "quartiles": [round(low, 4), round(high, 4)],
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
