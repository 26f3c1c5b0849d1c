"""Recordings of real jobs on an H100 and an H200 (tests/data/gpu), each diagnosed once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from steptime.advice.evidence import Case
from steptime.advice.rule import Finding
from steptime.diagnosis import diagnose_paths
from steptime.report.report import Report

GPU = Path(__file__).resolve().parent / "data" / "gpu"


@cache
def report_of(name: str) -> Report:
    return diagnose_paths([str(GPU / name)])


def diagnosed(name: str) -> tuple[Case, tuple[Finding, ...]]:
    """Case and findings of the first process."""
    process = report_of(name).processes[0]
    return process.case, process.findings
