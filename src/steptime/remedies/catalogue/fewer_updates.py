"""RM703: gradients accumulated over several batches (advice)."""

from __future__ import annotations

from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy
from steptime.remedies.training_lines import training_lines

EXAMPLE = """for number, (batch, target) in enumerate(loader, 1):
    last = number % accumulation == 0
    with contextlib.nullcontext() if last else model.no_sync():   # no_sync: DistributedDataParallel only
        (criterion(model(batch), target) / accumulation).backward()
    if last:
        optimizer.step()
        optimizer.zero_grad()"""


@remedy("RM703", "fewer-updates", addresses={"ST501", "ST805"}, promise=Promise.NEW_TRAINING, risk=5)
def fewer_updates(case: Case) -> Option | None:
    """Gradients accumulated over several batches

    What it changes
        Nothing by itself: one update for several batches is a larger batch, and the learning rate belongs to that. What
        is paid for each update (the optimiser, the exchange of gradients) is then paid less often.

    What it promises
        Nothing: it is another training, for you to decide on.

    What it should gain
        Over two batches, at most half of the optimiser's time and of the exposed communication.

    When to leave it
        When the batch must not grow, or the loss does not bear it.
    """
    if case.step.micro_batches > 1.5:
        return None
    lines = training_lines(case)
    snippet = Snippet(EXAMPLE, lines.backward if lines is not None else None)
    return Option("gradients of several batches", edit=snippet, advice="Update once for several batches.")
