"""RM306: matrix products in float16, with a scaled loss."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.stakes import modelled, named
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

LIKELY, SURE = 0.4, 0.0
"""As for bfloat16, less the pass over all gradients that scaling them back costs."""
WORTH_IT = 1.1
"""Times the rate of bfloat16: as long as that is about as fast, its range makes it the better choice."""
EXAMPLE = """scaler = torch.amp.GradScaler()  # once, before the loop
with torch.autocast("cuda", dtype=torch.float16):
    output = model(batch)
    loss = criterion(output, target)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()"""


@remedy(
    "RM306",
    "half-autocast",
    addresses={"ST401", "ST403", "ST404", "ST405", "ST407"},
    promise=Promise.SAME_CURVE,
    risk=4,
    low_precision=True,
    frees=0.3,
)
def half_autocast(case: Case) -> Option | None:
    """Matrix products in float16, with a scaled loss

    What it changes
        Forward and loss run under torch.autocast with float16, and the loss is scaled so that small gradients do not
        vanish. CUDA devices only, and only those whose matrix units are slower in bfloat16 or lack it (before Ampere).

    What it promises
        A curve as another seed would give: products are rounded to 11 bits of mantissa. A step whose gradients overflow
        is lost, which happens in the first steps until the scale has settled.

    What it should gain
        The compute account by the ratio of the device's matrix rates; two fifths of that are likely.

    When to leave it
        When bfloat16 is as fast (RM301): it needs no scaling. When gradients are used otherwise between backward and
        step (clipping must unscale first).
    """
    rates = dict(case.machine.rates) if case.machine is not None else {}
    half, brain, full = rates.get("float16"), rates.get("bfloat16", 0.0), rates.get("float32")
    if not case.step.device.startswith("cuda") or not half or not full or half <= max(full, WORTH_IT * brain):
        return None
    compute = named(case.accounts, "compute")
    gain = compute.duration.value * (1 - full / half) if compute is not None else None
    saving = modelled(LIKELY * gain, SURE * gain, gain, case.step.steady) if gain is not None else None
    change = Change("autocast", arguments=(("dtype", "float16"), ("device", "cuda")))
    return Option("float16 autocast, scaled loss", (change,), saving, Snippet(EXAMPLE))
