"""RM201: an optimiser in one pass."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.changes import Change
from steptime.findings.case import Case, OptimizerUse
from steptime.findings.optimizer_model import FOREACH, FUSABLE, floor
from steptime.findings.stakes import modelled
from steptime.remedies.remedy import CallEdit, Edit, JointEdit, Option, Promise, Snippet, remedy

LIKELY, LIKELY_ON_CPU, SURE = 0.6, 1.0, 0.2
"""Of what a single pass at full bandwidth would save: a device's kernels reach half of the bandwidth on small tensors.
On a CPU six trials of planted jobs reached 0.6, 0.9, 1.0, 1.2, 1.4 and 1.6 times all of it, as the rest of the step is
quicker, too, where no temporary tensors are made (benchmarks/results/)."""


@remedy("RM201", "fused-optimizer", addresses={"ST501", "ST503"}, promise=Promise.SAME_CURVE, risk=1, frees=0.03)
def fused_optimizer(case: Case) -> Option | None:
    """An optimiser that updates in one pass

    What it changes
        fused=True of the torch optimiser where it has that (Adam, AdamW, SGD, Adagrad), else foreach=True.

    What it promises
        A curve as another seed would give: the update is the same formula in another order of operations, and differs
        in the last bits.

    What it should gain
        The optimiser's measured time, less one pass over parameters, gradients and state at the machine's bandwidth. On
        a CPU less what Python spends on each tensor all the same; on a device, whose kernels reach half of the
        bandwidth on small tensors, 0.6 of that.

    When to leave it
        When memory is short on an accelerator and foreach is all there is: it needs a copy of the gradients' size.
    """
    known = [use for use in case.optimizers if _better(use, case.step.device)]
    if not known:
        return None
    use = max(known, key=lambda each: each.duration.value)
    name = _better(use, case.step.device)
    gain = max(0.0, use.duration.value - floor(use, case.machine))
    label = f"{use.type}({name}=True)"
    edit = _edit([each for each in known if _better(each, case.step.device) == name], name, label)
    likely = LIKELY_ON_CPU if case.step.device == "cpu" else LIKELY
    saving = modelled(likely * gain, SURE * gain, gain, case.step.steady)
    return Option(label, (Change("optimizer", arguments=((name, True),)),), saving, edit)


def _edit(uses: Sequence[OptimizerUse], name: str, example: str) -> Edit:
    """Each optimiser that the change acts on, once; torch takes one of the two implementations by name."""
    other = "foreach" if name == "fused" else "fused"
    keywords = ((name, "True"), (other, "None"))
    sites = {(each.site.file, each.site.line): each for each in uses if each.site is not None}
    if any(each.site is None for each in uses):
        return Snippet(example)
    parts = tuple(CallEdit(each.type, keywords, each.site) for each in sites.values())
    return parts[0] if len(parts) == 1 else JointEdit(parts, Snippet(example))


def _better(use: OptimizerUse, device: str) -> str:
    """ "fused" or "foreach", "" where there is nothing better than what is in force."""
    if use.fused:
        return ""
    if use.type in FUSABLE:
        return "fused"
    return "foreach" if use.type in FOREACH and device != "cpu" and use.foreach is False else ""
