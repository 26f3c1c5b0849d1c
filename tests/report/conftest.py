"""A report as a diagnosis makes it, with every part filled; and pages of reports in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report.sheets import Sheet, opening

from steptime.advice.evidence import Case, LineUse
from steptime.advice.rule import Finding, Weight
from steptime.advice.run_uses import CategoryUse, SegmentUse, StepSummary
from steptime.advice.verdict import Verdict
from steptime.analysis.operators import OperatorUse
from steptime.quantities import Estimate, SourceLine
from steptime.report.page import page
from steptime.report.report import SCHEMA_VERSION, Cost, JobEnvironment, ProcessReport, Report

LOOP = SourceLine("/home/ada/train.py", 88, "main", "for images, labels in loader:")


def about(value: float, unit: str = "ns") -> Estimate:
    return Estimate(value, 0.97 * value, 1.03 * value, 58, unit)


def category(name: str, milliseconds: float, recoverable: float | None = None) -> CategoryUse:
    return CategoryUse(name, about(milliseconds * 1e6), about((recoverable or 0.0) * 1e6))


@pytest.fixture
def findings() -> tuple[Finding, ...]:
    """Three with savings, a note, a caveat: more than a terminal has room for in full."""
    long = "a sentence that is longer than the terminal is wide, because findings carry all of their numbers with them"
    return (
        Finding(
            "ST102", "too-few-workers", Weight.FINDING, long, f"Raise num_workers: {long}.", about(60e6), "input", LOOP
        ),
        Finding(
            "ST201", "python-time", Weight.FINDING, "gc takes 5 ms", "Collect less often.", about(5e6), "python", LOOP
        ),
        Finding("ST501", "optimizer-share", Weight.FINDING, "1 ms", "Use foreach.", about(1e6), "compute", LOOP),
        Finding("ST901", "slow-evaluation", Weight.NOTE, "evaluation takes 12 % of the run", "Evaluate less often."),
        Finding("ST801", "background-load", Weight.CAVEAT, "other programs use 1.1 of 2 CPUs", "Measure again."),
    )


@pytest.fixture
def case() -> Case:
    return Case(
        step=StepSummary(about(96.2e6), total=80, steady=58, warm_up=3, mode="optimizer", device="cpu"),
        categories=(
            category("compute", 22.0),
            category("input", 68.0, 68.0),
            category("overhead", 3.0),
            category("python", 2.0),
            category("copy", 0.2),
            category("unexplained", 1.0),
        ),
        phases=(category("input", 68.0), category("forward", 8.0), category("backward", 18.0), category("rest", 2.2)),
        lines=(LineUse(LOOP, "input", about(68e6), about(0.0), 1.0),),
        operators=(OperatorUse("aten::conv2d", 3.0, 12e6, "compute", flops=1e9, bytes=2e6),),
        segments=(SegmentUse("evaluation", 3, 900_000_000, 0.12),),
    )


@pytest.fixture
def report(case: Case, findings: tuple[Finding, ...]) -> Report:
    process = ProcessReport(
        name="pid 4242",
        rank=None,
        case=case,
        verdict=Verdict("input", "Bound by waiting for input: without it a step would be 71 %, 69 to 72 % shorter."),
        findings=findings,
        not_examined=(("ST301", "no device trace"),),
        failed=(),
        cost=Cost(about(6e3), 5e3, 3, 400_000_000, 120_000_000, 612.0),
        step_ns=(96_000_000,) * 80,
        steady=(True,) * 80,
        notes=("the first 3 steps are warm-up",),
    )
    environment = JobEnvironment("python train.py", "box", "cpu", "3.11.7", "2.13.0+cpu", "0.1.0")
    return Report(SCHEMA_VERSION, "runs/train", environment, (process,), "steptime explain ST102", ("trace 2 is cut",))


@pytest.fixture
def open_text(browser: Any, tmp_path: Path) -> Iterator[Any]:
    with opening(browser, tmp_path) as opened:
        yield opened


@pytest.fixture
def open_page(open_text: Any) -> Any:
    """Opens the page of a report."""

    def opened(report: Report, width: int = 1280, **options: Any) -> Sheet:
        sheet: Sheet = open_text(page.render(report), width, **options)
        return sheet

    return opened
