"""RM103: more batches in store."""

from __future__ import annotations

from steptime.findings.case import Case
from steptime.findings.loader_model import supply
from steptime.findings.stakes import modelled
from steptime.remedies.loader_change import loader_change
from steptime.remedies.remedy import CallEdit, Option, Promise, Snippet, remedy

USUAL = 2
"""Batches that each worker keeps ready where the job says nothing (torch.utils.data.DataLoader)."""
FACTOR = 4
"""Times as many: a batch that takes four times the mean then delays nobody."""
DEEPEST = 16
"""Batches of a worker in store, beyond which memory is all that grows."""
ENOUGH = 0.95
"""Of the step: workers whose mean production takes longer are too few, and a store runs empty whatever its size."""
LIKELY = 0.5


@remedy("RM103", "deeper-prefetch", addresses={"ST101", "ST102"}, promise=Promise.SAME_BITS, risk=1)
def deeper_prefetch(case: Case) -> Option | None:
    """More batches in store

    What it changes
        prefetch_factor of the training DataLoader, which has workers: each keeps four times as many batches ready.

    What it promises
        Equal losses: the batches and their order stay.

    What it should gain
        What the step still waits although the workers' mean production keeps up: items that vary, so that a slow batch
        finds the store empty. Half of that is likely. Where the workers are too few in the mean, it is not proposed.

    When to leave it
        When memory is short: every batch in store takes its size of shared memory.
    """
    loader = case.loader
    if loader is None or not loader.workers:
        return None
    deeper = min(DEEPEST, FACTOR * (loader.prefetch_factor or USUAL))
    model = supply(case.step, loader, case.settings, case.contention)
    if deeper <= (loader.prefetch_factor or USUAL) or model is None:
        return None
    step = case.step.duration.value
    if model.production / loader.workers > ENOUGH * step or model.processor > ENOUGH * step:
        return None
    gain = min(step - model.step(loader.workers), loader.wait.value)
    label = f"prefetch_factor={deeper}"
    edit = CallEdit("DataLoader", (("prefetch_factor", str(deeper)),), loader.site) if loader.site else None
    return Option(
        label,
        (loader_change(loader, (("prefetch_factor", deeper),)),),
        modelled(LIKELY * gain, 0.0, gain, case.step.steady),
        edit or Snippet(f"DataLoader(…, {label})"),
    )
