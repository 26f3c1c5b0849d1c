"""Telemetry, progress and the packing of traces, on what the system and a driver may answer."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import time
from collections import namedtuple
from pathlib import Path
from subprocess import PIPE

import psutil
import pytest

from steptime.journal import Journal, Kind
from steptime.launcher import telemetry
from steptime.launcher.progress import Journals
from steptime.launcher.telemetry import CpuLoad, Telemetry
from steptime.launcher.thin import compress_traces
from steptime.recording.packed import ASIDE

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


def test_looks_become_rarer_in_a_long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry(tmp_path, os.getpid())
    start = time.monotonic()
    for elapsed, least in ((10, 1), (7200, 4), (86_400 * 7, 10)):
        monkeypatch.setattr(time, "monotonic", lambda now=start + elapsed: now)
        telemetry.look()
        assert telemetry.due - (start + elapsed) >= least - 0.1
        assert telemetry.due - (start + elapsed) < 11


def test_the_load_of_others_is_what_the_machine_does_beyond_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10_000_000_000]
    machine = [Times(100, 0, 50, 1000, 10, 1, 1, 5, 7, 0)]
    job: dict[int, tuple[float, int]] = {1: (4.0, 100)}
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: clock[0])
    monkeypatch.setattr(psutil, "cpu_times", lambda: machine[0])
    monkeypatch.setattr(CpuLoad, "_own_cpu", staticmethod(lambda: 0.25 * (clock[0] / 1e9)))
    monkeypatch.setattr(CpuLoad, "_processes", lambda self: job)
    load = CpuLoad(1)
    clock[0] += 1_000_000_000
    load.look()
    clock[0] += 2_000_000_000
    # in two seconds: 6 busy CPU seconds, 1 stolen; 3 of them the job's (a new tree and an old one), 0.5 our own
    machine[0] = Times(104, 0, 52, 1001, 11, 1, 1, 6, 7, 0)
    job = {1: (6.0, 100), 2: (1.0, 50)}
    sample = load.look()
    assert sample is not None
    assert (sample["job_cpu"], sample["other_cpu"], sample["steal"]) == (1.5, 1.25, 0.5)
    assert (sample["monotonic_ns"], sample["resident_bytes"]) == (13_000_000_000, 150)
    clock[0] += 1_000_000_000
    machine[0], job = Times(110, 0, 52, 1001, 11, 1, 1, 6, 7, 0), {1: (9.5, 150)}
    sample = load.look()
    assert sample is not None
    assert (sample["job_cpu"], sample["other_cpu"]) == (3.5, 0.5), "clocks differ, and the machine has four"


BEGETS = """
import subprocess, sys
for line in sys.stdin:
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.3: pass"])
    print("done", flush=True)
"""


def test_the_work_of_processes_that_ended_between_two_looks_is_the_jobs() -> None:
    with subprocess.Popen([sys.executable, "-c", BEGETS], stdin=PIPE, stdout=PIPE, text=True, bufsize=1) as job:
        assert job.stdin
        assert job.stdout
        load = CpuLoad(job.pid)
        start = time.perf_counter()
        job.stdin.write("once\n")
        assert job.stdout.readline() == "done\n"
        sample = load.look()
        seconds = time.perf_counter() - start
        job.stdin.close()
    assert sample is not None
    assert sample["job_cpu"] * seconds >= 0.29


def test_looks_become_rarer_where_they_are_dear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    taken = Telemetry(tmp_path, os.getpid())
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def dear(self: CpuLoad) -> None:
        clock[0] += 0.1

    monkeypatch.setattr(CpuLoad, "look", dear)
    taken.look()
    assert taken.due == pytest.approx(100.0 + 0.1 / telemetry.LARGEST_SHARE)


def test_telemetry_that_cannot_be_written_ends_without_a_word(tmp_path: Path) -> None:
    taken = Telemetry(tmp_path / "gone", os.getpid())
    taken.look()
    assert taken.failed
    taken.look()
    assert not (tmp_path / "gone").exists()


def test_the_load_of_a_job_that_is_gone_is_none() -> None:
    job = subprocess.Popen(["true"])
    job.wait()
    assert CpuLoad(job.pid).look() is None


def journal(folder: Path, *records: tuple[int, int]) -> None:
    written = Journal()
    folder.mkdir(exist_ok=True)
    written.open(str(folder / "journal.bin"))
    for kind, identity in records:
        written.append(kind, 0, 0, identity, 1, 2)
    written.close()


def test_progress_counts_the_busiest_optimizer_and_unwatched_steps(tmp_path: Path) -> None:
    step, backward = Kind.OPTIMIZER_STEP, Kind.BACKWARD
    journals = Journals(tmp_path)
    assert journals.look() == (0, 0, "waiting for the first training step")
    journal(tmp_path / "process-1", (backward, 0), (step, 1), (backward, 0), (step, 2), (backward, 0), (step, 1))
    assert journals.look() == (2, 1, "watching")
    journal(tmp_path / "process-1", (Kind.BOUNDARY, 0), (step, 1))
    journal(tmp_path / "process-2", (backward, 0))
    (tmp_path / "process-1" / "trace-1.json.gz").write_bytes(b"")
    assert journals.look() == (4, 2, "watching, profile taken")


def test_progress_counts_backward_passes_without_an_optimizer(tmp_path: Path) -> None:
    journal(tmp_path / "process-1", (Kind.FORWARD, 1), (Kind.FORWARD, 1), (Kind.BACKWARD, 0))
    assert Journals(tmp_path).look()[0] == 1


def test_progress_goes_on_where_a_large_journal_was_renamed_to_be_packed(tmp_path: Path) -> None:
    file, steps = tmp_path / "process-1" / "journal.bin", [(Kind.OPTIMIZER_STEP, 1)] * 5
    journals = Journals(tmp_path)
    journal(tmp_path / "process-1", *steps)
    assert journals.look()[0] == 5
    file.rename(file.with_suffix(ASIDE))
    journal(tmp_path / "process-1", *steps[:2])
    assert journals.look()[0] == 7


def test_a_torn_record_is_read_when_it_is_whole(tmp_path: Path) -> None:
    journal(tmp_path / "process-1", (Kind.OPTIMIZER_STEP, 1), (Kind.OPTIMIZER_STEP, 1))
    file = tmp_path / "process-1" / "journal.bin"
    whole = file.read_bytes()
    journals = Journals(tmp_path)
    file.write_bytes(whole[:30])
    assert journals.look()[0] == 1
    file.write_bytes(whole)
    assert journals.look()[0] == 2


def test_traces_are_packed_and_the_plain_ones_removed(tmp_path: Path) -> None:
    text = b'{"traceEvents": []}' * 100_000
    for process in ("process-1", "process-2"):
        (tmp_path / process).mkdir()
        (tmp_path / process / "trace-1.json").write_bytes(text)
    (tmp_path / "process-1" / "trace-2.json.partial").write_bytes(b"{")
    assert compress_traces(tmp_path) == []
    names = sorted(path.name for path in (tmp_path / "process-1").iterdir())
    assert names == ["trace-1.json.gz", "trace-2.json.partial"]
    assert gzip.decompress((tmp_path / "process-2" / "trace-1.json.gz").read_bytes()) == text


def test_a_trace_that_cannot_be_packed_stays_readable(tmp_path: Path) -> None:
    (tmp_path / "process-1").mkdir()
    trace = tmp_path / "process-1" / "trace-1.json"
    trace.write_bytes(b"{}")
    (tmp_path / "process-1" / "trace-1.json.gz").mkdir()  # the place is taken
    (problem,) = compress_traces(tmp_path)
    assert "process-1/trace-1.json was left uncompressed" in problem
    assert trace.read_bytes() == b"{}"
    assert [path.name for path in trace.parent.glob("*.partial")] == []
