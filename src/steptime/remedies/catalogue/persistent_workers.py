"""RM102: workers that outlive an epoch."""

from __future__ import annotations

from steptime.findings.case import Case
from steptime.findings.loader_model import opening
from steptime.findings.stakes import less, more, scaled
from steptime.remedies.loader_change import loader_change
from steptime.remedies.remedy import CallEdit, Option, Promise, Snippet, remedy


@remedy("RM102", "persistent-workers", addresses={"ST104"}, promise=Promise.SAME_BITS, risk=1)
def persistent_workers(case: Case) -> Option | None:
    """Workers that outlive an epoch

    What it changes
        persistent_workers=True of the training DataLoader, which has workers already.

    What it promises
        Equal losses in the first epoch. From the second on, the order of a shuffled dataset is another one, because
        one random number fewer is drawn for each epoch: another seed, not another training.

    What it should gain
        The time that the workers take to end, and from the making of an iterator to its first batch, and what the two
        steps behind that take longer than others, divided by the steps between two such starts. All are measured. The
        making of that batch is left out: a worker that lives on begins with it no sooner.

    When to leave it
        When the dataset must be made anew in the workers for each epoch, or when the workers' memory is needed between.
    """
    loader = case.loader
    if loader is None or not loader.workers or loader.persistent_workers:
        return None
    if loader.start is None or not loader.steps_per_start or not loader.starts:
        return None
    change = loader_change(loader, (("persistent_workers", True),))
    label = "persistent_workers=True"
    edit = CallEdit("DataLoader", (("persistent_workers", "True"),), loader.site) if loader.site else None
    restart = more(loader.start, loader.settling)
    saving = scaled(less(restart, opening(loader)), 1 / loader.steps_per_start)
    streams = "the order from the second epoch on"
    return Option(label, (change,), saving, edit or Snippet(f"DataLoader(…, {label})"), streams, other_data=True)
