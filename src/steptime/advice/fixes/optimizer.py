"""RM2xx: fixes of the optimizer's step."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.advice.evidence import Case, LineUse, OptimizerUse
from steptime.advice.fix import CallEdit, Edit, JointEdit, Option, Promise, Snippet, fix
from steptime.advice.models import FOREACH, FUSABLE, dense_gradients, lower_bound, zeroing
from steptime.advice.run_uses import SettingsUse, StepSummary
from steptime.advice.savings import as_decided, modelled, partly
from steptime.changes import Change

LIKELY, LIKELY_ON_CPU, SURE = 0.6, 1.0, 0.2
"""Fraction of what a single pass at full bandwidth would save: a device's kernels reach half of the bandwidth on small
tensors. On a CPU six trials of planted jobs reached 0.6, 0.9, 1.0, 1.2, 1.4 and 1.6 times all of it, as the rest of the
step is quicker, too, where no temporary tensors are made (benchmarks/results/)."""
CLASSES = frozenset({"Adam", "AdamW"})
SPARSE = frozenset({"SGD", "Adagrad"})
"""Optimizers of torch that take a sparse gradient and do with it what they do with a dense one."""
LIKELY_SPARSE, SURE_SPARSE = 0.9, 0.4
"""Fraction of the update of embeddings and of the filling of their gradient. By hand (torch 2.13, a table of 200,000
rows of 32, 256 pairs per step, one thread of a CPU) a step of 9.8 ms took 0.86 with SGD, 18.5 took 2.9 with momentum,
and 64.8 took 1.35 with Adagrad: what is left is the sorting and the adding of the rows that were looked up."""
EXAMPLE_SPARSE = "nn.Embedding(…, sparse=True)"
EXAMPLE_TWO = """# the table: nn.Embedding(…, sparse=True)
sparse = torch.optim.SparseAdam(model.table.parameters(), lr=1e-3)
dense = torch.optim.{kind}(model.rest.parameters(), lr=1e-3)
# and in the loop: zero_grad() and step() of both"""
SMALL = 1_000_000
"""Elements: below a million the state is no matter of memory or bandwidth."""


@fix("RM201", "fused-optimizer", addresses={"ST501", "ST503"}, promise=Promise.SAME_CURVE, risk=1, frees=0.03)
def fused_optimizer(step: StepSummary, optimizers: tuple[OptimizerUse, ...], case: Case) -> Option | None:
    """An optimizer that updates in one pass

    What it changes: fused=True of the torch optimizer where it has that (Adam, AdamW, SGD, Adagrad), else foreach=True.

    What it promises: A loss curve like that of another seed: the update is the same formula in another order of
    operations, and differs in the last bits.

    What it should gain: The optimizer's measured time above its lower bound: one pass over parameters, gradients and
    state at the machine's bandwidth, on a CPU with Python's time per tensor. On a device six tenths of that are
    likely, because its kernels reach half of the bandwidth on small tensors.

    When to leave it: When memory is short on an accelerator and foreach is all there is: it needs a copy of the
    gradients' size.
    """
    known = [use for use in optimizers if _better(use, step.device)]
    if not known:
        return None
    use = max(known, key=lambda each: each.duration.value)
    name = _better(use, step.device)
    changed = [each for each in known if _better(each, step.device) == name]
    gain = sum(max(0.0, each.duration.value - lower_bound(each, case.machine)) for each in changed)
    label = f"{use.type}({name}=True)"
    edit = _edit_fused_optimizer(changed, name, label)
    likely = LIKELY_ON_CPU if step.device == "cpu" else LIKELY
    saving = as_decided(partly(gain, likely, SURE, step), "compute" if use.kernels else "overhead", case.replay)
    return Option(label, (Change("optimizer", arguments=((name, True),)),), saving, edit)


def _edit_fused_optimizer(uses: Sequence[OptimizerUse], name: str, example: str) -> Edit:
    """Each optimizer that the change acts on, once; torch takes one of the two implementations by name."""
    other = "foreach" if name == "fused" else "fused"
    keywords = ((name, "True"), (other, "None"))
    sites = {each.site.place: each for each in uses if each.site is not None}
    if any(each.site is None for each in uses):
        return Snippet(example)
    parts = tuple(CallEdit(each.type, keywords, each.site) for each in sites.values())
    return parts[0] if len(parts) == 1 else JointEdit(parts, Snippet(example))


def _better(use: OptimizerUse, device: str) -> str:
    """ "fused" or "foreach", "" if nothing is better than the current one."""
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
def eight_bit_optimizer(
    step: StepSummary, settings: SettingsUse, optimizers: tuple[OptimizerUse, ...]
) -> Option | None:
    """Optimizer state in 8 bits

    What it changes: Adam and AdamW of torch become those of bitsandbytes or torchao, whose two moments take one
    byte each. Needs one of these packages and a CUDA device.

    What it promises: A loss curve like that of another seed: the moments are rounded block by block.

    What it should gain: Memory: six of the sixteen bytes that each parameter takes with its gradient and state, and
    the traffic of reading and writing them. The time depends on the package's kernels and is not predicted.

    When to leave it: When parameters are few, or embeddings train badly with it (both packages keep those in 32 bits on
    request).
    """
    if not settings.packages or not step.device.startswith("cuda"):
        return None
    used = next((use for use in optimizers if use.type in CLASSES and use.elements >= SMALL), None)
    if used is None:
        return None
    package = settings.packages[0]
    change = Change("optimizer-8bit", arguments=(("package", package),))
    snippet = Snippet(f"optimizer = {package}.optim.{used.type}8bit(model.parameters(), …)", used.site)
    return Option(f"{used.type}8bit of {package}", (change,), None, snippet)


@fix("RM203", "dropped-gradients", addresses={"ST504"}, promise=Promise.SAME_BITS, risk=2, frees=0.1)
def dropped_gradients(step: StepSummary, case: Case) -> Option | None:
    """Gradients that are dropped instead of filled with zeros

    What it changes: zero_grad(set_to_none=False) of optimizers and modules becomes zero_grad(): the gradients are
    freed, and the next backward puts its result in their place.

    What it promises: Equal losses, unless a parameter gets no gradient in some step. An optimizer with momentum or
    weight decay then skips it, where before a zero gradient still moved it.

    What it should gain: The measured time of filling with zeros, and of adding to them in backward.

    When to leave it: When the loop reads gradients of parameters that the loss does not reach: it then reads None
    instead of zeros. When momentum or weight decay is meant to move parameters that got no gradient.
    """
    filling, adding = zeroing(case)
    if not filling:
        return None
    saving = modelled(filling + adding, filling, filling + adding, step.steady)
    return Option("zero_grad()", (Change("zero-grad"),), saving, _edit_dropped_gradients(case.lines))


def _edit_dropped_gradients(lines: tuple[LineUse, ...]) -> Edit:
    """Every line that asks for zeros."""
    zeroing_lines = [
        use.source for use in lines if "zero_grad(" in use.source.text and "set_to_none" in use.source.text
    ]
    parts = tuple(CallEdit("zero_grad", (("set_to_none", "True"),), line) for line in zeroing_lines)
    example = Snippet("optimizer.zero_grad()")
    if len(parts) == 1:
        return parts[0]
    return JointEdit(parts, example) if parts else example


@fix("RM204", "sparse-embeddings", addresses={"ST502"}, promise=Promise.SAME_CURVE, risk=3)
def sparse_embeddings(step: StepSummary, case: Case) -> Option | None:
    """Embeddings whose gradient has only the rows that were looked up

    What it changes: The Embedding gets sparse=True: backward returns only the rows that were looked up, instead of
    a table of zeros with these rows, and the optimizer updates only them. If the script makes one Embedding, the
    trial runs the edited source.

    What it promises: With SGD and Adagrad, a loss curve like that of another seed. A row without a gradient stays as
    it is, and rows that were looked up twice are summed in another order. With Adam it is another training: Adam's
    moments also move rows that nobody looked up, SparseAdam's do not. For Adam the fix is therefore advised and not
    tried.

    What it should gain: Nine tenths of two times: the optimizer's time for the embeddings, as in the finding, and
    backward's time for the dense gradient.

    When to leave it: With weight_decay or maximize, a fused optimizer or clipped gradients: torch does not support
    these for sparse gradients, and the trial fails and says so. When an output layer shares the table. When most
    rows are looked up in each batch.
    """
    use = max(case.optimizers, key=lambda each: each.dense_embedding_elements, default=None)
    if use is None or not use.dense_embedding_elements or use.fused:
        return None
    if use.type not in SPARSE:
        advice = f"Train the table by SparseAdam, the rest by {use.type}: another training, for you to decide on."
        return Option("sparse embeddings", edit=Snippet(EXAMPLE_TWO.format(kind=use.type), use.site), advice=advice)
    part = min(1.0, use.dense_embedding_elements / max(use.elements, 1))
    gain = part * use.duration.value + dense_gradients(case, use.dense_embedding_elements)
    saving = partly(gain, LIKELY_SPARSE, SURE_SPARSE, step)
    edit = JointEdit((CallEdit("Embedding", (("sparse", "True"),)),), Snippet(EXAMPLE_SPARSE))
    advice = "Make the embedding sparse: sparse=True."
    return Option("Embedding(sparse=True)", (), saving, edit, advice=advice, reach=gain, as_written=True)
