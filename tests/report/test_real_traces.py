"""Every published trace is diagnosed, or refused in one sentence; what is said of it holds together."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from documents import text_of
from printed import violations
from published import DATA, FILES, IN_A_CLONE, is_alike

from steptime.advice.rule import Weight
from steptime.diagnosis import diagnose_paths
from steptime.errors import SteptimeError
from steptime.report.gain import gain_of
from steptime.report.report import ProcessReport, Report

NO_TRACES = ("snapshots/", "param/dlrm_pytorch_et/", "flight_recorder/")
"""Folders of other things that are written: memory snapshots, execution traces, dumps of the flight recorder."""
LARGE = 300_000
"""Bytes of a file that the slow tests look at."""
WIDEST_OVERRUN = 1.3
"""Times the step, for the sum of kernels that overlap: savings are cut to the step all the same."""


def name(path: Path) -> str:
    return path.relative_to(DATA).as_posix()


@cache
def diagnosed(path: Path) -> Report:
    return diagnose_paths([str(path)], cache=False)


def marks(path: Path) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.slow,) if path.stat().st_size > LARGE or is_alike(path) else ()


@pytest.mark.parametrize("path", [pytest.param(each, id=name(each), marks=marks(each)) for each in FILES])
def test_a_published_file_is_diagnosed_or_refused_in_a_sentence(path: Path) -> None:
    if name(path).startswith(NO_TRACES):
        with pytest.raises(SteptimeError, match=r"(?s)\A[^\n]*\Z"):
            diagnosed(path)
        return
    report = diagnosed(path)
    (process,) = report.processes
    assert process.failed == ()
    _findings_hold_together(process)
    _is_readable(report)
    assert violations(report) == []


VERDICTS = {
    "kineto/resnet50_workers0.pt.trace.json.gz": ("input", ["input-wait", "tensor-cores-unused"]),
    "kineto/resnet50_workers4.pt.trace.json.gz": ("balanced", ["tensor-cores-unused", "slow-transfer"]),
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": ("compute", []),
    "hta/negative_queue_length_values_check/rank0.json.gz": ("unrecorded", ["exposed-communication"]),
    "hta/nccl_parser_config/nccl_data.json.gz": ("overhead", ["overhead-bound"]),
    "tracelens/mi300/resnet_act_checkpoint.json.gz": ("communication", ["exposed-communication"]),
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz": ("overhead", ["allocator-stalls"]),
    "tracelens/h100/google_owlv2-large-patch14-ensemble__1016001.json.gz": (
        "input",
        ["input-wait", "unflashed-attention"],
    ),
}
"""The account that binds, and the first findings, as a person reads them. The loader is an operator in the files
of 2021 and an annotation in the one of 2025; without a memory pool each tensor is a hipMalloc and a hipFree. Of the
graphs of HTA's rank0 only a memset at the end of each was recorded: a person who believes that the device idled takes
the copies for the cause. Collectives that run alone while a host-bound step launches on shorten nothing, nor does most
of a recomputation that runs next to collectives."""


@pytest.mark.parametrize("file", VERDICTS)
def test_the_verdict_on_a_published_trace_is_the_one_that_a_person_finds(shared_data: Path, file: str) -> None:
    bottleneck, first = VERDICTS[file]
    (process,) = diagnosed(shared_data / file).processes
    found = [finding.name for finding in process.findings if finding.weight is Weight.FINDING]
    assert process.verdict.bottleneck == bottleneck
    assert found[: len(first)] == first


def test_a_trace_without_its_device_is_in_doubt(shared_data: Path) -> None:
    folder = shared_data / "hta/cupti_profiler"
    (process,) = diagnosed(next(folder.iterdir())).processes
    assert "device-not-traced" in [finding.name for finding in process.findings]
    assert process.verdict.confidence == "unclear"
    assert process.verdict.sentence.startswith("The device was not recorded")


def test_all_published_files_are_looked_at() -> None:
    assert len(FILES) >= (10 if IN_A_CLONE else 50)


def test_the_ranks_of_a_published_job_name_the_late_one(shared_data: Path) -> None:
    """Worker 7 waits 1.5 ms in collectives in which the others wait 3 to 11."""
    report = diagnose_paths([str(shared_data / "param/dlrm_kineto")], cache=False)
    assert len(report.processes) == 8
    assert report.processes[0].rank == 7
    assert report.processes[0].verdict.sentence.startswith("Rank 7 is the straggler: the others wait ")
    assert all(any(found.name == "straggler" for found in each.findings) for each in report.processes)
    assert "aiting for rank 7" in " ".join(each.verdict.sentence for each in report.processes[1:])


def _findings_hold_together(process: ProcessReport) -> None:
    step = process.case.step.duration.value
    for finding in process.findings:
        part = finding.savings is None and "included in the savings of ST" in finding.summary
        assert part or finding.savings is not None or finding.weight is not Weight.FINDING
        if finding.weight is Weight.FINDING and finding.savings is not None:
            assert 0.02 * step <= finding.savings.value <= WIDEST_OVERRUN * step, finding


def _is_readable(report: Report) -> None:
    lines = text_of(report).splitlines()
    lines = lines[lines.index("") + 1 :] if gain_of(report) is not None else lines
    assert lines[0] == report.processes[0].verdict.sentence or report.processes[0].verdict.sentence.startswith(
        lines[0][:40]
    )


def test_some_ranks_of_a_larger_job_leave_the_others_open(shared_data: Path) -> None:
    folder = shared_data / "param/dlrm_kineto"
    report = diagnose_paths([str(folder / name.name) for name in sorted(folder.iterdir())[:2]], cache=False)
    assert "6 ranks are missing, of the job's 8: one of them may be slower than these." in report.problems
