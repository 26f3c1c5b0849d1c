"""Reports of real runs of examples/slow_input.py, and what a changed job would have made of them.

quiet-1 and quiet-2: one job twice, on a quiet machine of two CPUs. busy-1 and busy-2: the same next to other programs
that used most of both.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.advice.evidence import Case
from steptime.advice.run_uses import CategoryUse
from steptime.quantities import Estimate
from steptime.report import json
from steptime.report.report import Report

REPORTS = Path(__file__).parent.parent / "compare" / "reports"
QUIET = ("quiet-1", "quiet-2")
BUSY = ("busy-1", "busy-2")


def stored(name: str) -> Report:
    path = REPORTS / f"{name}.json"
    return json.read(path.read_bytes(), str(path))


def with_case(report: Report, **changed: Any) -> Report:
    process = report.processes[0]
    case = replace(process.case, **changed)
    return replace(report, processes=(replace(process, case=case), *report.processes[1:]))


def with_process(report: Report, **changed: Any) -> Report:
    return replace(report, processes=(replace(report.processes[0], **changed), *report.processes[1:]))


def with_environment(report: Report, **changed: Any) -> Report:
    return replace(report, environment=replace(report.environment, **changed))


def with_loader(report: Report, **changed: Any) -> Report:
    loader = report.processes[0].case.loader
    assert loader is not None
    return with_case(report, loader=replace(loader, **changed))


def longer_by(report: Report, category: str, nanoseconds: float) -> Report:
    """The report with every step longer by so much, all of it in one account (and phase of that name, if any)."""
    process = report.processes[0]
    case = process.case
    step = replace(case.step, duration=_moved(case.step.duration, nanoseconds))
    report = with_case(
        report,
        step=step,
        categories=_in(case.categories, category, nanoseconds),
        phases=_in(case.phases, category if category == "input" else "rest", nanoseconds),
    )
    return with_process(report, step_ns=tuple(max(1, round(spent + nanoseconds)) for spent in process.step_ns))


def _in(uses: tuple[CategoryUse, ...], name: str, nanoseconds: float) -> tuple[CategoryUse, ...]:
    if name not in {use.name for use in uses}:
        moved = Estimate(nanoseconds, 0.98 * nanoseconds, 1.02 * nanoseconds, 44)
        return (*uses, CategoryUse(name, moved, moved))
    return tuple(replace(use, duration=_moved(use.duration, nanoseconds)) if use.name == name else use for use in uses)


def _moved(estimate: Estimate, nanoseconds: float) -> Estimate:
    low, value, high = (max(0.0, each + nanoseconds) for each in (estimate.low, estimate.value, estimate.high))
    return replace(estimate, low=low, value=value, high=high)


def step_of(report: Report) -> float:
    return report.processes[0].case.step.duration.value


def case_of(report: Report) -> Case:
    return report.processes[0].case
