"""The tables of many ranks hold what was compared, and nothing of a single one."""

from __future__ import annotations

from dataclasses import replace

from steptime.analysis.stragglers.comparison import CollectiveRow, HostClock, LateRank, RankComparison, RankRow
from steptime.answer.tables import Table
from steptime.quantities import Estimate
from steptime.report.tables import rank_tables

MS = 1_000_000.0
ROWS = tuple(
    RankRow(rank, f"rank {rank}", "", 5, 20 * MS, (9 * MS, 11 * MS), 0.0 if rank == 17 else 10 * MS, float(rank == 17))
    for rank in range(40)
)
REDUCE = CollectiveRow("all_reduce", "dp", 64, 40, 4.0, 64 * 2**20, 2 * MS, 9 * MS, 8 * MS, 32e9, 63e9, 17, 0.9)
LATE = LateRank((17,), "", 10 * MS, 0.9, "compute", 9 * MS, (("compute", 9 * MS),), Estimate(8 * MS, 7 * MS, 9 * MS, 5))
MANY = RankComparison(
    ("compute", "communication"), ROWS, (REDUCE,), LATE, clocks=(HostClock("b", -5_000_000, 40_000, 12),)
)


def texts(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


def test_a_large_job_lists_the_ranks_that_wait_least_its_collectives_and_its_clocks() -> None:
    ranks, collectives, clocks = rank_tables(MANY, 4)
    assert texts(ranks)[0] == ("rank 17", "20 ms", "11 ms", "0 ns", "100 %")
    assert ranks.hidden == 40 - len(ranks.rows)
    assert texts(collectives)[0][:7] == ("all_reduce", "dp", "40 of 64", "4", "64 MiB", "2 ms", "9 ms")
    assert texts(collectives)[0][-1] == "rank 17 (90 %)"
    assert texts(clocks) == [("b", "−5 ms", "± 40 µs", "12")]


def test_a_collective_is_held_against_the_link_where_that_was_measured() -> None:
    beside = replace(MANY, collectives=(replace(REDUCE, link_share=0.62),))
    table = next(table for table in rank_tables(beside, 40) if table.title.startswith("Collectives"))
    assert texts(table)[0][[column.title for column in table.columns].index("of the link")] == "62 %"


def test_a_job_that_is_told_rank_by_rank_has_no_list_and_a_single_rank_nothing() -> None:
    assert [table.title for table in rank_tables(MANY, 40)] == ["Collectives over all ranks", "Clocks of hosts"]
    assert list(rank_tables(None, 1)) == []
