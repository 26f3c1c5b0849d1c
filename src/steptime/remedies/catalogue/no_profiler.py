"""RM503: without the job's own profiler."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy


@remedy("RM503", "no-profiler", addresses={"ST602"}, promise=Promise.SAME_BITS, risk=1)
def no_profiler(case: Case) -> Option | None:
    """The job's own profiler records nothing

    What it changes
        torch.profiler.profile and torch.autograd.profiler.profile of the job are entered and left, and record nothing;
        handlers of finished traces are not called.

    What it promises
        Equal losses: it only watches.

    What it should gain
        A tenth to two thirds of the step on models of many small operators; more with stacks and memory. It is not
        predicted closer than the finding does.

    When to leave it
        While you are looking at its traces. A schedule (wait, warmup, active, repeat) records a few steps of a run.
    """
    if case.settings is None or not case.settings.profiler:
        return None
    snippet = Snippet("torch.profiler.profile(schedule=torch.profiler.schedule(wait=10, warmup=2, active=3, repeat=1))")
    return Option("no profiler", (Change("profiler-off"),), None, snippet)
