"""`steptime.bench` next to other ways to time a callable: do they agree on quiet cases, and who is fooled by which
trap?

    python -m benchmarks.callable_timers [--rounds 5] [--only WORDS] [--name MACHINE]

Each timer says how many times as fast the second callable of a pair is. Quiet pairs have a known order; traps have a
second callable that seems faster or slower and is not: it keeps its result, leaves its work out, gives another result,
is compiled by its first call, or is measured when the machine has become quicker. A timer that gives a ratio more than
a tenth off 1 without a word is fooled. pytest-benchmark takes part where it is installed (in a process of its own for
each callable), `triton.testing.do_bench` where there is a device, whose launches the loop does not wait for. Writes
results/callable-timers-MACHINE.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils.benchmark import Timer

import steptime
from steptime.callables.bench import NOT_TO_BE_TAKEN

RESULTS = Path(__file__).parent / "results"
SECONDS = 1.0
TOLERATED = 0.1
"""Off 1, of a trap's ratio: noise."""
COMPILING, RAMP = 0.3, 3.0
"""Seconds that a first call compiles, and in which a machine doubles its speed."""
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


def left_out(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What a compiler makes of work that nobody uses."""
    return torch.empty_like(x)


def compiling(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Takes COMPILING seconds more when it is called for the first time."""
    compiled: list[bool] = []

    def call(*arguments: torch.Tensor) -> torch.Tensor:
        if not compiled:
            time.sleep(COMPILING)
            compiled.append(True)
        return function(*arguments)

    return call


class Clock:
    """Of a machine that takes RAMP seconds from the first call on to become twice as quick."""

    def __init__(self) -> None:
        self.start = 0.0

    def work(self, x: torch.Tensor) -> torch.Tensor:
        """Waits for 1 ms at first, for half of it in the end."""
        now = time.perf_counter()
        self.start = self.start or now
        end = now + 1e-3 * (1 - min(1.0, (now - self.start) / RAMP) / 2)
        while time.perf_counter() < end:
            pass
        return x


def pairs(device: str = "cpu") -> dict[str, tuple[Pair, bool]]:
    """The callables by what they are, made anew, and whether the second one is a trap."""
    torch.manual_seed(0)
    x, y, wide = (torch.randn(size, size, device=device) for size in (512, 512, 1024))
    clock = Clock()
    return {
        "a product and itself": ((torch.mm, torch.mm, (x, y)), False),
        "a product in two halves, and whole": ((in_halves, torch.mm, (x, y)), False),
        "GELU by hand, and torch's": ((gelu_by_hand, torch.nn.functional.gelu, (wide,)), False),
        "trap: the second keeps its result": ((torch.mm, keeping(torch.mm), (x, y)), True),
        "trap: the second computes in bfloat16": ((torch.mm, in_bfloat16, (x, y)), True),
        "trap: the second leaves its work out": ((torch.mm, left_out, (x, y)), True),
        "trap: the second is compiled by its first call": ((torch.mm, compiling(torch.mm), (x, y)), True),
        "trap: the same, on a machine that becomes quicker": ((clock.work, clock.work, (x,)), True),
    }


def by_clock(function: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> float:
    """Seconds of a call, as most scripts have it: a loop between two looks at the clock."""
    start = time.perf_counter()
    for _ in range(100):
        function(*arguments)
    return (time.perf_counter() - start) / 100


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


def by_pytest(function: str, pair: str) -> float:
    """Seconds of a call of one of a pair ("0" or "1"), by pytest-benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        test, out = Path(folder) / "test_callable.py", Path(folder) / "out.json"
        test.write_text(
            f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "import callable_timers\n"
            f"pair, _ = callable_timers.pairs()[{pair!r}]\n"
            f"def test_it(benchmark):\n    benchmark(pair[{function}], *pair[2])\n"
        )
        words = ["-q", str(test), "-p", "no:cacheprovider", f"--rootdir={folder}", f"--benchmark-json={out}"]
        subprocess.run([sys.executable, "-m", "pytest", *words], check=True, capture_output=True)
        return float(json.loads(out.read_text())["benchmarks"][0]["stats"]["median"])


def by_triton(function: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> float:
    """Seconds of a call, by triton.testing.do_bench."""
    testing = importlib.import_module("triton.testing")
    return float(testing.do_bench(lambda: function(*arguments), return_mode="median")) / 1e3


def timers(name: str, device: str) -> Iterator[tuple[str, Callable[[], tuple[float, str]]]]:
    """(name, what says how many times as fast the second of a pair is, and its warning), each with callables that
    nobody has called."""

    def apart(timer: Callable[..., float]) -> Callable[[], tuple[float, str]]:
        def ratio() -> tuple[float, str]:
            (one, other, arguments), _ = pairs(device)[name]
            return timer(one, arguments) / timer(other, arguments), ""

        return ratio

    yield "loop and clock", apart(by_clock)
    yield "torch.utils.benchmark", apart(by_torch)
    if importlib.util.find_spec("pytest_benchmark") and device == "cpu":
        yield "pytest-benchmark", lambda: (by_pytest("0", name) / by_pytest("1", name), "")
    if device == "cuda" and importlib.util.find_spec("triton"):
        yield "triton do_bench", apart(by_triton)
    yield "steptime.bench", lambda: by_steptime(pairs(device)[name][0])


def message(speeds: list[float], warnings: list[str], *, trap: bool) -> str:
    """Median, lowest and highest of the rounds, and the outcome."""
    middle, warned = statistics.median(speeds), ", ".join(sorted(set(filter(None, warnings))))
    fooled = trap and not all(warnings) and abs(middle - 1) > TOLERATED
    text = f"{middle:.3g} ({min(speeds):.3g} to {max(speeds):.3g})"
    return f"{text}, {warned or 'fooled'}" if fooled or warned else text


def main() -> None:
    """Measures, and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="pairs whose name has these words")
    parser.add_argument("--name", default=f"{platform.machine()}-{os.cpu_count()}cpu")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    wanted = [name for name in pairs(device) if options.only in name]
    columns = [title for title, _ in timers(wanted[0], device)]
    lines = [
        "# Timers of callables",
        "",
        f"{os.cpu_count()} CPUs, {device}, Python {platform.python_version()}, torch {torch.__version__}, load "
        f"{os.getloadavg()[0]:.0f}; how many times as fast the second callable is: median (lowest to highest) of "
        f"{options.rounds} rounds in turns; made by `python -m benchmarks.callable_timers`.",
        "",
        f"| pair | {' | '.join(columns)} |",
        "|---" * (1 + len(columns)) + "|",
    ]
    for name in wanted:
        found: dict[str, list[tuple[float, str]]] = {title: [] for title in columns}
        for _ in range(options.rounds):
            for title, timer in timers(name, device):
                found[title].append(timer())
        cells = [
            message([speed for speed, _ in each], [warning for _, warning in each], trap=pairs(device)[name][1])
            for each in found.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr, flush=True)
    (RESULTS / f"callable-timers-{options.name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
