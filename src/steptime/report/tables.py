"""The tables of what a device and the ranks did, for Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from steptime.advice.evidence import Case, MachineUse, Prediction, ReplayUse, RooflineUse
from steptime.advice.kernels import short_kernel
from steptime.analysis.stragglers.comparison import CollectiveRow, RankComparison
from steptime.quantities import Estimate, SourceLine, format_bytes, format_duration, format_share, format_source
from steptime.report.report import Report

SHOWN = 15
"""Rows of kernels and gaps: what is behind them is in the JSON."""
MENTIONED = 0.05
"""Of the kernels' time: what is left out of the models for one reason is said from a twentieth on."""
MOST_RANKS = 16
"""Rows of ranks: the slowest of a large job; all are in the JSON."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of words, with its title."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def device_tables(case: Case) -> Iterator[Table]:
    """All tables that have rows, in the order of the breakdown: what ran, why nothing ran, what a change would save."""
    for table in (_kernels(case), _gaps(case), _copies(case), _collectives(case), _allocations(case), _chains(case)):
        if table.rows:
            yield table
    yield from _replay(case)


def roofline_sentences(case: Case) -> list[str]:
    """What the computing is bound by, what it reached, and whose peaks these are."""
    roofline = case.roofline
    if roofline is None:
        return []
    bounds = bounds_text(roofline, case.machine)
    said = [
        f"{bounds[:1].upper()}{bounds[1:]}." if bounds else "",
        f"Reached: {reached_text(case)}." if reached_text(case) else "",
    ]
    if roofline.matrix_unit is not None:
        said.append(f"Matrix units did {format_share(roofline.matrix_unit)} of the matrix products' time.")
    if roofline.modelled < NEARLY_ALL:
        said.append(f"{format_share(1 - roofline.modelled)} of the time has no model of its work.")
    whole = sum(use.duration for use in case.kernels)
    alone = sum(use.duration for use in case.kernels if not use.operator and use.bound != "communication")
    if alone > MENTIONED * whole:
        said.append(f"{format_share(alone / whole)} of it belongs to no operator (launched before the trace began?).")
    if case.machine is not None:
        source = f" ({case.machine.source})" if case.machine.source and not case.machine.measured else ""
        said.append(f"Peaks of {case.machine.name}: {origin(case.machine)}{source}.")
    return [sentence for sentence in said if sentence]


def rank_table(report: Report) -> Table:
    """The ranks with the longest steps, and the late one among them."""
    waits = {rank.rank: rank for process in report.processes for rank in process.case.ranks}
    ordered = sorted(report.processes, key=lambda process: -process.case.step.duration.value)
    late = max(waits.values(), key=lambda rank: rank.last, default=None)
    shown = [process for process in ordered if late is not None and process.rank == late.rank][:1]
    shown = (shown + [process for process in ordered if process not in shown])[:MOST_RANKS]
    rows = []
    for process in shown:
        categories = {use.name: use.duration.value for use in process.case.categories}
        rank = waits.get(process.rank) if process.rank is not None else None
        rows.append(
            (
                process.name,
                format_duration(process.case.step.duration.value),
                format_duration(categories.get("compute", 0.0)),
                format_duration(categories.get("communication", 0.0)),
                format_duration(rank.waiting) if rank else "",
                format_share(rank.last) if rank else "",
                process.verdict.bottleneck,
            )
        )
    title = "Ranks" if len(rows) == len(report.processes) else f"Ranks ({len(rows)} of {len(report.processes)})"
    header = ("rank", "step", "computes", "communicates", "waits for others", "of the waiting for it", "bound by")
    return Table(title, header, rows)


def _kernels(case: Case) -> Table:
    rows = [
        (
            short_kernel(use.name),
            use.operator,
            f"{use.calls:.4g}",
            format_duration(use.duration),
            use.bound,
            format_duration(use.at_roofline) if use.at_roofline is not None else "",
            use.dtype,
            {True: "yes", False: "no", None: ""}[use.matrix_unit],
            _place(use.source),
        )
        for use in sorted(case.kernels, key=lambda use: -use.duration)[:SHOWN]
    ]
    header = (
        "kernel",
        "operator",
        "calls a step",
        "a step",
        "bound by",
        "at the roofline",
        "format",
        "matrix unit",
        "",
    )
    return Table("Kernels", header, rows)


def _gaps(case: Case) -> Table:
    rows = [
        (
            use.category,
            use.cause or "(between operators)",
            format_duration(use.duration.value),
            _interval(use.duration),
            f"{use.count:.4g}",
            format_duration(use.longest),
            _place(use.source),
        )
        for use in sorted(case.gaps, key=lambda use: -use.duration.value)[:SHOWN]
    ]
    return Table(
        "Why the device idled", ("category", "behind it", "a step", "95 % interval", "gaps", "longest", ""), rows
    )


def _copies(case: Case) -> Table:
    rows = [
        (
            f"{use.kind} {use.memory}".strip(),
            use.operator,
            f"{use.calls:.4g}",
            format_bytes(use.bytes),
            format_duration(use.duration.value),
            format_duration(use.exposed.value),
            _place(use.source),
        )
        for use in sorted(case.copies, key=lambda use: -use.duration.value)[:SHOWN]
    ]
    return Table("Copies", ("copy", "operator", "calls a step", "bytes", "a step", "of it exposed", ""), rows)


def _collectives(case: Case) -> Table:
    rows = [
        (
            use.name,
            use.group,
            f"{use.calls:.4g}",
            format_bytes(use.bytes) if use.bytes is not None else "",
            format_duration(use.duration.value),
            format_duration(use.exposed.value),
        )
        for use in sorted(case.collectives, key=lambda use: -use.duration.value)[:SHOWN]
    ]
    return Table("Collectives", ("collective", "group", "calls a step", "bytes", "a step", "of it exposed"), rows)


def _allocations(case: Case) -> Table:
    rows = [
        (
            use.name,
            f"{use.calls:.4g}",
            format_duration(use.duration.value),
            format_duration(use.idle.value),
            _place(use.source),
        )
        for use in case.allocations[:SHOWN]
    ]
    return Table("Calls to the driver's allocator", ("call", "a step", "host", "device idle", ""), rows)


def _chains(case: Case) -> Table:
    rows = [
        (
            " → ".join(use.operators[:8]),
            f"{use.calls:.4g}",
            format_duration(use.duration),
            format_bytes(use.bytes),
            format_bytes(use.saved),
            _place(use.source),
        )
        for use in sorted(case.chains, key=lambda use: -use.duration)[:SHOWN]
    ]
    return Table(
        "Chains of pointwise kernels", ("chain", "times a step", "a step", "bytes", "of them in between", ""), rows
    )


def _replay(case: Case) -> Iterator[Table]:
    replay, step = case.replay, case.step.duration.value
    if replay is None:
        return
    error = f"the unchanged replay misses the measured steps by {format_share(replay.error)}"
    rows = [
        (each.change, format_share(each.saved.value / step), _interval(each.saved), format_duration(each.cap))
        for each in predictions(replay, step)
    ]
    if rows:
        yield Table(f"What a change would save ({error})", ("change", "of the step", "interval", "at most"), rows)
    whole = sum(spent for _, spent in replay.critical_path)
    path = [
        (kind, format_duration(spent), format_share(spent / whole)) for kind, spent in replay.critical_path if whole
    ]
    if path:
        yield Table("The critical path", ("kind", "a step", "share"), path)
    longest = [
        (_what(kind, name), kind, format_duration(spent), format_share(spent / whole))
        for kind, name, spent in replay.longest
        if whole
    ]
    if longest:
        yield Table("Longest on the critical path", ("what", "kind", "a step", "share"), longest)


def _what(kind: str, name: str) -> str:
    return short_kernel(name) if kind == "kernel" and name else name[:80] or unnamed(kind)


def unnamed(kind: str) -> str:
    """What is told of time on the critical path that no event names."""
    return {"input": "(the next batch)", "dispatch": "(between operators)"}.get(kind, "–")


def _place(source: SourceLine | None) -> str:
    return format_source(source) if source is not None else ""


def _interval(estimate: Estimate) -> str:
    if estimate.samples < 2:
        return "one step"
    return f"{format_duration(estimate.low)} to {format_duration(estimate.high)}"


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
            format_duration(dict(zip(ranks.categories, row.categories, strict=True)).get("communication", 0.0)),
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


BOUNDS = (
    ("memory", "memory"),
    ("compute", "arithmetic"),
    ("latency", "latency"),
    ("unmodelled", "unmodelled"),
)
"""Fields of `RooflineUse` and what they are called."""
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
NEARLY_ALL = 0.95
"""Of the kernels' time: where less has a model, the sum of what has one is a lower bound only."""
SMALLEST = 0.005
"""Half a percent, in predictions and shares: less is not shown."""


def bounds_text(roofline: RooflineUse, machine: MachineUse | None) -> str:
    """The compute account by what bounds it: "compute bound by memory 61 %, arithmetic 30 %, unmodelled 9 %"; ""
    where no peaks are known."""
    if not roofline.flops and not roofline.bytes:
        return "kernels without a known work: no shapes in the trace (record_shapes=True)"
    if machine is None:
        return ""
    parts = [(getattr(roofline, field), words) for field, words in BOUNDS]
    whole = sum(part for part, _ in parts)
    shown = sorted(((part, words) for part, words in parts if whole and part / whole >= SMALLEST), reverse=True)
    return "compute bound by " + ", ".join(f"{words} {format_share(part / whole)}" for part, words in shown)


def reached_text(case: Case) -> str:
    """What the step reached: "12.3 TFLOP/s, 4 % of the bfloat16 peak (312 TFLOP/s, datasheet)"; "" where no kernel has
    a model."""
    roofline, step = case.roofline, case.step.duration.value
    if roofline is None or not roofline.flops or not step:
        return ""
    least = "at least " if roofline.modelled < NEARLY_ALL else ""
    rate = f"{least}{format_rate(roofline.flops / step * 1e9)}FLOP/s"
    if roofline.peak is None or not roofline.dtype:
        return f"{rate} over the whole step; no upper bound of this device is known"
    peak = f"{format_rate(roofline.peak)}FLOP/s, {_peak_origin(case.machine, roofline.dtype)}"
    if roofline.utilization is None:
        return f"{rate} over the whole step ({roofline.dtype}: at most {peak})"
    return f"{rate}, {format_share(roofline.utilization)} of the {roofline.dtype} peak ({peak})"


def origin(machine: MachineUse | None) -> str:
    """Where the peaks come from."""
    if machine is None:
        return "unknown"
    if not machine.measured:
        return "datasheet"
    return "measured beside other load, so at least this" if machine.disturbed else "measured"


def _peak_origin(machine: MachineUse | None, dtype: str) -> str:
    """Where a peak comes from."""
    if machine is None or dtype not in machine.reached:
        return origin(machine)
    source = "the datasheet's" if not machine.measured else "the one measured"
    return f"reached by this job: above {source}{' beside other load' if machine.disturbed else ''}"


def format_rate(rate: float) -> str:
    """A rate with a decimal prefix, the unit to follow: "12.3 T"."""
    size, prefix = next(((size, prefix) for size, prefix in UNITS if rate >= size), (1.0, ""))
    return f"{rate / size:.3g} {prefix}"


def prediction_text(prediction: Prediction, step: float) -> str:
    """ "input free: 12 % shorter (10 to 14 %)"."""
    saved = prediction.saved
    if saved.samples < 2:
        return f"{prediction.change}: {format_share(saved.value / step)} shorter (one step)"
    low, high = (f"{100 * each / step:.0f}" for each in (saved.low, saved.high))
    return f"{prediction.change}: {format_share(saved.value / step)} shorter ({low} to {high} %)"


def predictions(replay: ReplayUse | None, step: float) -> list[Prediction]:
    """Those that matter, the largest first; one whose interval reaches down to nothing is none."""
    found = replay.predictions if replay is not None else ()
    sure = [each for each in found if each.saved.value >= SMALLEST * step and _is_sure(each)]
    return sorted(sure, key=lambda each: -each.saved.value)


def _is_sure(prediction: Prediction) -> bool:
    return prediction.saved.samples < 2 or prediction.saved.low > 0
