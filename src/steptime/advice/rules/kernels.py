"""ST4xx: kernels and operators that take longer than they must."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from steptime.advice.evidence import ChainUse, CopyUse, KernelUse, MachineUse, OperatorUse, Signal
from steptime.advice.kernels import (
    COPIES,
    MATRIX,
    POINTWISE,
    REACHABLE,
    above_peaks,
    elements,
    first_source,
    is_matrix_product,
    longest,
    moving,
    plain_name,
    shapes_of,
    spent,
    told,
)
from steptime.advice.line_evidence import profile_scale, steady_time
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.savings import modelled, ratio, total
from steptime.advice.signals import Signals
from steptime.quantities import SourceLine, format_bytes, format_duration, format_share

LEAST_SHARE_MEMORY_BOUND_POINTWISE = 0.2
"""Of the step: plain activations beside small matrix products reach a sixth on a CPU, and there is little to fuse; five
recordings of a planted chain showed 23 to 37 %."""
FILL = "fill"
"""Of every new tensor under deterministic algorithms: theirs to answer for (ST603), and no link of a chain."""
FEWEST_CALLS = 4.0
"""Fewer pointwise operators a step are no chain."""
FUSION_SAVES = 0.5
"""Of the bytes: the shortest chain, two operators in one, saves one write and one read of four. Longer chains save
more: (k - 1) / k."""
FUSION_SAVES_AT_LEAST = 0.3
"""Lower bound: operators with two inputs and values that backward needs have to be read or written all the same."""
NOT_FOR_BACKWARD = 0.75
"""Of what tensors in between cost: every other one is kept for backward, where a fused kernel still writes it once and
only saves the reading."""


@rule(
    "ST401",
    "memory-bound-pointwise",
    needs={Signal.STEP, Signal.OPERATORS},
    uses={Signal.COMPILATIONS, Signal.MACHINE, Signal.CATEGORIES, Signal.CHAINS, Signal.SETTINGS},
)
def memory_bound_pointwise(signals: Signals) -> Finding | None:
    """Chains of pointwise operators move bytes and compute nothing

    What it means
        Activations, norms, masks and arithmetic between the matrix products read a whole tensor and write a whole
        tensor each; the memory is busy, the arithmetic units are idle.

    How we know
        Each operator's floating-point operations and bytes are computed from its shapes and set against the peaks
        of this machine. Those that are pointwise and below the machine's balance are added up, without the optimiser.
        Fusing a chain of k keeps one of k passes over memory; half of the time is the promise, 30 % to all of it the
        interval. A transcendental function (tanh, exp, gelu) or random numbers (dropout) that a processor makes at less
        than a quarter of its bandwidth, or of what plain operators reach beside it, are bound by arithmetic, which
        fusing leaves, and do not count. A device's trace shows the chains themselves: kernels in a row on tensors of
        one size. There the bytes of the tensors in between, which a fused kernel neither writes nor reads, are at
        saving.

    What helps
        torch.compile fuses such chains; so do ready-made operators (scaled_dot_product_attention, layer_norm, a gelu
        in place of its formula), in-place operators where autograd allows them, and lower precision, which halves the
        bytes.

    When to ignore it
        When the tensors are small enough to stay in the cache: then dispatch is the price, see ST301 and ST302.
    """
    if signals.has(Signal.CHAINS):
        return _from_chains(signals)
    forced = FILL if signals.has(Signal.SETTINGS) and signals.settings.deterministic else ""
    machine = signals.machine if signals.has(Signal.MACHINE) else None
    chain = [use for use in moving(signals.operators, machine) if plain_name(use.name) != forced]
    profiled = sum(use.duration for use in chain)
    spent = steady_time(chain, signals.operators, signals.categories, machine)
    calls = sum(use.calls for use in chain)
    step = signals.step.duration.value
    if ratio(spent, step) < LEAST_SHARE_MEMORY_BOUND_POINTWISE or calls < FEWEST_CALLS:
        return None
    top = max(chain, key=_duration)
    summary = (
        f"{calls:.0f} pointwise operators take {format_duration(spent)} a step ({format_share(ratio(spent, step))})"
        f"{_traffic(chain, profiled, machine)}"
    )
    saving = modelled(FUSION_SAVES * spent, FUSION_SAVES_AT_LEAST * spent, spent, signals.step.steady)
    evidence = tuple(f"{use.name}: {format_duration(use.duration)} in {use.calls:.3g} calls" for use in _largest(chain))
    return memory_bound_pointwise.finding(
        summary, _advice(signals), saving, category="compute", source=top.source, evidence=evidence
    )


def _from_chains(signals: Signals) -> Finding | None:
    """By the kernels that follow one another: what the tensors in between cost."""
    duration = sum(chain.duration for chain in signals.chains)
    wasted = sum(_wasted(chain) for chain in signals.chains)
    moved, saved = sum(chain.bytes for chain in signals.chains), sum(chain.saved for chain in signals.chains)
    kernels = sum(chain.kernels for chain in signals.chains)
    share = format_share(ratio(duration, signals.step.duration.value))
    summary = (
        f"{kernels:.0f} pointwise kernels in chains take {format_duration(duration)} a step ({share}); "
        f"fused, they move {format_bytes(moved - saved)}, not {format_bytes(moved)}"
    )
    saving = modelled(NOT_FOR_BACKWARD * wasted, FUSION_SAVES_AT_LEAST * wasted, wasted, signals.step.steady)
    top = sorted(signals.chains, key=_wasted, reverse=True)
    evidence = tuple(f"{' → '.join(map(plain_name, chain.operators[:6]))}: {_told(chain)}" for chain in top[:3])
    source = next((chain.source for chain in top if chain.source is not None), None)
    return memory_bound_pointwise.finding(
        summary, _advice(signals), saving, category="compute", source=source, evidence=evidence
    )


def _wasted(chain: ChainUse) -> float:
    return chain.duration * ratio(chain.saved, chain.bytes)


def _told(chain: ChainUse) -> str:
    return (
        f"{format_duration(chain.duration)} in {chain.calls:.3g} chains a step, {format_bytes(chain.saved)} in between"
    )


def _duration(use: OperatorUse) -> float:
    return use.duration


def _largest(chain: list[OperatorUse]) -> list[OperatorUse]:
    return sorted(chain, key=_duration, reverse=True)[:3]


def _traffic(chain: list[OperatorUse], profiled: float, machine: MachineUse | None) -> str:
    moved = sum(use.bytes or 0.0 for use in chain)
    if not moved:
        return ""
    rate = f" at {format_bytes(ratio(moved, profiled) * 1e9)}/s" if machine is not None and machine.copy_bytes else ""
    return f", moving {format_bytes(moved)}{rate}"


def _advice(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return (
            "The job compiles, but these ran eagerly: bring them into the compiled part, or use ready-made operators."
        )
    return "Compile the model so that they are fused, or use ready-made operators (gelu, layer_norm, attention)."


LEAST_SHARE_COPIES_AND_CASTS = 0.1
"""Of the step: some copies are part of every model (layouts, gradients); from a tenth on one of them can go."""
SHORTEST_COPIES_AND_CASTS = 10_000.0
"""ns of a copy: a shorter one costs its dispatch, which is the matter of ST301 and ST302."""
AVOIDABLE = 0.5
"""Of their time: which copies are needed is not seen from here, so half is promised and a fifth is the lower bound."""


CAST = re.compile(
    r"(bfloat16|float16|half|float8|float|double)_?copy_kernel|load_with_cast|store_with_cast", re.IGNORECASE
)
"""Kernels of copy_ that convert on the way, as torch 1.13 to 2.13 name them."""


@rule("ST402", "copies-and-casts", needs={Signal.STEP, Signal.OPERATORS}, uses={Signal.CATEGORIES, Signal.KERNELS})
def copies_and_casts(signals: Signals) -> Finding | None:
    """Copies and type conversions take part of the step

    What it means
        Tensors are copied to another layout or type between the operators that use them: contiguous() after a
        transpose, float64 from NumPy, half and single precision in turns.

    How we know
        The profile times the copying operators in forward and backward (not the optimiser, not the move to the device);
        on a device, their kernels.

    What helps
        Convert once, at the input; keep one type and one layout through the model; use reshape and views; let autocast
        keep its cache; take data that is float32 already.

    When to ignore it
        When they belong to autocast on large matrix products: the products gain more than the copies cost.
    """
    if signals.has(Signal.KERNELS):
        return _from_kernels(signals)
    copies = [use for use in signals.operators if plain_name(use.name) in COPIES and _counts(use)]
    time = sum(use.duration for use in copies) * profile_scale(signals.operators, signals.categories)
    share = ratio(time, signals.step.duration.value)
    if share < LEAST_SHARE_COPIES_AND_CASTS:
        return None
    top = max(copies, key=lambda use: use.duration)
    moved = sum(use.bytes or 0.0 for use in copies)
    summary = (
        f"{sum(use.calls for use in copies):.0f} copies take {format_duration(time)} a step ({format_share(share)})"
        + (f", moving {format_bytes(moved)}" if moved else "")
        + f"; most of it {plain_name(top.name)}"
    )
    saving = modelled(AVOIDABLE * time, 0.2 * time, time, signals.step.steady)
    advice = "Convert type and layout once, at the input, and keep them through the model."
    return copies_and_casts.finding(summary, advice, saving, category="compute", source=top.source)


def _from_kernels(signals: Signals) -> Finding | None:
    """By the kernels of copies, apart from copies between host and device."""
    copies = [use for use in signals.kernels if plain_name(use.operator) in COPIES]
    time = spent(copies)
    share = ratio(time, signals.step.duration.value)
    if share < LEAST_SHARE_COPIES_AND_CASTS:
        return None
    casts = spent(use for use in copies if _casts(use))
    kind = "casts" if casts > time / 2 else "copies"
    moved = sum(use.bytes or 0.0 for use in copies)
    summary = (
        f"{sum(use.calls for use in copies):.0f} {kind} on the device take {format_duration(time)} a step "
        f"({format_share(share)})" + (f", moving {format_bytes(moved)}" if moved else "")
    )
    saving = modelled(AVOIDABLE * time, 0.2 * time, time, signals.step.steady)
    advice = (
        "Keep one dtype through the model, or compile it, so that the cast is part of the next kernel."
        if kind == "casts"
        else "Keep one layout through the model (channels_last, views), or compile it."
    )
    return copies_and_casts.finding(
        summary,
        advice,
        saving,
        category="compute",
        source=first_source(copies),
        evidence=tuple(map(told, longest(copies))),
    )


def _casts(use: KernelUse) -> bool:
    return CAST.search(use.name) is not None or plain_name(use.operator) == "_to_copy"


def _counts(use: OperatorUse) -> bool:
    """In the model, and long enough on average that the bytes are the price, not the dispatch."""
    return use.phase in ("", "forward", "backward") and ratio(use.duration, use.calls) >= SHORTEST_COPIES_AND_CASTS


LIKELY_IDLE_MATRIX_UNITS, SURE_IDLE_MATRIX_UNITS = 0.75, 0.4
"""Of the saving by the ratio of the peaks: products reach less of a higher upper bound, small ones much less (three
times as fast where eight would be the ratio, which is three quarters of that saving)."""
FORMATS = (
    ("tf32", 'torch.set_float32_matmul_precision("high")', "10 bits of mantissa in the products, same range"),
    ("bfloat16", "torch.autocast with bfloat16", "8 bits of mantissa, same range"),
    ("float16", "torch.autocast with float16 and a GradScaler", "11 bits of mantissa, a small range"),
)
"""What a matrix unit takes in place of float32: the gentlest first, with what it does to the numbers."""


@rule(
    "ST403",
    "idle-matrix-units",
    needs={Signal.STEP, Signal.KERNELS, Signal.MACHINE},
    instead_of=("dominant-operator",),
)
def idle_matrix_units(signals: Signals) -> Finding | None:
    """Matrix products run in single precision beside idle matrix units

    What it means
        The device has units that multiply matrices eight to sixteen times as fast as its ordinary ones do, but they
        take other dtypes than float32; products in float32 leave them idle.

    How we know
        The kernels of matrix products and convolutions with float32 arguments, whose names are those of kernels that
        do not use the matrix units; kernels whose names do not tell are left out. The prediction sets the ratio of the
        two peaks against the kernels' time, but never below what moving their bytes takes.

    What helps
        torch.set_float32_matmul_precision("high") lets float32 products use TF32 where the device has it (convolutions
        do so by default); torch.autocast with bfloat16 halves the memory traffic besides; with float16 a GradScaler
        is needed.

    When to ignore it
        When the numbers need all 24 bits (linear solvers, physics, some losses): then only those parts.
    """
    slow = [use for use in signals.kernels if _off_units(use)]
    best = _format(signals.machine)
    if not slow or best is None or not signals.machine.matrix_flops:
        return None
    (_, how, meaning), rate = best
    saved = sum(use.duration - _at_units(use, signals.machine, rate) for use in slow)
    share = format_share(ratio(spent(slow), signals.step.duration.value))
    summary = (
        f"Matrix products in float32, off the matrix units, take {format_duration(spent(slow))} a step ({share}) in "
        f"{sum(use.calls for use in slow):.4g} kernels"
    )
    saving = modelled(LIKELY_IDLE_MATRIX_UNITS * saved, SURE_IDLE_MATRIX_UNITS * saved, saved, signals.step.steady)
    return idle_matrix_units.finding(
        summary,
        f"Use {how} ({meaning}).",
        saving,
        category="compute",
        source=first_source(slow),
        evidence=tuple(map(told, longest(slow))),
    )


def _off_units(use: KernelUse) -> bool:
    return use.matrix_unit is False and use.dtype == "float32" and is_matrix_product(use)


def _format(machine: MachineUse) -> tuple[tuple[str, str, str], float] | None:
    """The gentlest format that the machine has a higher upper bound for than for float32."""
    rates = dict(machine.rates)
    plain = machine.matrix_flops or 0.0
    return next(((each, rates[each[0]]) for each in FORMATS if rates.get(each[0], 0.0) > plain), None)


def _at_units(use: KernelUse, machine: MachineUse, rate: float) -> float:
    """ns with the units as well used as the ordinary ones are now, no less than its bytes take."""
    scaled = use.duration * ratio(machine.matrix_flops or 0.0, rate)
    moving = ratio(use.bytes or 0.0, machine.copy_bytes or 0.0) * 1e9
    return min(use.duration, max(scaled, moving))


MOST_AWKWARD_DIMENSIONS, SURE_AWKWARD_DIMENSIONS = 0.5, 0.1
"""Of what lies between the kernels and their roofline: padding removes the copies and the narrow loads of misaligned
rows, not what small sizes or a bad tile lose; how much is which, no name tells."""
HALF = frozenset({"float16", "bfloat16"})
"""Formats that go to the matrix units, where alignment counts most."""


@rule("ST404", "awkward-dimensions", needs={Signal.STEP, Signal.KERNELS}, instead_of=("dominant-operator",))
def awkward_dimensions(signals: Signals) -> Finding | None:
    """Dimensions of matrix products miss the tiles of the matrix units

    What it means
        A matrix unit works on tiles, and loads 16 bytes at once: dimensions that are no multiple of 8 numbers of 16
        bits (4 of 32 bits) fall back to slower kernels or to padding on the way.

    How we know
        The shapes of the products are in the trace. Products of formats that the matrix units take, with a dimension
        that is no multiple, are set against their roofline; part of the difference is to be saved.

    What helps
        Round sizes up: a vocabulary of 50257 to 50304, classes of 1001 to 1008, hidden sizes to multiples of 64, the
        batch or the sequence to multiples of 8.

    When to ignore it
        When the dimension is the data's own and padding it would cost more products than it saves.
    """
    poor = [use for use in signals.kernels if use.dimensions and use.at_roofline is not None and _for_units(use)]
    lost = sum(max(0.0, use.duration - (use.at_roofline or 0.0)) for use in poor)
    if not lost:
        return None
    top = longest(poor)[0]
    share = format_share(ratio(spent(poor), signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in poor):.4g} matrix products with {', '.join(top.dimensions[:2])} take "
        f"{format_duration(spent(poor))} a step ({share})"
    )
    saving = modelled(MOST_AWKWARD_DIMENSIONS * lost, SURE_AWKWARD_DIMENSIONS * lost, lost, signals.step.steady)
    return awkward_dimensions.finding(
        summary,
        "Round these dimensions up to a multiple of 8 (64 for large ones).",
        saving,
        category="compute",
        source=first_source(poor),
        evidence=tuple(map(told, longest(poor))),
    )


def _for_units(use: KernelUse) -> bool:
    return use.dtype in HALF or use.matrix_unit is True


SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax", "_softmax_backward_data", "_masked_softmax"})
"""Forward and backward, with or without a mask."""
BETWEEN = POINTWISE | {"copy", "clone", "_to_copy", "masked_fill", "tril", "triu"}
"""What stands between the two products: scale, mask, dropout, casts."""
SHORTEST_UNFLASHED_ATTENTION = 32
"""Of a sequence: a softmax over fewer is the one of a classifier, or too small to matter."""
SURE_UNFLASHED_ATTENTION, MOST_UNFLASHED_ATTENTION = 0.5, 1.3
"""Of the passes over the weights: a fused kernel still computes them, from memory on the chip; above all of it, because
the two products no longer write and read them either."""


@rule(
    "ST405",
    "unflashed-attention",
    needs={Signal.STEP, Signal.KERNELS},
    instead_of=("memory-bound-pointwise", "dominant-operator"),
)
def unflashed_attention(signals: Signals) -> Finding | None:
    """Attention writes its weights to memory and reads them back

    What it means
        A product, a softmax and another product compute attention step by step: the matrix of weights, a row per query
        and a column per key, goes to memory and back several times. It grows with the square of the sequence.

    How we know
        A softmax over a tensor whose last two dimensions are those of the result of a batched matrix product in the
        same step, and every pointwise operator on tensors of just that size. The shapes are in the trace; without
        them (record_shapes) this is not seen. To be saved is the time of these passes; the products stay.

    What helps
        torch.nn.functional.scaled_dot_product_attention, which picks a fused kernel; in transformers
        attn_implementation="sdpa" or "flash_attention_2". It falls back to the slow path for float32 masks of some
        shapes, for head sizes above 256, and on old devices.

    When to ignore it
        When the weights themselves are needed (to look at them, or for a loss on them).
    """
    weights = _weights(signals.kernels)
    passes = [use for use in signals.kernels if _passes_over(use, weights)]
    if not passes:
        return None
    queries, keys = max(weights)
    time = spent(passes)
    share = format_share(ratio(time, signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in passes):.4g} passes over attention weights ({queries} x {keys}) take "
        f"{format_duration(time)} a step ({share})"
    )
    saving = modelled(time, SURE_UNFLASHED_ATTENTION * time, MOST_UNFLASHED_ATTENTION * time, signals.step.steady)
    return unflashed_attention.finding(
        summary,
        "Use torch.nn.functional.scaled_dot_product_attention, which fuses them.",
        saving,
        category="compute",
        source=first_source(passes),
        evidence=tuple(map(told, longest(passes))),
    )


def _weights(kernels: Iterable[KernelUse]) -> frozenset[tuple[int, int]]:
    """(queries, keys) of every softmax whose input is as large as the result of a batched product."""
    kernels = tuple(kernels)
    products = {_product(use) for use in kernels if plain_name(use.operator) in {"bmm", "baddbmm"}}
    found = set()
    for use in kernels:
        shapes = shapes_of(use.shapes)
        if plain_name(use.operator) not in SOFTMAX or not shapes or len(shapes[0]) < 3:
            continue
        queries, keys = shapes[0][-2:]
        if min(queries, keys) >= SHORTEST_UNFLASHED_ATTENTION and (elements(shapes[0]), queries, keys) in products:
            found.add((queries, keys))
    return frozenset(found)


def _product(use: KernelUse) -> tuple[int, int, int]:
    """(elements, rows, columns) of the result of a batched matrix product."""
    shapes = [shape for shape in shapes_of(use.shapes) if len(shape) == 3]
    if len(shapes) < 2:
        return (0, 0, 0)
    left, right = shapes[-2:]
    return (left[0] * left[1] * right[2], left[1], right[2])


def _passes_over(use: KernelUse, weights: frozenset[tuple[int, int]]) -> bool:
    """Whether a kernel that multiplies no matrices works on a whole matrix of weights."""
    name = plain_name(use.operator)
    shapes = shapes_of(use.shapes)
    whole = bool(shapes) and len(shapes[0]) >= 3 and shapes[0][-2:] in weights
    return whole and name not in MATRIX and (name in SOFTMAX or name in BETWEEN)


WORDS = {
    "DtoH": "from the device",
    "DtoD": "within the device",
    "PtoP": "between devices",
    "memset": "that fill memory",
}
"""Kinds of copies that are examined here; those to the device are the batch's, ST107."""
ADVICE = {
    "DtoH": "Read less often, and with non_blocking=True into pinned memory.",
    "DtoD": "Avoid contiguous() and clone(), or compile the model, so that the next kernel reads the original.",
    "PtoP": "Place what works together on one device, or copy on a stream of its own while kernels run.",
    "memset": "Allocate with empty() what is overwritten anyhow, and zero_grad(set_to_none=True).",
}


@rule("ST406", "exposed-copies", needs={Signal.STEP, Signal.COPIES})
def exposed_copies(signals: Signals) -> Finding | None:
    """Copies run while nothing else does

    What it means
        The device's copy engines move data while its arithmetic units idle: results on their way to the host, tensors
        that are laid out anew, memory that is filled.

    How we know
        The copies are in the trace with their direction and size; exposed is the time in which nothing but copies ran
        on any stream.

    What helps
        For copies to the host: fewer of them, pinned memory and non_blocking=True, a stream of their own. For copies
        within the device: one layout through the model, views, a compiled model. For fills:
        zero_grad(set_to_none=True), which is the default since torch 2.0.

    When to ignore it
        When it is a checkpoint or an evaluation that happened to fall into the trace.
    """
    shown = [use for use in signals.copies if use.kind in WORDS and use.exposed.value > 0]
    if not shown:
        return None
    top = max(shown, key=_exposed)
    same = [use for use in shown if use.kind == top.kind]
    saving = total(use.exposed for use in same)
    moved = sum(use.bytes for use in same)
    share = format_share(ratio(saving.value, signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in same):.4g} copies {WORDS[top.kind]} ({format_bytes(moved)}) run alone for "
        f"{format_duration(saving.value)} a step ({share})"
    )
    evidence = tuple(f"{use.operator or use.kind}: {format_duration(use.exposed.value)} exposed" for use in same[:3])
    return exposed_copies.finding(
        summary, ADVICE[top.kind], saving, category="copy", source=top.source, evidence=evidence
    )


def _exposed(use: CopyUse) -> float:
    return use.exposed.value


LEAST_PART = 0.4
"""Of the kernels' time: below it no single operator decides how long the step is."""
LEAST_STEP = 0.2
"""Of the step: a device that idles has other troubles."""


@rule("ST407", "dominant-operator", needs={Signal.STEP, Signal.KERNELS}, weight=Weight.NOTE)
def dominant_operator(signals: Signals) -> Finding | None:
    """One operator takes most of the time

    What it means
        Whatever else is made faster, this operator decides how long the step is.

    How we know
        The kernels' times are added by the operator that launched them. Where its arithmetic and bytes are known, what
        lies above the machine's peaks is to be saved, as far as good kernels come near them; else nothing is
        promised and this is a note.

    What helps
        Another implementation of this one operator: another layout (channels_last), another dtype, a fused
        form, another algorithm (torch.backends.cudnn.benchmark for convolutions of fixed size), a smaller size.

    When to ignore it
        When it is the matrix product that the model is made of, near its upper bound: then it is the work itself.
    """
    groups: dict[str, list[KernelUse]] = defaultdict(list)
    for use in signals.kernels:
        if use.operator and use.bound != "communication":
            groups[use.operator].append(use)
    name, uses = max(groups.items(), key=lambda item: spent(item[1]), default=("", []))
    time = spent(uses)
    part, share = ratio(time, spent(signals.kernels)), ratio(time, signals.step.duration.value)
    if part < LEAST_PART or share < LEAST_STEP:
        return None
    summary = f"{name} takes {format_duration(time)} a step ({format_share(share)}), more than any other operator"
    evidence = tuple(map(told, longest(uses)))
    source = first_source(uses)
    if any(use.at_roofline is None for use in uses):
        return dominant_operator.finding(summary, "Look at this operator first.", source=source, evidence=evidence)
    lost = above_peaks(uses)
    if ratio(lost, time) < 1 - REACHABLE:
        advice = "It runs near its upper bound: only less work, or a cheaper dtype, makes it faster."
        return dominant_operator.finding(summary, advice, source=source, evidence=evidence)
    saving = modelled(lost, 0.3 * lost, lost, signals.step.steady)
    advice = "It stays far below its upper bound: try another layout, dtype or implementation of it."
    return dominant_operator.finding(
        summary, advice, saving, category="compute", source=source, evidence=evidence, weight=Weight.FINDING
    )


ARITHMETIC = frozenset(
    {
        "add", "addcdiv", "addcmul", "div", "lerp", "mul", "reciprocal", "rsqrt", "rsub", "sqrt", "square", "sub",
        "_foreach_add", "_foreach_addcdiv", "_foreach_addcmul", "_foreach_div", "_foreach_lerp", "_foreach_mul",
        "_foreach_reciprocal", "_foreach_sqrt", "_foreach_sub", "_fused_adagrad", "_fused_adam", "_fused_adamw",
        "_fused_sgd",
    }
)  # fmt: skip
"""Operators of a few instructions an element, all of which a processor does for several elements at once."""
SLOW = 10.0
"""Times as long as copying as many bytes. The slowest of them, a square root, takes three to four on one thread of an
EPYC (Zen 4); on denormals 100, and an addition of a matrix and a transposed one 12 to 20."""
LARGEST = float(16 << 20)
"""Bytes of a call: larger tensors are new memory from the system each time, which can take as long (RM402)."""
SHORTEST_SLOW_ARITHMETIC = 20_000.0
"""ns of a call: a shorter one may be all dispatch."""
GRAIN = 8.0 * 32768
"""Bytes that one thread reads and writes at least: at::internal::GRAIN_SIZE elements of a float32 tensor. A smaller
operator has fewer threads than the copy had that measured the bandwidth."""
LEAST_SHARE_SLOW_ARITHMETIC = 0.05
"""Of the step."""
INPUT = ("input", "transfer")
"""Phases whose time is told by the rules of the input."""
SURE_SLOW_ARITHMETIC, LIKELY_SLOW_ARITHMETIC = 0.3, 0.9
"""Of what lies above three times the copy: which of the two causes it is, and whether it can go, is not seen here."""
NEEDED = 3.0


@rule(
    "ST408",
    "slow-arithmetic",
    needs={Signal.STEP, Signal.OPERATORS, Signal.MACHINE, Signal.SETTINGS},
    uses={Signal.CATEGORIES, Signal.KERNELS, Signal.LINES},
    instead_of=("memory-bound-pointwise", "optimizer-share"),
)
def slow_arithmetic(signals: Signals) -> Finding | None:
    """Simple arithmetic takes many times as long as its bytes

    What it means
        Additions, products and roots should take as long as memory needs to bring their tensors. Two things make a
        processor ten to a hundred times slower: numbers so near to zero that they are denormal (below 1.2e-38 in
        float32: squares of faint activations, an optimiser's averages of vanished gradients), and operands whose
        layouts differ (x + y.t()), which are read element by element.

    How we know
        The operator's bytes, computed from its shapes, at the copy bandwidth of this machine with as many threads:
        it took more than ten times that, with 20 us a call at least and 16 MB at most. A small tensor, which torch
        gives to fewer threads, has their part of the bandwidth. What lies above three times is the upper bound of what
        is to be saved. Processors differ: a Zen 4 is slow in roots and quotients of denormals only,
        others in products, too.

    What helps
        torch.set_flush_denormal(True) at the start of the script takes denormals for zero; `try` measures it. Better:
        keep values away from zero (an epsilon inside of the root, a larger eps of the optimiser, normalised inputs).
        Where layouts differ, .contiguous() once, outside of the loop.

    When to ignore it
        When the values below 1.2e-38 matter.
    """
    if signals.has(Signal.KERNELS):
        return None
    machine = signals.machine
    if not machine.measured or not machine.copy_bytes:
        return None
    rate = _Rate(machine.copy_bytes, signals.settings.intra_op_threads)
    scale = profile_scale(signals.operators, signals.categories)
    slow = [use for use in signals.operators if _is_slow(use, rate)]
    above = scale * sum(use.duration - NEEDED * rate.copied(use) for use in slow)
    if ratio(above, signals.step.duration.value) < LEAST_SHARE_SLOW_ARITHMETIC:
        return None
    top = max(slow, key=_duration)
    times = ratio(top.duration, rate.copied(top))
    flushed = signals.settings.denormals_flushed
    cause = "mixed layouts" if flushed else "denormal numbers or mixed layouts"
    share = format_share(ratio(scale * top.duration, signals.step.duration.value))
    summary = (
        f"{plain_name(top.name)} takes {format_duration(scale * top.duration)} a step ({share}), "
        f"{times:.0f}× a copy of its {format_bytes(top.bytes or 0.0)}: {cause}"
    )
    contiguous = "Make transposed operands .contiguous() once."
    keep = "Call torch.set_flush_denormal(True) first, or keep values away from zero. "
    saving = modelled(LIKELY_SLOW_ARITHMETIC * above, SURE_SLOW_ARITHMETIC * above, above, signals.step.steady)
    evidence = tuple(
        f"{use.name}: {format_duration(use.duration)} for {format_bytes(use.bytes or 0.0)} in {use.calls:.3g} calls"
        for use in sorted(slow, key=_duration, reverse=True)[:3]
    )
    advice = contiguous if flushed else keep + contiguous
    source = top.source or _line_that_names(plain_name(top.name), signals)
    return slow_arithmetic.finding(summary, advice, saving, category="compute", source=source, evidence=evidence)


def _line_that_names(operator: str, signals: Signals) -> SourceLine | None:
    """The only line of the training loop that calls a function of the operator's name: the stack of an operator that
    the loop itself calls begins above the loop."""
    lines = signals.lines if signals.has(Signal.LINES) else ()
    naming = [use.source for use in lines if re.search(rf"\b{re.escape(operator)}_?\(", use.source.text)]
    return naming[0] if len(naming) == 1 else None


@dataclass(frozen=True, slots=True)
class _Rate:
    """Of copies. bandwidth: B/s, read and written together, by so many threads."""

    bandwidth: float
    threads: int

    def copied(self, use: OperatorUse) -> float:
        """ns in which the threads that such a call gets copy as many bytes."""
        moved = use.bytes or 0.0
        threads = min(float(self.threads), max(1.0, ratio(moved, use.calls * GRAIN)))
        return moved / self.bandwidth * (self.threads / threads) * 1e9


def _is_slow(use: OperatorUse, rate: _Rate) -> bool:
    if plain_name(use.name) not in ARITHMETIC or use.phase in INPUT or not use.bytes or not use.calls:
        return False
    if use.duration < SHORTEST_SLOW_ARITHMETIC * use.calls or use.bytes > LARGEST * use.calls:
        return False
    return use.duration > SLOW * rate.copied(use)
