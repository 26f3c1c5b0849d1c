"""Memory over time: owners and what is free sum to what the process held, and no peak is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steptime.memory.in_report import FREE, over_time
from steptime.memory.lives import AllocationHistory, allocated, histories
from steptime.memory.owners import LABELS, Owner, owners_of
from steptime.memory.signs import signs_of
from steptime.memory.snapshot import read_snapshot
from steptime.memory.steps import boundaries_of


@pytest.fixture(scope="module")
def history(shared_data: Path) -> AllocationHistory:
    return histories(read_snapshot(shared_data / "snapshots" / "medium_512_inference_memory_snapshot.pickle"))[0]


def test_owners_sum_to_what_was_held(history: AllocationHistory) -> None:
    signs = signs_of(history.stacks)
    owners = owners_of(history, signs, boundaries_of(history, signs)[0])
    found = over_time(history, owners)
    assert found is not None
    sums = np.sum([row for name, row in zip(found.owners, found.bytes, strict=True) if name != FREE], axis=0)
    assert sums.max() == allocated(history).max(), "the peak is a point of its own"
    assert int(np.argmax(sums)) == found.peak
    assert found.times == tuple(sorted(found.times))
    free = found.bytes[found.owners.index(FREE)]
    assert (np.array(free) + sums).max() <= history.reserved.max()


def test_fewer_points_keep_the_peak(history: AllocationHistory) -> None:
    everything = np.full(len(history.lives), Owner.ACTIVATIONS, np.int8)
    found = over_time(history, everything, most=7)
    assert found is not None
    assert len(found.times) == 7
    assert found.owners[0] == LABELS[Owner.ACTIVATIONS]
    assert max(found.bytes[0]) == allocated(history).max()
