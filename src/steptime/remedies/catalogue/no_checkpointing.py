"""RM305: without activation checkpointing."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import scaled
from steptime.remedies.remedy import Option, Promise, Snippet, remedy


@remedy("RM305", "no-checkpointing", addresses={"ST701"}, promise=Promise.SAME_BITS, risk=3)
def no_checkpointing(case: Case) -> Option | None:
    """Activations kept instead of computed twice

    What it changes
        The job's own calls of torch.utils.checkpoint become plain calls.

    What it promises
        Equal losses: checkpointing restores the random numbers of the forward that it repeats.

    What it should gain
        The measured time of the operators that run again inside backward, and of the Python around them.

    When to leave it
        When memory does not suffice without it: the trial then fails, and says so. Peak memory is told either way.
    """
    if case.recompute is None:
        return None
    snippet = Snippet("block(x)  # instead of checkpoint(block, x, …)", case.recompute.source)
    change = Change("checkpointing", arguments=(("enabled", False),))
    return Option("no activation checkpointing", (change,), scaled(case.recompute.duration, 1.0), snippet)
