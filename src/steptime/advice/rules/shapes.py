"""ST4xx: sizes that leave a part of the device's units without work, or that need not be computed at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from steptime.advice.device_uses import MachineUse, RooflineUse, WrittenNormUse
from steptime.advice.evidence import Case
from steptime.advice.kernels import REACHABLE, about_kernels, plain_name, shapes_of
from steptime.advice.line_evidence import function_of, lines_around, sampled_lines, steady_time
from steptime.advice.memory_evidence import has_room
from steptime.advice.models import or_compile
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.rules.overhead import HELD_BACK
from steptime.advice.run_uses import CategoryUse, MemoryUse, StepSummary, WorkUse
from steptime.advice.savings import in_step, modelled, named, ratio, summed
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.tiles import filled, padded_head
from steptime.quantities import SourceLine, format_bytes, format_count, format_share, format_source

MOST_FILLED = 0.75
"""Fraction of the multiprocessors: a matmul that keeps so many of them busy is not what to change."""
FUSED_ATTENTION = frozenset(
    {
        "_flash_attention_forward", "_flash_attention_backward", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_backward", "_flash_attn_forward", "_flash_attn_backward",
    }
)  # fmt: skip
"""Operators whose kernels are made for few head dimensions, and compute with the next larger one."""
SMALL_WORK = 0.3
"""Fraction of the step in kernels that are too small for the device."""


@rule("ST414", "few-tiles", supersedes=("dominant-operator",))
def few_tiles(step: StepSummary, kernels: tuple[KernelUse, ...], second_order: bool | None = None) -> Finding | None:
    """Matmuls have fewer tiles than the device has multiprocessors

    What it means: A kernel cuts the output of a matmul into tiles, one for each block. With fewer tiles than
    multiprocessors, the other multiprocessors idle. With a few tiles more, the last ones run almost alone (wave
    quantisation). FLOP/s then depend on the sizes and not on the device.

    How we know: The number of tiles is the number of blocks in the kernel's grid. Some kernels fill any device with
    blocks (cuBLAS's nvjet); their number of tiles comes from the tile in the kernel's name and the operator's shapes.
    The number is compared with the device's multiprocessors; the rule fires if less than three quarters of them have
    work on average. The savings are the time that full waves would save, down to the roofline. The interval starts at
    the savings of tiles of half the size.

    What helps: More rows in one matmul (a larger batch, sequences packed together, several matmuls of one input as
    one); sizes that give full waves; kernels that split the sum (torch.compile with mode="max-autotune" tries
    them).

    When to ignore it: When other streams fill the device meanwhile.
    """
    few = [use for use in kernels if use.waves is not None and filled(use.name, use.waves) < MOST_FILLED]
    saved = sum(_unfilled(use) for use in few)
    if saved <= 0:
        return None
    least = sum(_unfilled(use, finer=2.0) for use in few)
    took, top = sum(use.duration for use in few), max(few, key=_unfilled)
    share = format_share(filled(top.name, top.waves or 0.0))
    summary = f"Matmuls whose tiles fill {share} of the device take {in_step(took, step)}"
    split = "" if second_order else ', or let torch.compile(mode="max-autotune") split their sums'
    advice = f"Give them more rows (batch, packing){split}."
    return about_kernels(few_tiles, few, summary, advice, modelled(saved, least, saved, step.steady))


def _unfilled(use: KernelUse, finer: float = 0.0) -> float:
    """ns per step that a matmul would take less with all multiprocessors at work; finer: with so many times as many
    tiles."""
    share = filled(use.name, use.waves or 0.0)
    better = filled(use.name, finer * (use.waves or 0.0)) if finer else 1.0
    lower = max(use.duration * ratio(share, better), (use.at_roofline or 0.0) / REACHABLE)
    return max(0.0, use.duration - lower)


@rule("ST415", "padded-heads")
def padded_heads(step: StepSummary, kernels: tuple[KernelUse, ...], case: Case) -> Finding | None:
    """Fused attention computes with larger heads than the model has

    What it means: Fused attention has kernels for a few head dimensions. A head in between is computed as the next
    larger one, padded with zeros: 80 as 96, 192 as 256 on AMD's devices.

    How we know: The head dimension in the operator's shapes is compared with the one that the kernel computes with.
    That is in the kernel's name (NVIDIA's flash attention), or it is the next one that the library has (AOTriton:
    powers of two). The savings are the padded part of the kernel's time. The interval starts at the same part of the
    shortest time at the device's peaks.

    What helps: Another number of heads for the same width: heads of 64 or 128.

    When to ignore it: When the weights are given.
    """
    device = case.machine.name if case.machine is not None else ""
    padded = [(use, size, whole) for use in kernels for size, whole in _heads(use, device) if whole > size]
    if not padded:
        return None
    saved = sum(use.duration * (1 - size / whole) for use, size, whole in padded)
    least = sum((use.at_roofline or 0.0) * (1 - size / whole) for use, size, whole in padded)
    _, size, whole = max(padded, key=lambda each: each[0].duration)
    uses = [use for use, _, _ in padded]
    took = in_step(sum(use.duration for use in uses), step)
    summary = f"Attention pads heads of {size} to {whole}; its kernels take {took}"
    advice = "Choose heads of 64 or 128 numbers, or of a size that the kernels have: more or fewer for the same width."
    return about_kernels(padded_heads, uses, summary, advice, modelled(saved, least, saved, step.steady))


def _heads(use: KernelUse, device: str) -> list[tuple[int, int]]:
    """(head dimension, the one that its kernel computes with) of fused attention."""
    shapes = shapes_of(use.shapes)
    if plain_name(use.operator) not in FUSED_ATTENTION or use.bound == "latency" or not shapes or len(shapes[0]) != 4:
        return []
    size = shapes[0][-1]
    return [(size, padded_head(use.name, size, device))] if size > 0 else []


@rule("ST416", "written-out-norm", supersedes=("memory-bound-pointwise",))
def written_out_norm(
    step: StepSummary, machine: MachineUse, written_norms: tuple[WrittenNormUse, ...], second_order: bool | None = None
) -> Finding | None:
    """A layer norm or RMS norm is written out

    What it means: A norm written as mean, square, root and product is five to ten kernels, each of which reads and
    writes the whole tensor, and twice as many in backward. The ready-made operator reads it once and writes it
    once.

    How we know: The trace has kernels in a row: a mean (or variance) over the last dimension, a root of its result, a
    product with the tensor; and the kernels of their backward. A ready-made norm needs one pass forward (two tensors)
    and one backward (three), at the bandwidth that a good kernel reaches on the device. The savings are the kernels'
    time above that.

    What helps: torch.nn.functional.layer_norm, and rms_norm from torch 2.4 on; or torch.compile, which fuses the
    kernels.

    When to ignore it: When the norm is another one than these two.
    """
    rate, norms = machine.copy_bytes, written_norms
    if not rate:
        return None
    took = sum(use.duration for use in norms)
    ideal = sum(use.bytes for use in norms) / rate * 1e9
    saved, least = took - ideal / REACHABLE, took - ideal / REACHABLE**2
    if saved <= 0:
        return None
    top = max(norms, key=lambda use: use.duration)
    calls, kernels = sum(use.calls for use in norms), sum(use.kernels for use in norms)
    where = f" at {format_source(top.source)}" if top.source is not None else ""
    return written_out_norm.finding(
        f"{format_count(calls, top.kind)} written out{where}: {kernels:.0f} kernels, {in_step(took, step)}",
        f"Call torch.nn.functional.{top.kind.lower().replace(' ', '_')}{or_compile(second_order, 'the function')}.",
        modelled(saved, max(0.0, least), saved, step.steady),
        category="compute",
        source=top.source,
        evidence=tuple(map(_as_evidence, norms[:3])),
    )


def _as_evidence(use: WrittenNormUse) -> str:
    return f"{use.kind} of {list(use.shape)}: {', '.join(use.operators)}; one pass moves {format_bytes(use.bytes)}"


@rule("ST417", "room-for-batch", weight=Weight.NOTE)
def room_for_batch(
    step: StepSummary, categories: tuple[CategoryUse, ...], roofline: RooflineUse, memory: MemoryUse
) -> Finding | None:
    """The step is too small for the device, whose memory is mostly free

    What it means: Kernels that are too small to fill the device take nearly as long with a larger batch. As long as
    memory is free, more samples cost little more time. (If the device waits for launches, ST302 fires with the same
    advice.)

    How we know: The roofline shows which kernels are bound by latency. The rule fires if these take 30 % of the step
    or more, and the peak of the device's memory leaves room for a larger batch.

    What helps: A larger batch, with a learning rate that fits it; `steptime diagnose` of recordings at several
    sizes shows where the gain ends.

    When to ignore it: When the batch is given: by the method, by the data, or by the sum over all ranks.
    """
    duration = step.duration.value
    launching, small = named(categories, "overhead"), roofline.latency
    held_back = launching is not None and ratio(launching.duration.value, duration) >= HELD_BACK
    if not has_room(memory) or held_back or ratio(small, duration) < SMALL_WORK:
        return None
    held = f"{format_bytes(memory.peak)} of {format_bytes(memory.capacity or 0)}"
    summary = f"Kernels too small for the device take {in_step(small, step)}, and {held} is used"
    times = f"{(memory.capacity or 0) / max(memory.peak, 1):.0f}"
    advice = f"A larger batch takes little longer here; the memory has room for {times} times as much."
    return room_for_batch.finding(summary, advice)


@dataclass(frozen=True, slots=True)
class _SlowOperators:
    """Operators of a slow way, by their plain names. phase: theirs, "" for any. sure, likely, most: fraction of their
    time that the other way saves."""

    operators: frozenset[str]
    phase: str
    sure: float
    likely: float
    most: float


@dataclass(frozen=True, slots=True)
class _Way:
    """Slow way to a result on a CPU. mark: of the lines that ask for it, None for any line. masks: operator that runs
    as often where the other way does not fit, "" for none."""

    parts: tuple[_SlowOperators, ...]
    mark: re.Pattern[str] | None
    masks: str
    what: str
    advice: str


SLOW_WAYS = (
    _Way(
        (
            _SlowOperators(frozenset({"index"}), "forward", 0.3, 0.65, 0.8),
            _SlowOperators(frozenset({"_index_put_impl"}), "backward", 0.0, 0.2, 0.87),
        ),
        re.compile(r"[\w\])]\[[^\W\d][\w.]*(\[\d+\])?\]"),
        "nonzero",
        "x[index] reads rows in a general way, and adds up their gradients one by one",
        "Use x.index_select(0, index) for one index of row numbers: the same result, and faster in both directions.",
    ),
    _Way(
        (
            _SlowOperators(
                frozenset(
                    {"_slow_conv2d_forward", "_slow_conv2d_backward", "slow_conv3d_forward", "slow_conv_transpose2d",
                     "slow_conv_transpose3d", "slow_conv_dilated2d", "slow_conv_dilated3d"}
                ), "", 0.05, 0.3, 0.6,
            ),
        ), None, "",
        "Convolutions run without oneDNN",
        "Switch it on (torch.backends.mkldnn.enabled), and give it float32 or bfloat16.",
    ),
)  # fmt: skip
"""Fractions as measured on two CPUs each (torch 2.13), one thread: x[index] against index_select in six sizes (100 to
100,000 rows of 4 to 64 numbers, 2,000 to 100,000 indices; EPYC): forward 60 to 80 % less, backward 19 % more to 61 %
less; index_put_ that accumulates against index_add_ in seven sizes on a Xeon: 7 to 87 % less, 32 % in the middle.
Convolutions of 3 by 3 with and without oneDNN in three (16 and 64 channels 28 and 30 % less, 3 none; Xeon)."""
LEAST_SLOW = 0.05
"""Fraction of the step in a slow way, from which on it is reported."""


@rule("ST419", "slow-way", supersedes=("dominant-operator",))
def slow_way(step: StepSummary, operators: tuple[OperatorUse, ...], case: Case) -> Iterator[Finding]:
    """An operator is a slow way to a result that another operator computes faster

    What it means: torch has several operators for some results. x[index] reads rows, and its backward adds them in
    a general way that fits any index; index_select is faster for a single index of integers. Convolutions that
    oneDNN does not support (another dtype, or switched off) are unfolded into matrices first.

    How we know: The profile has the operator's name and time. The savings are a fraction of that time. The faster
    operator was measured against it in several sizes on two CPUs; the interval is as wide as these measurements
    differ.

    What helps: The operator that the finding names. Results are the same except for rounding.

    When to ignore it: When the index is a mask, or one of several: index_select takes neither.
    """
    if step.device != "cpu":
        return
    for way in SLOW_WAYS:
        groups = [
            [each for each in operators if plain_name(each.name) in part.operators and part.phase in ("", each.phase)]
            for part in way.parts
        ]
        times = [steady_time(uses, operators, case.categories, case.machine) for uses in groups]
        spent = sum(times)
        if ratio(spent, step.duration.value) < LEAST_SLOW:
            continue
        use = max((each for uses in groups for each in uses), key=lambda use: use.duration)
        masks = sum(e.calls for e in operators if plain_name(e.name) == way.masks and e.phase == use.phase)
        source = _asking_line(case, use, way.mark)
        if (source is None and use.source is not None) or 2 * masks >= use.calls:
            continue
        likely, sure, most = (
            sum(time * getattr(part, name) for part, time in zip(way.parts, times, strict=True))
            for name in ("likely", "sure", "most")
        )
        saving = modelled(likely, sure, most, step.steady)
        summary = f"{way.what}: {in_step(spent, step)}"
        yield slow_way.finding(summary, way.advice, saving, category="compute", source=source)


PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
MAKING = frozenset({"scatter", "fill", "zero", "copy", "eq", "one_hot", "aminmax"})
"""Operators that multiply, and that one-hot vectors are made by."""
LIKELY_LOOKUP, SURE_LOOKUP = 0.9, 0.4
"""Fraction of the time of product and vectors that a lookup likely and surely saves: it reads rows of the table, whose
gradient is as large as before."""


@rule("ST420", "one-hot-product", supersedes=("dominant-operator", "work-without-gradient", "outside-model"))
def one_hot_product(
    step: StepSummary, works: tuple[WorkUse, ...], operators: tuple[OperatorUse, ...], case: Case
) -> Iterator[Finding]:
    """Rows of a table are looked up by a product with one-hot vectors

    What it means: A one-hot vector (zeros with a single one) times a matrix is a row of the matrix. The matmul
    multiplies and adds all the zeros, and the vectors are written and read, too.

    How we know: In a few steps, the results of lines are examined: tensors in main memory whose rows have 32 numbers
    or more, with a single one each in eight sampled rows. Matmuls in the same function count, forward and backward:
    as many as there are such results. The time of the code that makes the vectors is added. The savings are nine
    tenths of the sum; the interval starts at 40 %.

    What helps: torch.nn.functional.embedding(index, table), or table[index]; for a sum of rows embedding_bag. As the
    input of a linear layer: an embedding of its transposed weight.

    When to ignore it: When the vectors are soft (smoothed labels, mixtures) in most steps.
    """
    for use in works:
        own = [each for each in operators if each.source and function_of(each.source) == function_of(use.source)]
        products = [each for each in own if plain_name(each.name) in PRODUCTS]
        making = [each for each in own if plain_name(each.name) in MAKING and each.phase != "backward"]
        calls = sum(each.calls for each in products if each.phase != "backward")
        if step.device != "cpu" or use.kind != "one-hot" or not calls:
            continue
        multiplied, made = (steady_time(uses, operators, case.categories, case.machine) for uses in (products, making))
        spent = min(1.0, ratio(use.evaluations, calls)) * multiplied + made
        if ratio(spent, step.duration.value) >= LEAST_SLOW:
            yield one_hot_product.finding(
                f"One-hot vectors of {use.what} are multiplied to look rows up: {in_step(spent, step)}",
                "Index the table: torch.nn.functional.embedding(index, table) gives the same rows.",
                modelled(LIKELY_LOOKUP * spent, SURE_LOOKUP * spent, spent, step.steady),
                category="compute",
                source=use.source,
                evidence=(use.source.text,) if use.source.text else (),
            )


def _asking_line(case: Case, use: OperatorUse, mark: re.Pattern[str] | None) -> SourceLine | None:
    """The line with most time of those with the mark in the function that calls an operator; its own place where no
    line of it is known; None where no line has the mark."""
    if use.source is None or mark is None:
        return use.place
    lines = lines_around(case.lines, case.paths, use.source)
    timed = ((line.source, line.duration.value) for line in lines)
    spent = summed((*sampled_lines(case.paths, use.source).items(), *timed))
    marked = [line for line in spent if mark.search(line.text)]
    if not any(line.text for line in spent):
        return use.place
    return max(marked, key=lambda line: spent[line], default=None)
