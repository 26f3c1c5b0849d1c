"""RM203: gradients that are dropped instead of filled with zeros."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.stakes import modelled
from steptime.quantities import SourceLine
from steptime.remedies.remedy import CallEdit, Option, Promise, Snippet, remedy

ZEROING = frozenset({"zero", "_foreach_zero"})
ELSEWHERE = frozenset({"forward", "backward"})
"""Phases whose zeros are the model's own, or autograd's."""
LEAST_SHARE = 0.005
"""Of the step: less is beneath what a trial could show."""
LIKELY, MOST = 1.5, 2.0
"""Of the zeroing: with zeros there, backward also adds to them (two reads and a write) where it would only put its
result; autograd fuses part of that."""


@remedy(
    "RM203",
    "dropped-gradients",
    addresses={"ST302", "ST305", "ST401", "ST402", "ST501", "ST503"},
    promise=Promise.SAME_BITS,
    risk=1,
)
def dropped_gradients(case: Case) -> Option | None:
    """Gradients that are dropped instead of filled with zeros

    What it changes
        zero_grad(set_to_none=False) of optimisers and modules becomes zero_grad(): the gradients are let go, and the
        next backward puts its result in their place.

    What it promises
        Equal losses, unless a parameter gets no gradient in some step: an optimiser with momentum or weight decay
        skips it then, where it would have moved it by a zero gradient.

    What it should gain
        The measured time of filling with zeros outside of forward and backward, and about half of that again, which
        adding to them costs in backward.

    When to leave it
        When the loop reads gradients of parameters that the loss does not reach.
    """
    spent = sum(
        use.duration for use in case.operators if plain_name(use.name) in ZEROING and use.phase not in ELSEWHERE
    )
    if spent < LEAST_SHARE * case.step.duration.value:
        return None
    site = _site(case)
    edit = CallEdit("zero_grad", (("set_to_none", "True"),), site) if site is not None else None
    saving = modelled(LIKELY * spent, spent, MOST * spent, case.step.steady)
    return Option("zero_grad()", (Change("zero-grad"),), saving, edit or Snippet("optimizer.zero_grad()"))


def _site(case: Case) -> SourceLine | None:
    lines = (use.source for use in case.lines if "zero_grad(" in use.source.text and "set_to_none" in use.source.text)
    return next(lines, None)
