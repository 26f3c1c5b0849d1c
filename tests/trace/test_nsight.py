"""What Nsight Systems exported is read as what Kineto writes: the same events, one trace for each process.

two_processes.sqlite is 14 ms of tests/fixtures/mfu_2gpu_after.sqlite of GindaChen/nsys-ai (MIT): an image model on two
H100s under torch.autograd.profiler.emit_nvtx, exported by Nsight Systems 2026.2.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from steptime.diagnosis import diagnose_paths
from steptime.errors import TraceError
from steptime.trace.databases import processes_of
from steptime.trace.gather import gather
from steptime.trace.links import UNKNOWN, launches_of
from steptime.trace.table import EventKind, Trace
from steptime.trace.windows import read_rank

REAL = Path(__file__).parent / "two_processes.sqlite"


def traces() -> list[Trace]:
    return [read_rank(rank) for rank in gather([str(REAL)]).ranks]


def asked(query: str) -> list[tuple[int, ...]]:
    database = sqlite3.connect(REAL)
    try:
        return database.execute(query).fetchall()
    finally:
        database.close()


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (EventKind.KERNEL, "CUPTI_ACTIVITY_KIND_KERNEL"),
        (EventKind.MEMCPY, "CUPTI_ACTIVITY_KIND_MEMCPY"),
        (EventKind.MEMSET, "CUPTI_ACTIVITY_KIND_MEMSET"),
    ],
)
def test_each_process_has_its_own_work_to_the_nanosecond(kind: EventKind, table: str) -> None:
    message = asked(f'SELECT COUNT(*), SUM("end" - start) FROM {table} GROUP BY globalPid ORDER BY globalPid')
    rows = [(each, each.events.event_kind == kind) for each in traces()]
    assert [(int(of.sum()), int(trace.events.duration[of].sum())) for trace, of in rows] == message


def test_kernels_are_linked_to_the_calls_that_launched_them_and_calls_have_kinetos_names() -> None:
    for trace in traces():
        kernels = trace.events.event_kind == EventKind.KERNEL
        launches = launches_of(trace)[kernels]
        assert (launches != UNKNOWN).mean() > 0.95  # some were launched before the excerpt
        called = {trace.symbols[number] for number in np.unique(trace.events.name[launches[launches != UNKNOWN]])}
        assert called <= {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx", "cuLaunchKernel"}


def test_ranges_of_emit_nvtx_are_operators() -> None:
    for trace in traces():
        operators = trace.events.event_kind == EventKind.OPERATOR
        names = {trace.symbols[number] for number in np.unique(trace.events.name[operators])}
        assert "aten::mul" in names or "aten::add" in names
        assert not [name for name in names if "op_id" in name]


def test_copies_say_their_direction_and_bytes() -> None:
    trace = traces()[0]
    copies = trace.events.event_kind == EventKind.MEMCPY
    assert {trace.symbols[number] for number in trace.events.name[copies]} <= {
        "Memcpy DtoD (Device -> Device)", "Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)",
        "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pinned)",
    }  # fmt: skip
    assert (trace.events.bytes[copies] > 0).all()


def test_a_database_is_a_job_whose_processes_are_ranks() -> None:
    report = diagnose_paths([str(REAL)])
    assert report.environment.ranks == 2
    case = report.processes[0].case
    assert sum(round(use.duration.value) for use in case.categories) == round(case.step.duration.value)
    assert any("2 processes" in message for message in report.problems), report.problems


def test_a_damaged_database_is_refused_in_a_sentence(tmp_path: Path) -> None:
    torn = tmp_path / "torn.sqlite"
    torn.write_bytes(REAL.read_bytes()[:50_000])
    with pytest.raises(TraceError, match="is not a readable database"):
        processes_of(torn)


def test_a_database_of_something_else_is_refused_and_a_view_is_no_table(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    database = sqlite3.connect(other)
    database.execute("CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start, 2 AS end")
    database.commit()
    database.close()
    with pytest.raises(TraceError, match="is a database of an unknown profiler"):
        processes_of(other)
