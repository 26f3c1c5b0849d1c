"""Many ranks as tables for the documents: the collectives of all of them, and the clocks of their hosts."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.quantities import format_bytes, format_duration, format_share
from steptime.ranks.comparison import CollectiveRow, RankComparison
from steptime.report.device import SHOWN, Table


def rank_tables(ranks: RankComparison | None, shown: int) -> Iterator[Table]:
    """Nothing for a single rank. shown: ranks that the document tells of one by one."""
    if ranks is None:
        return
    if len(ranks.rows) > shown:
        yield _waiting_least(ranks)
    if ranks.collectives:
        header = (
            "collective", "group", "ranks", "calls a step", "bytes", "transfer a step", "waiting a step",
            "of it exposed", "algorithm bandwidth", "bus bandwidth", "of the link", "waited for",
        )  # fmt: skip
        yield Table("Collectives over all ranks", header, [_collective(row) for row in ranks.collectives[:SHOWN]])
    if ranks.clocks:
        rows = [
            (clock.host, format_duration(clock.offset), f"± {format_duration(clock.uncertainty)}", str(clock.samples))
            for clock in ranks.clocks[:SHOWN]
        ]
        yield Table("Clocks of hosts", ("host", "offset to the first", "uncertainty", "collectives"), rows)


def _waiting_least(ranks: RankComparison) -> Table:
    """The ranks of a large job that wait least, which the others wait for."""
    rows = [
        (
            row.name,
            row.host,
            format_duration(row.step),
            format_duration(dict(zip(ranks.accounts, row.accounts, strict=True)).get("communication", 0.0)),
            format_duration(row.waiting),
            format_share(row.last),
        )
        for row in sorted(ranks.rows, key=lambda row: row.waiting)[:SHOWN]
    ]
    header = ("rank", "host", "step", "communicates", "waits for others", "of the waiting for it")
    return Table(f"Ranks that wait least ({len(rows)} of {len(ranks.rows)})", header, rows)


def _collective(row: CollectiveRow) -> tuple[str, ...]:
    return (
        row.name,
        row.group,
        f"{row.ranks} of {row.size}" if row.size else str(row.ranks),
        f"{row.calls:.4g}",
        format_bytes(row.bytes) if row.bytes is not None else "",
        format_duration(row.transfer),
        format_duration(row.waiting),
        format_duration(row.exposed) if row.exposed else "",
        _rate(row.algorithm_bandwidth),
        _rate(row.bus_bandwidth),
        format_share(row.link_share) if row.link_share is not None else "",
        f"rank {row.late} ({format_share(row.late_share)})" if row.late is not None else "",
    )


def _rate(value: float | None) -> str:
    return f"{format_bytes(value)}/s" if value is not None else ""
