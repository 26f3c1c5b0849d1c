"""Ranks of a job in the case of each of them: who waits for whom, and the line behind the straggler's excess."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from steptime.advice.device_uses import RankUse
from steptime.advice.engine import examine
from steptime.advice.evidence import Case, LineUse, record_of
from steptime.advice.hottest_line import INPUT, hottest_line
from steptime.analysis.stragglers.comparison import RankComparison, Straggler
from steptime.quantities import SourceLine

ROLES = {"input": "input", "python": "python", "copy": "transfer"}
"""Role of the lines that make up a category."""
MOST_OF_IT = 0.5
MOST_RANKS = 64
"""Most ranks that a case holds: of a larger job the stragglers, and others at equal distances."""


def rank_uses(comparison: RankComparison | None) -> tuple[RankUse, ...]:
    """Ranks in order; () if no rank waits for another, as far as is known. Without a straggler beyond chance, `last` is
    0, because a fraction of the waiting says nothing about a rank."""
    if comparison is None or not any(row.waiting > 0 or row.last > 0 for row in comparison.rows):
        return ()
    late = comparison.late.ranks if comparison.late is not None else ()
    stride = -(-len(comparison.rows) // MOST_RANKS)
    uses = []
    for index, row in enumerate(comparison.rows):
        if index % stride == 0 or row.rank in late:
            categories = dict(zip(comparison.categories, row.categories, strict=True))
            spent = {name: categories.get(name, 0.0) for name in ("communication", "compute")}
            uses.append(record_of(RankUse, row, last=row.last if late else 0.0, **spent))
    return tuple(uses)


def companions(case: Case, rank: int, comparison: RankComparison | None) -> Case:
    """The case of one rank, completed with evidence on the other ranks."""
    uses = rank_uses(comparison)
    late = comparison.late if comparison is not None else None
    return replace(case, ranks=uses, rank=rank, straggler=late) if uses else replace(case, rank=rank)


def with_straggler_site(comparison: RankComparison | None, cases: Mapping[int, Case]) -> RankComparison | None:
    """The comparison with the line behind the straggler's excess, if the straggler's case shows it. cases: case of each
    rank."""
    late = comparison.late if comparison is not None else None
    if comparison is None or late is None or late.ranks[0] not in cases:
        return comparison
    own = cases[late.ranks[0]]
    others = [case for rank, case in cases.items() if rank not in late.ranks]
    source = (
        _of_items(late, own)
        or _of_finding(late, own)
        or _of_lines(late, own, others)
        or _of_operators(late, own, others)
    )
    return replace(comparison, late=replace(late, source=source))


def _of_items(late: Straggler, own: Case) -> SourceLine | None:
    """Hottest line of the dataset's items, if they take most of the excess in input."""
    loader = own.loader
    if late.category != INPUT or loader is None or loader.item is None or loader.item_site is None:
        return None
    made = loader.item.value * (loader.batch_size or 1) * loader.demand
    return hottest_line(loader.item_site, INPUT, late.excess, own) if made >= MOST_OF_IT * late.excess else None


def _of_finding(late: Straggler, own: Case) -> SourceLine | None:
    """Line of the rank's own first finding about that category: a rule knows best which line it is."""
    found = [each for each in examine(own).findings if each.category == late.category and each.source is not None]
    return found[0].source if found else None


def _of_lines(late: Straggler, own: Case, others: list[Case]) -> SourceLine | None:
    """Line of the category's role with the largest excess over the other ranks."""
    lines = [line for line in own.lines if line.role == ROLES.get(late.category)]
    if not lines:
        return None
    return max(lines, key=lambda line: line.duration.value - _usual(line, others)).source


def _usual(line: LineUse, others: list[Case]) -> float:
    place = line.source.place
    found = [each.duration.value for case in others for each in case.lines if each.source.place == place]
    return sum(found) / len(others) if others else 0.0


def _of_operators(late: Straggler, own: Case, others: list[Case]) -> SourceLine | None:
    """Line of the operator with the largest excess, for an excess in computing or overhead."""
    if late.category not in ("compute", "overhead"):
        return None
    usual = {(each.name, each.phase): each.duration for case in others[:1] for each in case.operators}
    grown = [(use.duration - usual.get((use.name, use.phase), 0.0), use) for use in own.operators if use.source]
    if not grown:
        return None
    return max(grown, key=lambda each: each[0])[1].source
