"""RM107: long-lived objects out of the garbage collector's sight."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import LoopEdit, Option, Promise, Snippet, remedy
from steptime.remedies.training_lines import training_lines

LIKELY, SURE = 1.0, 0.2
"""Of the collector's time. Objects that live on are passed over, and young ones are looked at seventy times less often
(700 to 50 000): in seven trials of the planted job, which spends nine tenths of a step on them, 96 to 103 % went, as
the training finds its caches warm, too (benchmarks/results/). Only a job whose every step makes cycles keeps most of
it: they have to be taken apart all the same."""
STATEMENTS = ("gc.collect()", "gc.freeze()", "gc.set_threshold(50_000)")
"""As the change does it, which waits for the first steps."""
EXAMPLE = "\n".join(("import gc", "", *STATEMENTS)) + "  # before the training loop"


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
    lines = training_lines(case)
    edit = LoopEdit(STATEMENTS, "gc", lines.forward, EXAMPLE) if lines is not None else Snippet(EXAMPLE)
    return Option("gc.freeze()", (Change("gc-freeze"),), saving, edit)
