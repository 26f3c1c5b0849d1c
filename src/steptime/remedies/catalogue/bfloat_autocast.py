"""RM301: matrix products in bfloat16."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled, named
from steptime.remedies.remedy import AutocastEdit, Option, Promise, Snippet, remedy
from steptime.remedies.training_lines import training_lines

LIKELY, SURE = 0.5, 0.1
"""Of the saving by the ratio of the ceilings: small products reach less of a higher ceiling, and casts cost."""
EXAMPLE = """with torch.autocast("{device}", dtype=torch.bfloat16):
    output = model(batch)
    loss = criterion(output, target)
loss.backward()  # outside"""


@remedy(
    "RM301",
    "bfloat-autocast",
    addresses={"ST401", "ST403", "ST404", "ST405", "ST407"},
    promise=Promise.SAME_CURVE,
    risk=3,
    low_precision=True,
    frees=0.3,
)
def bfloat_autocast(case: Case) -> Option | None:
    """Matrix products in bfloat16

    What it changes
        Forward and loss run under torch.autocast with bfloat16; parameters, gradients and the optimiser stay in
        float32.

    What it promises
        A curve as another seed would give: products are rounded to 8 bits of mantissa, sums are kept in float32.

    What it should gain
        The compute account by the ratio of the machine's measured matrix rates, where it has bfloat16 and is faster
        with it; half of that is likely. On a CPU without units for bfloat16 it is slower: then it is not proposed.

    When to leave it
        When the job is not limited by matrix products, or its loss is sensitive (then keep that part in float32).
    """
    rates = dict(case.machine.rates) if case.machine is not None else {}
    low, full = rates.get("bfloat16"), rates.get("float32") or (case.machine.matrix_flops if case.machine else None)
    compute = named(case.accounts, "compute")
    if case.step.device == "cpu" and not (low and full and low > full):
        return None
    gain = compute.duration.value * (1 - full / low) if compute and low and full and low > full else None
    saving = modelled(LIKELY * gain, SURE * gain, gain, case.step.steady) if gain is not None else None
    change = Change("autocast", arguments=(("dtype", "bfloat16"),))
    return Option("bfloat16 autocast", (change,), saving, _edit(case))


def _edit(case: Case) -> AutocastEdit | Snippet:
    device = case.step.device.partition(":")[0]
    example, lines = EXAMPLE.format(device=device), training_lines(case)
    if lines is None or lines.forward == lines.backward:
        return Snippet(example)
    return AutocastEdit(lines.forward, lines.backward, device, "bfloat16", example)
