"""RM309: code that is compiled once for all sizes."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import CallEdit, Option, Promise, remedy

LIKELY, SURE = 0.8, 0.3
"""Of the compilations after warm-up: each is paid a last time for a size of its own, and some reasons are no sizes."""


@remedy("RM309", "dynamic-shapes", addresses={"ST304"}, promise=Promise.SAME_CURVE, risk=2)
def dynamic_shapes(case: Case) -> Option | None:
    """Code that is compiled once for all sizes

    What it changes
        torch.compile of the job gets dynamic=True: sizes are symbols from the first compilation on, and a new length
        of a batch or of a sequence compiles nothing.

    What it promises
        A curve as another seed would give: the code for symbolic sizes may sum in another order.

    What it should gain
        The measured time of compilations behind the warm-up, four fifths of which are likely to go. Where their reason
        is no size (a flag, a Python value), nothing.

    When to leave it
        When there are few sizes: code for a fixed one is faster. Padding to a few lengths is the other way.
    """
    late = [each for each in case.compilations if each.after_warm_up]
    if not late:
        return None
    spent = sum(each.duration for each in late) / max(1, case.step.steady)
    saving = modelled(LIKELY * spent, SURE * spent, spent, case.step.steady)
    edit = CallEdit("torch.compile", (("dynamic", "True"),))
    return Option("torch.compile(dynamic=True)", (Change("dynamic-shapes"),), saving, edit)
