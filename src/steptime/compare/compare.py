"""From reports to a comparison: differences with intervals, what was set otherwise, and the likely cause.

A difference is reported only where it is beyond noise, the noise between runs included. A single run knows how its
steps vary, and nothing of what another run would give: another place in memory, other neighbours on the machine,
another temperature. So each interval of a difference has two parts: what varies within the runs, drift included
(`difference_of_series`), and a floor for what varies between them. They are independent and add as variances do.

In three runs or more, a run opens a new level if it is outside of the noise around its level's median, and the median
of it and the next runs is, too (docs/history.md). No later run confirms the last one; that is reported.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from steptime._version import __version__
from steptime.advice.evidence import Case, OptimizerUse
from steptime.advice.kernels import short_kernel
from steptime.advice.line_evidence import profile_scale
from steptime.advice.loader_model import samples_per_step
from steptime.advice.run_uses import CategoryUse, LoaderUse, SettingsUse
from steptime.advice.savings import NOTHING, ratio, scaled
from steptime.advice.verdict import background_load
from steptime.advice.whole_run import other_work
from steptime.arrays import Int64
from steptime.compare.cause import cause_of, sentence_of
from steptime.compare.comparison import (
    SCHEMA_VERSION,
    ComparedRun,
    Comparison,
    Difference,
    DifferenceOutcome,
    Fate,
    Level,
    Noise,
    OneSidedFinding,
    Piece,
    Setting,
    Trend,
)
from steptime.quantities import (
    Estimate,
    Jump,
    difference_of,
    difference_of_series,
    format_duration,
    format_share,
    format_source,
    jumps,
    slope_of,
)
from steptime.report.compose import IN_PROCESS, WORKERS
from steptime.report.report import JobEnvironment, ProcessReport, Report

LEAST_NOISE = 0.005
"""Least noise, as a fraction: clocks, temperature and memory layout move a step by this much in any few runs."""
PART = 0.005
"""Fraction of the step: least noise floor of a category, for what a boundary between categories can shift. Its own time
sets a higher one."""
WIDEST = 0.1
"""Relative width of an interval, from no difference on, beyond which it cannot rule out a difference."""
FOR_MEASURED = 3
"""Runs of one job from which on their differences are more reliable than the assumed floor."""


def assumed_noise(noise_floor: float) -> Noise:
    """Noise between runs if each side has only one run: an assumed fraction of the step."""
    sentence = (
        f"One run of each does not show the noise between runs: steptime assumes {format_share(noise_floor)} "
        "of the step time. Measure it with further runs of the first job: --repeat."
    )
    return Noise(noise_floor, False, sentence)


def measured_noise(steps: Sequence[float], noise_floor: float) -> Noise:
    """Noise floor from repeated runs of the first job: the largest difference between two of them. Two runs may be
    alike by chance: with fewer than FOR_MEASURED, it is at least the assumed floor. steps: ns."""
    if len(steps) < 2:
        return assumed_noise(noise_floor)
    spread = max(steps) / min(steps) - 1
    least = LEAST_NOISE if len(steps) >= FOR_MEASURED else noise_floor
    sentence = (
        f"{len(steps)} runs of the unchanged first job differ by up to {format_share(spread)}: steptime allows "
        f"for {format_share(max(spread, least))} of the step time."
    )
    return Noise(max(spread, least), True, sentence)


def beyond(change: Estimate, noise_floor: float) -> Estimate:
    """Change whose interval includes the noise between runs. noise_floor: noise, in the change's unit."""
    low = sqrt((change.value - change.low) ** 2 + noise_floor**2)
    high = sqrt((change.high - change.value) ** 2 + noise_floor**2)
    return Estimate(change.value, change.value - low, change.value + high, change.samples, change.unit)


def outcome_of(change: Estimate, scale: float, widest: float = WIDEST) -> DifferenceOutcome:
    """Outcome of comparing a quantity, from the interval of its change. scale: value to which the change is relative.
    widest: largest relative reach of an interval that still rules out a difference."""
    if change.low > 0:
        return DifferenceOutcome.MORE
    if change.high < 0:
        return DifferenceOutcome.LESS
    reach = max(-change.low, change.high)
    return DifferenceOutcome.NONE if reach <= widest * scale else DifferenceOutcome.UNDECIDED


def trend_of(reports: Sequence[Report], noise_floor: float) -> Trend:
    """Trend of the reports' steps, in their order."""
    steps = [report.processes[0].case.step.duration for report in reports]
    values = np.array([step.value for step in steps])
    found = jumps(values, noise_floor, [max(step.high - step.value, step.value - step.low) for step in steps])
    slope = slope_of(values) if len(values) >= 4 else None
    levels = tuple(Level(each.at, each.before, each.after, each.confirmed) for each in found)
    return Trend(slope, levels, _sentence(found, slope, values.tolist()))


def level_text(steps: Sequence[float], what: str) -> str:
    """Sentence on runs whose step shows no change of level; it rules one out only if the steps are alike. steps: ns."""
    least, most = min(steps), max(steps)
    if most <= (1 + WIDEST) * least:
        return f"shows no change over {len(steps)} {what}, within noise"
    found = f"{format_duration(least)} to {format_duration(most)}"
    return f"varies widely over {len(steps)} {what}, {found}: no clear change, as single steps vary as much"


def _sentence(found: Sequence[Jump], slope: Estimate | None, steps: Sequence[float]) -> str:
    if not found and slope is not None and (slope.low > 0 or slope.high < 0):
        word = "longer" if slope.value > 0 else "shorter"
        return f"From run to run the step gets {format_share(abs(slope.value))} {word} (median of all pairs)."
    if not found:
        return f"The step's time {level_text(steps, 'runs')}."
    reported = [
        f"from run {each.at + 1} on {format_share(abs(each.after / each.before - 1))} "
        f"{'longer' if each.after > each.before else 'shorter'} ({format_duration(each.before)} to "
        f"{format_duration(each.after)}){'' if each.confirmed else ', not yet confirmed by a later run'}"
        for each in found
    ]
    return f"The step is {'; '.join(reported)}."


LOADER_ITERATOR = re.compile(r"#_\w+DataLoaderIter\.__next__$")
"""What torch adds to enumerate(DataLoader): the iterator without workers, or the one with them."""
TRIFLE = 0.01
"""Fraction of the longer step: a part that changed by less gets no row."""
OWN = 0.1
"""Fraction of a part on both sides that it must change by: a single part has no interval, and steady ones vary by less
than a tenth."""
MOST = 40
"""Most pieces that are kept, those that changed most."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    duration: float
    calls: float | None
    category: str


def pieces_between(before: Case, after: Case, noise: float) -> tuple[Piece, ...]:
    """Parts of a step that changed by more than TRIFLE, the largest change first. noise: the step's, between runs."""
    step = max(before.step.duration.value, after.step.duration.value)
    found = []
    for kind in ("kernel", "operator", "line", "idle", "copy"):
        one, other = (_summed(_parts_pieces(case, kind)) for case in (before, after))
        # Idle time and copies can be absent where they were looked for, kernels cannot.
        if (one and other) or (kind in ("idle", "copy") and before.kernels and after.kernels):
            found += _changes(kind, one, other, step, noise)
    return tuple(sorted(found, key=lambda piece: -abs(piece.change))[:MOST])


def _changes(kind: str, one: dict[str, _Part], other: dict[str, _Part], step: float, noise: float) -> list[Piece]:
    found = []
    for name in dict.fromkeys((*one, *other)):
        sides = (one.get(name), other.get(name))
        spent, now = (side.duration if side is not None else None for side in sides)
        calls, calls_now = (side.calls if side is not None else None for side in sides)
        category = next(side.category for side in sides if side is not None)
        piece = Piece(kind, name, _fate(*sides), spent, now, calls, calls_now, category)
        own = max(OWN, noise) * max(spent, now) if spent is not None and now is not None else 0.0
        if abs(piece.change) >= max(TRIFLE * step, own):
            found.append(piece)
    return found


def _fate(before: _Part | None, after: _Part | None) -> Fate:
    if before is None:
        return Fate.APPEARED
    if after is None:
        return Fate.VANISHED
    return Fate.GREW if after.duration > before.duration else Fate.SHRANK


def _parts_pieces(case: Case, kind: str) -> Iterator[_Part]:
    """Pieces of a kind, those of one name several times; lines and operators scaled to the steady steps."""
    if kind == "kernel":
        for kernel in case.kernels:
            name = " of ".join(filter(None, (short_kernel(kernel.name), kernel.operator)))
            yield _Part(name, kernel.duration, kernel.calls, "")
    elif kind == "operator":
        scale = profile_scale(case.operators, case.categories) if case.step.device == "cpu" else 1.0
        yield from (_Part(use.name, scale * use.duration, use.calls, "") for use in case.operators)
    elif kind == "line":
        # Lines are timed in a few steps, which may all have been slow, and no step is shorter than its lines.
        scale = min(1.0, ratio(case.step.duration.value, sum(use.duration.value for use in case.lines)) or 1.0)
        for line in case.lines:
            name = line.source.text or format_source(line.source)
            yield _Part(name, scale * line.duration.value, line.hits, line.role)
    elif kind == "idle":
        for gap in case.gaps:
            # A loader has one name, with workers and without: else what became shorter would have vanished.
            name = ": ".join(filter(None, (gap.category, LOADER_ITERATOR.sub("", gap.cause))))
            yield _Part(name, gap.duration.value, gap.count, gap.category)
    else:
        for copy in case.copies:
            name = " ".join(filter(None, (copy.kind, copy.memory)))
            yield _Part(name, copy.exposed.value, copy.calls, "copy")


def _summed(parts: Iterable[_Part]) -> dict[str, _Part]:
    found: dict[str, _Part] = {}
    for part in parts:
        known = found.get(part.name)
        if known is not None:
            calls = known.calls + part.calls if known.calls is not None and part.calls is not None else None
            part = _Part(part.name, known.duration + part.duration, calls, part.category)
        found[part.name] = part
    return found


ABSENT = "–"
"""Text for a value that one side does not have."""
KINDS = ("code", "loader", "batch", "model", "flag", "software", "machine")
"""Kinds of settings, those that a person can change most easily first."""
_FACTS = {WORKERS: "loader", "model": "model", "usable CPUs": "machine", "devices in the machine": "machine",
          "world size": "machine"}  # fmt: skip

Key = tuple[str, str]


def settings_between(before: Report, after: Report) -> tuple[Setting, ...]:
    """Settings that differ between two reports, by kind. Facts that only one report has (a trace contains no versions)
    are left out, except those of a loader or a list of flags that both have."""
    one, other = dict(_values(before)), dict(_values(after))
    checked = {"loader", "flag"} & {kind for kind, _ in one} & {kind for kind, _ in other}
    found = [
        Setting(kind, name, one.get((kind, name), ABSENT), other.get((kind, name), ABSENT))
        for kind, name in dict.fromkeys((*one, *other))
        if one.get((kind, name)) != other.get((kind, name))
        and (((kind, name) in one and (kind, name) in other) or kind in checked)
    ]
    return tuple(sorted(found, key=lambda setting: KINDS.index(setting.kind)))


def _values(report: Report) -> Iterator[tuple[Key, str]]:
    case = report.processes[0].case
    yield from _environment(report.environment)
    yield from _loader(case.loader)
    yield from _batch(case)
    yield from _optimizers(case.optimizers)
    yield from _flags(case.settings)
    known = WORKERS if case.loader is not None else ""
    yield from (((_FACTS.get(name, "flag"), name), value) for name, value in report.environment.facts if name != known)
    formats = sorted({use.dtype for use in case.kernels if use.dtype})
    if formats:
        yield ("model", "dtypes of the kernels"), ", ".join(formats)
    compiled = {use.source.place for use in case.compilations}
    if compiled or case.step.mode != "trace":  # the watch would have seen them
        yield ("model", "compiled functions"), str(len(compiled))


def _environment(environment: JobEnvironment) -> Iterator[tuple[Key, str]]:
    for kind, name, value in (
        ("machine", "host", environment.host),
        ("machine", "device", environment.device),
        ("machine", "ranks", str(environment.ranks)),
        ("software", "Python", environment.python),
        ("software", "torch", environment.torch),
        ("software", "steptime", environment.steptime),
        ("code", "commit", commit_words(environment)),
        ("code", "command", _arguments(environment.command)),
    ):
        if value:
            yield (kind, name), value


def commit_words(environment: JobEnvironment) -> str:
    """Commit as text: "1a2b3c4d5e", with a plus if tracked files differed from it; "" outside of a repository."""
    return environment.commit[:10] + ("+" if environment.dirty else "") if environment.commit else ""


def _arguments(command: str) -> str:
    """Command without the folder of its program and of absolute paths: the same job in another environment or working
    tree is no other job. Other paths are unchanged."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return shlex.join(
        word.rpartition("/")[2] or word if not number or word.startswith("/") else word.removeprefix("./")
        for number, word in enumerate(words)
    )


def _loader(loader: LoaderUse | None) -> Iterator[tuple[Key, str]]:
    if loader is None:
        return
    workers = str(loader.workers) if loader.workers else IN_PROCESS
    for name, value in (
        (WORKERS, workers),
        ("dataset", loader.dataset),
        ("prefetch factor", str(loader.prefetch_factor) if loader.prefetch_factor else ""),
        ("persistent workers", _switch(loader.persistent_workers) if loader.workers else ""),
        ("pinned memory", _switch(loader.pin_memory)),
        ("collate function", loader.collate_name),
        ("batched fetch", _switch(loader.batched_fetch)),
    ):
        if value:
            yield ("loader", name), value


def _batch(case: Case) -> Iterator[tuple[Key, str]]:
    if case.loader is not None and case.loader.batch_size:
        yield ("batch", "batch size"), str(case.loader.batch_size)
    if case.step.mode != "trace":
        # Rounded, as the last step of an epoch may have fewer.
        yield ("batch", "micro-batches per step"), str(round(case.step.micro_batches))


def _optimizers(optimizers: tuple[OptimizerUse, ...]) -> Iterator[tuple[Key, str]]:
    for number, use in enumerate(optimizers, 1):
        place = f" {number}" if len(optimizers) > 1 else ""
        kind = "fused" if use.fused else "foreach" if use.foreach else "single-tensor" if use.foreach is False else ""
        yield ("model", f"optimizer{place}"), " ".join(filter(None, (use.type, kind)))
        if use.elements:
            yield ("model", f"parameters{place}"), str(use.elements)


def _flags(settings: SettingsUse | None) -> Iterator[tuple[Key, str]]:
    if settings is None:
        return
    yield ("flag", "anomaly detection"), _switch(settings.detect_anomaly)
    yield ("flag", "deterministic algorithms"), _switch(settings.deterministic)
    yield ("flag", "another profiler"), _switch(settings.profiler)
    yield ("machine", "trainers on the host"), str(settings.trainers_on_host)


def _switch(value: bool) -> str:
    return "on" if value else "off"


LEAST_ALLOCATED_CHANGE = 0.01
"""Fraction of the device allocator's peak that samples every tenth of a second leave uncertain."""
LEAST_RESIDENT_CHANGE = 0.1
"""Fraction of the peak resident memory by which runs of one job differ, depending on when the system reclaims pages."""
Series = Int64


def compare(
    reports: Sequence[Report],
    labels: Sequence[str],
    *,
    noise_floor: float | None = None,
    repeats: Sequence[Report] = (),
    next_command: str = "",
) -> Comparison:
    """Comparison of the last report with the first. labels: a short name for each. repeats: reports of further runs of
    the first one's job. noise_floor: noise of single runs, used without repeats; None for the noise known of the first
    one's machine. next_command: command for the reader to paste. Raises ValueError for fewer than two reports."""
    if len(reports) < 2:
        raise ValueError("a comparison needs two reports")
    before, after = reports[0], reports[-1]
    one, other = before.processes[0], after.processes[0]
    steps = [report.processes[0].case.step.duration.value for report in (before, *repeats)]
    noise = measured_noise(steps, one.case.between_runs if noise_floor is None else noise_floor)
    step = step_between(one, other, noise.noise_floor)
    by, parts = _parts_compare(one, other, step, noise.noise_floor)
    runs = tuple(
        _run(report, label, reports[0], noise.noise_floor) for report, label in zip(reports, labels, strict=True)
    )
    settings = settings_between(before, after)
    pieces = pieces_between(one.case, other.case, noise.noise_floor)
    comparison = Comparison(
        SCHEMA_VERSION, __version__, (replace(runs[0], against_first=None), *runs[1:]), settings, step, parts, by,
        pieces, _findings(one, other), cause_of(step, parts, settings, pieces), "", noise, next_command,
        sample=_sample(one, other, step),
        memory=_memory(one, other),
        trend=trend_of(reports, noise.noise_floor) if len(reports) > 2 else None,
        caveats=tuple(_caveats(one, other)),
    )  # fmt: skip
    return replace(comparison, sentence=sentence_of(comparison))


def step_between(one: ProcessReport, other: ProcessReport, noise_floor: float) -> Difference:
    """Difference of two reports' steps: the values are the reports', the interval is from the steady steps."""
    before, after = one.case.step.duration, other.case.step.duration
    change = _widened(difference_of(after, before), _steady(one), _steady(other))
    change = beyond(change, noise_floor * max(before.value, after.value))
    reason = _caveat(one, other)
    outcome = DifferenceOutcome.UNDECIDED if reason else outcome_of(change, before.value)
    return Difference("step", "step", before, after, change, outcome, reason)


def _widened(change: Estimate, base: Series, values: Series) -> Estimate:
    """Difference of two figures, with an interval at least as wide as that of their series."""
    if min(len(base), len(values)) < 2:
        return change
    seen = difference_of_series(values, base)
    low, high = seen.value - seen.low, seen.high - seen.value
    return replace(change, low=min(change.low, change.value - low), high=max(change.high, change.value + high))


def _spent(process: ProcessReport, category: str) -> Series:
    """Time of a category in each steady step, in time order, ns; empty if unknown."""
    known = process.series
    if known is None or category not in known.categories:
        return np.zeros(0, np.int64)
    column, steady = known.categories.index(category), process.steady
    rows = [row[column] for place, row in enumerate(known.spent)
            if row and any(steady[place * known.stride : (place + 1) * known.stride])]  # fmt: skip
    return np.array(rows, np.int64)


def _steady(process: ProcessReport) -> Series:
    """Steady steps in time order, without the few that a stall of the machine made far longer."""
    steps = [spent for spent, steady in zip(process.step_ns, process.steady, strict=False) if steady]
    values = np.array(steps, np.int64)
    if len(values) < 2:
        return values
    longest = 2 * process.case.step.duration.high
    usual = values[values <= longest]
    return usual if len(usual) >= 0.75 * len(values) else values


def _caveat(one: ProcessReport, other: ProcessReport) -> str:
    """Reason why the times of two runs cannot be compared; "" if they can."""
    if min(one.case.step.steady, other.case.step.steady) < 2:
        return "one of them has a single step, so its spread is unknown"
    caveats = [found for each in (one, other) if (found := background_load(each.findings)) is not None]
    if caveats:
        first = "the first run" if background_load(one.findings) else "the last run"
        which = "both runs" if len(caveats) == 2 else first
        return (
            f"{which} shared the CPUs with other processes ({caveats[-1].summary[:1].lower()}{caveats[-1].summary[1:]})"
        )
    return ""


def _parts_compare(
    one: ProcessReport, other: ProcessReport, step: Difference, noise_floor: float
) -> tuple[str, tuple[Difference, ...]]:
    """("categories" or "phases", their differences, the largest first). Phases are used if one side was not
    profiled."""
    by = "categories"
    if _unsplit(one.case) != _unsplit(other.case) and one.case.phases and other.case.phases:
        by = "phases"
    before = {use.name: use for use in (one.case.phases if by == "phases" else one.case.categories)}
    after = {use.name: use for use in (other.case.phases if by == "phases" else other.case.categories)}
    if not before or not after:
        return by, ()
    names = dict.fromkeys((*before, *after))
    series = {name: (_spent(one, name), _spent(other, name)) if by == "categories" else None for name in names}
    parts = [_part(by[:-1], name, before.get(name), after.get(name), step, noise_floor, series[name]) for name in names]
    return by, tuple(sorted(parts, key=lambda part: -abs(part.change.value if part.change else 0.0)))


def _unsplit(case: Case) -> bool:
    """True if the model's phases replace its categories, because no step was profiled."""
    return bool({use.name for use in case.categories} & {"forward", "backward", "optimizer"})


def _part(
    kind: str,
    name: str,
    before: CategoryUse | None,
    after: CategoryUse | None,
    step: Difference,
    noise_floor: float,
    series: tuple[Series, Series] | None = None,
) -> Difference:
    """Difference of a category; 0 on a side without it. series: its time in each steady step, on both sides."""
    one, other = before.duration if before else NOTHING, after.duration if after else NOTHING
    longest = max(step.before.value if step.before else 0.0, step.after.value if step.after else 0.0)
    own = max(noise_floor * max(one.value, other.value), PART * longest)
    change = difference_of(other, one)
    if series is not None:
        change = _widened(change, *series)
    change = beyond(change, own)
    outcome = DifferenceOutcome.UNDECIDED if step.reason else outcome_of(change, longest)
    return Difference(kind, name, one, other, change, outcome, step.reason)


def _sample(one: ProcessReport, other: ProcessReport, step: Difference) -> Difference | None:
    """Difference in the time per sample, if the steps of the two sides read different numbers of samples; else None."""
    before, after = (samples_per_step(each.case) for each in (one, other))
    if not before or not after or abs(after / before - 1) < 0.01 or step.before is None or step.after is None:
        return None
    base, now = scaled(step.before, 1 / before), scaled(step.after, 1 / after)
    change = difference_of(now, base)
    spread = step.change or change
    noise_floor = max(spread.value - spread.low, spread.high - spread.value) / max(before, after)
    change = beyond(change, noise_floor)
    outcome = DifferenceOutcome.UNDECIDED if step.reason else outcome_of(change, base.value)
    return Difference("sample", "time a sample", base, now, change, outcome, step.reason)


def _memory(one: ProcessReport, other: ProcessReport) -> Difference | None:
    """Difference in peak memory. It is one number per run, so only the floor is known of its noise."""
    if one.peak_bytes is None or other.peak_bytes is None:
        return None
    before, after = _exact(one.peak_bytes), _exact(other.peak_bytes)
    share = LEAST_RESIDENT_CHANGE if "cpu" in (one.case.step.device, other.case.step.device) else LEAST_ALLOCATED_CHANGE
    change = beyond(difference_of(after, before), share * max(before.value, after.value))
    outcome = outcome_of(change, before.value, max(WIDEST, 2 * share))
    return Difference("memory", "peak memory", before, after, change, outcome)


def _exact(count: int) -> Estimate:
    return Estimate(float(count), float(count), float(count), 1, "bytes")


def _findings(one: ProcessReport, other: ProcessReport) -> tuple[OneSidedFinding, ...]:
    """Findings that only one side has, those that appeared first."""
    sides = ((Fate.APPEARED, other.findings, one.findings), (Fate.VANISHED, one.findings, other.findings))
    return tuple(
        OneSidedFinding(each.code, each.name, fate, each.summary)
        for fate, findings, missing_in in sides
        for each in findings
        if each.code not in {found.code for found in missing_in}
    )


def _run(report: Report, label: str, first: Report, noise_floor: float) -> ComparedRun:
    process = report.processes[0]
    found = background_load(process.findings)
    case, memory = process.case, process.case.memory
    slope = memory.growth if memory is not None else None
    grows = slope is not None and memory is not None and memory.grows
    return ComparedRun(
        label=label,
        source=report.source,
        steptime=report.environment.steptime,
        commit=commit_words(report.environment),
        step=process.case.step.duration,
        steady=process.case.step.steady,
        mode=process.case.step.mode,
        bottleneck=process.verdict.bottleneck,
        categories=tuple((use.name, use.duration.value) for use in process.case.categories),
        peak_bytes=process.peak_bytes,
        samples_per_s=process.throughput.rate if process.throughput is not None else None,
        kernels=sum(use.calls for use in case.kernels or case.operators) or None,
        growth=slope.value * grows if slope is not None else None,
        against_first=step_between(first.processes[0], process, noise_floor),
        caveat=found.summary if found is not None else "",
        other=other_work(case.segments, case.step.duration.value),
    )


def _caveats(one: ProcessReport, other: ProcessReport) -> list[str]:
    found = []
    modes = {one.case.step.mode == "trace", other.case.step.mode == "trace"}
    if len(modes) == 2:
        found.append(
            "One side is a profiler's trace, with steps slowed by the profiler; the other is a recording "
            "of normal steps."
        )
    if one.case.step.device != other.case.step.device:
        found.append(
            f"One ran on {one.case.step.device}, the other on {other.case.step.device}: the same categories "
            "have different definitions there."
        )
    if _unsplit(one.case) != _unsplit(other.case):
        found.append("One of them was not profiled, so phases are compared instead of categories.")
    return found
