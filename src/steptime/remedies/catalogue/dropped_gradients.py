"""RM203: gradients that are dropped instead of filled with zeros."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.gradient_zeroing import zeroing
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import CallEdit, Edit, JointEdit, Option, Promise, Snippet, remedy


@remedy("RM203", "dropped-gradients", addresses={"ST504"}, promise=Promise.SAME_BITS, risk=1, frees=0.1)
def dropped_gradients(case: Case) -> Option | None:
    """Gradients that are dropped instead of filled with zeros

    What it changes
        zero_grad(set_to_none=False) of optimisers and modules becomes zero_grad(): the gradients are let go, and the
        next backward puts its result in their place.

    What it promises
        Equal losses, unless a parameter gets no gradient in some step: an optimiser with momentum or weight decay
        skips it then, where it would have moved it by a zero gradient.

    What it should gain
        The measured time of filling with zeros, and of adding to them in backward.

    When to leave it
        When the loop reads gradients of parameters that the loss does not reach.
    """
    elements = sum(use.elements for use in case.optimizers)
    filling, adding = zeroing(case.operators, case.accounts, elements, case.step.micro_batches)
    if not filling:
        return None
    saving = modelled(filling + adding, filling, filling + adding, case.step.steady)
    return Option("zero_grad()", (Change("zero-grad"),), saving, _edit(case))


def _edit(case: Case) -> Edit:
    """Every line that asks for zeros."""
    lines = [use.source for use in case.lines if "zero_grad(" in use.source.text and "set_to_none" in use.source.text]
    parts = tuple(CallEdit("zero_grad", (("set_to_none", "True"),), line) for line in lines)
    example = Snippet("optimizer.zero_grad()")
    if len(parts) == 1:
        return parts[0]
    return JointEdit(parts, example) if parts else example
