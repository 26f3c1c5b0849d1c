"""RM702: gradients exchanged once for each update."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import named, scaled
from steptime.remedies.catalogue.data_parallel_settings import WRAPPER
from steptime.remedies.remedy import Option, Promise, Snippet, remedy
from steptime.remedies.training_lines import training_lines

ONCE = 1.5
"""Exchanges a step, or times the model's size in bytes that is exchanged: below it, that is done once already."""
EXAMPLE = """last = (micro_batch + 1) % accumulation == 0
with contextlib.nullcontext() if last else model.no_sync():
    loss = criterion(model(batch), target)
    loss.backward()"""


@remedy("RM702", "fewer-exchanges", addresses={"ST805", "ST811"}, promise=Promise.SAME_CURVE, risk=2)
def fewer_exchanges(case: Case) -> Option | None:
    """Gradients exchanged once for each update

    What it changes
        A job that accumulates gradients over several backwards under DistributedDataParallel exchanges them with the
        last one only (no_sync()). Where an update comes earlier than usual, the gradients are exchanged right before
        it, so that no rank ever updates by its own ones alone.

    What it promises
        A curve as another seed would give: the ranks' gradients are added in another order.

    What it should gain
        The exposed communication of all backwards of a step but one.

    When to leave it
        When memory is short: gradients are kept unsharded, and with FSDP its no_sync keeps them so between backwards.
    """
    backwards = round(case.gradients.micro_batches if case.gradients is not None else case.step.micro_batches)
    if backwards < 2 or not _each_time(case):
        return None
    account = named(case.accounts, "communication")
    saving = scaled(account.recoverable, 1 - 1 / backwards) if account is not None else None
    lines = training_lines(case)
    snippet = Snippet(EXAMPLE, lines.backward if lines is not None else None)
    return Option(f"no_sync() in {backwards - 1} of {backwards} backwards", (Change("no-sync"),), saving, snippet)


def _each_time(case: Case) -> bool:
    """Whether gradients are exchanged behind nearly every backward: by the trace's marks, else by the bytes."""
    used = case.gradients
    if used is not None:
        return used.synchronised >= ONCE
    wrapped = [root for root in case.roots if root.type == WRAPPER]
    exchanged = [use.bytes for use in case.collectives if use.bytes is not None]
    once = sum(root.parameter_bytes for root in wrapped)
    return bool(wrapped) and not (exchanged and sum(exchanged) < ONCE * once)
