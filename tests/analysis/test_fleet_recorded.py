"""A recording of more ranks than are looked at whole: reduced one by one, and the late one found all the same."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from journals import MS, JournalBuilder
from once import made_once

from steptime.analysis.stragglers.fleet import ProcessTask, reduce_process, reduce_processes
from steptime.diagnosis import DETAILED_RANKS, diagnose_paths
from steptime.errors import RecordingError
from steptime.recording.load import look_into
from steptime.report.json import render

RANKS, LATE, STEPS = DETAILED_RANKS + 8, 23, 40
STEP = 40 * MS


def process_folder(folder: Path, name: str, rank: int | None, steps: int = STEPS, late: bool = False) -> None:
    """A rank that waits in backward for the late one, as all ranks end their steps together."""
    job = JournalBuilder()
    random = np.random.default_rng(rank or 0)
    job.process_facts = {"pid": int(name), "rank": rank, "world_size": RANKS, "host": f"node{(rank or 0) // 8}"}
    job.fact("loader", identity=1, loader=1, dataset="Shard", batch_size=8)
    for _ in range(steps):
        start = job.now
        job.next((15 if late else 5) * MS + int(random.integers(MS))).forward(5 * MS)
        job.backward(start + STEP - 2 * MS - job.now).step(2 * MS)
    written = job.write(folder / f"written-{name}")
    shutil.move(written / "process-17", folder / f"process-{name}")
    shutil.copy(written / "manifest.json", folder / "manifest.json")
    shutil.rmtree(written)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def write(folder: Path) -> None:
        for rank in range(RANKS):
            process_folder(folder, str(100 + rank), rank, late=rank == LATE)

    return made_once(tmp_path_factory, "fleet-recorded", write)


def test_the_late_rank_comes_first_all_have_a_row_and_few_are_looked_at_whole(fleet: Path) -> None:
    report = diagnose_paths((str(fleet),), workers=1)
    assert report.environment.ranks == RANKS
    assert report.ranks is not None
    assert [row.rank for row in report.ranks.rows] == list(range(RANKS))
    assert report.ranks.late is not None
    assert report.ranks.late.ranks == (LATE,)
    assert report.ranks.late.category == "input"
    assert report.ranks.late.excess == pytest.approx(10 * MS, rel=0.1)
    assert report.processes[0].rank == LATE
    assert len(report.processes) <= 4
    assert report.problems == ()


def test_worker_processes_give_the_same_report_as_none(fleet: Path) -> None:
    assert render(diagnose_paths((str(fleet),), workers=2)) == render(diagnose_paths((str(fleet),), workers=1))


@pytest.mark.slow
def test_a_real_ray_gives_the_same_report_as_the_local_engine(fleet: Path) -> None:
    pytest.importorskip("ray")
    alone = diagnose_paths((str(fleet),), engine="local", workers=1)
    assert render(diagnose_paths((str(fleet),), engine="ray", workers=2)) == render(alone)


def test_what_is_reported_of_few_ranks_does_not_depend_on_how_they_are_read(tmp_path: Path) -> None:
    for rank in range(4):
        process_folder(tmp_path, str(100 + rank), rank, late=rank == 2)
    whole = diagnose_paths((str(tmp_path),))
    mapped = diagnose_paths((str(tmp_path),), engine="local", workers=1)
    assert mapped.ranks == whole.ranks
    assert mapped.processes[0] == whole.processes[0]
    assert mapped.environment == whole.environment
    assert mapped.problems == whole.problems
    assert whole.problems[-1].startswith(f"{RANKS - 4} ranks are missing, of the job's {RANKS}")


def test_an_error_in_a_worker_is_the_same_sentence_here() -> None:
    error = pickle.loads(pickle.dumps(RecordingError("recording-permission", "It may not be read.", exit_status=3)))
    assert type(error) is RecordingError
    assert (error.slug, error.sentence, error.exit_status) == ("recording-permission", "It may not be read.", 3)


def test_a_damaged_rank_is_a_sentence_and_the_others_are_compared(fleet: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(fleet, tmp_path / "copy")
    (copy / "process-105" / "journal.bin").write_bytes(b"x" * 100)
    (copy / "process-106" / "process.json").write_text("{")
    report = diagnose_paths((str(copy),), workers=1)
    assert report.ranks is not None
    assert len(report.ranks.rows) == RANKS - 2
    assert report.ranks.late is not None
    assert report.ranks.late.ranks == (LATE,)
    assert any("process-105/journal.bin" in problem for problem in report.problems)
    assert any("process-106/process.json" in problem for problem in report.problems)
    assert report.problems[-1].startswith(f"2 ranks are missing, of the job's {RANKS}")


def test_of_two_processes_of_one_rank_the_one_that_trained_longer_is_compared(tmp_path: Path) -> None:
    for name, rank, steps in (("100", 0, 40), ("101", 1, 12), ("102", 1, 40)):
        process_folder(tmp_path, name, rank, steps)
    reduced = reduce_processes(look_into(tmp_path), workers=1)
    assert [(each.facts.pid, each.summary is not None) for each in reduced] == [(100, True), (101, False), (102, True)]
    assert "twice" in reduced[1].reported[-1]


def test_processes_that_only_infer_are_left_out_where_others_train(fleet: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(fleet, tmp_path / "copy")
    infers = JournalBuilder()
    infers.process_facts = {"pid": 999, "rank": 40}
    for _ in range(20):
        infers.evaluate(5 * MS)
    shutil.move(infers.write(tmp_path / "other") / "process-17", copy / "process-999")
    reduced = reduce_processes(look_into(copy), workers=1)
    assert [each.facts.rank for each in reduced if each.summary is None] == [40]


def test_many_processes_without_ranks_are_reported_one_by_one_as_ever(tmp_path: Path) -> None:
    for number in range(DETAILED_RANKS + 1):
        process_folder(tmp_path, str(100 + number), None, steps=12)
    report = diagnose_paths((str(tmp_path),), workers=1)
    assert report.ranks is None
    assert len(report.processes) == DETAILED_RANKS + 1


def test_a_summary_of_a_recorded_rank_is_a_few_kilobytes(tmp_path: Path) -> None:
    process_folder(tmp_path, "100", 0, steps=4000)
    contents = look_into(tmp_path)
    reduced = reduce_process(ProcessTask(contents.folders[0], contents.manifest, None))
    assert reduced.summary is not None
    assert reduced.summary.series is not None
    assert reduced.summary.series.own.nbytes < 4096
    assert reduced.summary.series.own.base is None
