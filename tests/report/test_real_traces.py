"""Every published trace is diagnosed, or refused in one sentence; what is said of it holds together."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from steptime.diagnosis import diagnose_paths
from steptime.errors import SteptimeError
from steptime.findings.finding import Weight
from steptime.report import json, markdown, text
from steptime.report.report import ProcessReport, Report

DATA = Path(os.environ.get("STEPTIME_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FILES = sorted(path for path in DATA.rglob("*") if path.is_file() and path.name not in {"README.md", "expected.json"})
NO_TRACES = ("snapshots/", "param/dlrm_pytorch_et/")
"""Folders of other things that profilers write: memory snapshots, execution traces."""
WIDEST_OVERRUN = 1.3
"""Times the step, for the sum of kernels that overlap: stakes are cut to the step all the same."""


def name(path: Path) -> str:
    return path.relative_to(DATA).as_posix()


def diagnosed(path: Path) -> Report:
    return diagnose_paths([str(path)], cache=False)


@pytest.mark.skipif(not FILES, reason=f"no real traces in {DATA} (set STEPTIME_DATA)")
@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_published_file_is_diagnosed_or_refused_in_a_sentence(path: Path) -> None:
    if name(path).startswith(NO_TRACES):
        with pytest.raises(SteptimeError, match=r"(?s)\A[^\n]*\Z"):
            diagnosed(path)
        return
    report = diagnosed(path)
    (process,) = report.processes
    assert process.failed == ()
    _accounts_hold_together(process)
    _findings_hold_together(process)
    _is_readable(report)


def test_all_published_files_are_looked_at(shared_data: Path) -> None:
    assert len(FILES) >= 50, shared_data


def test_the_ranks_of_a_published_job_name_the_late_one(shared_data: Path) -> None:
    """Worker 7 waits 1.5 ms in collectives in which the others wait 3 to 11."""
    report = diagnose_paths([str(shared_data / "param/dlrm_kineto")], cache=False)
    assert len(report.processes) == 8
    assert report.processes[0].rank == 7
    assert report.processes[0].verdict.sentence.startswith("The other ranks wait for rank 7.")
    assert all(any(found.name == "late-rank" for found in each.findings) for each in report.processes)
    assert "waiting for rank 7" in " ".join(each.verdict.sentence for each in report.processes[1:])


def _accounts_hold_together(process: ProcessReport) -> None:
    case = process.case
    step = case.step.duration.value
    assert sum(use.duration.value for use in case.accounts) == pytest.approx(step, abs=len(case.accounts))
    for account in ("input", "sync", "compile", "launch", "host"):
        idle = sum(use.duration.value for use in case.gaps if use.account == account)
        whole = next((use.duration.value for use in case.accounts if use.name == account), 0.0)
        assert not case.gaps or idle <= whole + 1
    compute = next((use.duration.value for use in case.accounts if use.name == "compute"), 0.0)
    if case.roofline is not None:
        bounds = case.roofline
        split = bounds.compute + bounds.memory + bounds.latency + bounds.unmodelled
        assert split == pytest.approx(compute, abs=4)


def _findings_hold_together(process: ProcessReport) -> None:
    step = process.case.step.duration.value
    for finding in process.findings:
        assert finding.at_stake is not None or finding.weight is not Weight.FINDING
        if finding.weight is Weight.FINDING and finding.at_stake is not None:
            assert 0.02 * step <= finding.at_stake.value <= WIDEST_OVERRUN * step, finding
    for prediction in process.case.replay.predictions if process.case.replay else ():
        assert prediction.saved.value <= prediction.cap + 1


def _is_readable(report: Report) -> None:
    shown = text.render(report).splitlines()
    assert len(shown) <= text.LINES
    assert all(len(line) <= text.COLUMNS for line in shown if not line.startswith(("From:", "Next:")))
    assert json.read(json.render(report).encode(), "report.json") == report
    assert "Traceback" not in markdown.render(report)


def test_some_ranks_of_a_larger_job_leave_the_others_open(shared_data: Path) -> None:
    folder = shared_data / "param/dlrm_kineto"
    report = diagnose_paths([str(folder / name.name) for name in sorted(folder.iterdir())[:2]], cache=False)
    assert "These are 2 of the job's 8 ranks: one that is not among them may be later." in report.problems
