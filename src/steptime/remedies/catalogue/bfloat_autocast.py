"""RM301: matrix products in bfloat16."""

from __future__ import annotations

from steptime.changes import Change
from steptime.findings.case import Case
from steptime.findings.operator_time import steady_time
from steptime.findings.pointwise_operators import moving
from steptime.findings.stakes import modelled, named
from steptime.quantities import Estimate
from steptime.remedies.remedy import AutocastEdit, Option, Promise, Snippet, remedy
from steptime.remedies.training_lines import training_lines

LIKELY, SURE = 0.5, 0.1
"""Of the saving by the ratio of the ceilings: small products reach less of a higher ceiling, and casts cost."""
PRODUCTS, MOVING = 0.9, 0.45
"""The same on a CPU, whose products and pointwise operators are told apart (the planted job `pointwise_chain`, torch
2.13). By hand products of 31 ms took 8.4 where the rates promise 7. Of what the pointwise operators were expected to
save 0.65 came on one processor and a quarter on another: the middle is taken."""
NARROWER = 0.5
"""Of the bytes of a pointwise operator whose input a product in bfloat16 has made."""
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
        with it; half of that is likely. On a CPU, whose operators are known, nine tenths of what the products gain by
        that ratio, and a fifth or so of the pointwise operators that move bytes (half of the bytes, but casts cost).
        Without products, or units for bfloat16, it is not proposed there.

    When to leave it
        When the job is not limited by matrix products, or its loss is sensitive (then keep that part in float32).
    """
    rates = dict(case.machine.rates) if case.machine is not None else {}
    low, full = rates.get("bfloat16"), rates.get("float32") or (case.machine.matrix_flops if case.machine else None)
    faster = 1 - full / low if low and full and low > full else 0.0
    if case.step.device == "cpu" and not (faster and _products(case)):
        return None
    saving, reach = (None, 0.0)
    if faster and (compute := named(case.accounts, "compute")) is not None:
        saving, reach = _by_operators(case, faster) or _by_account(case, faster, compute.duration.value)
    change = Change("autocast", arguments=(("dtype", "bfloat16"),))
    return Option("bfloat16 autocast", (change,), saving, _edit(case), reach=reach)


def _products(case: Case) -> bool:
    """Whether there is something that autocast casts, as far as operators are known."""
    return not case.operators or any(use.flops for use in case.operators)


def _by_account(case: Case, faster: float, compute: float) -> tuple[Estimate, float]:
    """(saving, what is acted on), ns a step. faster: the share of a product that a higher ceiling makes less of."""
    gain = faster * compute
    return modelled(LIKELY * gain, SURE * gain, gain, case.step.steady), compute


def _by_operators(case: Case, faster: float) -> tuple[Estimate, float] | None:
    """The same on a CPU, None where its operators are not known. Products that wait for memory read weights in single
    precision all the same, to cast them."""
    if case.step.device != "cpu" or not case.operators:
        return None
    at = (case.operators, case.accounts, case.machine)
    products = steady_time([use for use in case.operators if use.flops and use.bound == "compute"], *at)
    moved = steady_time(moving(case.operators, case.machine), *at)
    gain, less = faster * products, NARROWER * moved
    likely = PRODUCTS * gain + MOVING * less
    return modelled(likely, SURE * (gain + less), gain + less, case.step.steady), products + moved


def _edit(case: Case) -> AutocastEdit | Snippet:
    device = case.step.device.partition(":")[0]
    example, lines = EXAMPLE.format(device=device), training_lines(case)
    if lines is None or lines.forward == lines.backward:
        return Snippet(example)
    return AutocastEdit(lines.forward, lines.backward, device, "bfloat16", example)
