"""RM202: optimiser state in 8 bits."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.remedies.remedy import Option, Promise, Snippet, remedy

CLASSES = frozenset({"Adam", "AdamW"})
SMALL = 1_000_000
"""Elements: below a million the state is no matter of memory or bandwidth."""


@remedy(
    "RM202",
    "eight-bit-optimizer",
    addresses={"ST306", "ST501"},
    promise=Promise.SAME_CURVE,
    risk=4,
    low_precision=True,
    frees=0.3,
)
def eight_bit_optimizer(case: Case) -> Option | None:
    """Optimiser state in 8 bits

    What it changes
        Adam and AdamW of torch become those of bitsandbytes or torchao whose two moments take a byte each, where one of
        the two is installed, on a CUDA device.

    What it promises
        A curve as another seed would give: the moments are rounded block by block.

    What it should gain
        Six of the sixteen bytes for each parameter, and the traffic of reading and writing them; how much of a step
        that is depends on the kernels of the package, so that it is not predicted.

    When to leave it
        When parameters are few, or embeddings train badly with it (both packages keep those in 32 bits on request).
    """
    settings = case.settings
    if settings is None or not settings.packages or not case.step.device.startswith("cuda"):
        return None
    used = next((use for use in case.optimizers if use.type in CLASSES and use.elements >= SMALL), None)
    if used is None:
        return None
    package = settings.packages[0]
    change = Change("optimizer-8bit", arguments=(("package", package),))
    snippet = Snippet(f"optimizer = {package}.optim.{used.type}8bit(model.parameters(), …)", used.site)
    return Option(f"{used.type}8bit of {package}", (change,), None, snippet)
