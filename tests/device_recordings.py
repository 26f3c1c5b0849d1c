"""Recordings of real jobs on an H100 and an H200 (tests/data/gpu), each diagnosed once for all tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from steptime.advice.evidence import Case
from steptime.advice.rule import Finding
from steptime.cli.trial import case_and_findings
from steptime.diagnosis import diagnose_paths
from steptime.report.report import Report

GPU = Path(__file__).resolve().parent / "data" / "gpu"


@cache
def diagnosed(name: str) -> tuple[Case, tuple[Finding, ...]]:
    """What a trial would begin with."""
    case, findings = case_and_findings(GPU / name)
    return case, tuple(findings)


@cache
def report_of(name: str) -> Report:
    return diagnose_paths([str(GPU / name)])
