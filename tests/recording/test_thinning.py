"""The recording of a long run is small, and says what it leaves out."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from journals import MS, START, JournalBuilder

from steptime.analysis.layout import lay_out
from steptime.analysis.timeline import SegmentKind, Timeline
from steptime.journal import RECORD, Kind
from steptime.launcher import thin as launcher
from steptime.launcher.thin import JournalThinner
from steptime.recording.growing import GrowingRecording
from steptime.recording.load import load
from steptime.recording.packed import ASIDE, LAYOUT, MAGIC, Records, unpack
from steptime.recording.thinning import BYTES_PER_SECOND, MINUTE, thin

NOTHING = np.empty(0, LAYOUT)
STEP = 20 * MS


def job(count: int, slow_every: int = 0) -> JournalBuilder:
    """Steps of 20 ms whose times vary a little, by what they do; slow ones of 200 ms."""
    return train(JournalBuilder(), count, slow_every)


def train(built: JournalBuilder, count: int, slow_every: int = 0) -> JournalBuilder:
    chance = random.Random(0)
    for number in range(count):
        more = 180 * MS if slow_every and number % slow_every == slow_every - 1 else 0
        one, other = chance.randrange(MS), chance.randrange(MS)
        built.next(2 * MS + one).forward(8 * MS - one + other).backward(9 * MS + more - other).step(MS)
    return built


def records(built: JournalBuilder) -> Records:
    return np.frombuffer(b"".join(built.records), LAYOUT)


def thinned(built: JournalBuilder, tmp_path: Path, rate: float = BYTES_PER_SECOND) -> tuple[Timeline, int]:
    """The timeline of what is kept, and its bytes."""
    kept = thin(records(built), NOTHING, rate=rate)
    built.records.clear()
    folder = built.write(tmp_path / "r")
    (folder / "process-17" / "journal.packed").write_bytes(kept.journal)
    recording = load(folder)
    assert recording.problems == ()
    return lay_out(recording.processes[0]), len(kept.journal)


def test_half_an_hour_at_fifty_steps_a_second_fits_and_counts_every_step(tmp_path: Path) -> None:
    built = job(90_000)
    timeline, size = thinned(built, tmp_path)
    steps = timeline.steps
    assert size <= BYTES_PER_SECOND * 1800
    assert len(steps.end) + timeline.left_out == 90_000
    assert timeline.left_out > 50_000
    assert steps.steady.sum() > 300, "some of every minute"
    assert np.diff(steps.start[steps.steady]).max() < 2 * MINUTE
    assert abs(steps.duration[steps.steady].mean() - STEP) < 0.01 * STEP
    whole = sum(segment.end - segment.start for segment in timeline.segments if segment.kind is SegmentKind.THINNED)
    assert int(steps.duration.sum()) + whole == steps.end[-1] - steps.start[0]


def test_slow_steps_are_kept_and_do_not_weigh_in_the_mean(tmp_path: Path) -> None:
    timeline, _ = thinned(job(60_000, slow_every=1500), tmp_path)
    steps = timeline.steps
    slow = steps.duration > 3 * STEP
    gaps = steps.duration + 0 < steps.end - steps.start
    assert (slow & ~gaps).sum() >= 30, "of 40"
    assert steps.duration[steps.steady].mean() == pytest.approx(STEP + 180 * MS / 1500, rel=0.02)


def test_evaluations_and_checkpoints_stay(tmp_path: Path) -> None:
    built = job(10_000)
    for _ in range(5):
        for _ in range(50):
            built.next(MS, iterator=2).evaluate(3 * MS)
        built.span(Kind.CHECKPOINT, 70 * MS)
        train(built, 10_000)
    timeline, _ = thinned(built, tmp_path)
    held = {kind: [s for s in timeline.segments if s.kind is kind] for kind in SegmentKind}
    assert len(held[SegmentKind.CHECKPOINT]) == 5
    assert len(held[SegmentKind.EVALUATION]) == 5
    assert sum(s.end - s.start for s in held[SegmentKind.EVALUATION]) == pytest.approx(5 * 200 * MS, rel=0.05)
    assert len(timeline.steps.end) + timeline.left_out == 60_000


def test_what_fits_stays_whole() -> None:
    slow = JournalBuilder()
    for _ in range(5000):
        slow.next(500 * MS).forward(200 * MS).backward(200 * MS).step(100 * MS)
    whole = thin(records(slow), NOTHING)
    assert whole.left_out == 0


def test_a_stretch_that_only_evaluates_has_no_steps() -> None:
    built = JournalBuilder()
    for _ in range(100_000):
        built.evaluate(MS)
    assert thin(records(built), NOTHING, Kind.OPTIMIZER_STEP, rate=1.0).left_out == 0


def test_whatever_the_bytes_are_something_is_kept() -> None:
    noise = np.frombuffer(np.random.default_rng(0).integers(0, 256, 24 * 5000, np.uint8).tobytes(), LAYOUT)
    assert thin(noise, noise).journal.startswith(MAGIC)


def test_the_launcher_thins_alongside_a_process_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LARGE", 4000 * RECORD.size)
    built = job(20_000)
    parts, built.records = built.records, []
    folder = built.write(tmp_path / "r")
    process = folder / "process-17"
    thinner, watched = JournalThinner(folder, lambda: [17]), GrowingRecording(folder)
    for start in range(0, len(parts), 8000):
        with (process / "journal.bin").open("ab") as journal:
            journal.write(b"".join(parts[start : start + 8000]))
        watched.read()
        thinner.look()
        aside = process / f"journal{ASIDE}"
        if aside.exists():  # at any moment all is there, once
            timeline = lay_out(load(folder).processes[0])
            assert len(timeline.steps.end) + timeline.left_out == min(start + 8000, len(parts)) // 4
    thinner.look()
    assert (process / "journal.packed").stat().st_size < BYTES_PER_SECOND * 400 + 8 * 4000, "the first part is whole"
    timeline = lay_out(load(folder).processes[0])
    assert len(timeline.steps.end) + timeline.left_out == 20_000
    (live,) = watched.processes.values()
    assert live.count.steps == 20_000
    watched.close()
    late = GrowingRecording(folder)
    late.read()
    assert [each.count.steps for each in late.processes.values()] == [20_000]
    late.close()


def test_a_launcher_that_is_killed_between_packing_and_removing_loses_and_doubles_nothing(tmp_path: Path) -> None:
    built = job(10_000)
    data = b"".join(built.records)
    built.records = []
    folder = built.write(tmp_path / "r")
    process = folder / "process-17"
    (process / f"journal{ASIDE}").write_bytes(data)
    (process / "journal.packed").write_bytes(thin(np.frombuffer(data, LAYOUT), NOTHING).journal)
    timeline = lay_out(load(folder).processes[0])
    assert len(timeline.steps.end) + timeline.left_out == 10_000


def test_the_workers_records_are_kept_where_the_steps_are() -> None:
    built = job(100_000)
    for number in range(100_000):
        start = START + number * STEP
        built.worker(Kind.FETCH, start, start + 15 * MS)
    loader = np.frombuffer(b"".join(built.worker_records), LAYOUT)
    kept = thin(records(built), loader)
    assert len(kept.journal) + len(kept.loader) <= BYTES_PER_SECOND * 2000
    assert sum(map(len, unpack(kept.loader, 1 << 30))) > 3000 * RECORD.size


def test_only_own_processes_are_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "LARGE", 1)
    folder = job(100).write(tmp_path / "r")
    JournalThinner(folder, lambda: [os.getpid()]).look()
    assert (folder / "process-17" / "journal.bin").exists()
