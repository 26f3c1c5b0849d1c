"""RM104: batches in pinned memory, copied while the device computes."""

from __future__ import annotations

from steptime.findings.case import Case, LoaderUse
from steptime.findings.stakes import modelled, named
from steptime.remedies.loader_change import loader_change
from steptime.remedies.remedy import CallEdit, CopyEdit, Edit, JointEdit, Option, Promise, Snippet, remedy

EXAMPLE = "DataLoader(…, pin_memory=True), and batch.to(device, non_blocking=True)"
LIKELY = 0.7
"""Of the exposed copies: the first one of a step cannot be hidden behind anything."""


@remedy("RM104", "pinned-memory", addresses={"ST107", "ST406"}, promise=Promise.SAME_BITS, risk=1)
def pinned_memory(case: Case) -> Option | None:
    """Batches in pinned memory, copied while the device computes

    What it changes
        pin_memory=True of the training DataLoader, and copies of pinned tensors to the device do not wait for their
        end (non_blocking=True). Only with an accelerator.

    What it promises
        Equal losses: the same numbers arrive, in the order of the stream.

    What it should gain
        Up to the exposed time of copies, and of the host that waits for them while they are staged.

    When to leave it
        When the host's memory is short: pinned memory is never swapped out.
    """
    loader = case.loader
    if loader is None or loader.pin_memory or case.step.device == "cpu":
        return None
    copies = named(case.accounts, "copy")
    exposed = copies.recoverable.value if copies is not None else 0.0
    saving = modelled(LIKELY * exposed, 0.0, exposed, case.step.steady) if exposed else None
    change = loader_change(loader, (("pin_memory", True), ("non_blocking", True)))
    return Option("pin_memory=True, non_blocking=True", (change,), saving, _edit(case, loader))


def _edit(case: Case, loader: LoaderUse) -> Edit:
    """The loader and the lines that copy its batches; an example where those are not known."""
    copies = {(use.source.file, use.source.line): use.source for use in case.lines if use.role == "transfer"}
    waiting = [CopyEdit(each) for each in copies.values() if "non_blocking=True" not in each.text]
    if loader.site is None or not copies:
        return Snippet(EXAMPLE)
    pinned = CallEdit("DataLoader", (("pin_memory", "True"),), loader.site)
    return JointEdit((pinned, *waiting), Snippet(EXAMPLE, loader.site))
