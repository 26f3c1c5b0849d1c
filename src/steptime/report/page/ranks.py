"""Several processes side by side: rank by account, the late one marked."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.findings.lateness import late_of
from steptime.quantities import format_duration, format_share
from steptime.report.report import ProcessReport, Report

MOST_RANKS = 128
"""Rows: the slowest of a larger job."""
SHADES = 9
"""Levels of the heat map."""


@dataclass(frozen=True, slots=True)
class Heat:
    """A field of the map. shade: 0 (nothing) to SHADES (as long as the longest step)."""

    words: str
    value: float
    shade: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """One process. late: the others wait for it. finding: the one with the most at stake."""

    name: str
    step: Heat
    accounts: tuple[Heat, ...]
    waits: str
    last: str
    regime: str
    late: bool
    finding: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """rows by rank. hidden: ranks that were left out."""

    accounts: tuple[str, ...]
    rows: tuple[RankRow, ...]
    hidden: int


def heat_map(report: Report) -> HeatMap | None:
    """The map; None for a single process."""
    if len(report.processes) < 2:
        return None
    slowest = sorted(report.processes, key=lambda process: -process.case.step.duration.value)[:MOST_RANKS]
    shown = sorted(slowest, key=lambda process: (process.rank is None, process.rank or 0))
    names = tuple(
        dict.fromkeys(use.name for process in shown for use in process.case.accounts if use.duration.value > 0)
    )
    longest = slowest[0].case.step.duration.value
    rows = tuple(_row(report, process, names, longest) for process in shown)
    return HeatMap(names, rows, len(report.processes) - len(shown))


def _row(report: Report, process: ProcessReport, names: tuple[str, ...], longest: float) -> RankRow:
    waits = {rank.rank: rank for each in report.processes for rank in each.case.ranks}
    late = late_of(tuple(waits.values()))
    accounts = {use.name: use.duration.value for use in process.case.accounts}
    rank = waits.get(process.rank) if process.rank is not None else None
    return RankRow(
        name=process.name,
        step=_heat(process.case.step.duration.value, longest),
        accounts=tuple(_heat(accounts.get(name, 0.0), longest) for name in names),
        waits=format_duration(rank.waiting) if rank is not None else "",
        last=format_share(rank.last) if rank is not None else "",
        regime=process.verdict.regime,
        late=late is not None and rank is not None and late.rank == rank.rank,
        finding=_most_at_stake(process),
    )


def _most_at_stake(process: ProcessReport) -> str:
    """ "ST101 input-wait, 12.3 ms"; findings are in the order of what is at stake."""
    found = next(((each, each.at_stake) for each in process.findings if each.at_stake is not None), None)
    if found is None or found[1] is None:
        return ""
    return f"{found[0].code} {found[0].name}, {format_duration(found[1].value)}"


def _heat(value: float, longest: float) -> Heat:
    shade = round(SHADES * value / longest) if longest > 0 else 0
    return Heat(format_duration(value) if value else "–", value, min(max(shade, 1 if value > 0 else 0), SHADES))
