"""What loggers are told of the steps: the numbers of `steptime watch`, summed up in the job's own process."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import pytest
from journals import MS, US, JournalBuilder

pytest.importorskip("torch")

from steptime.journal import RECORD, WORDS, Flag, Kind
from steptime.live.view import view_of
from steptime.probe.step_metrics import MOST_SUMMED, StepTally


@dataclass
class FastPath:
    thread: int = 0


def records_of(built: JournalBuilder) -> list[int]:
    """As the journal keeps them."""
    return list(struct.unpack(f"<{WORDS * len(built.records)}q", b"".join(built.records)))


def tally_of(built: JournalBuilder, sizes: dict[int, int | None] | None = None) -> StepTally:
    """Steps that end with what the first one ended with; it is none of those that are counted."""
    tally, records = StepTally(FastPath(), sizes or {}), records_of(built)
    one_step = next(
        place + WORDS
        for place in range(0, len(records), WORDS)
        if records[place] & 0xFF in (Kind.OPTIMIZER_STEP, Kind.SCALER_STEP)
        and (place + WORDS == len(records) or records[place + WORDS] & 0xFF != Kind.SCALER_STEP)
    )
    tally.add(records[:one_step])
    tally.learn(1)
    tally.add(records[one_step:])
    return tally


def seen(built: JournalBuilder, folder: Path) -> dict[str, float]:
    """The parts of the same records in ms per step, as the live view has them."""
    view, _ = view_of(built.process(folder), 0)
    return {f"{part.name}_ms": part.total / view.steps / MS for part in view.phases if part.total}


def plain(built: JournalBuilder) -> None:
    built.next(2 * MS).forward(3 * MS).wait(MS).backward(5 * MS).wait(MS).step(MS)


def scaled(built: JournalBuilder) -> None:
    built.next(2 * MS).forward(3 * MS).backward(5 * MS)
    with built.within(Kind.SCALER_STEP, 1):
        built.wait(MS).step(2 * MS).wait(MS)


def closure(built: JournalBuilder) -> None:
    built.next(2 * MS)
    with built.within(Kind.OPTIMIZER_STEP, 1):
        built.wait(MS).forward(3 * MS).backward(5 * MS).wait(2 * MS)


def accumulated(built: JournalBuilder) -> None:
    for _ in range(3):
        built.next(MS).forward(MS).backward(2 * MS)
    built.step(MS)


def two_models(built: JournalBuilder) -> None:
    with built.within(Kind.FORWARD, 1, Flag.GRADIENT | Flag.TRAINING):
        built.wait(MS).forward(2 * MS, root=2)
    built.backward(4 * MS).step(MS)


@pytest.mark.parametrize("step", [plain, scaled, closure, accumulated, two_models])
def test_the_parts_are_those_of_the_live_view(step: object, tmp_path: Path) -> None:
    assert callable(step)
    built = JournalBuilder()
    for _ in range(30):
        step(built)
    values = tally_of(built).take()
    assert {name: value for name, value in values.items() if value and name != "step_ms"} == seen(built, tmp_path / "r")
    assert sum(value for name, value in values.items() if name != "step_ms") == pytest.approx(values["step_ms"])


def test_a_step_with_an_evaluation_a_compilation_or_unwatched_is_no_sample() -> None:
    built = JournalBuilder()
    for number in range(30):
        plain(built)
        if number == 10:
            for _ in range(5):
                built.evaluate(20 * MS)
        if number == 15:
            built.span(Kind.COMPILE, 300 * MS)
        if number == 20:
            built.wait(90 * MS).span(Kind.BOUNDARY, 0)
    tally = tally_of(built)
    assert tally.take()["step_ms"] == 13
    assert tally.steps == 31


def test_what_steptime_holds_the_job_for_belongs_to_no_step() -> None:
    built = JournalBuilder()
    for _ in range(10):
        plain(built)
        built.span(Kind.PAUSE, 40 * MS)
    assert tally_of(built).take()["step_ms"] == 13


def test_steps_while_steptime_makes_them_longer_are_no_sample() -> None:
    built = JournalBuilder()
    tally = StepTally(FastPath(), {})
    plain(built)
    tally.add(records_of(built))
    tally.learn(1)
    for work in (MS, 50 * MS, MS):
        built.records.clear()
        built.forward(work).step(MS)
        if work > MS:
            tally.spoil(built.now)
        tally.add(records_of(built))
    assert tally.take()["step_ms"] == pytest.approx(2)


def test_threads_alongside_the_training_count_for_nothing() -> None:
    built = JournalBuilder()
    for _ in range(10):
        plain(built)
        built.thread = 3
        built.record(Kind.OPTIMIZER_STEP, built.now - MS, built.now, 1)
        built.thread = 0
    tally = tally_of(built)
    assert tally.steps == 10
    assert tally.take()["step_ms"] == 13


def test_samples_are_those_of_the_batches() -> None:
    built = JournalBuilder()
    for _ in range(10):
        plain(built)
    assert tally_of(built, {1: 26}).take()["samples_per_second"] == 2000
    assert "samples_per_second" not in tally_of(built, {1: None}).take()


def test_of_very_short_steps_all_are_counted_and_the_newest_summed_up() -> None:
    built = JournalBuilder()
    for _ in range(MOST_SUMMED):
        built.forward(US).backward(US).step(US)
    tally = tally_of(built)
    assert tally.steps == MOST_SUMMED
    assert tally.take()["step_ms"] == pytest.approx(0.003)


def test_the_numbers_are_given_once() -> None:
    built = JournalBuilder()
    for _ in range(4):
        plain(built)
    tally = tally_of(built)
    assert tally.take()
    assert tally.take() == {}


def test_a_record_has_the_words_that_are_read_here() -> None:
    assert RECORD.size == 8 * WORDS
