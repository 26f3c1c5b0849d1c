"""Blocks of one process: their ratios, when a variant is settled, and what goes on."""

from __future__ import annotations

from dataclasses import replace
from math import exp, inf, log
from pathlib import Path

import numpy as np
import pytest

from steptime.trials import blocks
from steptime.trials.blocks import Block, BlockRecord, FirstSteps, SwitchedChange

MS = 1_000_000
RIVALS_OF_NONE = (1, 2, 4)


def process(speeds: dict[int, float], rounds: int, spread: float = 0.0, seed: int = 0) -> list[Block]:
    """Rounds of variants by mask, a speed-up each, between blocks of a job whose steps get slower and slower."""
    generator = np.random.default_rng(seed)
    found: list[Block] = []

    def run(mask: int, round_: int, *, control: bool = False, speed: float = 1.0) -> None:
        step = 10 * MS * exp(0.01 * len(found) + generator.normal(0, spread)) / speed
        found.append(Block(mask, control, round_, len(found), 10, round(5 * step), round(10 * step)))

    run(0, 0)
    for round_ in range(rounds):
        for mask, speed in speeds.items():
            run(mask, round_, speed=speed)
            run(0, round_)
        run(0, round_, control=True)
        run(0, round_)
    return found


def test_a_steady_drift_of_the_machine_is_in_no_ratio() -> None:
    found = process({1: 1.25, 2: 0.8}, 8)
    assert blocks.ratios(found, 1) == pytest.approx([log(1.25)] * 8)
    assert blocks.ratios(found, 2) == pytest.approx([log(0.8)] * 8)
    assert blocks.ratios(found, 0, control=True) == pytest.approx([0.0] * 8, abs=1e-7)


def test_a_stranger_who_hits_single_blocks_is_trimmed_away() -> None:
    own, control = np.full(10, log(1.1)), np.zeros(10)
    own[[2, 7]] = log(0.3), log(4.0)
    speed = blocks.speed_of(own, control)
    assert speed.value == pytest.approx(1.1)
    assert 1.09 < speed.low <= speed.high < 1.11


def test_few_pairs_say_nothing() -> None:
    speed = blocks.speed_of(np.full(7, log(2.0)), np.zeros(7))
    assert (speed.low, speed.high) == (0.0, inf)
    assert blocks.settled(np.full(7, log(2.0)), np.zeros(7), 1.03).speed is None


def test_what_changes_nothing_is_settled_as_that_in_nearly_all_processes() -> None:
    won = 0
    for seed in range(200):
        found = process({1: 1.0}, blocks.LOOKS[-1], 0.05, seed)
        control = blocks.ratios(found, 0, control=True)
        won += blocks.settled(blocks.ratios(found, 1), control, 1.03).won is True
    assert won <= 2


def test_intervals_hold_the_true_speed_up() -> None:
    missed = 0
    for seed in range(300):
        found = process({1: 1.2}, 12, 0.05, seed)
        speed = blocks.speed_of(blocks.ratios(found, 1), blocks.ratios(found, 0, control=True))
        missed += not speed.low <= 1.2 <= speed.high
    assert missed <= 15


def record(speeds: dict[int, float], rounds: int = 8, **more: object) -> BlockRecord:
    acted = (SwitchedChange(True, True, ""),)
    first = tuple(FirstSteps(mask, (10 * MS,) * 3, acted) for mask in speeds)
    return BlockRecord(tuple(process(speeds, rounds, 0.002)), first, tuple(speeds), **more)  # type: ignore[arg-type]


def test_singles_are_settled_first_and_sets_are_built_of_the_winners() -> None:
    singles = {1: 1.5, 2: 1.2, 4: 1.0}
    assert blocks.course(record(singles, 4), RIVALS_OF_NONE, 0, 0.03) == blocks.Course((1, 2, 4), 0)
    assert blocks.course(record(singles), RIVALS_OF_NONE, 0, 0.03) == blocks.Course((1, 3), 1)
    assert blocks.course(record({**singles, 3: 1.8}), RIVALS_OF_NONE, 0, 0.03) == blocks.Course((), 3)


def test_what_adds_nothing_to_a_set_is_left_out_of_it() -> None:
    assert blocks.course(record({1: 1.5, 2: 1.2, 3: 1.5}, 40), (1, 2), 0, 0.03) == blocks.Course((), 1)


def test_what_is_undecided_leaves_its_place_to_the_rest_and_then_goes_on() -> None:
    def record_of(rounds: int, speeds: dict[int, float]) -> BlockRecord:
        return replace(record(speeds), blocks=tuple(process(speeds, rounds, 0.3)))

    assert blocks.course(record_of(blocks.FIRST_LOOKS, {1: 1.05}), RIVALS_OF_NONE[:1], 0, 0.03).going == (1,)
    waiting = record_of(blocks.FIRST_LOOKS, {1: 1.05})
    assert blocks.course(waiting, RIVALS_OF_NONE[:2], 2, 0.03).going == (2,), "the other is compiled meanwhile"
    assert blocks.course(record_of(blocks.LOOKS[-1], {1: 1.05}), RIVALS_OF_NONE[:1], 0, 0.03) == blocks.Course((), 0)


def test_settings_of_one_thing_are_in_no_set_together() -> None:
    assert blocks.course(record({1: 1.5, 2: 1.2}), (3, 3), 0, 0.03) == blocks.Course((), 1)


def test_no_variant_waits_for_another_ones_compiler() -> None:
    late = 2 | 4
    assert blocks.course(record({1: 1.5}, 4), RIVALS_OF_NONE, late, 0.03).going == (1,)
    assert blocks.course(record({1: 1.5}), RIVALS_OF_NONE, late, 0.03).going == (2,)
    assert blocks.course(record({1: 1.5, 2: 1.0}), RIVALS_OF_NONE, late, 0.03).going == (4,)


def test_what_must_be_compiled_is_begun_only_where_its_blocks_have_time() -> None:
    known = record({1: 1.5, 2: 1.4})
    slow = FirstSteps(2, (24_000 * MS, 24 * MS, 21 * MS), (SwitchedChange(True, True, ""),))
    known = BlockRecord(known.blocks, (known.first[0], slow), known.begun)
    assert blocks.course(known, (1, 6, 6), 6, 0.03, left_ns=60e9).going == (4,)
    assert blocks.course(known, (1, 6, 6), 6, 0.03, left_ns=40e9) == blocks.Course((), 1)


def test_what_did_not_act_goes_no_further() -> None:
    known = record({1: 1.5, 2: 1.4}, 3)
    idle = FirstSteps(2, (10 * MS,) * 3, (SwitchedChange(True, False, "nothing to do"),))
    known = BlockRecord(known.blocks, (known.first[0], idle), known.begun)
    assert blocks.course(known, (1, 2), 0, 0.03).going == (1,)


def test_blocks_that_live_on_a_queue_prove_nothing() -> None:
    plain = process({1: 1.5}, 8)
    taken = [Block(1, False, each.round, each.place, 10, 1, MS, False, 2) if each.block else each for each in plain]
    assert not blocks.outruns_loader(plain, 1)
    assert blocks.outruns_loader(taken, 1)


def test_an_evaluation_within_a_block_is_left_out() -> None:
    plain = process({1: 1.5}, 8)
    spoiled = [
        Block(1, False, each.round, each.place, 10, each.host_ns, 9 * each.wall_ns, True) if each.place == 1 else each
        for each in plain
    ]
    assert blocks.ratios(spoiled, 1) == pytest.approx([log(1.5)] * 7)


def test_a_file_of_blocks_is_read_as_far_as_it_is_sound(tmp_path: Path) -> None:
    path = tmp_path / "blocks.jsonl"
    assert blocks.read_blocks(path) == BlockRecord()
    row = '{"block": 1, "control": false, "round": 0, "place": 3, "steps": %d, "host_ns": 5, "wall_ns": 9}\n'
    first = '{"first": 1, "step_ns": [30, 20], "changes": [{"applied": true, "exercised": true, "detail": "x"}]}\n'
    path.write_text('{"begun": 1}\n' + first + row % 4 + row % 0 + '[1]\n{"refused": "no room"}\nnull\n{"blo')
    found = blocks.read_blocks(path)
    assert [each.step_ns for each in found.blocks] == [2.25]
    assert (found.begun, found.refused, found.first[0].preparing_ns) == ((1,), "no room", 10)
