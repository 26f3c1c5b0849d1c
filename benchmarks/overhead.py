"""What steptime costs: per step of small jobs, per run, per window of the profiler, and in bytes.

    python -m benchmarks.overhead [--quick] [--only steps,run,recording,tools] [--traceml PYTHON]

Writes benchmarks/results/overhead-<machine>.json and .md; what is not measured anew stays as it was there. Every figure
is a median of pairs that were measured in turns, with the 95 % interval of the median (order statistics) and, where the
watch can be toggled, with what the same method finds between two halves that do not differ (A/A).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.kept import machine
from benchmarks.overhead_tools import per_tool
from benchmarks.started import STEPTIME
from steptime.analysis.layout import lay_out
from steptime.journal import Kind
from steptime.launcher.launch import launch, probe_environment
from steptime.launcher.outcome import ProbeOptions
from steptime.recording.load import load
from steptime.recording.recording import Recording

HERE = Path(__file__).parent
STEP_JOB, RUN_JOB = HERE / "overhead_job.py", HERE / "overhead_run_job.py"
STEPS_MS = (0.4, 2.0, 10.0, 100.0)
QUICK_STEPS_MS = STEPS_MS[:2]
PARTS = "steps,run,recording,tools"
LONGEST, STEPS_OF_PAIR = 90, 56
"""Seconds for one size of steps, and how many steps two pairs of blocks have at least."""
RUNS = (("0", "--no-peaks"), ("600", "--no-peaks", "--no-profile"), ("600", "--no-peaks"))
"""(steps of the job, options of ours)."""


@dataclass(frozen=True)
class Figure:
    """A median with its 95 % interval. pairs: how many measurements it is the median of."""

    median: float
    low: float
    high: float
    pairs: int

    @staticmethod
    def of(values: Sequence[float]) -> Figure:
        """Median and the distribution-free interval of a median from the binomial distribution."""
        ordered, count = sorted(values), len(values)
        lower = int(max(0, math.floor(count / 2 - 0.98 * math.sqrt(count))))
        return Figure(statistics.median(ordered), ordered[lower], ordered[count - 1 - lower], count)


def environment() -> dict[str, str]:
    """One thread, no accelerator; and Python keeps what it has compiled, as it does unless told otherwise: else every
    run would compile all modules of ours anew, which an installed package never does."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def per_step(target_ms: float, pairs: int, *, loader: bool) -> dict[str, Any]:
    """The watch on against off in one process, in turns."""
    words = [sys.executable, str(STEP_JOB), str(target_ms), str(pairs), *(["loader"] if loader else [])]
    with tempfile.TemporaryDirectory() as folder:
        recording = Path(folder).resolve()
        watched = {**environment(), **probe_environment(recording, ProbeOptions(profile=False))}
        finished = subprocess.run(words, env=watched, capture_output=True, text=True, check=True)
    found = json.loads(finished.stdout)
    off = statistics.median(half[1] for half in found["on_off"])
    rare = found["busy_ns"] * found["busy_share"]
    return {
        "target_ms": target_ms,
        "loader": loader,
        "step_us": off / 1e3,
        "depth": found["depth"],
        "block_steps": found["block_steps"],
        "rare_us": found["busy_ns"] * found["busy_share"] / 1e3,
        "watch_us": asdict(Figure.of([(on - off + rare) / 1e3 for on, off in found["on_off"]])),
        "same_us": asdict(Figure.of([(first - second) / 1e3 for first, second in found["off_off"]])),
        "watch_share": asdict(Figure.of([(on + rare) / off - 1 for on, off in found["on_off"]])),
    }


def timed(words: Sequence[str]) -> tuple[float, float]:
    """(wall s, CPU s of the command and all its children)."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, env=environment(), capture_output=True, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def per_run(pairs: int, job: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    """`steptime run -- python job` against `python job`, in turns."""
    bare: list[tuple[float, float]] = []
    watched: list[tuple[float, float]] = []
    for number in range(pairs):
        with tempfile.TemporaryDirectory() as folder:
            launcher = [*STEPTIME, "run", "--quiet", *options, "--recording", f"{folder}/recording", "--"]
            commands = [(bare, list(job)), (watched, [*launcher, *job])]
            for results, words in commands if number % 2 else reversed(commands):
                results.append(timed(words))
    differences = [(after[0] - before[0], after[1] - before[1]) for before, after in zip(bare, watched, strict=True)]
    return {
        "job": " ".join(Path(word).name for word in job),
        "options": " ".join(options),
        "bare_wall_s": asdict(Figure.of([wall for wall, _ in bare])),
        "bare_cpu_s": asdict(Figure.of([cpu for _, cpu in bare])),
        "added_wall_s": asdict(Figure.of([wall for wall, _ in differences])),
        "added_cpu_s": asdict(Figure.of([cpu for _, cpu in differences])),
    }


def of_recording(steps: int) -> dict[str, Any]:
    """Bytes per watched step, and what the windows of the profiler cost, from one recording."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        launch([sys.executable, str(RUN_JOB), str(steps)], path, ProbeOptions())
        recording = load(path)
        sizes = {file.relative_to(path).as_posix(): file.stat().st_size for file in path.rglob("*") if file.is_file()}
    traces = sum(size for name, size in sizes.items() if "trace" in name)
    timeline = lay_out(recording.processes[0])
    taken = timeline.steps
    return {
        "steps": len(taken.start),
        "bytes": sum(sizes.values()),
        "trace_bytes": traces,
        "bytes_per_watched_step": (sum(sizes.values()) - traces) / int(taken.timed.sum()),
        "journal_bytes_per_step": sum(
            size for name, size in sizes.items() if name.endswith(("journal.bin", "journal.packed"))
        )
        / len(taken.start),
        **profile_cost(recording, taken.duration[taken.steady], taken.duration[taken.profiled]),
    }


def profile_cost(recording: Recording, steady: np.ndarray, profiled: np.ndarray) -> dict[str, Any]:
    """Slow-down of profiled steps, and how long the probe held the thread."""
    table = recording.processes[0].intervals
    pauses = table.end[table.kind == Kind.PAUSE] - table.start[table.kind == Kind.PAUSE]
    return {
        "steady_step_us": float(np.median(steady)) / 1e3,
        "profiled_steps": len(profiled),
        "profiled_slowdown": float(np.median(profiled) / np.median(steady)) if len(profiled) else None,
        "held_ms": float(pauses.sum()) / 1e6,
        "longest_hold_ms": float(pauses.max(initial=0)) / 1e6,
    }


def show(results: dict[str, Any]) -> str:
    """The Markdown next to the JSON."""

    measured = results["measured"]
    about = next(iter(measured.values()))
    times = (
        f"{part} {each['date']}, {each['commit']}, load {each['load']:.1f}" for part, each in sorted(measured.items())
    )
    lines = [
        "# What steptime costs\n",
        f"{about['cpu']}, {about['cpus']} CPUs, Python {about['python']}, torch {about['torch']}. Medians with 95 % "
        f"intervals; made by `python -m benchmarks.overhead`: {'; '.join(times)}.\n",
    ]
    if "steps" in results:
        lines += [
            "| step | batches from | watch, CPU µs per step | of it in rare steps | share | A/A, µs |",
            "|---|---|---|---|---|---|",
        ]
        lines += [step_row(row) for row in results["steps"]]
    if "run" in results:
        lines += ["\n| job | options | bare, s | added wall, s | added CPU, s |", "|---|---|---|---|---|"]
        lines += [run_row(row) for row in results["run"]]
    if "recording" in results:
        lines += map(recording_text, results["recording"])
    if "tools" in results:
        lines += tools_table(results["tools"])
    return "\n".join(lines) + "\n"


def span(figure: dict[str, float], digits: int) -> str:
    return f"{figure['median']:.{digits}f} ({figure['low']:.{digits}f} to {figure['high']:.{digits}f})"


def step_row(row: dict[str, Any]) -> str:
    share = {name: 100 * value for name, value in row["watch_share"].items()}
    source = "a DataLoader" if row["loader"] else "memory"
    watch, same = span(row["watch_us"], 1), span(row["same_us"], 1)
    return (
        f"| {row['step_us'] / 1e3:.2f} ms | {source} | {watch} | {row['rare_us']:.1f} | {span(share, 2)} % | {same} |"
    )


def run_row(row: dict[str, Any]) -> str:
    figures = " | ".join(span(row[name], 2) for name in ("bare_wall_s", "added_wall_s", "added_cpu_s"))
    return f"| `{row['job']}` | `{row['options']}` | {figures} |"


def recording_text(row: dict[str, Any]) -> str:
    slowdown = "-" if row["profiled_slowdown"] is None else f"{row['profiled_slowdown']:.2f}"
    return (
        f"\nRecording of {row['steps']} steps: {row['bytes_per_watched_step']:.0f} bytes per watched step "
        f"({row['journal_bytes_per_step']:.0f} of them journal), and {row['trace_bytes'] / 1e6:.2f} MB of traces. "
        f"{row['profiled_steps']} steps were profiled, {slowdown} times as slow as steady ones; the probe held the "
        f"training thread for {row['held_ms']:.0f} ms in all, {row['longest_hold_ms']:.0f} ms at most at once."
    )


def tools_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of whole runs: what each tool adds to a step, and its share of the bare one."""
    names = list(rows[0]["added_us"])
    lines = [
        "\nWhole runs in turns, bare and under each tool: CPU µs that a step of the training process takes longer, and "
        "its share of the bare step.\n",
        f"| step | {' | '.join(names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for row in rows:
        cells = [tool_cell(row["added_us"][name], row["step_us"]) for name in names]
        lines.append(f"| {row['step_us'] / 1e3:.2f} ms | {' | '.join(cells)} |")
    return lines


def tool_cell(added: Sequence[float] | None, step_us: float) -> str:
    if not added:
        return "failed"
    figure = asdict(Figure.of(added))
    share = {name: 100 * value / step_us for name, value in figure.items()}
    return f"{figure['median']:.0f} µs, {span(share, 1)} %"


def main() -> None:
    """Measures what was asked for; writes both files after every row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer, of shorter steps, without other tools")
    parser.add_argument("--only", help=f"of {PARTS}, with commas between")
    parser.add_argument("--traceml", metavar="PYTHON", help="one that has traceml-ai, to measure it next to ours")
    parser.add_argument("--name", default=platform.machine() + f"-{os.cpu_count()}cpu")
    wanted = parser.parse_args()
    pairs, runs, rounds, sizes = (40, 3, 2, QUICK_STEPS_MS) if wanted.quick else (200, 12, 3, STEPS_MS)
    target = HERE / "results" / f"overhead-{wanted.name}"
    kept = target.with_suffix(".json")
    results: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {"measured": {}}
    parts: dict[str, Iterable[Any]] = {
        "run": (per_run(runs, [sys.executable, str(RUN_JOB), steps], options) for steps, *options in RUNS),
        "recording": (of_recording(3000) for _ in range(1)),
        "steps": (
            per_step(size, min(pairs, max(8, int(LONGEST * 1e3 / (STEPS_OF_PAIR * size)))), loader=loader)
            for size in sizes
            for loader in (False, True)
        ),
        "tools": (per_tool(environment(), size, rounds, wanted.traceml) for size in sizes),
    }
    asked = (wanted.only or (PARTS.removesuffix(",tools") if wanted.quick else PARTS)).split(",")
    if unknown := sorted(set(asked) - set(parts)):
        parser.error(f"no such part: {', '.join(unknown)}; expected some of {PARTS}")
    for part in asked:
        results |= {"measured": results["measured"] | {part: machine()}, part: []}
        for row in parts[part]:
            results[part].append(row)
            kept.write_text(json.dumps(results, indent=1) + "\n")
            target.with_suffix(".md").write_text(show(results))
    print(show(results))


if __name__ == "__main__":
    main()
