"""The order of a round: every variant stands between baselines, whatever the number of devices."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from steptime.trials.trial import BASELINE, CONTROL, TOGETHER, Variant, arrange, at_once, processes_of

counts, flags = st.integers(1, 12), st.booleans()


def names(count: int, *, reverse: bool, leads: bool, apart: bool) -> list[list[str]]:
    going = [Variant(f"RM{number}") for number in range(count)]
    blocks = arrange(going, Variant(BASELINE), Variant(CONTROL), reverse=reverse, leads=leads, apart=apart)
    return [[variant.name for variant in block] for block in blocks]


@given(counts, flags, flags)
def test_here_every_variant_runs_once_with_a_baseline_near_on_both_sides(
    count: int, reverse: bool, leads: bool
) -> None:
    (block,) = names(count, reverse=reverse, leads=leads, apart=False)
    assert sorted(set(block) - {BASELINE}) == sorted([CONTROL, *(f"RM{number}" for number in range(count))])
    assert len(block) == processes_of(count) + leads
    assert (block[0] == BASELINE) == leads
    assert block[-1] == BASELINE
    lengths = " ".join(block).split(BASELINE)
    assert all(len(part.split()) <= TOGETHER for part in lengths)


@given(counts, flags)
def test_on_several_devices_every_block_has_baselines_and_a_control_of_its_own(count: int, reverse: bool) -> None:
    blocks = names(count, reverse=reverse, leads=True, apart=True)
    for block in blocks:
        assert block[0] == block[-1] == BASELINE
        assert block.count(CONTROL) == 1
        assert len(block) <= TOGETHER + 2
    tried = [name for block in blocks for name in block if name not in (BASELINE, CONTROL)]
    assert sorted(tried) == sorted(f"RM{number}" for number in range(count))


def test_a_round_and_its_reverse_are_mirrors() -> None:
    (forth,) = names(4, reverse=False, leads=True, apart=False)
    (back,) = names(4, reverse=True, leads=True, apart=False)
    assert [name for name in forth if name != BASELINE] == [name for name in back if name != BASELINE][::-1]


@pytest.mark.parametrize(
    ("width", "variants", "needed", "rounds"), [(1, 3, 3, 1), (2, 1, 3, 2), (8, 4, 3, 3), (8, 1, 1, 1), (2, 9, 3, 1)]
)
def test_rounds_at_once_fill_the_devices(width: int, variants: int, needed: int, rounds: int) -> None:
    assert at_once(width, variants, needed) == rounds
