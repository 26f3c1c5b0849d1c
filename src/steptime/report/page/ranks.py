"""The ranks of a job side by side: rank by category with the late one marked, and who came late step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from steptime.analysis.stragglers.comparison import RankComparison, Straggler, StragglerSeries
from steptime.answer.page.axes import BOX, Shape, Tick
from steptime.quantities import format_duration, format_share
from steptime.report.report import ProcessReport, Report

MOST_RANKS = 128
"""Rows: the slowest of a larger job."""
MOST_COLUMNS = 200
"""Columns of the series: more would be narrower than a few pixels."""
SHADES = 9
"""Levels of the heat map."""


@dataclass(frozen=True, slots=True)
class Heat:
    """Cell of the heat map of ranks. shade: strength, 0 (no time) to SHADES (as long as the longest step)."""

    words: str
    shade: int


@dataclass(frozen=True, slots=True)
class RankRowView:
    """Row of the heat map: one process. late: True if others wait for it. finding: the one with the largest savings."""

    name: str
    step: Heat
    categories: tuple[Heat, ...]
    waits: str
    last: str
    bottleneck: str
    late: bool
    finding: str
    host: str = ""


@dataclass(frozen=True, slots=True)
class StragglerChart:
    """Chart of which rank was late in each step. shades: one path per strength, over all cells of that strength. ranks:
    names of the rows; longest: delay that the strongest shade represents, in words."""

    shades: tuple[Shape, ...]
    ranks: tuple[Tick, ...]
    steps: tuple[Tick, ...]
    longest: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """Heat map of ranks by category. rows: by rank; hidden: number left out; sentence: on the straggler, or ""."""

    categories: tuple[str, ...]
    rows: tuple[RankRowView, ...]
    hidden: int
    sentence: str = ""
    straggler: StragglerChart | None = None


def heat_map(report: Report) -> HeatMap | None:
    """Heat map of a report's ranks; None for a single process."""
    if report.ranks is not None and len(report.ranks.rows) > 1:
        return _of_comparison(report, report.ranks)
    if len(report.processes) < 2:
        return None
    slowest = sorted(report.processes, key=lambda process: -process.case.step.duration.value)[:MOST_RANKS]
    displayed = sorted(slowest, key=lambda process: (process.rank is None, process.rank or 0))
    names = tuple(
        dict.fromkeys(use.name for process in displayed for use in process.case.categories if use.duration.value > 0)
    )
    longest = slowest[0].case.step.duration.value
    rows = tuple(_row(report, process, names, longest) for process in displayed)
    return HeatMap(names, rows, len(report.processes) - len(displayed))


def _of_comparison(report: Report, ranks: RankComparison) -> HeatMap:
    """Compared ranks, and those among them whose reports are kept with their findings."""
    kept = {process.rank: process for process in report.processes}
    late = ranks.late.ranks if ranks.late is not None else ()
    slowest = sorted(ranks.rows, key=lambda row: (row.rank not in late, -row.step))[:MOST_RANKS]
    used = [at for at in range(len(ranks.categories)) if any(row.categories[at] > 0 for row in slowest)]
    longest = max(row.step for row in slowest)
    rows = []
    for row in sorted(slowest, key=lambda row: row.rank):
        process = kept.get(row.rank)
        rows.append(
            RankRowView(
                name=row.name,
                step=_heat(row.step, longest),
                categories=tuple(_heat(row.categories[at], longest) for at in used),
                waits=format_duration(row.waiting),
                last=format_share(row.last),
                bottleneck=process.verdict.bottleneck if process is not None else "",
                late=row.rank in late,
                finding=_most_savings(process) if process is not None else "",
                host=row.host,
            )
        )
    names = tuple(ranks.categories[at] for at in used)
    series = _straggler(ranks.series) if ranks.series is not None else None
    return HeatMap(names, tuple(rows), len(ranks.rows) - len(rows), _sentence(ranks), series)


def _sentence(ranks: RankComparison) -> str:
    """Who is late, by how much, since when, and what that costs."""
    late = ranks.late
    if late is None:
        return ""
    who = f"Host {late.host}" if late.node and late.host else f"Rank {late.ranks[0]}"
    since = f" since step {late.since + 1}" if late.since else ""
    return (
        f"{who} is the straggler{since}: the other ranks wait {format_duration(late.waiting)}/step, "
        f"{format_share(late.share)} of all waiting, for it. {_excess(late)}, the job's step would be "
        f"{format_duration(late.gain.value)} shorter."
    )


def _excess(late: Straggler) -> str:
    if not late.category or late.excess <= 0:
        return "Nothing in its own code is slow: if it were as fast as the others"
    longer = f"It spends {format_duration(late.excess)} more than the median rank in {late.category}"
    return f"{longer}; at the median"


def _straggler(series: StragglerSeries) -> StragglerChart | None:
    """The series as shaded fields; neighbouring columns share one where there are too many."""
    if not series.late or not series.steps:
        return None
    size = -(-len(series.steps) // MOST_COLUMNS)
    rows = [_averaged(row, size) for row in series.late]
    longest = max(max(row) for row in rows)
    if longest <= 0:
        return None
    wide, high = BOX / len(rows[0]), BOX / len(rows)
    paths: dict[int, list[str]] = {}
    for down, row in enumerate(rows):
        for across, value in enumerate(row):
            level = _level(value, longest)
            if level:
                field = f"M{across * wide:.1f} {down * high:.1f}h{wide:.1f}v{0.9 * high:.1f}h-{wide:.1f}z"
                paths.setdefault(level, []).append(field)
    shades = tuple(Shape("", "".join(path), tone=level) for level, path in sorted(paths.items()))
    ranks = tuple(Tick(100 * (at + 0.45) / len(rows), f"rank {rank}") for at, rank in enumerate(series.ranks))
    count = len(series.steps)
    steps = tuple(Tick(100 * at / count, str(series.steps[at] + 1)) for at in range(0, count, max(count // 6, 1)))
    return StragglerChart(shades, ranks, steps, format_duration(longest))


def _averaged(row: Sequence[float], size: int) -> list[float]:
    parts = (row[at : at + size] for at in range(0, len(row), size))
    return [sum(part) / len(part) for part in parts]


def _row(report: Report, process: ProcessReport, names: tuple[str, ...], longest: float) -> RankRowView:
    waits = {rank.rank: rank for each in report.processes for rank in each.case.ranks}
    late = process.case.straggler
    categories = {use.name: use.duration.value for use in process.case.categories}
    rank = waits.get(process.rank) if process.rank is not None else None
    return RankRowView(
        name=process.name,
        step=_heat(process.case.step.duration.value, longest),
        categories=tuple(_heat(categories.get(name, 0.0), longest) for name in names),
        waits=format_duration(rank.waiting) if rank is not None else "",
        last=format_share(rank.last) if rank is not None else "",
        bottleneck=process.verdict.bottleneck,
        late=late is not None and late.ranks == (process.rank,),
        finding=_most_savings(process),
    )


def _most_savings(process: ProcessReport) -> str:
    """ "ST101 input-wait, 12.3 ms"; findings are in the order of what can be saved."""
    for each in process.findings:
        if each.savings is not None:
            return f"{each.code} {each.name}, {format_duration(each.savings.value)}"
    return ""


def _heat(value: float, longest: float) -> Heat:
    return Heat(format_duration(value) if value else "–", _level(value, longest))


def _level(value: float, longest: float) -> int:
    level = round(SHADES * value / longest) if longest > 0 else 0
    return min(max(level, 1 if value > 0 else 0), SHADES)
