"""From reports to a comparison: differences with intervals, what was set otherwise, and the likely cause. The room's
main function.

One law: a difference is told only where it is beyond noise, the noise between runs included; else it is said that none
was found, or that it cannot be known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from steptime._version import __version__
from steptime.arrays import Int64
from steptime.comparison.cause import cause_of, sentence_of
from steptime.comparison.comparison import (
    SCHEMA_VERSION,
    Comparison,
    Difference,
    Fate,
    Noise,
    Outcome,
    Run,
    Told,
)
from steptime.comparison.noise import PART, WIDEST, assumed_noise, beyond, measured_noise, outcome_of
from steptime.comparison.pieces import pieces_between
from steptime.comparison.settings import commit_words, samples_per_step, settings_between
from steptime.comparison.trend import trend_of
from steptime.estimates import BETWEEN_RUNS, difference_of, difference_of_series
from steptime.findings.case import AccountUse, Case
from steptime.findings.finding import Finding, Weight
from steptime.quantities import Estimate
from steptime.report.report import ProcessReport, Report

CONTENTION = "background-load"
"""The rule whose doubt makes times of two runs incomparable: each may have waited for a CPU the longer."""
ALLOCATED_FLOOR = 0.01
"""Of the peak of a device's allocator: what samples every tenth of a second leave open."""
RESIDENT_FLOOR = 0.1
"""Of the peak of resident memory: runs of one job differ by this much, by when the system takes pages back."""
NOTHING = Estimate(0.0, 0.0, 0.0, 0)
Series = Int64


def compare(
    reports: Sequence[Report],
    labels: Sequence[str],
    *,
    floor: float = BETWEEN_RUNS,
    repeats: Sequence[Report] = (),
    next_command: str = "",
) -> Comparison:
    """The last of the reports against the first. labels: a short name for each. repeats: further runs of the first
    one's job. floor: what single runs differ by, where no repeats say it. Raises ValueError for fewer than two."""
    if len(reports) < 2:
        raise ValueError("a comparison needs two reports")
    before, after = reports[0], reports[-1]
    one, other = before.processes[0], after.processes[0]
    noise = _noise(before, repeats, floor)
    step = step_between(one, other, noise.floor)
    by, parts = _parts(one, other, step, noise.floor)
    runs = tuple(_run(report, label, reports[0], noise.floor) for report, label in zip(reports, labels, strict=True))
    settings = settings_between(before, after)
    pieces = pieces_between(one.case, other.case, noise.floor)
    comparison = Comparison(
        SCHEMA_VERSION, __version__, (replace(runs[0], against_first=None), *runs[1:]), settings, step, parts, by,
        pieces, _findings(one, other), cause_of(step, parts, settings, pieces), "", noise, next_command,
        sample=_sample(one, other, step),
        memory=_memory(one, other),
        trend=trend_of(reports, noise.floor) if len(reports) > 2 else None,
        caveats=tuple(_caveats(one, other)),
    )  # fmt: skip
    return replace(comparison, sentence=sentence_of(comparison))


def _noise(before: Report, repeats: Sequence[Report], floor: float) -> Noise:
    if not repeats:
        return assumed_noise(floor)
    steps = [report.processes[0].case.step.duration.value for report in (before, *repeats)]
    return measured_noise(steps, floor)


def step_between(one: ProcessReport, other: ProcessReport, floor: float) -> Difference:
    """The step's difference. Its value is that of the two reports' figures; what it may be off by, from how stretches
    of the steady steps differ."""
    before, after = one.case.step.duration, other.case.step.duration
    change = _widened(difference_of(after, before), _steady(one), _steady(other))
    change = beyond(change, floor * max(before.value, after.value))
    reason = _doubt(one, other)
    outcome = Outcome.UNDECIDED if reason else outcome_of(change, before.value)
    return Difference("step", "step", before, after, change, outcome, reason)


def _widened(change: Estimate, base: Series, values: Series) -> Estimate:
    """A difference of two figures, its interval at least as wide as that of the series behind them."""
    if min(len(base), len(values)) < 2:
        return change
    seen = difference_of_series(values, base)
    low, high = seen.value - seen.low, seen.high - seen.value
    return replace(change, low=min(change.low, change.value - low), high=max(change.high, change.value + high))


def _spent(process: ProcessReport, account: str) -> Series:
    """What an account had in each of the steady steps in time order, as far as it is known; ns."""
    known = process.series
    if known is None or account not in known.accounts:
        return np.zeros(0, np.int64)
    column, steady = known.accounts.index(account), process.steady
    rows = [row[column] for place, row in enumerate(known.spent)
            if row and any(steady[place * known.stride : (place + 1) * known.stride])]  # fmt: skip
    return np.array(rows, np.int64)


def _steady(process: ProcessReport) -> Series:
    """The steady steps in time order, without the few that a stall of the machine made far longer."""
    steps = [spent for spent, steady in zip(process.step_ns, process.steady, strict=False) if steady]
    values = np.array(steps, np.int64)
    if len(values) < 2:
        return values
    longest = 2 * process.case.step.duration.high
    usual = values[values <= longest]
    return usual if len(usual) >= 0.75 * len(values) else values


def _doubt(one: ProcessReport, other: ProcessReport) -> str:
    """Why the times of two runs cannot be compared, "" where they can."""
    if min(one.case.step.steady, other.case.step.steady) < 2:
        return "one of them has a single step, whose spread is not known"
    doubts = [found for found in (_contention(one), _contention(other)) if found is not None]
    if doubts:
        which = "both ran" if len(doubts) == 2 else "the first ran" if _contention(one) else "the last ran"
        return f"{which} beside other load ({doubts[-1].summary[:1].lower()}{doubts[-1].summary[1:]})"
    return ""


def _contention(process: ProcessReport) -> Finding | None:
    found = (each for each in process.findings if each.name == CONTENTION and each.weight is Weight.DOUBT)
    return next(found, None)


def _parts(
    one: ProcessReport, other: ProcessReport, step: Difference, floor: float
) -> tuple[str, tuple[Difference, ...]]:
    """The accounts of both, the largest change first; the phases where one of them has no accounts of its own."""
    by = "accounts"
    if _unsplit(one.case) != _unsplit(other.case) and one.case.phases and other.case.phases:
        by = "phases"
    before = {use.name: use for use in (one.case.phases if by == "phases" else one.case.accounts)}
    after = {use.name: use for use in (other.case.phases if by == "phases" else other.case.accounts)}
    if not before or not after:
        return by, ()
    names = dict.fromkeys((*before, *after))
    series = {name: (_spent(one, name), _spent(other, name)) if by == "accounts" else None for name in names}
    parts = [_part(by[:-1], name, before.get(name), after.get(name), step, floor, series[name]) for name in names]
    return by, tuple(sorted(parts, key=lambda part: -abs(part.change.value if part.change else 0.0)))


def _unsplit(case: Case) -> bool:
    """Whether the model's phases stand for their accounts: no step was profiled."""
    return bool({use.name for use in case.accounts} & {"forward", "backward", "optimizer"})


def _part(
    kind: str,
    name: str,
    before: AccountUse | None,
    after: AccountUse | None,
    step: Difference,
    floor: float,
    series: tuple[Series, Series] | None = None,
) -> Difference:
    """An account's difference; one that a side does not have is nothing there. series: what it had step by step."""
    one, other = before.duration if before else NOTHING, after.duration if after else NOTHING
    longest = max(step.before.value if step.before else 0.0, step.after.value if step.after else 0.0)
    own = max(floor * max(one.value, other.value), PART * longest)
    change = difference_of(other, one)
    if series is not None:
        change = _widened(change, *series)
    change = beyond(change, own)
    outcome = Outcome.UNDECIDED if step.reason else outcome_of(change, longest)
    return Difference(kind, name, one, other, change, outcome, step.reason)


def _sample(one: ProcessReport, other: ProcessReport, step: Difference) -> Difference | None:
    """The time of a sample, where a step does not read equally many on both sides."""
    before, after = samples_per_step(one.case), samples_per_step(other.case)
    if not before or not after or abs(after / before - 1) < 0.01 or step.before is None or step.after is None:
        return None
    base, now = _scaled(step.before, 1 / before), _scaled(step.after, 1 / after)
    change = difference_of(now, base)
    spread = step.change or change
    floor = max(spread.value - spread.low, spread.high - spread.value) / max(before, after)
    change = beyond(change, floor)
    outcome = Outcome.UNDECIDED if step.reason else outcome_of(change, base.value)
    return Difference("sample", "time a sample", base, now, change, outcome, step.reason)


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    low, value, high = (factor * each for each in (estimate.low, estimate.value, estimate.high))
    return replace(estimate, low=low, value=value, high=high)


def _memory(one: ProcessReport, other: ProcessReport) -> Difference | None:
    """The peak of memory. It is one number a run: the floor is all that is known of its noise."""
    if one.peak_bytes is None or other.peak_bytes is None:
        return None
    before, after = _exact(one.peak_bytes), _exact(other.peak_bytes)
    share = RESIDENT_FLOOR if "cpu" in (one.case.step.device, other.case.step.device) else ALLOCATED_FLOOR
    change = beyond(difference_of(after, before), share * max(before.value, after.value))
    outcome = outcome_of(change, before.value, max(WIDEST, 2 * share))
    return Difference("memory", "peak memory", before, after, change, outcome)


def _exact(count: int) -> Estimate:
    return Estimate(float(count), float(count), float(count), 1, "bytes")


def _findings(one: ProcessReport, other: ProcessReport) -> tuple[Told, ...]:
    """Findings that one side has and the other has not, those that appeared first."""
    before = {finding.code: finding for finding in one.findings}
    after = {finding.code: finding for finding in other.findings}
    appeared = [Told(each.code, each.name, Fate.APPEARED, each.summary) for each in other.findings
                if each.code not in before]  # fmt: skip
    vanished = [Told(each.code, each.name, Fate.VANISHED, each.summary) for each in one.findings
                if each.code not in after]  # fmt: skip
    return (*appeared, *vanished)


def _run(report: Report, label: str, first: Report, floor: float) -> Run:
    process = report.processes[0]
    found = _contention(process)
    return Run(
        label=label,
        source=report.source,
        steptime=report.environment.steptime,
        commit=commit_words(report.environment),
        step=process.case.step.duration,
        steady=process.case.step.steady,
        mode=process.case.step.mode,
        regime=process.verdict.regime,
        accounts=tuple((use.name, use.duration.value) for use in process.case.accounts),
        peak_bytes=process.peak_bytes,
        against_first=step_between(first.processes[0], process, floor),
        doubt=found.summary if found is not None else "",
    )


def _caveats(one: ProcessReport, other: ProcessReport) -> list[str]:
    """What limits the comparison."""
    found = []
    modes = {one.case.step.mode == "trace", other.case.step.mode == "trace"}
    if len(modes) == 2:
        found.append(
            "One side is a profiler's trace, whose steps the profiler slows, and the other a recording of usual steps."
        )
    if one.case.step.device != other.case.step.device:
        found.append(
            f"One ran on {one.case.step.device} and the other on {other.case.step.device}: accounts of one name are "
            "defined otherwise there."
        )
    if _unsplit(one.case) != _unsplit(other.case):
        found.append("One of them was not profiled: their phases are compared, not their accounts.")
    return found
