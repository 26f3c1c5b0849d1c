"""RM405: denormal numbers flushed to zero."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, StatementEdit, remedy


@remedy("RM405", "flushed-denormals", addresses={"ST408"}, promise=Promise.SAME_CURVE, risk=1)
def flushed_denormals(case: Case) -> Option | None:
    """Denormal numbers flushed to zero

    What it changes
        torch.set_flush_denormal(True) before training: the processor takes numbers below 1.2e-38 (float32) for zero.
        Threads that are started later do the same.

    What it promises
        A curve as another seed would give: what was denormal is zero.

    What it should gain
        Nearly all of the time of the operators that the finding names, where denormals are the reason; nothing where
        it is the layout of their operands. No model tells which.

    When to leave it
        When values below 1.2e-38 matter.
    """
    if case.step.device != "cpu" or case.settings is None or case.settings.denormals_flushed:
        return None
    statement = "torch.set_flush_denormal(True)"
    edit = StatementEdit(statement, "torch")
    return Option(statement.removeprefix("torch."), (Change("flush-denormal"),), None, edit)
