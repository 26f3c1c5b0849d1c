"""ST307: a tensor is taken apart slice by slice, and backward builds a whole tensor for each."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.findings.case import LineUse, OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.function_names import function_of
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, named, ratio
from steptime.quantities import SourceLine, format_duration, format_share

TAKEN_APART = frozenset({"select_backward", "slice_backward"})
"""Derivatives of x[i] and x[a:b]: zeros of x's size with the gradient in one place (torch's derivatives.yaml)."""
BEHIND = (frozenset({"fill", "zero"}), frozenset({"add"}))
"""What comes with each of them: new zeros, and a sum with the others."""
FEWEST_SLICES = 16
"""A step: below it, one pass over a few tensors is saved, not one for each round of a loop."""


@rule(
    "ST307",
    "indexing-in-loop",
    needs={Signal.STEP, Signal.OPERATORS},
    uses={Signal.PHASES, Signal.LINES},
    instead_of=("memory-bound-pointwise", "dominant-operator"),
)
def indexing_in_loop(signals: Signals) -> Finding | None:
    """A loop indexes a tensor, and backward pays for all of it in each round

    What it means
        The loop takes x[:, t] (or x[a:b]) of a tensor that needs a gradient. The derivative of each such slice is a
        tensor as large as x, all zeros but for the slice, and these are added up one by one: with T rounds, T times
        the memory traffic of x, where one pass would do.

    How we know
        The profile counts the derivatives of slices in backward, and as many operators there that fill with zeros and
        that add (one fewer), and times them. Their part of all operators in backward is the part of the measured
        backward that is at stake, but for one pass; on a CPU, where operators are timed one by one. The interval is
        from none to all of the filling: new memory may take far longer in the profiled steps than in the others.

    What helps
        Take the tensor apart once, before the loop: `parts = x.unbind(1)` (or x.split(size)), and use parts[t]. Its
        derivative is one stack. The results are the same.

    When to ignore it
        When the loop itself can be replaced by one operator on the whole tensor: then do that.
    """
    if signals.step.device != "cpu":
        return None
    slices = [use for use in signals.operators if use.name.removeprefix("aten::") in TAKEN_APART]
    count = sum(use.calls for use in slices)
    if count < FEWEST_SLICES:
        return None
    backward = [use for use in signals.operators if use.phase == "backward"]
    filled, added = (_some(count - 1, [use for use in backward if plain_name(use.name) in names]) for names in BEHIND)
    phase = named(signals.phases, "backward") if signals.has(Signal.PHASES) else None
    profiled = sum(use.duration for use in backward)
    scale = min(1.0, ratio(phase.duration.value, profiled)) if phase is not None else 1.0
    most = scale * (sum(use.duration for use in slices) + filled + added)
    least = most - scale * filled
    taken = (least + most) / 2
    once = 1 - 1 / count
    source = _source(signals.lines if signals.has(Signal.LINES) else (), slices)
    summary = (
        f"{count:.0f} slices a step are taken of tensors; backward fills and adds up a whole tensor for each: "
        f"{format_duration(taken)} ({format_share(ratio(taken, signals.step.duration.value))})"
    )
    return indexing_in_loop.finding(
        summary,
        "Take the tensor apart once before the loop, by unbind() or split(), and index what that returns.",
        modelled(once * taken, once * least, once * most, signals.step.steady),
        account="compute",
        source=source,
    )


def _some(calls: float, uses: Sequence[OperatorUse]) -> float:
    """ns of so many calls of operators that are called more often."""
    return sum(use.duration for use in uses) * min(1.0, ratio(calls, sum(use.calls for use in uses)))


def _source(lines: Sequence[LineUse], slices: Sequence[OperatorUse]) -> SourceLine | None:
    """The line of the slicing function that runs most often, which is in its loop; the function where none is timed."""
    found = next((use.source for use in slices if use.source is not None), None)
    if found is None:
        return None
    inside = [line for line in lines if function_of(line.source) == function_of(found)]
    repeated = [line for line in inside if "[" in line.source.text and line.hits >= FEWEST_SLICES / 2]
    return max(repeated, key=lambda line: line.duration.value).source if repeated else found
