"""ST301: a Python loop over tiny operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, named, ratio, scaled
from steptime.quantities import SourceLine, format_duration, format_share, format_source

FEWEST_OPERATORS = 100
"""On one line per step: below it a line is no loop over elements."""
LARGEST_OPERATOR = 30_000.0
"""ns: a leaf operator that takes longer on a CPU does enough work to be worth its dispatch (3-10 µs)."""
LEAST_PART = 0.25
"""Of all operators of the step: one line that calls fewer is not why the step is bound by dispatch."""
MOST_SITES = 3
"""A fourth line would not be read."""


@dataclass(frozen=True, slots=True)
class _Site:
    """Operators that one line calls in a step. each: mean ns of one."""

    source: SourceLine
    calls: float
    each: float


@rule(
    "ST301",
    "dispatch-loop",
    needs={Signal.STEP, Signal.ACCOUNTS},
    uses={Signal.LINES, Signal.OPERATORS, Signal.COMPILATIONS},
    instead_of=("launch-bound", "host-time", "memory-bound-pointwise"),
)
def dispatch_loop(signals: Signals) -> Iterator[Finding]:
    """A Python loop calls many tiny operators

    What it means
        One line of Python calls hundreds of operators in each step (a loop over time steps, samples, parameters or
        heads), each too small to be worth the microseconds that its dispatch costs, forward and again in backward.

    How we know
        The profile counts the operators of each line and their mean duration. The line's part of all operators, of
        the ledger's launch account, is at stake; the operators' own work is not.

    What helps
        One operator on the whole tensor (a matrix product, einsum, cumsum, torch.nn.LSTM in place of a loop over
        cells, a torch._foreach operator over parameters); else torch.compile, which fuses the loop; on CUDA a graph
        (mode="reduce-overhead").

    When to ignore it
        When each round of the loop depends on a decision taken on the host from the last.
    """
    launch = named(signals.accounts, "launch")
    if launch is None:
        return
    everything = sum(operator.calls for operator in signals.operators)
    for site in sorted(_sites(signals), key=_calls, reverse=True)[:MOST_SITES]:
        part = ratio(site.calls, max(everything, site.calls))
        if site.each <= LARGEST_OPERATOR and part >= LEAST_PART:
            stake = capped(scaled(launch.recoverable, part), launch.recoverable)
            share = format_share(ratio(stake.value, signals.step.duration.value))
            summary = (
                f"{format_source(site.source)} calls {site.calls:.0f} operators a step, "
                f"{format_duration(site.each)} each: {format_duration(stake.value)} ({share}) of dispatch"
            )
            evidence = (site.source.text,) if site.source.text else ()
            yield dispatch_loop.finding(
                summary, _advice(signals), stake, account="launch", source=site.source, evidence=evidence
            )


def _calls(site: _Site) -> float:
    return site.calls


def _sites(signals: Signals) -> Iterator[_Site]:
    """Lines with many operators: from the operators' own lines, and from lines of the loop that run several times."""
    seen = set()
    by_line: dict[tuple[str, int], list[float]] = {}
    sources: dict[tuple[str, int], SourceLine] = {}
    for operator in signals.operators:
        if operator.source is not None:
            key = (operator.source.file, operator.source.line)
            calls, duration = by_line.get(key, [0.0, 0.0])
            by_line[key] = [calls + operator.calls, duration + operator.duration]
            sources[key] = operator.source
    for key, (calls, duration) in by_line.items():
        if calls >= FEWEST_OPERATORS:
            seen.add(key)
            yield _Site(sources[key], calls, ratio(duration, calls))
    for line in signals.lines:
        repeated = line.operators is not None and line.hits >= 2 and line.operators >= FEWEST_OPERATORS
        if repeated and line.operators and (line.source.file, line.source.line) not in seen:
            yield _Site(line.source, line.operators, ratio(line.duration.value - line.host.value, line.operators))


def _advice(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return "Replace the loop by one operator on the whole tensor; the compiler has left this line as it is."
    return "Replace the loop by one operator on the whole tensor, or compile the function that holds it."
