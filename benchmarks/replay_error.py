"""How near the replay of unchanged steps lands to the measured ones, over a folder of real traces.

    python -m benchmarks.replay_error FOLDER [-o benchmarks/results/replay.md]

Every trace below FOLDER that steptime reads is replayed as `steptime diagnose` replays it: up to five steps from the
middle. The host's own work between two launches is a duration of the trace and comes out right by itself, so the error
alone flatters traces that the host binds. Two columns say what was put to the test: the share of the critical path
that lies on the device, and how far device activities end from where they were observed, relative to the window
(median, and 95th percentile), for which launch delays, gaps, waits and the ties between streams must all be right.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.step_context import step_context
from steptime.analysis.threads import training_track
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.what_if.build import build
from steptime.analysis.what_if.critical_path import PathKind
from steptime.analysis.what_if.graph import NodeKind, run
from steptime.analysis.what_if.scope import scope_of
from steptime.analysis.what_if.what_if import rerun, window_of
from steptime.errors import SteptimeError
from steptime.intervals import EMPTY
from steptime.trace.links import link
from steptime.trace.reader import read
from steptime.trace.table import Trace
from steptime.trace.vendors import STEP, matching

DEVICE = (PathKind.KERNEL, PathKind.COMMUNICATION, PathKind.COPY, PathKind.LAUNCH_DELAY, PathKind.KERNEL_GAP)


@dataclass(frozen=True, slots=True)
class Row:
    """One trace. marked: it holds ranges ProfilerStep#. error, unexplained, on_device, median, high: fractions."""

    name: str
    marked: bool
    steps: int
    measured: float
    error: float
    unexplained: float
    on_device: float
    median: float
    high: float
    seconds: float


def main() -> None:
    """Replays, prints the table, writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    found = [row for path in sorted(options.folder.rglob("*.json*")) if (row := row_of(path, options.folder))]
    text = table(found)
    print(text, end="")
    if options.output:
        options.output.write_text(text, encoding="utf-8")


def row_of(path: Path, folder: Path) -> Row | None:
    """The row of a trace; None for what is no trace, or ran on no device, or not on a host."""
    try:
        trace = read(path)
    except SteptimeError:
        return None
    steps = step_context(trace, steps_of(trace))
    if not len(steps) or not steps.on_device:
        return None
    begun = time.process_time()
    replay = rerun(steps, breakdown_of(steps))
    if replay is None:
        return None
    median, high = misplaced(trace)
    shares = replay.entries.sum(axis=0) / replay.replayed.sum()
    return Row(
        path.relative_to(folder).as_posix(),
        bool(matching(trace, STEP.match).any()),
        len(replay.measured),
        float(replay.measured.mean()) / 1e6,
        replay.error,
        float(shares[PathKind.UNEXPLAINED]),
        float(shares[list(DEVICE)].sum()),
        median,
        high,
        time.process_time() - begun,
    )


def misplaced(trace: Trace) -> tuple[float, float]:
    """How far from where it was observed an activity ends in the replay without what it cannot explain."""
    boundaries = steps_of(trace)
    window = window_of(trace, boundaries, link(trace, boundaries).launch)
    track = training_track(trace)
    assert track is not None
    scope = scope_of(window.trace, boundaries[window.steps], window.launch, track, EMPTY)
    graph = build(scope)
    found = run(graph, weight=graph.edges.weight - graph.edges.unexplained)
    device = graph.nodes.kind != NodeKind.HOST
    if not device.any():
        return 0.0, 0.0
    away = np.abs(found.finish - (graph.nodes.observed - scope.start))[device] / (scope.end - scope.start)
    return float(np.median(away)), float(np.percentile(away, 95))


def table(rows: list[Row]) -> str:
    """The rows as Markdown: first those whose steps the profiler marked, which the medians are of."""
    marked = [row for row in rows if row.marked]
    lines = [
        "# Replay error",
        "",
        "By `python -m benchmarks.replay_error ../shared/data -o benchmarks/results/replay.md`; what the columns mean "
        "is at the top of that script.",
        "",
        f"Traces with marked steps: {len(marked)}; median error {_percent(np.median([row.error for row in marked]))}, "
        f"largest {_percent(max(row.error for row in marked))}; median misplacement of an activity "
        f"{_percent(np.median([row.median for row in marked]))} of the window.",
        "",
        "| trace | steps | step, ms | error | unexplained | on the device | misplaced, median | 95 % | CPU s |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in sorted(rows, key=lambda row: (not row.marked, row.name)):
        steps = str(row.steps) if row.marked else f"({row.steps})"
        shares = (row.error, row.unexplained, row.on_device, row.median, row.high)
        cells = [row.name, steps, f"{row.measured:.4g}", *map(_percent, shares), f"{row.seconds:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "Steps in parentheses were not marked by the profiler: found from optimizers, or the whole trace as one.",
    ]
    return "\n".join(lines) + "\n"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


if __name__ == "__main__":
    main()
