"""ST201: Python of the training thread, by line."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import LineUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import named, ratio
from steptime.quantities import format_duration, format_share, format_source

MOST_LINES = 3
"""A fourth line would not be read."""
LEAST_SHARE = 0.1
"""Of the step, for the account as a whole: below it is what every loop has, and a profile with stacks adds some."""
LOOP_ROLES = ("host", "forward", "backward", "optimizer")
"""Roles whose Python is examined here; input, transfer and evaluation have rules of their own."""


@rule("ST201", "host-time", needs={Signal.STEP}, uses={Signal.ACCOUNTS, Signal.LINES}, by_line=True)
def host_time(signals: Signals) -> Iterator[Finding]:
    """Python code in the step keeps the model waiting

    What it means
        The training thread runs Python or a library that is not torch: no operator, no kernel, no loader.

    How we know
        The lines of the training loop are timed exactly in a few steps; what lies outside torch's operators,
        the loader and the phases of the step is the line's host time. Where lines could not be timed, the ledger's host
        account stands for all of them.

    What helps
        Move it out of the loop, do it every n-th step, do it on whole arrays instead of item by item, or hand it to
        another thread or process.

    When to ignore it
        When the device is still busy meanwhile: then the ledger has no host time and the rule does not fire.
    """
    lines = sorted((line for line in signals.lines if line.role in LOOP_ROLES), key=_host, reverse=True)
    for line in lines[:MOST_LINES]:
        yield _line(signals, line)
    if not lines and signals.has(Signal.ACCOUNTS):
        yield from _whole_account(signals)


def _host(line: LineUse) -> float:
    return line.host.value


def _line(signals: Signals, line: LineUse) -> Finding:
    share = format_share(ratio(line.host.value, signals.step.duration.value))
    summary = f"{format_source(line.source)} spends {format_duration(line.host.value)} a step ({share}) in Python"
    advice = "Move this out of the step, do it less often, or do it on whole arrays."
    evidence = (line.source.text,) if line.source.text else ()
    return host_time.finding(summary, advice, line.host, account="host", source=line.source, evidence=evidence)


def _whole_account(signals: Signals) -> Iterator[Finding]:
    host = named(signals.accounts, "host")
    if host is None or ratio(host.duration.value, signals.step.duration.value) < LEAST_SHARE:
        return
    share = format_share(ratio(host.duration.value, signals.step.duration.value))
    summary = f"Python outside torch takes {format_duration(host.duration.value)} a step ({share})"
    yield host_time.finding(
        summary, "Look for loops, logging and conversions in the step.", host.recoverable, account="host"
    )
