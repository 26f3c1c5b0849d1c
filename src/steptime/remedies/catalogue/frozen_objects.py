"""RM107: long-lived objects out of the garbage collector's sight."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

LIKELY, SURE = 0.7, 0.2
"""Of the collector's time: what is made in the steps is still collected."""
EXAMPLE = """import gc

gc.collect()
gc.freeze()  # before the training loop"""


@remedy("RM107", "frozen-objects", addresses={"ST202"}, promise=Promise.SAME_BITS, risk=1)
def frozen_objects(case: Case) -> Option | None:
    """Long-lived objects out of the garbage collector's sight

    What it changes
        gc.freeze() behind the first steps: what is alive then is never looked at again; and the youngest generation is
        collected less often.

    What it promises
        Equal losses: nothing of the training depends on it.

    What it should gain
        Most of the collector's measured time. A gc.collect() that the loop calls itself stays.

    When to leave it
        When cycles hold large tensors and memory is short.
    """
    garbage = case.garbage
    if garbage is None or not garbage.duration.value:
        return None
    spent = garbage.duration.value
    saving = modelled(LIKELY * spent, SURE * spent, spent, case.step.steady)
    return Option("gc.freeze()", (Change("gc-freeze"),), saving, Snippet(EXAMPLE))
