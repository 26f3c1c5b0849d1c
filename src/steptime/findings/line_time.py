"""Lines' times on the scale of the steady steps.

One law: the line timeline tells shares, the watch tells times. Timing lines costs up to a microsecond for each
execution, so a line that runs a thousand times a step looks longer than it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.findings.case import AccountUse, LineUse
from steptime.findings.stakes import named, ratio, scaled, total
from steptime.quantities import Estimate

PHASE_OF = {"input": "input", "transfer": "transfer", "host": "rest"}
"""The phase whose time the lines of a role make up. Lines of other roles hold operators that no line tells apart."""


@dataclass(frozen=True, slots=True)
class LineTime:
    """A line with its time in a steady step, torch.save left out (that is a segment of its own, charged to no step).

    host: the part outside the loader and the model.
    """

    line: LineUse
    duration: Estimate
    host: Estimate


def line_times(lines: Iterable[LineUse], phases: tuple[AccountUse, ...]) -> tuple[LineTime, ...]:
    """The lines, scaled down so that those of a role take no longer than their phase does in the steady steps.

    A comprehension on a line is a function of its own to Python: its time is added to the line's.
    """
    own = [_own(group) for group in _by_place(lines).values()]
    scales = {role: _scale(own, role, named(phases, phase)) for role, phase in PHASE_OF.items()}
    usual = scales["host"]
    return tuple(
        LineTime(each.line, scaled(each.duration, scales.get(role, 1.0)), scaled(each.host, scales.get(role, usual)))
        for each, role in ((each, each.line.role) for each in own)
    )


def _by_place(lines: Iterable[LineUse]) -> dict[tuple[str, int], list[LineUse]]:
    """Lines by file and number, the function that holds the others first."""
    found: dict[tuple[str, int], list[LineUse]] = {}
    for line in sorted(lines, key=lambda line: line.source.function.rsplit(".", 1)[-1].startswith("<")):
        found.setdefault((line.source.file, line.source.line), []).append(line)
    return found


def _own(group: list[LineUse]) -> LineTime:
    saving = sum(line.checkpoint for line in group)
    duration, host = total(line.duration for line in group), total(line.host for line in group)
    return LineTime(
        group[0],
        scaled(duration, 1 - ratio(saving, duration.value)),
        scaled(host, 1 - ratio(min(saving, host.value), host.value)),
    )


def _scale(own: list[LineTime], role: str, phase: AccountUse | None) -> float:
    spent = sum(each.duration.value for each in own if each.line.role == role)
    if phase is None or spent <= phase.duration.value:
        return 1.0
    return ratio(phase.duration.value, spent)


def loop_functions(lines: Iterable[LineUse]) -> frozenset[tuple[str, str]]:
    """(file, function) of the training loops: functions with lines that run the model's backward or update."""
    return frozenset(
        (line.source.file, line.source.function) for line in lines if line.role in ("backward", "optimizer")
    )
