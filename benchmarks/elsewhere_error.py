"""How near `steptime diagnose --on DEVICE` lands: of the same model's traces on two devices, each predicts the other.

    python -m benchmarks.elsewhere_error FOLDER [-o benchmarks/results/elsewhere.md]

FOLDER holds AMD-AGI/TraceLens's tests/traces/h100 and tests/traces/mi300. The host of the prediction is that of the
trace, that of the other trace its own: so the kernels' time is compared, and the step besides.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path

import numpy as np

from steptime.analysis.breakdown import breakdown_of, device_of
from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.what_if.elsewhere import elsewhere
from steptime.arrays import Float64
from steptime.machine.datasheet import look_up
from steptime.trace.reader import read

FOLDERS = ("h100", "mi300")


@dataclass(frozen=True, slots=True)
class Row:
    """ns per step. here, there: what the kernels take on the two devices; predicted: there. step…: the whole step."""

    model: str
    device: str
    other: str
    here: float
    there: float
    predicted: float
    step: float
    step_there: float
    step_predicted: float


def steps_in(path: Path) -> StepContext:
    trace = read(path)
    return step_context(trace, steps_of(trace), machine=look_up(device_of(trace)))


def rows(folder: Path) -> list[Row]:
    """Both ways for each model that has a trace of each device."""
    found = []
    for path in sorted((folder / FOLDERS[0]).glob("*.json.gz")):
        pair = [folder / each / path.name for each in FOLDERS]
        if pair[1].exists():
            both = [steps_in(each) for each in pair]
            found += [_row(path.name.split("__")[0], *ways) for ways in (both, both[::-1])]
    return found


def _row(model: str, here: StepContext, there: StepContext) -> Row:
    predicted, other = elsewhere(here, there.machine), elsewhere(there, here.machine)
    if predicted is None or other is None or here.machine is None or there.machine is None:
        raise SystemExit(f"{model} cannot be replayed, or its devices are in no datasheet")
    step, step_there = (float(breakdown_of(each).wall.mean()) for each in (here, there))
    names = (here.machine.name, there.machine.name)
    kernels = predicted.here, other.here, predicted.kernels.value
    return Row(model, *names, *kernels, step, step_there, predicted.step.value)


def table(found: list[Row]) -> str:
    """The rows as Markdown, with the median and the largest error, and those of taking the time of here for there."""
    kernels = np.array([row.predicted / row.there - 1 for row in found])
    same = np.array([row.here / row.there - 1 for row in found])
    steps = np.array([row.step_predicted / row.step_there - 1 for row in found])
    factors = np.array([max(row.predicted / row.there, row.there / row.predicted) for row in found])
    lines = [
        "# Predictions for another device",
        "",
        "By `python -m benchmarks.elsewhere_error FOLDER -o benchmarks/results/elsewhere.md`, over the models of which",
        "TraceLens publishes a trace of each device (AMD-AGI/TraceLens, tests/traces). ms per step.",
        "",
        "| model | from | to | kernels here | predicted | there | off | step predicted | there | off |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *starmap(_line, zip(found, kernels, steps, strict=True)),
        "",
        f"Kernels: median error {_middle(kernels):.0%}, at most a factor of {factors.max():.2f}.",
        f"Taking the time here for the time there: {_middle(same):.0%}, at most {np.abs(same).max():.0%}.",
        f"Steps: median {_middle(steps):.0%}, at most {np.abs(steps).max():.0%}; the hosts are two, and the prediction",
        "has that of the trace.",
        "",
        "That the latency of short kernels counts was seen on these pairs, so this is how well they are described, and",
        "not how well others would be predicted.",
        "",
    ]
    return "\n".join(lines)


def _middle(errors: Float64) -> float:
    return float(np.median(np.abs(errors)))


def _line(row: Row, off: float, whole: float) -> str:
    kernels = " | ".join(f"{each / 1e6:.2f}" for each in (row.here, row.predicted, row.there))
    steps = " | ".join(f"{each / 1e6:.1f}" for each in (row.step_predicted, row.step_there))
    return f"| {row.model} | {row.device} | {row.other} | {kernels} | {off:+.0%} | {steps} | {whole:+.0%} |"


def main() -> None:
    """Predicts, prints the table, writes it where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    text = table(rows(options.folder))
    print(text, end="")
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
