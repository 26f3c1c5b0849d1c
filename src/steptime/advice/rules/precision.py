"""ST4xx: dtypes that are wider than what the device multiplies and moves fastest."""

from __future__ import annotations

from steptime.advice.device_uses import MachineUse, RooflineUse, ScalingUse
from steptime.advice.kernels import EMPTY_KERNEL, about_kernels, is_matmul, plain_name, tensor_core_name, time_in
from steptime.advice.rule import Finding, rule
from steptime.advice.run_uses import CategoryUse, StepSummary
from steptime.advice.savings import in_step, modelled, named, partly, ratio, total
from steptime.analysis.roofline import KernelUse
from steptime.quantities import format_count, format_duration

SURE_UNITS = 0.4
"""Fraction of the saving by the ratio of the peaks, which is the most that can come: matmuls reach less of a higher
upper bound, small ones much less. A GPT of 10.7 M parameters and linear layers of 2048 reached 0.92 and 0.96 of it in
TF32 (H200, torch 2.11)."""
FORMATS = (
    ("tf32", 'torch.set_float32_matmul_precision("high")', "10 bits of mantissa in the matmuls, same range"),
    ("bfloat16", "torch.autocast with bfloat16", "8 bits of mantissa, same range"),
    ("float16", "torch.autocast with float16 and a GradScaler", "11 bits of mantissa, a small range"),
)
"""Formats that a Tensor Core takes in place of float32: the gentlest first, with its effect on the numbers."""
DOUBLE = "float64"
DOUBLE_SAVES, DOUBLE_SAVES_AT_LEAST = 0.5, 0.3
"""Fraction of the computing: half of the bytes and of the vector instructions, less where operators are small."""
FOLLOWING = frozenset(
    {
        "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update",
        "native_batch_norm_backward", "cudnn_batch_norm_backward", "miopen_batch_norm_backward",
        "batch_norm_backward", "relu", "clamp_min", "threshold_backward", "leaky_relu", "leaky_relu_backward", "elu",
        "elu_backward", "gelu", "gelu_backward", "silu", "silu_backward", "mish", "mish_backward", "hardswish",
        "hardswish_backward", "hardtanh", "hardtanh_backward", "sigmoid", "sigmoid_backward", "tanh", "tanh_backward",
        "native_dropout", "native_dropout_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward",
        "max_pool3d_with_indices", "max_pool3d_with_indices_backward", "avg_pool2d", "avg_pool2d_backward",
        "avg_pool3d", "avg_pool3d_backward", "_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "mean", "cat",
        "upsample_bilinear2d", "upsample_bilinear2d_backward", "upsample_nearest2d", "upsample_nearest2d_backward",
    }
)  # fmt: skip
"""Operators that compute in the dtype of their inputs under autocast (torch's documentation of amp lists those
that do not, layer_norm and softmax among them), and that no optimizer calls."""
NARROWER = 0.5
"""Fraction of the bytes."""
SURE_NARROWER = 0.3
"""Fraction of the saving by rates and bytes. Of twenty training scripts on one A100 (NVIDIA's DeepLearningExamples for
PyTorch), mixed precision made nineteen faster than TF32, 1.05 to 2.65 times, 1.5 in the median: a third of the step,
where rates and bytes promise up to a half of the kernels. An embedding model lost. Convolutions gain more with
channels_last, where they stop changing layouts and norms have better kernels: so what a perfect kernel saves is the
most."""
AUTOCAST = "Use torch.autocast with bfloat16 (8 bits of mantissa, same range), and channels_last for convolutions."
AS_FAST = 1.1
"""Times the rate of bfloat16: measured rates of the two differ by some percent where the units are the same."""
LEAST_WIDE = 0.1
"""Fraction of the step in kernels that would gain."""


@rule("ST403", "tensor-cores-unused", supersedes=("dominant-operator",))
def tensor_cores_unused(step: StepSummary, machine: MachineUse, kernels: tuple[KernelUse, ...]) -> Finding | None:
    """float32 matmuls run without Tensor Cores or matrix cores

    What it means: The device has units that multiply matrices eight to sixteen times as fast as its ordinary ones,
    but they need dtypes other than float32. Matmuls in float32 leave them idle.

    How we know: The trace has the kernels of matmuls and convolutions with their arguments. A kernel counts if its
    arguments are float32 and its name is one of a kernel without Tensor Cores; kernels with unknown names do not
    count. The prediction scales the kernel's time by the ratio of the device's matmul rates, in float32 and in the
    advised dtype, but never below the time to move its bytes. The savings are the difference; the interval starts at
    40 % of it.

    What helps: torch.set_float32_matmul_precision("high") lets float32 matmuls use TF32 where the device has it
    (convolutions do so by default). torch.autocast with bfloat16 also halves the memory traffic. float16 needs a
    GradScaler.

    When to ignore it: When the numbers need all 24 bits (linear solvers, physics, some losses): then keep only
    those parts in float32.
    """
    plainly = (use for use in kernels if use.tensor_cores is False and use.dtype == "float32")
    slow = [use for use in plainly if is_matmul(use)]
    rates, plain = dict(machine.rates), machine.matrix_flops
    faster = [each for each in FORMATS if rates.get(each[0], 0.0) > (plain or 0.0)]
    if not slow or not faster or not plain:
        return None
    dtype, how, meaning = faster[0]
    saved = sum(use.duration - _at_units(use, machine, ratio(plain, rates[dtype])) for use in slow)
    calls = format_count(sum(use.calls for use in slow), "kernel")
    units, took = tensor_core_name(machine.name), in_step(time_in(slow), step)
    summary = f"float32 matmuls and convolutions run without {units}: {took} in {calls}"
    saving = partly(saved, 1.0, SURE_UNITS, step)
    return about_kernels(tensor_cores_unused, slow, summary, f"Use {how} ({meaning}).", saving)


def _at_units(use: KernelUse, machine: MachineUse, faster: float, narrower: float = 1.0) -> float:
    """ns with the units as well used as they or the ordinary ones are now, no less than its bytes take, of which so
    many stay."""
    moving = ratio(narrower * (use.bytes or 0.0), machine.copy_bytes or 0.0) * 1e9
    return min(use.duration, max(use.duration * faster, moving))


def _perfect(use: KernelUse, machine: MachineUse, rate: float) -> float:
    """ns of kernels that reach the machine's peaks on half of the bytes; rate: of matmuls, FLOP/s. Without a model,
    half."""
    if use.bytes is None or not machine.copy_bytes:
        return NARROWER * use.duration
    product = (use.flops or 0.0) if is_matmul(use) else 0.0
    least = max(product / rate, NARROWER * use.bytes / machine.copy_bytes) * 1e9
    return min(use.duration, max(least, use.calls * EMPTY_KERNEL))


@rule("ST413", "single-precision", supersedes=("dominant-operator",))
def single_precision(step: StepSummary, machine: MachineUse, kernels: tuple[KernelUse, ...]) -> Finding | None:
    """Model and activations are in float32 on a device that is faster in bfloat16

    What it means: The Tensor Cores compute float32 matmuls as TF32, at half of their rate for bfloat16, and each
    activation in memory is twice as large as it needs to be.

    How we know: Two kinds of kernels with float32 arguments count. The first are matmuls and convolutions that use
    the Tensor Cores. The second are memory-bound operators that follow them (batch norms, activations, pooling);
    after convolutions, latency-bound ones count, too. The upper end of the savings assumes that these kernels reach
    the machine's bfloat16 peak with half of the bytes. The lower end is a third of the gain that the ratio of the two
    rates and half of the bytes give. Layer norms, softmax, losses and the optimizer do not count, because they stay
    in float32 under autocast.

    What helps: torch.autocast("cuda", dtype=torch.bfloat16) around forward and loss; parameters stay in float32.
    For convolutions also channels_last, which their half-precision kernels prefer.

    When to ignore it: When the numbers need the bits: then keep those parts in float32 with autocast(enabled=False).
    """
    rates = dict(machine.rates)
    full, half = rates.get("tf32", 0.0), rates.get("bfloat16", 0.0)
    wide = [use for use in kernels if use.dtype in ("float32", "tf32")]
    products = [use for use in wide if is_matmul(use) and use.tensor_cores is not False]
    if not full or half <= full or not products:
        return None
    bounds = ("memory", "latency") if any("convolution" in use.operator for use in products) else ("memory",)
    behind = [use for use in wide if use.bound in bounds and plain_name(use.operator) in FOLLOWING]
    if time_in([*products, *behind]) < LEAST_WIDE * step.duration.value:
        return None
    by_rate = sum(use.duration - _at_units(use, machine, ratio(full, half), NARROWER) for use in products)
    sure = SURE_NARROWER * (by_rate + NARROWER * time_in(behind))
    most = sum(use.duration - _perfect(use, machine, half) for use in (*products, *behind))
    saving = modelled(most, sure, most, step.steady)
    took = in_step(time_in([*products, *behind]), step)
    what = "matmuls, norms and activations" if behind else "matmuls"
    summary = f"The model's {what} are in float32, {took}; bfloat16 is faster"
    return about_kernels(single_precision, [*products, *behind], summary, AUTOCAST, saving)


@rule("ST418", "loss-scaling")
def loss_scaling(step: StepSummary, machine: MachineUse, scaling: ScalingUse) -> Finding | None:
    """A gradient scaler on a device for which bfloat16 needs none

    What it means: float16 has a small range. The loss is scaled up, every gradient is checked for infinities and
    scaled back, and the CPU waits for the result of that check before the update. bfloat16 has the range of float32
    and needs none of this; devices from Ampere on (AMD: MI200) multiply it as fast.

    How we know: The trace shows three times: the scaler's kernels, the device's idle time for their launches, and its
    idle time after the read that the update waits for. The savings are their sum. The rule fires only if the device's
    Tensor Cores are as fast in bfloat16 as in float16 (within a tenth).

    What helps: torch.autocast with dtype=torch.bfloat16, and backward and step without the scaler; clipping needs no
    unscale_() then.

    When to ignore it: When the three more bits of float16 matter, or the weights are given in float16.
    """
    use, rates = scaling, dict(machine.rates)
    if rates.get("bfloat16", 0.0) * AS_FAST < rates.get("float16", 0.0) or not rates.get("bfloat16"):
        return None
    saving = total((use.kernels, use.launching, use.waiting))
    summary = f"Scaling the loss for float16 takes {in_step(saving.value, step)}; bfloat16 needs none"
    advice = "Use torch.autocast with dtype=torch.bfloat16, and backward and step without the GradScaler."
    kernels, launching, waiting = (format_duration(each.value) for each in (use.kernels, use.launching, use.waiting))
    evidence = [f"Its kernels run for {kernels}; the device idles {launching} for them, and {waiting} after its read."]
    if step.skipped:
        evidence.append(f"{step.skipped} of {step.scaled} updates were left out.")
    return loss_scaling.finding(summary, advice, saving, evidence=tuple(evidence))


@rule("ST409", "double-precision", supersedes=("dominant-operator",))
def double_precision(step: StepSummary, categories: tuple[CategoryUse, ...], roofline: RooflineUse) -> Finding | None:
    """The arithmetic is done in double precision

    What it means: Most of the step's arithmetic is in float64. Every number takes twice the bytes, and a
    processor's vector holds half as many. GPUs made for scientific computing (A100, H100) compute float64 at half the
    rate of float32, most others at a 32nd or a 64th. float64 data mostly comes from NumPy, whose arrays are float64 by
    default.

    How we know: The trace has the dtype and the FLOPs of the operators. The rule fires if float64 is the dtype with
    most of the FLOPs. The savings are half of the computing time, without operators that are bound by latency. The
    lower end is 30 % of the time of operators that are bound by arithmetic or memory.

    What helps: array.astype(np.float32) or torch.from_numpy(array).float() where the data is made; no .double(), and no
    torch.set_default_dtype(torch.float64).

    When to ignore it: When the method needs it: a solver, a covariance that is nearly singular, a reference run.
    """
    computing = named(categories, "compute")
    if roofline.dtype != DOUBLE or computing is None or not roofline.flops:
        return None
    spent = computing.duration.value
    summary = f"Most of the arithmetic is in float64; computing takes {in_step(spent, step)}"
    advice = "Make data and model float32: astype(np.float32) where the data is made, no .double(), float32 as default."
    bound, small = roofline.compute + roofline.memory, roofline.latency
    whole = bound + small + roofline.unmodelled
    likely = DOUBLE_SAVES * spent * (1 - ratio(small, whole))
    saving = modelled(likely, DOUBLE_SAVES_AT_LEAST * spent * ratio(bound, whole), likely, step.steady)
    return double_precision.finding(summary, advice, saving, category="compute")
