"""Collectives are held against the measured link, where it is the one that they ran over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from steptime.analysis.stragglers.comparison import CollectiveRow, RankComparison, RankRow
from steptime.analysis.stragglers.straggler import with_link
from steptime.machine.machine import Link, Machine
from steptime.quantities import Estimate

ROWS = tuple(RankRow(rank, f"rank {rank}", "here", 5, 1e6, (1e6,), 0.0, 0.0) for rank in range(2))
REDUCE = CollectiveRow("all_reduce", "dp", 2, 2, 4.0, 2**20, 1e6, 0.0, 0.0, 1e9, 1e9, None, 0.0)
BARRIER = replace(REDUCE, name="barrier", bytes=None, algorithm_bandwidth=None, bus_bandwidth=None)
RANKS = RankComparison(("compute",), ROWS, (REDUCE, BARRIER))
MACHINE = Machine("cpu", "a", link=Link("gloo", 2, Estimate(4e9, 3e9, 4e9, 12, "B/s")))


def test_a_collective_has_its_share_of_the_link() -> None:
    ranks = with_link(RANKS, MACHINE)
    assert ranks is not None
    assert [row.link_share for row in ranks.collectives] == [0.25, None]


DISTURBED = replace(MACHINE, link=Link("gloo", 2, Estimate(4e9, 3e9, 4e9, 12, "B/s"), other_cpus=1.0))


@pytest.mark.parametrize("machine", [None, Machine("cpu", "a"), DISTURBED])
def test_without_a_link_measured_in_quiet_there_is_none(machine: Machine | None) -> None:
    assert with_link(RANKS, machine) == RANKS


def test_between_hosts_lies_another_link() -> None:
    apart = replace(RANKS, rows=(ROWS[0], replace(ROWS[1], host="there")))
    assert with_link(apart, MACHINE) == apart


def test_a_job_of_one_process_has_no_ranks() -> None:
    assert with_link(None, MACHINE) is None
