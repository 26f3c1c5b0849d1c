"""`steptime.bench` beside other ways to time a callable: do they agree on quiet cases, and who is fooled by which trap?

    python benchmarks/callable_timers.py [--rounds 5] [--name MACHINE]

Each timer says how many times as fast the second callable of a pair is. Quiet pairs have a known order; traps have a
second callable that seems faster and is not: it keeps its result, is timed with its compilation, or gives another
result. A timer that gives a speed-up without a word is fooled. Writes results/callable-timers-MACHINE.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

import steptime
from steptime.callables.bench import NOT_TO_BE_TAKEN

RESULTS = Path(__file__).parent / "results"
SECONDS = 1.0
Pair = tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def keeping(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Gives its first result for ever."""
    kept: list[torch.Tensor] = []

    def call(*arguments: torch.Tensor) -> torch.Tensor:
        if not kept:
            kept.append(function(*arguments))
        return kept[0]

    return call


def in_halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product as two of half its rows."""
    return torch.cat([part @ y for part in x.chunk(2)])


def in_bfloat16(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The product in a coarser format."""
    return (x.bfloat16() @ y.bfloat16()).float()


def gelu_by_hand(x: torch.Tensor) -> torch.Tensor:
    """In eight operators."""
    return 0.5 * x * (1 + torch.erf(x / 2**0.5))


def pairs() -> dict[str, tuple[Pair, bool]]:
    """The callables by what they are, and whether the second one is a trap."""
    x, y, wide = torch.randn(512, 512), torch.randn(512, 512), torch.randn(1024, 1024)
    return {
        "a product and itself": ((torch.mm, torch.mm, (x, y)), False),
        "a product in two halves, and whole": ((in_halves, torch.mm, (x, y)), False),
        "GELU by hand, and torch's": ((gelu_by_hand, torch.nn.functional.gelu, (wide,)), False),
        "trap: the second keeps its result": ((torch.mm, keeping(torch.mm), (x, y)), True),
        "trap: the second computes in bfloat16": ((torch.mm, in_bfloat16, (x, y)), True),
    }


def by_clock(function: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> float:
    """Seconds of a call, as most scripts have it: a loop between two looks at the clock."""
    begin = time.perf_counter()
    for _ in range(100):
        function(*arguments)
    return (time.perf_counter() - begin) / 100


def by_torch(function: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> float:
    """Seconds of a call, by torch.utils.benchmark."""
    timer = Timer("function(*arguments)", globals={"function": function, "arguments": arguments},
                  num_threads=torch.get_num_threads())  # fmt: skip
    return float(timer.blocked_autorange(min_run_time=SECONDS).median)


def by_steptime(pair: Pair) -> tuple[float, str]:
    """The speed-up, and the warning where there is one."""
    one, other, arguments = pair

    def first(*words: torch.Tensor) -> torch.Tensor:
        return one(*words)

    def second(*words: torch.Tensor) -> torch.Tensor:
        return other(*words)

    (setting,) = steptime.bench(first, second, inputs=arguments, seconds=SECONDS).result.settings
    found = setting.contenders[1]
    warning = found.standing.value if found.standing in NOT_TO_BE_TAKEN else ""
    return found.speed.value if found.speed is not None else 0.0, warning


def said(speeds: list[float], fooled: bool | None = None, warning: str = "") -> str:
    """Median, lowest and highest of the rounds, and the outcome."""
    text = f"{statistics.median(speeds):.3g} ({min(speeds):.3g} to {max(speeds):.3g})"
    return f"{text}, {warning or 'fooled'}" if fooled or warning else text


def main() -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--name", default=f"{platform.machine()}-{os.cpu_count()}cpu")
    options = parser.parse_args()
    lines = [
        "# Timers of callables",
        "",
        f"{os.cpu_count()} CPUs, Python {platform.python_version()}, torch {torch.__version__}, load "
        f"{os.getloadavg()[0]:.0f}; how many times as fast the second callable is: median (lowest to highest) of "
        f"{options.rounds} rounds in turns; made by `python benchmarks/callable_timers.py`.",
        "",
        "| pair | loop and clock | torch.utils.benchmark | steptime.bench |",
        "|---|---|---|---|",
    ]
    for name, (pair, trap) in pairs().items():
        one, other, arguments = pair
        clock, torchs, ours, warnings = [], [], [], []
        for _ in range(options.rounds):
            clock.append(by_clock(one, arguments) / by_clock(other, arguments))
            torchs.append(by_torch(one, arguments) / by_torch(other, arguments))
            speed, warning = by_steptime(pair)
            ours.append(speed)
            warnings.append(warning)
        agreed = ", ".join(sorted(set(filter(None, warnings))))
        told = trap and not all(warnings)
        lines.append(f"| {name} | {said(clock, trap)} | {said(torchs, trap)} | {said(ours, told, agreed)} |")
        print(lines[-1], file=sys.stderr)
    (RESULTS / f"callable-timers-{options.name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
