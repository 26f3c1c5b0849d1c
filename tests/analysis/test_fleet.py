"""A made-up fleet of real traces: found, cheap, and the same on every engine."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from once import made_once

from steptime import diagnosis
from steptime.analysis.stragglers.fleet import Task, reduce_all, reduce_rank
from steptime.analysis.stragglers.straggler import compare
from steptime.diagnosis import diagnose_paths
from steptime.report import json
from steptime.trace.gather import gather

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from fleet import fleet_of, found  # type: ignore[import-not-found]
from fleet_traces import Base, Plan, read_base, write_fleet  # type: ignore[import-not-found]

RANKS = 16
LATE = 11


@pytest.fixture(scope="module")
def base(shared_data: Path) -> Base:
    return read_base(sorted((shared_data / "param" / "dlrm_kineto").glob("*.json.gz")))


@pytest.fixture(scope="module")
def fleet(base: Base, tmp_path_factory: pytest.TempPathFactory) -> Path:
    plan = Plan(RANKS, 3, late=(LATE,), excess=0.3)
    return made_once(tmp_path_factory, "fleet", lambda folder: write_fleet(base, plan, folder))


def test_the_late_rank_of_a_fleet_of_traces_comes_first_and_few_are_looked_at_whole(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "DETAILED_RANKS", RANKS - 1)
    report = diagnose_paths((str(fleet),), cache=False, workers=1)
    assert report.environment.ranks == RANKS
    assert report.ranks is not None
    assert len(report.ranks.rows) == RANKS
    assert report.ranks.late is not None
    assert report.ranks.late.ranks == (LATE,)
    assert report.processes[0].rank == LATE
    assert len(report.processes) <= 4
    assert "straggler" in {finding.name for finding in report.processes[0].findings}


@pytest.mark.slow
def test_worker_processes_give_the_same_report_as_none(fleet: Path) -> None:
    alone = diagnose_paths((str(fleet),), cache=False, engine="local", workers=1)
    several = diagnose_paths((str(fleet),), cache=False, engine="local", workers=2)
    assert json.render(several) == json.render(alone)


@pytest.mark.slow
def test_a_real_ray_gives_the_same_report_as_the_local_engine(fleet: Path) -> None:
    pytest.importorskip("ray")
    alone = diagnose_paths((str(fleet),), cache=False, engine="local", workers=1)
    cluster = diagnose_paths((str(fleet),), cache=False, engine="ray", workers=2)
    assert json.render(cluster) == json.render(alone)


def test_summaries_made_without_files_are_those_that_the_files_give(base: Base, fleet: Path, shared_data: Path) -> None:
    real = sorted((shared_data / "param" / "dlrm_kineto").glob("*.json.gz"))[0]
    summary = reduce_rank(Task(0, gather([str(real)]).ranks[0])).summary
    assert summary is not None
    made = compare(fleet_of(base, summary, Plan(RANKS, 3, late=(LATE,), excess=0.3)))
    read = compare([each.summary for each in reduce_all(gather([str(fleet)]).ranks, workers=1) if each.summary])
    assert made is not None
    assert read is not None
    for one, other in zip(made.rows, read.rows, strict=True):
        assert one.waiting == pytest.approx(other.waiting, rel=0.01, abs=5000)
        assert one.last == pytest.approx(other.last, abs=0.01)


def test_planted_ranks_are_found_and_healthy_fleets_raise_no_alarm(base: Base, shared_data: Path) -> None:
    real = sorted((shared_data / "param" / "dlrm_kineto").glob("*.json.gz"))[0]
    summary = reduce_rank(Task(0, gather([str(real)]).ranks[0])).summary
    assert summary is not None
    result = found(base, summary, 64, 20)
    assert result["right"] == 1.0
    assert result["false_alarms"] == 0.0


def test_a_rank_that_cannot_be_read_is_reported_and_the_others_are_compared(base: Base, tmp_path: Path) -> None:
    files = write_fleet(base, Plan(4, 5, late=(2,), excess=0.4), tmp_path)
    ranks = gather([str(tmp_path)]).ranks
    files[1].write_bytes(b"gone")
    reduced = reduce_all(ranks, workers=1)
    assert [each.summary is None for each in reduced] == [False, True, False, False]
    assert "rank1" in reduced[1].reported[0]


def test_two_processes_of_one_rank_are_not_compared_with_one_another(base: Base, tmp_path: Path) -> None:
    write_fleet(base, Plan(2, 5), tmp_path)
    ranks = gather([str(tmp_path)]).ranks
    reduced = reduce_all((*ranks, replace(ranks[1])), workers=1)
    assert reduced[2].summary is None
    assert "twice" in reduced[2].reported[0]


def test_a_summary_of_a_real_rank_is_a_few_kilobytes(shared_data: Path) -> None:
    real = sorted((shared_data / "hta" / "trace_filter").glob("*.json.gz"))[0]
    summary = reduce_rank(Task(0, gather([str(real)]).ranks[0])).summary
    assert summary is not None
    columns = [getattr(each, name) for each in summary.exchanges for name in ("step", "start", "duration", "bytes")]
    assert sum(column.nbytes for column in columns) < 16_384
    assert all(isinstance(column, np.ndarray) and column.base is None for column in columns)
