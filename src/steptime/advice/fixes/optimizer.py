"""RM2xx: fixes of the optimiser's step."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.advice.evidence import Case, OptimizerUse
from steptime.advice.fix import CallEdit, Edit, JointEdit, Option, Promise, Snippet, fix
from steptime.advice.models import FOREACH, FUSABLE, floor, zeroing
from steptime.advice.savings import modelled, partly
from steptime.changes import Change

LIKELY, LIKELY_ON_CPU, SURE = 0.6, 1.0, 0.2
"""Of what a single pass at full bandwidth would save: a device's kernels reach half of the bandwidth on small tensors.
On a CPU six trials of planted jobs reached 0.6, 0.9, 1.0, 1.2, 1.4 and 1.6 times all of it, as the rest of the step is
quicker, too, where no temporary tensors are made (benchmarks/results/)."""
CLASSES = frozenset({"Adam", "AdamW"})
SMALL = 1_000_000
"""Elements: below a million the state is no matter of memory or bandwidth."""


@fix("RM201", "fused-optimizer", addresses={"ST501", "ST503"}, promise=Promise.SAME_CURVE, risk=1, frees=0.03)
def fused_optimizer(case: Case) -> Option | None:
    """An optimiser that updates in one pass

    What it changes: fused=True of the torch optimiser where it has that (Adam, AdamW, SGD, Adagrad), else foreach=True.

    What it promises: A curve as another seed would give: the update is the same formula in another order of operations,
    and differs in the last bits.

    What it should gain: The optimiser's measured time, less one pass over parameters, gradients and state at the
    machine's bandwidth. On a CPU less what Python spends on each tensor all the same; on a device, whose kernels reach
    half of the bandwidth on small tensors, 0.6 of that.

    When to leave it: When memory is short on an accelerator and foreach is all there is: it needs a copy of the
    gradients' size.
    """
    known = [use for use in case.optimizers if _better(use, case.step.device)]
    if not known:
        return None
    use = max(known, key=lambda each: each.duration.value)
    name = _better(use, case.step.device)
    gain = max(0.0, use.duration.value - floor(use, case.machine))
    label = f"{use.type}({name}=True)"
    edit = _edit_fused_optimizer([each for each in known if _better(each, case.step.device) == name], name, label)
    likely = LIKELY_ON_CPU if case.step.device == "cpu" else LIKELY
    saving = partly(gain, likely, SURE, case.step)
    return Option(label, (Change("optimizer", arguments=((name, True),)),), saving, edit)


def _edit_fused_optimizer(uses: Sequence[OptimizerUse], name: str, example: str) -> Edit:
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


@fix(
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

    What it changes: Adam and AdamW of torch become those of bitsandbytes or torchao whose two moments take a byte each,
    where one of the two is installed, on a CUDA device.

    What it promises: A curve as another seed would give: the moments are rounded block by block.

    What it should gain: Six of the sixteen bytes for each parameter, and the traffic of reading and writing them; how
    much of a step that is depends on the kernels of the package, so that it is not predicted.

    When to leave it: When parameters are few, or embeddings train badly with it (both packages keep those in 32 bits on
    request).
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


@fix("RM203", "dropped-gradients", addresses={"ST504"}, promise=Promise.SAME_BITS, risk=1, frees=0.1)
def dropped_gradients(case: Case) -> Option | None:
    """Gradients that are dropped instead of filled with zeros

    What it changes: zero_grad(set_to_none=False) of optimisers and modules becomes zero_grad(): the gradients are let
    go, and the next backward puts its result in their place.

    What it promises: Equal losses, unless a parameter gets no gradient in some step: an optimiser with momentum or
    weight decay skips it then, where it would have moved it by a zero gradient.

    What it should gain: The measured time of filling with zeros, and of adding to them in backward.

    When to leave it: When the loop reads gradients of parameters that the loss does not reach.
    """
    elements = sum(use.elements for use in case.optimizers)
    filling, adding = zeroing(case.operators, case.categories, elements, case.step.micro_batches)
    if not filling:
        return None
    saving = modelled(filling + adding, filling, filling + adding, case.step.steady)
    return Option("zero_grad()", (Change("zero-grad"),), saving, _edit_dropped_gradients(case))


def _edit_dropped_gradients(case: Case) -> Edit:
    """Every line that asks for zeros."""
    lines = [use.source for use in case.lines if "zero_grad(" in use.source.text and "set_to_none" in use.source.text]
    parts = tuple(CallEdit("zero_grad", (("set_to_none", "True"),), line) for line in lines)
    example = Snippet("optimizer.zero_grad()")
    if len(parts) == 1:
        return parts[0]
    return JointEdit(parts, example) if parts else example
