"""ST301: a Python loop over tiny operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from steptime.findings.case import LineUse, OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.function_names import function_of
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, modelled, named, ratio, scaled, total
from steptime.quantities import Estimate, SourceLine, format_duration, format_share, format_source

FEWEST_OPERATORS = 100
"""From one line or function per step: below it, it is no loop over elements."""
LARGEST_OPERATOR = 15_000.0
"""ns: an operator that takes longer on a CPU does enough work to be worth its dispatch (3 to 10 µs in eager mode)."""
LEAST_PART = 0.25
"""Of all operators of the step: one line that calls fewer is not why the step is bound by dispatch."""
FEWEST_ROUNDS = 8
"""Executions of a line per step: a line that runs once, or once per block of a model, is no loop over elements."""
CALLERS = frozenset({"forward", "host"})
"""Roles of lines that call the operators of a loop themselves."""
MOST_SITES = 3
"""A fourth line would not be read."""


@dataclass(frozen=True, slots=True)
class _Site:
    """Operators that one line or function calls in a step. each: mean ns of one. idle: ns of those whose work takes no
    longer than their dispatch. host: ns of Python in the loop."""

    source: SourceLine
    calls: float
    each: float
    idle: float = 0.0
    host: float = 0.0


@rule(
    "ST301",
    "dispatch-loop",
    needs={Signal.STEP, Signal.ACCOUNTS},
    uses={Signal.LINES, Signal.OPERATORS, Signal.COMPILATIONS},
    instead_of=("launch-bound", "host-time", "memory-bound-pointwise"),
    by_line=True,
)
def dispatch_loop(signals: Signals) -> Iterator[Finding]:
    """A Python loop calls many tiny operators

    What it means
        One line of Python calls hundreds of operators in each step (a loop over time steps, samples, parameters or
        heads), each too small to be worth the microseconds that its dispatch costs, forward and again in backward.

    How we know
        The profile counts the operators of each line of the loop that runs several times a step, and of each function
        that the loop calls, and their mean duration. At stake is the part of the line or function of all operators, of
        the ledger's launch account; on a CPU the loop's own Python, too, and the time of operators whose arithmetic
        takes no longer than their dispatch (bound by latency), which is where the interval ends. The work of larger
        operators is not.

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
            dispatch = capped(scaled(launch.recoverable, part), launch.recoverable)
            on_device = signals.step.device != "cpu"  # which only waits for what the host cannot hide
            stake = dispatch if on_device else capped(_with_the_loop(dispatch, site), signals.step.duration)
            share = format_share(ratio(stake.value, signals.step.duration.value))
            summary = (
                f"{_place(site.source)} calls {site.calls:.0f} operators a step, "
                f"{format_duration(site.each)} each: {format_duration(stake.value)} ({share}) of dispatch"
            )
            evidence = (site.source.text,) if site.source.text else ()
            account = "launch" if on_device else ""
            yield dispatch_loop.finding(
                summary, _advice(signals), stake, account=account, source=site.source, evidence=evidence
            )


def _with_the_loop(dispatch: Estimate, site: _Site) -> Estimate:
    """With what else one operator would save: the loop's Python, and at most all of the small operators."""
    sure = Estimate(site.host, site.host, site.host, dispatch.samples)
    return total((dispatch, sure, modelled(site.idle, 0.0, site.idle, dispatch.samples)))


def _place(source: SourceLine) -> str:
    function = f" ({source.function})" if source.function and not source.text else ""
    return f"{format_source(source)}{function}"


def _calls(site: _Site) -> float:
    return site.calls


def _sites(signals: Signals) -> Iterator[_Site]:
    """Lines that run in a loop within the step, and functions whose lines were not timed."""
    lines: dict[tuple[str, str], list[LineUse]] = {}
    for line in signals.lines:
        lines.setdefault(function_of(line.source), []).append(line)
        if line.operators is not None and line.hits >= FEWEST_ROUNDS and line.operators >= FEWEST_OPERATORS:
            each = ratio(line.duration.value - line.host.value, line.operators)
            yield _Site(line.source, line.operators, each, host=line.host.value)
    for source, uses in _by_function(signals.operators).items():
        calls = sum(use.calls for use in uses)
        each = ratio(sum(use.duration for use in uses), calls)
        timed = lines.get(function_of(source))
        if timed is not None:
            yield from _looping(timed, [use for use in uses if use.duration <= LARGEST_OPERATOR * use.calls])
        elif calls >= FEWEST_OPERATORS and source.function != "<module>":
            call = re.compile(rf"\b{re.escape(function_of(source)[1])}\(")
            callers = [use for use in signals.lines if use.role in CALLERS and call.search(use.source.text)]
            if len(callers) == 1:  # its own lines are not timed, the call of it is
                yield _Site(callers[0].source, calls, each, _idle(uses), callers[0].host.value)
            else:
                yield _Site(source, calls, each, _idle(uses))


def _idle(uses: Iterable[OperatorUse]) -> float:
    return sum(use.duration for use in uses if use.bound == "latency")


def _looping(lines: list[LineUse], uses: list[OperatorUse]) -> Iterator[_Site]:
    """The longest line of a function that runs in a loop, with the part of the function's operators that loops take.

    Operators, those of backward with them, are shared out by the time of the lines that can call them: the profile
    knows their function only.
    """
    calls = sum(use.calls for use in uses)
    lines = [line for line in lines if line.role in CALLERS]
    rounds = [line for line in lines if line.hits >= FEWEST_ROUNDS and line.operators is None]
    part = ratio(sum(line.duration.value for line in rounds), sum(line.duration.value for line in lines))
    if rounds and calls * part >= FEWEST_OPERATORS:
        longest = max(rounds, key=lambda line: line.duration.value)
        each = ratio(sum(use.duration for use in uses), calls)
        yield _Site(longest.source, calls * part, each, part * _idle(uses), sum(line.host.value for line in rounds))


def _by_function(operators: tuple[OperatorUse, ...]) -> dict[SourceLine, list[OperatorUse]]:
    """Operators by the function that calls them; not the optimiser's."""
    found: dict[SourceLine, list[OperatorUse]] = {}
    for use in operators:
        if use.source is not None and use.phase != "optimizer":
            found.setdefault(use.source, []).append(use)
    return found


def _advice(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return "Replace the loop by one operator on the whole tensor; the compiler has left this line as it is."
    return "Replace the loop by one operator on the whole tensor, or compile the function that holds it."
