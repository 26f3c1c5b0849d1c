"""ST201: Python of the training thread, by line."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import GapUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.line_time import LineTime, line_times, loop_functions
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import named, ratio, scaled, total
from steptime.quantities import Estimate, format_duration, format_share, format_source

MOST_LINES = 3
"""A fourth line would not be read."""
LEAST_SHARE = 0.1
"""Of the step, for the account as a whole: below it is what every loop has, and a profile with stacks adds some."""
LEAST_LINE = 0.05
"""Of the step, for a line: below it is what zero_grad, a schedule or a loss cost in any loop."""
LOOP_ROLES = ("host", "forward", "backward", "optimizer")
"""Roles whose Python is examined here; input, transfer and evaluation have rules of their own."""


@rule(
    "ST201",
    "host-time",
    needs={Signal.STEP},
    uses={Signal.ACCOUNTS, Signal.LINES, Signal.PHASES, Signal.GAPS},
    by_line=True,
)
def host_time(signals: Signals) -> Iterator[Finding]:
    """Python code in the step keeps the model waiting

    What it means
        The training thread runs Python or a library that is not torch: no operator, no kernel, no loader.

    How we know
        The lines of the training loop are timed exactly in a few steps; what lies outside torch's operators,
        the loader and the phases of the step is the line's host time. Where lines could not be timed, the ledger's host
        account stands for all of them; a trace with stacks names the functions that ran while the device idled.

    What helps
        Move it out of the loop, do it every n-th step, do it on whole arrays instead of item by item, or hand it to
        another thread or process.

    When to ignore it
        When the device is still busy meanwhile: then the ledger has no host time and the rule does not fire.
    """
    times = [time for time in line_times(signals.lines, signals.phases) if time.line.role in LOOP_ROLES]
    part = _python_part(signals, sum(map(_host, times)))
    groups = [(scaled(total(time.host for time in group), part), group) for group in _by_function(times)]
    for stake, group in groups[:MOST_LINES]:
        if ratio(stake.value, signals.step.duration.value) >= LEAST_LINE:
            yield _finding(signals, group, stake)
    if not times and signals.has(Signal.ACCOUNTS):
        yield from _whole_account(signals)


def _python_part(signals: Signals, spent: float) -> float:
    """Lines hold operators outside the model too (a loss, an index): the ledger knows how much of it all is Python."""
    host = named(signals.accounts, "host") if signals.has(Signal.ACCOUNTS) else None
    return min(1.0, ratio(host.duration.value, spent)) if host is not None and spent > 0 else 1.0


def _by_function(times: list[LineTime]) -> list[list[LineTime]]:
    """Lines of the loop one by one, lines of a function that it calls together; the longest group and line first."""
    loops = loop_functions(time.line for time in times)
    groups: dict[tuple[str, str, int], list[LineTime]] = {}
    for time in sorted(times, key=_host, reverse=True):
        source = time.line.source
        alone = (source.file, source.function) in loops
        groups.setdefault((source.file, source.function, source.line if alone else 0), []).append(time)
    return sorted(groups.values(), key=lambda group: -sum(map(_host, group)))


def _host(time: LineTime) -> float:
    return time.host.value


def _finding(signals: Signals, group: list[LineTime], stake: Estimate) -> Finding:
    source = group[0].line.source
    share = format_share(ratio(stake.value, signals.step.duration.value))
    where = f"{format_source(source)} and {len(group) - 1} more lines of {source.function}" if len(group) > 1 else ""
    summary = f"{where or format_source(source)}: {format_duration(stake.value)} a step ({share}) in Python"
    advice = "Move this out of the step, do it less often, or do it on whole arrays."
    evidence = tuple(time.line.source.text for time in group[:3] if time.line.source.text)
    return host_time.finding(summary, advice, stake, account="host", source=source, evidence=evidence)


def _whole_account(signals: Signals) -> Iterator[Finding]:
    host = named(signals.accounts, "host")
    if host is None or ratio(host.duration.value, signals.step.duration.value) < LEAST_SHARE:
        return
    share = format_share(ratio(host.duration.value, signals.step.duration.value))
    gaps = sorted((gap for gap in signals.gaps if gap.account == "host" and gap.cause), key=_idle, reverse=True)
    yield host_time.finding(
        f"Python outside torch takes {format_duration(host.duration.value)} a step ({share})",
        "Look for loops, logging and conversions in the step.",
        host.recoverable,
        account="host",
        source=next((gap.source for gap in gaps if gap.source is not None), None),
        evidence=tuple(f"{format_duration(_idle(gap))} idle a step behind {gap.cause}" for gap in gaps[:MOST_LINES]),
    )


def _idle(gap: GapUse) -> float:
    return gap.duration.value
