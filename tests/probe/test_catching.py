"""What is usual, for the watch of slow steps: told of few boundaries, it knows it from the records."""

from __future__ import annotations

import struct

import pytest
from journals import MS, US, JournalBuilder

pytest.importorskip("torch")

from steptime.journal import WORDS, Kind
from steptime.probe.catching import SIGNS, ends_behind, usual_step
from steptime.probe.steps import OPTIMIZER


def blocks_of(built: JournalBuilder, size: int) -> list[list[int]]:
    """The records as the journal's readers get them, so many at a time."""
    words = list(struct.unpack(f"<{WORDS * len(built.records)}q", b"".join(built.records)))
    return [words[first : first + WORDS * size] for first in range(0, len(words), WORDS * size)]


def test_the_usual_step_is_the_median_of_all_steps_not_of_those_that_were_reported() -> None:
    built = JournalBuilder()
    for number in range(40):
        built.next(MS).forward(4 * MS).backward(8 * MS)
        with built.within(Kind.SCALER_STEP, 1):
            built.step(2 * MS).wait(5 * US)
        if number % 10 == 9:
            built.wait(400 * MS)
    assert usual_step(blocks_of(built, 7), SIGNS[OPTIMIZER]) == 15 * MS + 5 * US


def test_of_a_few_steps_nothing_is_learnt() -> None:
    built = JournalBuilder()
    for _ in range(4):
        built.forward(400 * MS).backward(MS).step(MS)
    assert usual_step(blocks_of(built, 3), SIGNS[OPTIMIZER]) == 0
    assert usual_step([], SIGNS[OPTIMIZER]) == 0


def test_a_slow_step_has_its_number_from_the_steps_that_have_ended_since_it_began() -> None:
    built, ends = JournalBuilder(), []
    for number in range(40):
        built.forward((300 if number == 30 else 4) * MS).backward(8 * MS).step(2 * MS)
        ends.append(built.now)
    blocks = blocks_of(built, 7)
    closing = blocks[-1][-WORDS]
    assert closing & 0xFF == Kind.OPTIMIZER_STEP
    assert 40 + 1 - ends_behind(blocks, closing, ends[29]) == 31
    assert ends_behind(blocks, closing, ends[-1]) == 0
