"""RM30x: lower precision."""

from __future__ import annotations

from steptime.advice.evidence import Case, LineUse
from steptime.advice.fix import AutocastEdit, Option, Promise, Snippet, StatementEdit, fix, training_lines
from steptime.advice.kernels import is_matmul, moving, time_in
from steptime.advice.line_evidence import steady_time
from steptime.advice.run_uses import StepSummary
from steptime.advice.savings import modelled, named, of_kernels, partly
from steptime.changes import Change
from steptime.quantities import Estimate

LIKELY_BFLOAT_AUTOCAST, SURE_BFLOAT_AUTOCAST = 0.5, 0.1
"""Fraction of the saving by the ratio of the peaks: small matmuls reach less of a higher peak, and casts
cost."""
PRODUCTS, MOVING = 0.9, 0.45
"""The same on a CPU, whose matmuls and pointwise operators are separate (the planted job `pointwise_chain`, torch
2.13). By hand matmuls of 31 ms took 8.4 where the rates promise 7. Of what the pointwise operators were expected to
save 0.65 came on one processor and a quarter on another: the middle is taken."""
NARROWER = 0.5
"""Fraction of the bytes of a pointwise operator whose input a matmul in bfloat16 has made."""
EXAMPLE_BFLOAT_AUTOCAST = """with torch.autocast("{device}", dtype=torch.bfloat16):
    output = model(batch)
    loss = criterion(output, target)
loss.backward()  # outside"""
LIKELY_TENSOR_FLOAT, SURE_TENSOR_FLOAT = 0.75, 0.4
"""As ST403 has it for the same kernels: matmuls reach less of a higher peak, and nothing is cast."""
CASTS = 1.25
"""Times the dispatching: autocast casts the input and the weight of each matmul, and backward casts back. The CPU of
two programs took 1.25 and 1.28 times as long with it (a GPT of 10.7 M parameters and linear layers, H200, torch
2.11)."""
LIKELY_HALF_AUTOCAST, SURE_HALF_AUTOCAST = 0.4, 0.0
"""As for bfloat16, less the pass over all gradients that scaling them back costs."""
WORTH_IT = 1.1
"""Times the rate of bfloat16: as long as that is about as fast, its range makes it the better choice."""
EXAMPLE_HALF_AUTOCAST = """scaler = torch.amp.GradScaler()  # once, before the loop
with torch.autocast("cuda", dtype=torch.float16):
    output = model(batch)
    loss = criterion(output, target)
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()"""


@fix(
    "RM301",
    "bfloat-autocast",
    addresses={"ST401", "ST403", "ST404", "ST405", "ST407", "ST413", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=3,
    low_precision=True,
    frees=0.3,
)
def bfloat_autocast(step: StepSummary, case: Case) -> Option | None:
    """Matmuls in bfloat16

    What it changes: Forward and loss run under torch.autocast with bfloat16; parameters, gradients and the optimizer
    stay in float32.

    What it promises: A loss curve like that of another seed: matmuls are rounded to 8 bits of mantissa, sums are
    kept in float32.

    What it should gain: The prediction uses the ratio of the machine's measured matmul rates, in bfloat16 and in the
    present dtype. If nothing else is known, the compute category shrinks by that ratio, and half of the gain is
    likely. On a device whose kernels are known, only the matmuls gain, each by the rate of its own dtype. If all of
    them are in 16 bits, the fix is not proposed. On a CPU whose operators are known, the matmuls likely gain nine
    tenths of what the ratio gives, and pointwise operators that memory bounds gain about a fifth (half of the bytes,
    but casts cost). A CPU without units for bfloat16 gains nothing, and neither does a job without matmuls there: the
    fix is not proposed.

    When to leave it: When the job is not limited by matmuls, or its loss is sensitive (then keep that part in
    float32).
    """
    rates = dict(case.machine.rates) if case.machine is not None else {}
    low, full = rates.get("bfloat16"), rates.get("float32") or (case.machine.matrix_flops if case.machine else None)
    faster = 1 - full / low if low and full and low > full else 0.0
    products = not case.operators or any(use.flops for use in case.operators)
    if step.device == "cpu" and not (faster and products):
        return None
    wide = _wide_products(case, "bfloat16")
    if wide == NOTHING_WIDE:
        return None  # they are in 16 bits already
    saving, reach = None, 0.0
    if faster and (compute := named(case.categories, "compute")) is not None:
        reach = compute.duration.value
        saving = partly(faster * reach, LIKELY_BFLOAT_AUTOCAST, SURE_BFLOAT_AUTOCAST, step)
        if wide is not None:
            saving, reach = partly(wide[0], LIKELY_BFLOAT_AUTOCAST, SURE_BFLOAT_AUTOCAST, step), wide[1]
        saving, reach = _by_operators(case, faster) or (of_kernels(saving, case.replay, CASTS), reach)
    change = Change("autocast", arguments=(("dtype", "bfloat16"),))
    return Option("bfloat16 autocast", (change,), saving, _edit(step, case.lines), reach=reach)


def _by_operators(case: Case, faster: float) -> tuple[Estimate, float] | None:
    """(saving, what is acted on) on a CPU, ns per step; None where its operators are not known. faster: the share of a
    matmul that a higher peak speeds up less. Matmuls that wait for memory read weights in single precision all
    the same, to cast them."""
    if case.step.device != "cpu" or not case.operators:
        return None
    at = (case.operators, case.categories, case.machine)
    products = steady_time([use for use in case.operators if use.flops and use.bound == "compute"], *at)
    moved = steady_time(moving(case.operators, case.machine), *at)
    gain, less = faster * products, NARROWER * moved
    likely = PRODUCTS * gain + MOVING * less
    return modelled(likely, SURE_BFLOAT_AUTOCAST * (gain + less), gain + less, case.step.steady), products + moved


KNOWN = 0.5
"""Fraction of the matmuls' time: the dtype is not known of every kernel, as of one that adds up the parts of a
matmul."""
NOTHING_WIDE, LEAST_WIDE = (0.0, 0.0), 0.1
"""Fraction of the matmuls' time: under autocast some stay in float32, as those of a loss do."""


def _wide_products(case: Case, dtype: str) -> tuple[float, float] | None:
    """(what they would take less, what they take), ns per step, of a device's matmuls in dtypes with a lower rate
    than that of dtype; None where the kernels or the machine do not say."""
    products = [use for use in case.kernels if is_matmul(use)]
    rates = dict(case.machine.rates) if case.machine is not None else {}
    fast = rates.get(dtype)
    known = [use for use in products if use.dtype]
    if not fast or not products or time_in(known) < KNOWN * time_in(products):
        return None
    wide = [(use.duration, rates.get(use.dtype, fast)) for use in known]
    wide = [(duration, rate) for duration, rate in wide if WORTH_IT * rate < fast]
    if sum(duration for duration, _ in wide) < LEAST_WIDE * time_in(products):
        return NOTHING_WIDE
    return sum(duration * (1 - rate / fast) for duration, rate in wide), sum(duration for duration, _ in wide)


def _edit(step: StepSummary, lines: tuple[LineUse, ...]) -> AutocastEdit | Snippet:
    device = step.device.partition(":")[0]
    example = EXAMPLE_BFLOAT_AUTOCAST.format(device=device)
    forward, backward = training_lines(lines)
    if forward is None or backward is None or forward == backward:
        return Snippet(example)
    return AutocastEdit(forward, backward, device, "bfloat16", example)


@fix("RM302", "tensor-float", addresses={"ST403", "ST908"}, promise=Promise.SAME_CURVE, risk=1, low_precision=True)
def tensor_float(step: StepSummary, case: Case) -> Option | None:
    """TensorFloat-32 for matmuls in float32

    What it changes: torch.set_float32_matmul_precision("high") before training: Tensor Cores take float32 matmuls with
    10 bits of mantissa. CUDA devices from Ampere on.

    What it promises: A loss curve like that of another seed: range and storage stay those of float32, matmuls lose
    bits.

    What it should gain: The matmul kernels' time shrinks by the ratio of the device's two rates; three quarters of
    that gain are likely. The step is shorter only as far as the device decides its length. If the CPU decides it,
    nothing is gained.

    When to leave it: When matmuls must be exact to float32 (physics, solvers).
    """
    if not step.device.startswith("cuda"):
        return None
    if case.settings is not None and case.settings.matmul_precision != "highest":
        return None
    if _wide_products(case, "tf32") == NOTHING_WIDE:
        return None
    saving = _by_rate(case, "tf32", LIKELY_TENSOR_FLOAT, SURE_TENSOR_FLOAT, 1.0)
    statement = 'torch.set_float32_matmul_precision("high")'
    change = Change("matmul-precision", arguments=(("precision", "high"),))
    return Option(statement.removeprefix("torch."), (change,), saving, StatementEdit(statement, "torch"))


def _by_rate(case: Case, dtype: str, likely: float, sure: float, casts: float) -> Estimate | None:
    """Savings of the matmuls, by their rates in a dtype and in their own, or of all compute if the kernels are unknown,
    as far as they shorten the step. None if the dtype is no faster. casts: as of `of_kernels`."""
    rates = dict(case.machine.rates) if case.machine is not None else {}
    fast, full, compute = rates.get(dtype), rates.get("float32"), named(case.categories, "compute")
    if (wide := _wide_products(case, dtype)) is not None:
        return of_kernels(partly(wide[0], likely, sure, case.step), case.replay, casts)
    if compute is None or not fast or not full or fast <= full:
        return None
    saving = partly(compute.duration.value * (1 - full / fast), likely, sure, case.step)
    return of_kernels(saving, case.replay, casts)


@fix(
    "RM306",
    "half-autocast",
    addresses={"ST401", "ST403", "ST404", "ST405", "ST407", "ST413", "ST908"},
    promise=Promise.SAME_CURVE,
    risk=4,
    low_precision=True,
    frees=0.3,
)
def half_autocast(step: StepSummary, case: Case) -> Option | None:
    """Matmuls in float16, with a scaled loss

    What it changes: Forward and loss run under torch.autocast with float16, and the loss is scaled so that small
    gradients do not vanish. CUDA devices only, and only those whose Tensor Cores are slower in bfloat16 or lack it
    (before Ampere).

    What it promises: A loss curve like that of another seed: matmuls are rounded to 11 bits of mantissa. A step
    whose gradients overflow is lost, which happens in the first steps until the scale has settled.

    What it should gain: Compute time shrinks by the ratio of the device's matmul rates; if the kernels are known,
    only that of the matmuls. Two fifths of that gain are likely.

    When to leave it: When bfloat16 is as fast (RM301): it needs no scaling. When the loop uses gradients between
    backward and step: clipping, for example, must unscale them first.
    """
    rates = dict(case.machine.rates) if case.machine is not None else {}
    half, brain, full = rates.get("float16"), rates.get("bfloat16", 0.0), rates.get("float32")
    if not step.device.startswith("cuda") or not half or not full or half <= max(full, WORTH_IT * brain):
        return None
    if _wide_products(case, "float16") == NOTHING_WIDE:
        return None
    saving = _by_rate(case, "float16", LIKELY_HALF_AUTOCAST, SURE_HALF_AUTOCAST, CASTS)
    change = Change("autocast", arguments=(("dtype", "float16"), ("device", "cuda")))
    return Option("float16 autocast, scaled loss", (change,), saving, Snippet(EXAMPLE_HALF_AUTOCAST))
