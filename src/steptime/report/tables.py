"""Tables of a report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from steptime.advice.evidence import Case
from steptime.advice.kernels import by_name, short_kernel
from steptime.advice.run_uses import CategoryUse
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.stragglers.comparison import RankComparison
from steptime.answer.tables import (
    Cell,
    Column,
    Table,
    count,
    duration,
    integer,
    interval,
    number,
    share,
    size,
    source_line,
    table_of,
    word,
)
from steptime.quantities import (
    SourceLine,
    format_bytes,
    format_change,
    format_duration,
    format_intensity,
    format_rate,
    format_share,
)
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import interval_text, place_text, predictions
from steptime.report.trials import TrialReport
from steptime.trace.compile_logs import CompilerEvent

Row = TypeVar("Row")
Work = TypeVar("Work", KernelUse, OperatorUse)

MOST_RANKS = 16
"""Most ranks of a large job that are listed one by one, slowest first; the JSON has all."""
ELSEWHERE = (
    "Assumes kernels as close to the peaks as here, and unchanged CPU time and copies. The interval is the "
    "error of predictions between an H100 and an MI300X. The number of ranks is unchanged: predictions for "
    "more ranks were never checked."
)


def _rate(get: Callable[[Row], float | None]) -> Column[Row]:
    return number("rate", "flop_per_s", get, lambda value: f"{format_rate(value)}FLOP/s")


def _bandwidth(case: Case, _: type[Work]) -> tuple[Column[Work], ...]:
    """Bytes per second, and their share of the peak, which is a copy's; what is quicker had its data in a cache."""
    copy = case.machine.copy_bytes if case.machine is not None else None

    def share_of_copy(use: Work) -> float | None:
        rate = _per_second(use.bytes, use.duration)
        return rate / copy if rate is not None and copy and rate <= copy else None

    return (
        number("bandwidth", "bytes_per_s", lambda use: _per_second(use.bytes, use.duration),
               lambda value: f"{format_rate(value)}B/s"),
        share("of a copy", "copy_share", share_of_copy),
    )  # fmt: skip


def _per_second(amount: float | None, nanoseconds: float) -> float | None:
    return amount / nanoseconds * 1e9 if amount and nanoseconds > 0 else None


def _place(get: Callable[[Row], SourceLine | None], title: str = "line") -> Column[Row]:
    return source_line(title, get, place_text)


def _with_rows(*tables: Table) -> tuple[Table, ...]:
    return tuple(table for table in tables if table.rows)


def case_tables(case: Case) -> tuple[Table, ...]:
    """Non-empty tables of a case, in the order in which a reader needs them."""
    return _with_rows(
        _modules(case), _gaps(case), *_compiler(case), _kernel_names(case), _kernels(case), _operators(case),
        _lines(case), _functions(case), _copies(case), _collectives(case), _allocations(case), _chains(case),
        _segments(case),
    )  # fmt: skip


def category_tables(case: Case) -> tuple[Table, ...]:
    """Tables of categories and phases with their intervals."""
    return _with_rows(
        category_table("categories", "Categories", "category", case.categories, case),
        category_table("phases", "Phases", "phase", case.phases, case),
    )


def category_table(identity: str, title: str, name: str, uses: Sequence[CategoryUse], case: Case) -> Table:
    step = case.step.duration.value or 1.0
    return table_of(
        identity, title, "", uses,
        word(name, "name", lambda use: use.name, kind=name if name == "category" else ""),
        duration("per step", "duration_ns", lambda use: use.duration.value),
        share("share", "share", lambda use: use.duration.value / step, barred=True),
        interval("95 % interval", lambda use: use.duration, interval_text, room="document"),
        duration("saves up to", "savings_ns", lambda use: use.recoverable.value, room="document"),
    )  # fmt: skip


def findings_table(process: ProcessReport) -> Table:
    """Table of the findings, largest savings first."""
    step = process.case.step.duration.value or 1.0
    return table_of(
        "findings", "Findings", "", process.findings,
        word("code", "code", lambda each: each.code),
        word("finding", "name", lambda each: each.name),
        word("weight", "weight", lambda each: each.weight.value),
        duration("saves", "savings_ns", lambda each: each.savings.value if each.savings else None),
        duration("at least", "savings_low_ns", lambda each: each.savings.low if each.savings else None),
        duration("at most", "savings_high_ns", lambda each: each.savings.high if each.savings else None),
        share("share", "share", lambda each: each.savings.value / step if each.savings else None),
        word("category", "category", lambda each: each.category, kind="category"),
        word("file", "file", lambda each: each.source.file if each.source else "", kind="code"),
        number("line", "line", lambda each: each.source.line if each.source else None, lambda line: f"{line:.0f}"),
        word("source", "source", lambda each: each.source.text if each.source else "", kind="source"),
        word("evidence", "evidence", lambda each: each.summary),
        word("what helps", "advice", lambda each: each.advice),
    )  # fmt: skip


def steps_table(process: ProcessReport) -> Table:
    """Table of every step: duration, kind, and categories if known (in a long job, means over neighbours)."""
    series = process.series

    def kind(step: int) -> str:
        if series is not None and step < len(series.kinds):
            return series.names[series.kinds[step]]
        return "steady" if process.steady[step] else "excluded"

    def spent(place: int) -> Column[int]:
        def of(step: int) -> float | None:
            row = series.spent[step // series.stride] if series and step // series.stride < len(series.spent) else ()
            return row[place] if row else None

        name = series.categories[place] if series else ""
        return duration(name, f"{name}_ns", of)

    return table_of(
        "steps", "Steps", "", range(len(process.step_ns)),
        integer("step", "step", lambda step: step),
        duration("duration", "duration_ns", lambda step: process.step_ns[step], barred=True),
        word("kind", "kind", kind),
        *map(spent, range(len(series.categories) if series else 0)),
    )  # fmt: skip


def trial_table(trials: TrialReport) -> Table:
    """Table of every variant that was tried."""
    return table_of(
        "variants", "Tried fixes", "Speed: the unchanged job's step time divided by the variant's.", trials.variants,
        word("variant", "variant", lambda each: f"{each.proposal} {each.label or each.name}".strip()),
        word("verdict", "verdict", lambda each: each.verdict),
        count("speed", "speed", lambda each: each.speed.value if each.speed else None),
        count("at least", "speed_low", lambda each: each.speed.low if each.speed else None),
        count("at most", "speed_high", lambda each: each.speed.high if each.speed else None),
        count("of the run", "speed_of_run", lambda each: each.of_run.value if each.of_run else None),
        count("predicted", "predicted", lambda each: each.predicted.value if each.predicted else None),
        number("against measured", "prediction_error", lambda each: each.predicted_error, format_change),
        duration("per step", "step_ns", lambda each: each.step_ns),
        size("peak memory", "peak_bytes", lambda each: each.peak_bytes),
        word("promise", "promise", lambda each: each.promise),
        word("kept", "kept", lambda each: {True: "yes", False: "no", None: ""}[each.kept]),
        integer("rounds", "rounds", lambda each: each.rounds),
        word("why", "sentence", lambda each: each.sentence),
    )  # fmt: skip


WHO_DECIDES = frozenset({"device free", "device halved", "host free", "host halved"})
"""Changes that are listed even if they save nothing, because that is the answer."""


def replay_tables(case: Case) -> tuple[Table, ...]:
    """Tables of predicted savings and of the critical path."""
    replay, step = case.replay, case.step.duration.value
    if replay is None:
        return ()
    whole = sum(spent for _, spent in replay.critical_path) or 1.0
    error = f"The unchanged replay misses the measured steps by {format_share(replay.error)}."
    calibration = replay.calibration
    if calibration is not None and not calibration.profiled:
        taken = format_share(calibration.scale)
        error = f"The replay scales CPU work to {taken} of its time under the profiler, to match the steady step; "
        error += f"it misses it by {format_share(calibration.error)}."
    displayed = predictions(replay, step)
    displayed += [each for each in replay.predictions if each.change in WHO_DECIDES and each not in displayed]
    unnamed = {"input": "(the next batch)", "dispatch": "(between operators)"}
    changes = table_of(
        "what-if", "What a change would save", error, displayed,
        word("change", "change", lambda use: use.change),
        duration("per step", "savings_ns", lambda use: use.saved.value, barred=True),
        interval("interval", lambda use: use.saved, interval_text, names=("savings_low_ns", "savings_high_ns")),
        share("of the step", "share", lambda use: use.saved.value / step),
        duration("at most", "cap_ns", lambda use: use.cap),
    )  # fmt: skip
    path = table_of(
        "critical-path", "The critical path", "The work that determines the step time, by kind.", replay.critical_path,
        word("kind", "kind", lambda use: use[0]),
        duration("per step", "duration_ns", lambda use: use[1], barred=True),
        share("share", "share", lambda use: use[1] / whole),
    )  # fmt: skip
    longest = table_of(
        "longest", "Longest on the critical path", "", replay.longest,
        word("what", "name", lambda use: use[1].removeprefix("void ") or unnamed.get(use[0], "–"), short=short_kernel),
        word("kind", "kind", lambda use: use[0]),
        duration("per step", "duration_ns", lambda use: use[2], barred=True),
        share("share", "share", lambda use: use[2] / whole),
    )  # fmt: skip
    places = table_of(
        "elsewhere", "On other hardware", ELSEWHERE, replay.elsewhere,
        word("device", "device", lambda use: use.device or "the same"),
        count("link", "link", lambda use: use.link),
        duration("per step", "step_ns", lambda use: use.step.value, barred=True),
        duration("at least", "step_low_ns", lambda use: use.step.low),
        duration("at most", "step_high_ns", lambda use: use.step.high),
        duration("kernels", "kernels_ns", lambda use: use.kernels.value),
        duration("kernels here", "kernels_here_ns", lambda use: use.here),
        share("of these communication", "communication", lambda use: use.communication),
        word("its error", "checked", lambda use: "measured" if use.checked else "not known"),
        word("peaks", "sources", lambda use: "; ".join(use.sources)),
    )  # fmt: skip
    return _with_rows(changes, path, longest, places)


def _gaps(case: Case) -> Table:
    return table_of(
        "gaps", "Why the device idled", "Idle time of the device, by what kept the thread that feeds it busy.",
        sorted(case.gaps, key=lambda use: -use.duration.value),
        word("category", "category", lambda use: use.category, kind="category"),
        word("behind it", "cause", lambda use: use.cause or "(between operators)"),
        duration("per step", "duration_ns", lambda use: use.duration.value, barred=True),
        interval("95 % interval", lambda use: use.duration, interval_text),
        count("gaps", "count", lambda use: use.count),
        duration("longest", "longest_ns", lambda use: use.longest),
        _place(lambda use: use.source),
    )  # fmt: skip


def _kernel_names(case: Case) -> Table:
    step = case.step.duration.value or 1.0
    return table_of(
        "kernel-names", "Kernels", "By name, over all operators and shapes.", by_name(case.kernels),
        word("kernel", "kernel", lambda use: use.name.removeprefix("void "), kind="code", short=short_kernel),
        word("operators", "operators", lambda use: ", ".join(use.operators)),
        count("calls", "calls", lambda use: use.calls),
        duration("per step", "duration_ns", lambda use: use.duration, barred=True),
        share("share", "share", lambda use: use.duration / step),
        duration("one call", "call_ns", lambda use: use.duration / use.calls if use.calls else None),
        word("bound by", "bound", lambda use: use.bound, kind="bound"),
        integer("kinds", "kinds", lambda use: use.kinds),
    )  # fmt: skip


def _kernels(case: Case) -> Table:
    step = case.step.duration.value or 1.0
    return table_of(
        "kernels", "Kernels by operator and shape",
        "Occupancy and throughput: by Nsight Compute." if any(use.counters for use in case.kernels) else "",
        sorted(case.kernels, key=lambda use: -use.duration),
        word("kernel", "kernel", lambda use: use.name.removeprefix("void "), kind="code", short=short_kernel),
        word("operator", "operator", lambda use: use.operator),
        count("calls", "calls", lambda use: use.calls),
        duration("per step", "duration_ns", lambda use: use.duration, barred=True),
        share("share", "share", lambda use: use.duration / step),
        word("bound by", "bound", lambda use: use.bound, kind="bound"),
        duration("at the roofline", "at_roofline_ns", lambda use: use.at_roofline),
        _rate(lambda use: _per_second(use.flops, use.duration)),
        *_bandwidth(case, KernelUse),
        word("format", "format", lambda use: use.dtype),
        word("Tensor Cores", "tensor_cores", lambda use: {True: "yes", False: "no", None: ""}[use.tensor_cores]),
        *_counters(),
        word("shapes", "shapes", lambda use: use.shapes, kind="code", room="page"),
        _place(lambda use: use.source),
    )  # fmt: skip


def _counters() -> Iterable[Column[KernelUse]]:
    """Columns of what Nsight Compute measured."""

    def of(field: str) -> Callable[[KernelUse], float | None]:
        return lambda use: getattr(use.counters, field, None)

    def waits(use: KernelUse) -> str:
        found = use.counters
        return f"{format_share(found.stalled)} {found.stall}" if found is not None and found.stalled else ""

    yield share("occupancy", "occupancy", of("occupancy"))
    yield share("possible", "occupancy_possible", of("possible"))
    yield word("limited by", "occupancy_limit", lambda use: use.counters.limit if use.counters is not None else "")
    yield share("memory", "memory_throughput", of("memory"))
    yield share("DRAM", "dram_throughput", of("dram"))
    yield share("arithmetic", "compute_throughput", of("compute"))
    yield word("waits for", "stall", waits, room="page")


def _operators(case: Case) -> Table:
    step = case.step.duration.value or 1.0
    return table_of(
        "operators", "Operators", "Leaf operators, summed over the step.",
        sorted(case.operators, key=lambda use: -use.duration),
        word("operator", "operator", lambda use: use.name, kind="code"),
        word("phase", "phase", lambda use: use.phase),
        count("calls", "calls", lambda use: use.calls),
        duration("per step", "duration_ns", lambda use: use.duration, barred=True),
        share("share", "share", lambda use: use.duration / step),
        word("bound by", "bound", lambda use: use.bound, kind="bound"),
        number("FLOP", "flop", lambda use: use.flops, lambda value: f"{value:.3g}"),
        _rate(lambda use: _per_second(use.flops, use.duration)),
        size("bytes", "bytes", lambda use: use.bytes),
        number("FLOP/byte", "flop_per_byte", lambda use: use.intensity,
               lambda value: format_intensity(value).partition(" ")[0]),
        *_bandwidth(case, OperatorUse),
        _place(lambda use: use.source),
    )  # fmt: skip


def _modules(case: Case) -> Table:
    def path(use: ModuleUse) -> Cell:
        return Cell(use.path.rpartition(".")[2], use.path, short=use.path)

    device = "kernels and copies on the device" if case.kernels else "the thread"

    def numbers(value: float) -> str:
        return format_rate(value).strip()

    note = f"Time of {device} per module, with submodules, in the profiled steps. FLOP: of operators with a known cost."
    if any(use.kept is not None for use in case.modules):
        note += " Kept: memory still allocated after a forward pass."
    made = table_of(
        "modules", "Modules", note, case.modules,
        Column("module", "module", path, number=False, kind="code"),
        word("class", "class", lambda use: use.type),
        count("calls", "calls", lambda use: use.calls),
        duration("forward", "forward_ns", lambda use: use.forward, barred=True),
        duration("backward", "backward_ns", lambda use: use.backward, barred=True),
        share("share", "share", lambda use: use.share),
        number("FLOP", "flop", lambda use: use.flops or None, lambda value: f"{format_rate(value)}FLOP"),
        _rate(lambda use: _per_second(use.flops, use.forward + use.backward)),
        number("parameters", "parameters", lambda use: use.parameters or None, numbers),
        size("their size", "parameter_bytes", lambda use: use.parameter_bytes or None),
        size("kept", "kept_bytes", lambda use: use.kept),
    )  # fmt: skip
    return replace(made, depths=tuple(use.depth for use in case.modules[: len(made.rows)]))


def _lines(case: Case) -> Table:
    held, step = sum(use.duration.value for use in case.lines), case.step.duration.value
    note = f"Together {format_share(held / step)} of the step." if 0 < held < step + 1 else ""
    return table_of(
        "lines", "Lines of the loop", note, sorted(case.lines, key=lambda use: -use.duration.value),
        _place(lambda use: use.source),
        word("source", "source", lambda use: use.source.text, kind="source"),
        word("role", "role", lambda use: use.role),
        duration("per step", "duration_ns", lambda use: use.duration.value, barred=True),
        duration("of it Python", "python_ns", lambda use: use.python.value),
        count("runs", "hits", lambda use: use.hits),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class FunctionTime:
    """Time of a user's function in a step. own: ns in its own lines, including operators that they call; cumulative:
    also including the user's functions that it calls. hottest: its hottest line."""

    own: float
    cumulative: float
    hottest: SourceLine


def function_times(case: Case) -> list[FunctionTime]:
    """User's functions below the training loop, from their timed lines, by falling own time. Steps with line timing are
    longer than others, so the times are limited to one step."""
    spent = sum(path.duration for path in case.paths)
    scale = min(1.0, case.step.duration.value / spent) if spent else 1.0
    own, cumulative = defaultdict[tuple[str, str], float](float), defaultdict[tuple[str, str], float](float)
    lines = defaultdict[tuple[str, str], Counter[SourceLine]](Counter)
    for path in case.paths:
        duration = scale * path.duration
        for depth, line in enumerate(path.lines):
            if depth == 0:
                own[line.file, line.function] += duration
            lines[line.file, line.function][line] += round(duration)
        for function in dict.fromkeys((line.file, line.function) for line in path.lines):
            cumulative[function] += duration
    found = (FunctionTime(own[name], spent, lines[name].most_common(1)[0][0]) for name, spent in cumulative.items())
    return sorted(found, key=lambda each: -each.own)


def _functions(case: Case) -> Table:
    return table_of(
        "functions", "Your functions", "From lines timed in a few steps, with the operators that they "
                                           "call.", function_times(case),
        word("function", "function", lambda each: each.hottest.function, kind="code"),
        duration("own", "own_ns", lambda each: each.own, barred=True),
        duration("with callees", "cumulative_ns", lambda each: each.cumulative),
        _place(lambda each: each.hottest, "hottest line"),
        word("source", "source", lambda each: each.hottest.text, kind="source"),
    )  # fmt: skip


def _compiler(case: Case) -> tuple[Table, ...]:
    """Tables of the job's compilations, from torch.compile's logs."""
    reported = case.compiler
    if reported is None:
        return ()
    kernels = table_of(
        "compiled-kernels", "Generated kernels",
        f"Kernels of torch.compile with their source lines, from {reported.folder}.", reported.kernels,
        word("kernel", "kernel", lambda use: use.name, kind="code", short=short_kernel),
        duration("per step", "duration_ns", lambda use: use.duration, barred=True),
        word("lines", "lines", lambda use: ", ".join(place_text(line) for line in use.lines)),
        word("source", "source", lambda use: use.lines[0].text if use.lines else "", kind="source"),
        word("operators", "operators", lambda use: ", ".join(use.operators)),
    )  # fmt: skip
    events = (
        ("graph-breaks", "Graph breaks", reported.breaks),
        ("recompilations", "Recompilations", reported.recompilations),
        ("recompile-limits", "Functions that run in eager mode", reported.limits),
    )
    return kernels, *(_compiler_events(*each) for each in events)


def _compiler_events(identity: str, title: str, events: tuple[CompilerEvent, ...]) -> Table:
    return table_of(
        identity, title, "", sorted(events, key=lambda each: -each.count),
        _place(lambda each: each.source),
        word("function", "function", lambda each: each.source.function, kind="code"),
        integer("times", "count", lambda each: each.count),
        word("why", "reason", lambda each: each.reason),
        word("what helps", "hint", lambda each: each.hint),
    )  # fmt: skip


def _copies(case: Case) -> Table:
    return table_of(
        "copies", "Copies", "Exposed: time in which nothing else ran.",
        sorted(case.copies, key=lambda use: -use.duration.value),
        word("copy", "copy", lambda use: f"{use.kind} {use.memory}".strip()),
        word("operator", "operator", lambda use: use.operator),
        count("calls", "calls", lambda use: use.calls),
        size("bytes", "bytes", lambda use: use.bytes),
        duration("per step", "duration_ns", lambda use: use.duration.value, barred=True),
        duration("of it exposed", "exposed_ns", lambda use: use.exposed.value),
        _place(lambda use: use.source),
    )  # fmt: skip


def _collectives(case: Case) -> Table:
    return table_of(
        "collectives", "Collectives", "Exposed: time in which nothing else ran.",
        sorted(case.collectives, key=lambda use: -use.duration.value),
        word("collective", "collective", lambda use: use.name),
        word("group", "group", lambda use: use.group),
        count("calls", "calls", lambda use: use.calls),
        size("bytes", "bytes", lambda use: use.bytes),
        duration("per step", "duration_ns", lambda use: use.duration.value, barred=True),
        duration("of it exposed", "exposed_ns", lambda use: use.exposed.value),
        number("bus bandwidth", "bus_bytes_per_s", lambda use: use.bus_bandwidth,
               lambda value: f"{format_rate(value)}B/s"),
        share("of the link", "link_share", lambda use: use.link_share),
        word("link", "link", lambda use: use.link),
    )  # fmt: skip


def _allocations(case: Case) -> Table:
    return table_of(
        "allocations", "Calls to the driver's allocator", "", case.allocations,
        word("call", "call", lambda use: use.name),
        count("calls", "calls", lambda use: use.calls),
        duration("CPU", "cpu_ns", lambda use: use.duration.value, barred=True),
        duration("device idle", "idle_ns", lambda use: use.idle.value),
        _place(lambda use: use.source),
    )  # fmt: skip


def _chains(case: Case) -> Table:
    return table_of(
        "chains", "Chains of pointwise kernels", "One fused kernel could do the work of each.",
        sorted(case.chains, key=lambda use: -use.duration),
        word("chain", "chain", lambda use: " → ".join(use.operators), kind="code"),
        count("times", "times", lambda use: use.calls),
        duration("per step", "duration_ns", lambda use: use.duration, barred=True),
        size("bytes", "bytes", lambda use: use.bytes),
        size("of them in between", "saved_bytes", lambda use: use.saved),
        _place(lambda use: use.source),
    )  # fmt: skip


def _segments(case: Case) -> Table:
    return table_of(
        "segments", "Between the steps", "Not part of any training step.", case.segments,
        word("what", "what", lambda use: use.kind.replace("_", " ")),
        count("times", "times", lambda use: use.count),
        duration("in all", "total_ns", lambda use: use.duration, barred=True),
        share("of the run", "share", lambda use: use.share),
    )  # fmt: skip


def process_table(report: Report) -> Table:
    """Table of the processes with the longest steps, with the straggler first."""
    waits = {rank.rank: rank for process in report.processes for rank in process.case.ranks}
    late = max(waits.values(), key=lambda rank: rank.last, default=None)

    def order(process: ProcessReport) -> tuple[bool, float]:
        return late is None or process.rank != late.rank, -process.case.step.duration.value

    def spent(process: ProcessReport, category: str) -> float:
        return next((use.duration.value for use in process.case.categories if use.name == category), 0.0)

    return table_of(
        "processes", "Ranks", "", sorted(report.processes, key=order),
        word("rank", "rank", lambda process: process.name),
        duration("step", "step_ns", lambda process: process.case.step.duration.value),
        duration("computes", "compute_ns", lambda process: spent(process, "compute")),
        duration("communicates", "communication_ns", lambda process: spent(process, "communication")),
        duration("waits for others", "waiting_ns",
                 lambda process: waits[process.rank].waiting if process.rank in waits else None),
        share("share of the waiting", "last",
              lambda process: waits[process.rank].last if process.rank in waits else None),
        word("bound by", "bound", lambda process: process.verdict.bottleneck, kind="category"),
        most=MOST_RANKS,
    )  # fmt: skip


def rank_tables(ranks: RankComparison | None, displayed: int) -> Iterator[Table]:
    """Tables over all ranks; none for a single one. displayed: number of ranks that the document shows one by one."""
    if ranks is None:
        return
    if len(ranks.rows) > displayed:
        names = ranks.categories
        communication = names.index("communication") if "communication" in names else None
        yield table_of(
            "waiting-least", "Ranks that wait least", "The other ranks wait for them.",
            sorted(ranks.rows, key=lambda row: row.waiting),
            word("rank", "rank", lambda row: row.name),
            word("host", "host", lambda row: row.host),
            duration("step", "step_ns", lambda row: row.step),
            duration("communicates", "communication_ns",
                     lambda row: row.categories[communication] if communication is not None else 0.0),
            duration("waits for others", "waiting_ns", lambda row: row.waiting),
            share("share of the waiting", "last", lambda row: row.last),
            most=MOST_RANKS,
        )  # fmt: skip
    yield from _with_rows(_collectives_over_ranks(ranks), _clocks(ranks))


def _collectives_over_ranks(ranks: RankComparison) -> Table:
    def bandwidth(value: float) -> str:
        return f"{format_bytes(value)}/s"

    return table_of(
        "rank-collectives", "Collectives over all ranks", "", ranks.collectives,
        word("collective", "collective", lambda row: row.name),
        word("group", "group", lambda row: row.group),
        word("ranks", "ranks", lambda row: f"{row.ranks} of {row.size}" if row.size else str(row.ranks)),
        count("calls", "calls", lambda row: row.calls),
        size("bytes", "bytes", lambda row: row.bytes),
        duration("transfer per step", "transfer_ns", lambda row: row.transfer),
        duration("waiting per step", "waiting_ns", lambda row: row.waiting),
        duration("of it exposed", "exposed_ns", lambda row: row.exposed or None),
        number("algorithm bandwidth", "algorithm_bytes_per_s", lambda row: row.algorithm_bandwidth, bandwidth),
        number("bus bandwidth", "bus_bytes_per_s", lambda row: row.bus_bandwidth, bandwidth),
        share("of the link", "link_share", lambda row: row.link_share),
        word("waited for", "straggler",
             lambda row: f"rank {row.late} ({format_share(row.straggler_share)})" if row.late is not None else ""),
    )  # fmt: skip


def _clocks(ranks: RankComparison) -> Table:
    return table_of(
        "clocks", "Clocks of hosts", "", ranks.clocks,
        word("host", "host", lambda clock: clock.host),
        duration("offset to the first", "offset_ns", lambda clock: clock.offset),
        number("uncertainty", "uncertainty_ns", lambda clock: clock.uncertainty,
               lambda value: f"± {format_duration(value)}"),
        integer("collectives", "samples", lambda clock: clock.samples),
    )  # fmt: skip
