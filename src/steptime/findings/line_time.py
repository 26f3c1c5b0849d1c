"""Lines' times on the scale of the steady steps.

One law: the line timeline tells shares, the watch tells times. Timing lines costs up to a microsecond for each
execution, so a line that runs a thousand times a step looks longer than it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.findings.case import AccountUse, LineUse
from steptime.findings.stakes import named, ratio, scaled
from steptime.quantities import Estimate

PHASE_OF = {"input": "input", "transfer": "transfer", "host": "rest"}
"""The phase whose time the lines of a role make up. Lines of other roles hold operators that no line tells apart."""
MODEL = frozenset({"forward", "backward", "optimizer"})
"""Roles of lines that run the model; the function that holds them is the training loop."""


@dataclass(frozen=True, slots=True)
class LineTime:
    """A line with its time in a steady step. host: the part outside the loader and the model."""

    line: LineUse
    duration: Estimate
    host: Estimate


def line_times(lines: Iterable[LineUse], phases: tuple[AccountUse, ...]) -> tuple[LineTime, ...]:
    """The lines, scaled down so that those of a role take no longer than their phase does in the steady steps."""
    lines = tuple(lines)
    scales = {role: _scale(lines, role, named(phases, phase)) for role, phase in PHASE_OF.items()}
    usual = scales["host"]
    return tuple(
        LineTime(
            line, scaled(line.duration, scales.get(line.role, 1.0)), scaled(line.host, scales.get(line.role, usual))
        )
        for line in lines
    )


def _scale(lines: tuple[LineUse, ...], role: str, phase: AccountUse | None) -> float:
    spent = sum(line.duration.value for line in lines if line.role == role)
    if phase is None or spent <= phase.duration.value:
        return 1.0
    return ratio(phase.duration.value, spent)


def loop_functions(lines: Iterable[LineUse]) -> frozenset[tuple[str, str]]:
    """(file, function) of the training loops: functions with lines that run the model's backward or update."""
    return frozenset(
        (line.source.file, line.source.function) for line in lines if line.role in ("backward", "optimizer")
    )
