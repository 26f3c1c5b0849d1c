"""ST4xx: kernels and operators that take longer than they must."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from steptime.advice.device_uses import ChainUse, CopyUse, MachineUse
from steptime.advice.evidence import Case, LineUse
from steptime.advice.kernels import (
    COPIES,
    MATRIX,
    POINTWISE,
    REACHABLE,
    about_kernels,
    above_peaks,
    as_evidence,
    elements,
    first_source,
    longest,
    moving,
    plain_name,
    shapes_of,
    time_in,
)
from steptime.advice.line_evidence import calls_function, profile_scale, steady_time
from steptime.advice.models import REFUSED, or_compile
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.run_uses import Contention, SettingsUse, StepSummary
from steptime.advice.savings import capped, in_step, modelled, partly, ratio, total
from steptime.advice.step_evidence import FULL
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.quantities import Estimate, SourceLine, format_bytes, format_count, format_duration
from steptime.trace.vendors import BUCKET_TO_GRADIENT, is_compiled

LEAST_SHARE_POINTWISE = 0.2
"""Fraction of the step: plain activations next to small matmuls reach a sixth on a CPU, and there is little to
fuse; five recordings of a planted chain showed 23 to 37 %."""
FILLS = frozenset({"fill", "zero"})
"""They read nothing, so that no chain goes through them: gradients that are mostly zero, new tensors under
deterministic algorithms (ST603)."""
FEWEST_CALLS = 4.0
"""Fewer pointwise operators per step are no chain."""
FUSION_SAVES = 0.5
"""Fraction of the bytes: the shortest chain, two operators in one, saves one write and one read of four. Longer chains
save more: (k - 1) / k."""
FUSION_SAVES_AT_LEAST = 0.3
"""Lower bound: operators with two inputs and values that backward needs have to be read or written all the same."""
NOT_FOR_BACKWARD = 0.75
"""Fraction of what tensors in between cost: every other one is kept for backward, where a fused kernel still writes it
once and only saves the reading."""
LEAST_SHARE_COPIES = 0.1
"""Fraction of the step: some copies are part of every model (layouts, gradients); from a tenth on one of them can
go."""
SHORTEST_COPY = 10_000.0
"""ns of a copy: a shorter one costs its dispatch, which is the matter of ST301 and ST302."""
AVOIDABLE, SURELY_AVOIDABLE = 0.5, 0.2
"""Fraction of their time: which copies are needed is not seen from here, so half is promised and a fifth is the lower
bound."""
CAST = re.compile(
    r"(bfloat16|float16|half|float8|float|double)_?copy_kernel|load_with_cast|store_with_cast", re.IGNORECASE
)
"""Kernels of copy_ that convert on the way, as torch 1.13 to 2.13 name them."""
LIKELY_ALIGNED, SURE_ALIGNED = 0.5, 0.1
"""Fraction of what is between the kernels and their roofline: padding removes the copies and the narrow loads of
misaligned rows, not what small sizes or a bad tile lose; how much is which, no name shows."""
HALF = frozenset({"float16", "bfloat16"})
"""Formats that go to the Tensor Cores, where alignment counts most."""
SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax", "_softmax_backward_data", "_masked_softmax"})
"""Forward and backward, with or without a mask."""
BETWEEN = POINTWISE | {"copy", "clone", "_to_copy", "masked_fill", "tril", "triu"}
"""Operators between the two matmuls: scale, mask, dropout, casts."""
SHORTEST_SEQUENCE = 32
"""Least length of a sequence: a softmax over fewer is the one of a classifier, or too small to matter."""
SURE_PASSES, MOST_PASSES = 0.5, 1.3
"""Fraction of the passes over the weights: a fused kernel still computes them, from memory on the chip; above all of
it, because the two matmuls no longer write and read them either."""
COPIES_OF = {
    "DtoH": (
        "from the device",
        "Read less often, or copy with non_blocking=True into pinned memory and wait for an event before you read.",
    ),
    "DtoD": (
        "within the device",
        "Avoid contiguous() and clone(), so that the next kernel reads the original.",
    ),
    "PtoP": (
        "between devices",
        "Put tensors that are used together on one device, or copy on a stream of its own while kernels run.",
    ),
    "memset": (
        "that fill memory",
        "Use empty() for tensors that are overwritten anyway, and zero_grad(set_to_none=True).",
    ),
}
"""Kinds of copies that are examined here, in words, and what to do; those to the device are the batch's, ST107."""
LEAST_PART = 0.4
"""Fraction of the kernels' time: below it no single operator decides how long the step is."""
LEAST_STEP = 0.2
"""Fraction of the step: a device that idles has other troubles."""
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
SHORTEST_CALL = 20_000.0
"""ns of a call, and of each tensor in a call on many: a shorter one may be all dispatch. By hand, _fused_adamw took 7
to 10 us for each of 27 tensors of 1,238 elements, and 23 in a job of as many, which flushing denormals did not speed up
beyond what its runs differ by (Xeon, 2 CPUs, torch 2.13)."""
GRAIN = 8.0 * 32768
"""Bytes that one thread reads and writes at least: at::internal::GRAIN_SIZE elements of a float32 tensor. A smaller
operator has fewer threads than the copy had that measured the bandwidth."""
LEAST_SHARE_ARITHMETIC = 0.05
"""Fraction of the step."""
INPUT = ("input", "transfer")
"""Phases whose time the rules of the input report."""
SURE_ARITHMETIC, LIKELY_ARITHMETIC = 0.3, 0.9
"""Fraction of what is above three times the copy: which of the two causes it is, and whether it can go, is not seen
here."""
NEEDED = 3.0
LEAST_WITHOUT_GRADIENT = 0.1
"""Fraction of the step: masks and positions are cheap, and not worth a buffer."""
CONSTANT = 0.1
"""Fraction of the work without gradients: what is the same in each step at least. How much is so does not show in
shapes."""
MOSTLY_UNREACHED = 0.7
"""Fraction of the work without gradients that needs one, for it to be what no loss uses."""
MOSTLY_THE_SAME = 0.8
"""Fraction of the work without gradients: what another call of the model does with them, for it to be a call of the
model."""
MOST_NAMES = 3
LEAST_AGAIN = 0.05
"""Fraction of the step: a small head that two losses share is no matter."""
TWICE = 2.0
"""Calls of a parametrized weight in one forward, from which on keeping it saves."""
AGAIN_AT_LEAST = 0.8
"""Fraction of the time of a parametrization in profiled steps, where many small operators take longer than in
others."""
LEAST_HAD, LEAST_HAD_TOGETHER = 0.25, 0.75
"""Fraction of its time, that a thread of the job had a processor; of several threads, each. Where it is less, some
thread of a call nearly always waits for its turn, the others for it, and the turns of other processes are milliseconds
long: with two threads on two processors of which others used one, _fused_adamw took 3000 times a copy of its 44 KiB,
without a denormal number."""


@rule("ST401", "memory-bound-pointwise", supersedes=("outside-model",))
def memory_bound_pointwise(step: StepSummary, operators: tuple[OperatorUse, ...], case: Case) -> Finding | None:
    """Chains of pointwise operators move bytes and compute nothing

    What it means: Activations, norms, masks and arithmetic between the matmuls read a whole tensor and write a
    whole tensor each; the memory is busy, the arithmetic units are idle.

    How we know: Each operator's floating-point operations and bytes are computed from its shapes and compared with
    this machine's peaks. The times of pointwise operators that memory bounds are added up, without the optimizer's.
    Fusing a chain of k operators leaves one of k passes over memory. The savings are half of the added time; the
    interval is 30 % to all of it. Transcendental functions (tanh, exp, gelu) and random numbers (dropout) may be
    bound by arithmetic, which fusing does not save. They are left out if they reach less than a quarter of the
    processor's bandwidth (or of what plain operators next to them reach, if that is less). A device's trace shows the
    chains themselves: kernels in a row on tensors of one size. There the savings come from the bytes of the tensors
    in between, which a fused kernel neither writes nor reads.

    What helps: torch.compile fuses such chains, and so do ready-made operators (scaled_dot_product_attention,
    layer_norm, a gelu in place of its formula). Also in-place operators where autograd allows them, and lower
    precision, which halves the bytes.

    When to ignore it: When the tensors are small enough to stay in the cache: then dispatch is the cost, see ST301
    and ST302.
    """
    if case.chains:
        return _from_chains(case)
    chain = [use for use in moving(operators, case.machine) if plain_name(use.name) not in FILLS]
    spent = steady_time(chain, operators, case.categories, case.machine)
    calls = sum(use.calls for use in chain)
    if ratio(spent, step.duration.value) < LEAST_SHARE_POINTWISE or calls < FEWEST_CALLS:
        return None
    largest = sorted(chain, key=_duration, reverse=True)
    moved, profiled = sum(use.bytes or 0.0 for use in chain), sum(use.duration for use in chain)
    rate = (
        f" at {format_bytes(ratio(moved, profiled) * 1e9)}/s"
        if case.machine is not None and case.machine.copy_bytes
        else ""
    )
    traffic = f", moving {format_bytes(moved)}{rate}" if moved else ""
    return memory_bound_pointwise.finding(
        f"{calls:.0f} pointwise operators take {in_step(spent, step)}{traffic}",
        _fuse(case),
        partly(spent, FUSION_SAVES, FUSION_SAVES_AT_LEAST, step),
        category="compute",
        source=largest[0].place,
        evidence=tuple(
            f"{use.name}: {format_duration(use.duration)} in {format_count(use.calls, 'call')}" for use in largest[:3]
        ),
    )


def _duration(use: OperatorUse) -> float:
    return use.duration


def _from_chains(case: Case) -> Finding:
    """By the kernels that follow one another: what the tensors in between cost."""
    ordered = sorted(case.chains, key=_wasted, reverse=True)
    moved, saved = sum(chain.bytes for chain in case.chains), sum(chain.saved for chain in case.chains)
    duration, kernels = sum(chain.duration for chain in case.chains), sum(chain.kernels for chain in case.chains)
    evidence = (
        f"{' → '.join(map(plain_name, chain.operators[:6]))}: {format_duration(chain.duration)} in {chain.calls:.3g} "
        f"chains per step, {format_bytes(chain.saved)} in between"
        for chain in ordered[:3]
    )
    return memory_bound_pointwise.finding(
        f"{kernels:.0f} pointwise kernels in chains take {in_step(duration, case.step)}; "
        f"fused, they move {format_bytes(moved - saved)}, not {format_bytes(moved)}",
        _fuse(case),
        partly(sum(map(_wasted, case.chains)), NOT_FOR_BACKWARD, FUSION_SAVES_AT_LEAST, case.step),
        category="compute",
        source=next((chain.source for chain in ordered if chain.source is not None), None),
        evidence=tuple(evidence),
    )


def _fuse(case: Case) -> str:
    if case.compilations or case.step.compiled:
        what = "bring them into the compiled part, or use ready-made operators."
        return f"The job uses torch.compile, but these operators ran eagerly: {what}"
    if case.second_order:
        return f"Use ready-made operators (gelu, layer_norm, attention): {REFUSED}."
    return "Compile the model so that they are fused, or use ready-made operators (gelu, layer_norm, attention)."


def _wasted(chain: ChainUse) -> float:
    return chain.duration * ratio(chain.saved, chain.bytes)


@rule("ST402", "copies-and-casts", supersedes=("outside-model",))
def copies_and_casts(step: StepSummary, operators: tuple[OperatorUse, ...], case: Case) -> Finding | None:
    """Copies and type conversions take part of the step

    What it means: Tensors are copied to another layout or type between the operators that use them: contiguous() after
    a transpose, float64 from NumPy, half and single precision in turns.

    How we know: On a CPU, the profile times the copying operators in forward and backward; the optimizer and the move
    to the device are left out. On a device, the kernels of copies are timed. The savings are half of that time, and
    the interval starts at a fifth, because the rule does not know which copies the model needs.

    What helps: Convert once, at the input. Keep one dtype and one layout through the model; use reshape and views;
    let autocast keep its cache. Load data that is float32 already.

    When to ignore it: When they belong to autocast on large matmuls: the matmuls gain more than the copies
    cost.
    """
    if case.kernels:
        return _copy_kernels(case)
    chosen = (use for use in _usual(operators) if plain_name(use.name) in COPIES)
    inside = (use for use in chosen if use.phase in ("", "forward", "backward"))
    copies = [use for use in inside if ratio(use.duration, use.calls) >= SHORTEST_COPY]
    time = sum(use.duration for use in copies) * profile_scale(operators, case.categories)
    if ratio(time, step.duration.value) < LEAST_SHARE_COPIES:
        return None
    top = max(copies, key=_duration)
    summary = f"{_copies(copies, 'copies', time, step)}; most of it {plain_name(top.name)}"
    saving = partly(time, AVOIDABLE, SURELY_AVOIDABLE, step)
    advice = "Convert type and layout once, at the input, and keep them through the model."
    return copies_and_casts.finding(summary, advice, saving, category="compute", source=top.place)


def _usual(operators: Iterable[OperatorUse]) -> Iterator[OperatorUse]:
    """The operators as most of their calls were: a single one may have waited for a processor."""
    return (replace(use, duration=min(use.duration, use.usual or use.duration)) for use in operators)


def _copies(uses: Sequence[OperatorUse | KernelUse], kind: str, time: float, step: StepSummary) -> str:
    """Summary of copies: number, time and bytes."""
    moved = sum(use.bytes or 0.0 for use in uses)
    takes = f"{sum(use.calls for use in uses):.0f} {kind} take {in_step(time, step)}"
    return takes + (f", moving {format_bytes(moved)}" if moved else "")


def _copy_kernels(case: Case) -> Finding | None:
    """By the kernels of copies, apart from copies between host and device."""
    copies = [use for use in case.kernels if plain_name(use.operator) in COPIES]
    time = time_in(copies)
    if ratio(time, case.step.duration.value) < LEAST_SHARE_COPIES:
        return None
    casts = time_in(use for use in copies if CAST.search(use.name) or plain_name(use.operator) == "_to_copy")
    if casts > time / 2:
        kind = "casts"
        advice = f"Keep one dtype through the model{or_compile(case.second_order, 'it')}."
    else:
        kind, advice = (
            "copies",
            f"Keep one layout through the model (channels_last, views){or_compile(case.second_order, 'it')}.",
        )
    summary = _copies(copies, f"{kind} on the device", time, case.step)
    saving = partly(time, AVOIDABLE, SURELY_AVOIDABLE, case.step)
    return about_kernels(copies_and_casts, copies, summary, advice, saving)


@rule("ST404", "awkward-dimensions", supersedes=("dominant-operator",))
def awkward_dimensions(step: StepSummary, kernels: tuple[KernelUse, ...]) -> Finding | None:
    """Dimensions of matmuls miss the tiles of the Tensor Cores

    What it means: Tensor Cores work on tiles and load 16 bytes at once. If a dimension is not a multiple of 8
    (16-bit numbers) or 4 (32-bit), the matmul uses a slower kernel or pads its input.

    How we know: The trace has the shapes of the matmuls. A matmul counts if its dtype is one for Tensor Cores, and
    one of its dimensions is not such a multiple of 8 or 4. Its time is compared with its roofline, the shortest time
    at the machine's peaks. The savings are half of the difference, because padding removes only a part of it; the
    interval starts at a tenth.

    What helps: Round sizes up: a vocabulary of 50257 to 50304, 1001 classes to 1008, hidden sizes to multiples of
    64, the batch or the sequence to multiples of 8.

    When to ignore it: When the data fixes the dimension, and padding it would cost more than it saves.
    """
    for_units = (use for use in kernels if use.dtype in HALF or use.tensor_cores is True)
    poor = [use for use in for_units if use.dimensions and use.at_roofline is not None]
    lost = sum(max(0.0, use.duration - (use.at_roofline or 0.0)) for use in poor)
    if not lost:
        return None
    products = f"{sum(use.calls for use in poor):.4g} matmuls with {', '.join(longest(poor)[0].dimensions[:2])}"
    summary = f"{products} take {in_step(time_in(poor), step)}"
    advice = "Round these dimensions up to a multiple of 8 (64 for large ones)."
    saving = partly(lost, LIKELY_ALIGNED, SURE_ALIGNED, step)
    return about_kernels(awkward_dimensions, poor, summary, advice, saving)


@rule("ST405", "unflashed-attention", supersedes=("memory-bound-pointwise", "dominant-operator"))
def unflashed_attention(step: StepSummary, kernels: tuple[KernelUse, ...]) -> Finding | None:
    """Attention writes its weights to memory and reads them back

    What it means: A matmul, a softmax and another matmul compute attention step by step. The matrix of weights, a
    row per query and a column per key, goes to memory and back several times. It grows with the square of the
    sequence.

    How we know: Attention is recognised by a softmax over a tensor whose last two dimensions are those of a batched
    matmul's result in the same step. All pointwise operators on tensors of that size are passes over the weights. The
    savings are the time of these passes; the matmuls stay. The trace must have shapes (record_shapes), else the rule
    is silent.

    What helps: torch.nn.functional.scaled_dot_product_attention, which picks a fused kernel; in transformers
    attn_implementation="sdpa" or "flash_attention_2". It falls back to the slow path for float32 masks of some shapes,
    for head sizes above 256, and on old devices.

    When to ignore it: When the weights themselves are needed (to look at them, or for a loss on them).
    """
    weights = _weights(kernels)
    passes = [use for use in kernels if _passes_over(use, weights)]
    if not passes:
        return None
    (queries, keys), time = max(weights), time_in(passes)
    calls = f"{sum(use.calls for use in passes):.4g} passes over attention weights ({queries} x {keys})"
    summary = f"{calls} take {in_step(time, step)}"
    advice = "Use torch.nn.functional.scaled_dot_product_attention, which fuses them."
    saving = modelled(time, SURE_PASSES * time, MOST_PASSES * time, step.steady)
    return about_kernels(unflashed_attention, passes, summary, advice, saving)


def _weights(kernels: Iterable[KernelUse]) -> frozenset[tuple[int, int]]:
    """(queries, keys) of every softmax whose input is as large as the result of a batched matmul."""
    kernels = tuple(kernels)
    products = {_product(use) for use in kernels if plain_name(use.operator) in {"bmm", "baddbmm"}}
    found = set()
    for use in kernels:
        shapes = shapes_of(use.shapes)
        if plain_name(use.operator) not in SOFTMAX or not shapes or len(shapes[0]) < 3:
            continue
        queries, keys = shapes[0][-2:]
        if min(queries, keys) >= SHORTEST_SEQUENCE and (elements(shapes[0]), queries, keys) in products:
            found.add((queries, keys))
    return frozenset(found)


def _product(use: KernelUse) -> tuple[int, int, int]:
    """(elements, rows, columns) of the result of a batched matmul."""
    shapes = [shape for shape in shapes_of(use.shapes) if len(shape) == 3]
    if len(shapes) < 2:
        return (0, 0, 0)
    left, right = shapes[-2:]
    return (left[0] * left[1] * right[2], left[1], right[2])


def _passes_over(use: KernelUse, weights: frozenset[tuple[int, int]]) -> bool:
    """True if a kernel that multiplies no matrices works on a whole matrix of weights."""
    name = plain_name(use.operator)
    shapes = shapes_of(use.shapes)
    whole = bool(shapes) and len(shapes[0]) >= 3 and shapes[0][-2:] in weights
    return whole and name not in MATRIX and (name in SOFTMAX or name in BETWEEN)


@rule("ST406", "exposed-copies")
def exposed_copies(step: StepSummary, copies: tuple[CopyUse, ...], case: Case) -> Iterator[Finding]:
    """Copies run while nothing else does

    What it means: The device's copy engines move data while its arithmetic units idle: results on their way to the
    host, tensors that change their layout, memory that is filled. DistributedDataParallel copies each gradient out
    of its bucket after the exchange. These copies are reported separately, with the device's idle time for their
    launches.

    How we know: The trace has each copy with its direction and size. A copy's exposed time is the time in which only
    copies ran on the device, on any stream; that can be saved. The copies of DistributedDataParallel are those in its
    reducer's range copy_bucket_to_grad.

    What helps: For copies to the CPU: fewer of them, pinned memory and non_blocking=True, a stream of their own. For
    copies within the device: one layout through the model, views, a compiled model. For fills:
    zero_grad(set_to_none=True), which is the default since torch 2.0. For those of DistributedDataParallel:
    gradient_as_bucket_view=True, with which a gradient is a part of its bucket.

    When to ignore it: When it is a checkpoint or an evaluation that happened to be in the trace.
    """
    yield from _out_of_buckets(case)
    others = [use for use in copies if use.operator != BUCKET_TO_GRADIENT]
    displayed = [use for use in others if use.kind in COPIES_OF and use.exposed.value > 0]
    if not displayed:
        return
    top = max(displayed, key=lambda use: use.exposed.value)
    same = [use for use in displayed if use.kind == top.kind]
    saving, moved = total(use.exposed for use in same), format_bytes(sum(use.bytes for use in same))
    words, advice = COPIES_OF[top.kind]
    alone = f"run alone for {in_step(saving.value, step)}"
    summary = f"{format_count(sum(use.calls for use in same), 'copy')} {words} ({moved}) {alone}"
    evidence = tuple(f"{use.operator or use.kind}: {format_duration(use.exposed.value)} exposed" for use in same[:3])
    yield exposed_copies.finding(summary, advice, saving, category="copy", source=top.source, evidence=evidence)


def _out_of_buckets(case: Case) -> Iterator[Finding]:
    """Copies by DistributedDataParallel from its buckets into .grad, in the category that has more of its time: the
    copies alone, or idle time while the CPU launches them."""
    copied = [use for use in case.copies if use.operator == BUCKET_TO_GRADIENT]
    waited = [gap for gap in case.gaps if gap.cause == BUCKET_TO_GRADIENT and gap.category == "overhead"]
    if not copied:
        return
    alone, idle = total(use.exposed for use in copied), total(gap.duration for gap in waited)
    moved, count = format_bytes(sum(use.bytes for use in copied)), sum(use.calls for use in copied)
    launched = idle.value > alone.value
    saving = idle if launched else alone
    gradients = f"{format_count(count, 'gradient')} ({moved})"
    yield exposed_copies.finding(
        f"DistributedDataParallel copies {gradients} out of its buckets: {in_step(saving.value, case.step)}",
        "Set gradient_as_bucket_view=True in DistributedDataParallel: a gradient is a part of its bucket then.",
        saving,
        category="overhead" if launched else "copy",
        evidence=(
            f"The copies run alone for {format_duration(alone.value)}.",
            f"The device idles for their launches for {format_duration(idle.value)}.",
        ),
    )


@rule("ST407", "dominant-operator", weight=Weight.NOTE)
def dominant_operator(step: StepSummary, operators: tuple[OperatorUse, ...], case: Case) -> Finding | None:
    """One operator takes most of the time

    What it means: Whatever else is made faster, this operator decides how long the step is.

    How we know: On a device, each kernel's time is added to the operator that launched it. If the operator's
    arithmetic and bytes are known, the savings are its time above the machine's peaks, as far as good kernels reach
    them. Otherwise, and if it is near the peaks already, this is a note without savings. On a CPU the operators
    themselves are timed, and this is always a note.

    What helps: Another implementation of this one operator: another layout (channels_last), another dtype, a fused
    form, another algorithm (torch.backends.cudnn.benchmark for convolutions of fixed size), a smaller size.

    When to ignore it: When it is the matmul that the model is made of, near the device's peak: then it is the work
    itself.
    """
    if not case.kernels:
        return _longest_operator(case)
    groups: dict[str, list[KernelUse]] = defaultdict(list)
    for use in case.kernels:
        if use.operator and use.bound != "communication" and not is_compiled(use.operator):
            groups[use.operator].append(use)  # a compiled region is no operator
    name, uses = max(groups.items(), key=lambda item: time_in(item[1]), default=("", []))
    time = time_in(uses)
    if ratio(time, time_in(case.kernels)) < LEAST_PART or ratio(time, step.duration.value) < LEAST_STEP:
        return None
    summary = f"{name} takes {in_step(time, step)}, more than any other operator"
    lost = above_peaks(uses)
    if all(use.at_roofline is not None for use in uses) and ratio(lost, time) >= 1 - REACHABLE:
        advice = "It runs far below the machine's peak: try another layout, dtype or implementation of it."
        saving = modelled(lost, 0.3 * lost, lost, step.steady)
        return replace(about_kernels(dominant_operator, uses, summary, advice, saving), weight=Weight.FINDING)
    advice = "It runs near the machine's peak: only less work, or a cheaper dtype, makes it faster."
    if any(use.at_roofline is None for use in uses):
        advice = "Look at this operator first."
    evidence = tuple(map(as_evidence, longest(uses)))
    return dominant_operator.finding(summary, advice, source=first_source(uses), evidence=evidence)


def _longest_operator(case: Case) -> Finding | None:
    """On a processor. Matmuls that compute are what a model is made of."""
    longest_one = max(case.operators, key=_duration)
    taken = steady_time([longest_one], case.operators, case.categories, case.machine)
    part = ratio(longest_one.duration, sum(use.duration for use in case.operators))
    least = part < LEAST_PART or ratio(taken, case.step.duration.value) < LEAST_STEP
    if least or longest_one.bound == "compute" or longest_one.source is None:
        return None
    summary = f"{longest_one.name} takes {in_step(taken, case.step)}, more than any other operator"
    return dominant_operator.finding(
        summary, "Look at this operator first.", category="compute", source=longest_one.place
    )


@rule("ST408", "slow-arithmetic", supersedes=("memory-bound-pointwise", "optimizer-share", "outside-model"))
def slow_arithmetic(
    operators: tuple[OperatorUse, ...], settings: SettingsUse, machine: MachineUse, case: Case
) -> Finding | None:
    """Simple arithmetic takes many times as long as moving its bytes

    What it means: Additions, products and roots should take as long as reading and writing their tensors. Two
    things make a processor ten to a hundred times slower. Denormal numbers: below 1.2e-38 in float32, such as
    squares of faint activations or an optimizer's averages of vanished gradients. Operands whose layouts differ (x
    + y.t()), which are read element by element.

    How we know: The lower bound of a call is the time to copy its bytes, at this machine's copy bandwidth with as
    many threads. The bytes are computed from the call's shapes. An operator counts if most of its calls take more
    than ten times that lower bound, and at least 20 us, on at most 16 MB. (A single slow call may have waited for a
    processor.) A fused or foreach call must take 20 us for each of the optimizer's parameters. The savings are at
    most a call's time above three lower bounds and those 20 us. Two things make the assumed bandwidth smaller. A
    small tensor is computed by fewer threads, so only their part of the bandwidth counts. A job that shares its
    processors has the bandwidth only for its share of the time. The rule is silent if that share is below a quarter,
    or below three quarters with several threads, because a call ends with its last thread. Processors differ: on a
    Zen 4, denormals slow only roots and quotients; on others, products, too.

    What helps: torch.set_flush_denormal(True) at the start of the script treats denormals as zero; `steptime try`
    measures it. Better: keep values away from zero (an epsilon inside the root, a larger eps of the optimizer,
    normalised inputs). If layouts differ, call .contiguous() once, outside of the loop.

    When to ignore it: When values below 1.2e-38 matter.
    """
    if case.kernels or not machine.measured or not machine.copy_bytes:
        return None
    threads = settings.intra_op_threads
    had = 1.0 if case.contention is None else _share_of_processors(case.contention, threads)
    if had < (LEAST_HAD if threads == 1 else LEAST_HAD_TOGETHER):  # there is no rate to hold its operators against
        return None
    together = ratio(sum(each.parameters for each in case.optimizers), len(case.optimizers))
    rate = _Rate(machine.copy_bytes * had, threads, max(1.0, together))
    scale = profile_scale(operators, case.categories)
    slow = sorted((use for use in _usual(operators) if _is_slow(use, rate)), key=_duration, reverse=True)
    above = scale * sum(use.duration - NEEDED * rate.copied(use) - rate.shortest(use) for use in slow)
    if ratio(above, case.step.duration.value) < LEAST_SHARE_ARITHMETIC:
        return None
    top, flushed = slow[0], settings.denormals_flushed
    name, times = plain_name(top.name), ratio(top.duration, rate.copied(top))
    cause = "mixed layouts" if flushed else "denormal numbers or mixed layouts"
    advice = "Make transposed operands .contiguous() once."
    if not flushed:
        advice = f"Call torch.set_flush_denormal(True) first, or keep values away from zero. {advice}"
    evidence = tuple(
        f"{use.name}: {format_duration(use.duration)} for {format_bytes(use.bytes or 0.0)} "
        f"in {format_count(use.calls, 'call')}"
        for use in slow[:3]
    )
    return slow_arithmetic.finding(
        f"{name} takes {in_step(scale * top.duration, case.step)}, "
        f"{times:.0f}× a copy of its {format_bytes(top.bytes or 0.0)}: {cause}",
        advice,
        partly(above, LIKELY_ARITHMETIC, SURE_ARITHMETIC, case.step),
        category="compute",
        source=top.place or _line_that_names(name, case.lines),
        evidence=evidence,
    )


def _share_of_processors(contention: Contention, threads: int) -> float:
    """Fraction of its time in which a thread of the job had a processor, where it and others use all of them."""
    used = contention.job_cpu + contention.other_cpu
    return min(1.0, contention.job_cpu / max(1, threads)) if used >= FULL * contention.usable_cpus else 1.0


def _line_that_names(operator: str, lines: tuple[LineUse, ...]) -> SourceLine | None:
    """The only line of the training loop that calls a function of the operator's name: the stack of an operator that
    the loop itself calls starts above the loop."""
    naming = [use.source for use in lines if calls_function(use.calls, operator, f"{operator}_")]
    return naming[0] if len(naming) == 1 else None


@dataclass(frozen=True, slots=True)
class _Rate:
    """Rate of copies. bandwidth: B/s, read and written together, by so many threads. together: tensors in a fused or
    foreach call."""

    bandwidth: float
    threads: int
    together: float

    def shortest(self, use: OperatorUse) -> float:
        """ns that such calls take, however little they copy."""
        many = plain_name(use.name).startswith(("_foreach_", "_fused_"))
        return SHORTEST_CALL * use.calls * (self.together if many else 1.0)

    def copied(self, use: OperatorUse) -> float:
        """ns in which the threads that such a call gets copy as many bytes."""
        moved = use.bytes or 0.0
        threads = min(float(self.threads), max(1.0, ratio(moved, use.calls * GRAIN)))
        return moved / self.bandwidth * (self.threads / threads) * 1e9


def _is_slow(use: OperatorUse, rate: _Rate) -> bool:
    if plain_name(use.name) not in ARITHMETIC or use.phase in INPUT or not use.bytes or not use.calls:
        return False
    if use.duration < rate.shortest(use) or use.bytes > LARGEST * use.calls:
        return False
    return use.duration > SLOW * rate.copied(use)


@rule(
    "ST410",
    "work-without-gradient",
    supersedes=("dominant-operator", "memory-bound-pointwise", "copies-and-casts"),
    by_line=True,
)
def work_without_gradient(step: StepSummary, operators: tuple[OperatorUse, ...], case: Case) -> Finding | None:
    """The forward pass computes results that get no gradient

    What it means: Some operators of the model's forward depend on no trained parameter: a mask, a position code, a
    normalised adjacency, features of a frozen backbone. If they do not depend on the batch either, each step
    computes the same again. Others do depend on trained parameters, but the loss does not use their result: a head,
    a branch.

    How we know: While gradients are on, autograd numbers the operators of forward, and backward's frames have the
    numbers of the operators that they differentiate. An operator counts, with all that it calls, if no frame has its
    number. Work under torch.no_grad() has no number and does not count. If autograd's number is higher after an
    operator than before it, the operator's result needs a gradient, but no loss leads to it. In a job that detaches
    tensors such operators are excluded, because their values may be used. Whether an operator depends on the batch is
    not known: the savings are at most all of the time, and the interval starts at a tenth. If a model is called
    several times per step, the same operators of the same lines may run with a backward in one call and without in
    another. The finding then names the call of the model that the loss does not use.

    What helps: Compute it once, in __init__, and keep it with register_buffer. Results that depend only on the
    sample: once per sample, in the dataset. Results of a frozen part: once for all epochs. Results that no loss
    uses: leave them out, or compute them where you need them, under torch.no_grad(). A second call of the model for
    a metric: use the outputs of the first, or call it every n-th step under torch.no_grad().

    When to ignore it: When it depends on the batch and must be computed on the device, as augmentations must.
    """
    alone = [use for use in operators if not use.differentiated]
    spent = steady_time(alone, operators, case.categories, case.machine)
    if ratio(spent, step.duration.value) < LEAST_WITHOUT_GRADIENT or _is_periodic(case, alone):
        return None
    longest_first = sorted(alone, key=_duration, reverse=True)
    source = next((use.place for use in longest_first if use.place is not None), None)
    names = ", ".join(dict.fromkeys(use.name for use in longest_first[:MOST_NAMES]))
    saving = partly(spent, 1.0, CONSTANT, step)
    summary = f"Forward operators that get no gradient take {in_step(spent, step)}: {names}"
    advice = (
        "If they do not depend on the batch, compute them once (register_buffer); else once per sample, in the dataset."
    )
    if (model := _called_besides(case, alone)) is not None:
        often = f"{model.path} runs {model.calls:.3g} times per step, and not every result reaches the loss"
        summary = f"{often}: {in_step(spent, step)}"
        advice = "For a metric, reuse the loss's outputs, or compute it every n-th step under torch.no_grad()."
    elif sum(use.unreached for use in alone) >= MOSTLY_UNREACHED * sum(use.duration for use in alone):
        summary = f"Forward spends {in_step(spent, step)} on what no loss uses: {names}"
        advice = "Leave it out of the training step, or compute it only when you need it, under torch.no_grad()."
    return work_without_gradient.finding(summary, advice, saving, category="compute", source=source)


def _is_periodic(case: Case, alone: Sequence[OperatorUse]) -> bool:
    """True if most of the operator's time is in every n-th step: ST905 reports it."""
    periodic = sum(use.duration for use in alone if case.period is not None and use.name in case.period.alone)
    return 2 * periodic > sum(use.duration for use in alone)


def _called_besides(case: Case, alone: Sequence[OperatorUse]) -> ModuleUse | None:
    """The model that is called several times per step, where most of what has no backward has one in another call."""
    models = [use for use in case.modules if use.depth == 0 and use.calls >= TWICE and use.parameters]
    trained = {(use.name, use.place) for use in case.operators if use.differentiated and use.phase == "forward"}
    same = sum(use.duration for use in alone if (use.name, use.place) in trained)
    if not models or same < MOSTLY_THE_SAME * sum(use.duration for use in alone):
        return None
    return max(models, key=lambda use: use.forward)


@rule(
    "ST411",
    "parametrization-again",
    supersedes=("dispatch-loop", "overhead-bound", "dominant-operator", "memory-bound-pointwise"),
)
def parametrization_again(step: StepSummary, modules: tuple[ModuleUse, ...], case: Case) -> Iterator[Finding]:
    """A parametrized weight is computed several times in one forward

    What it means: torch.nn.utils.parametrize computes a weight (orthogonal, symmetric, normalized) again on each
    access. A cell that runs once per time step accesses it each time, though it cannot change within the step;
    backward goes through every computation.

    How we know: The profile shows that the module that computes the weight ran n times per call of the model. The
    savings are the time of all runs but one. The interval starts at 80 % of that, because the profiler slows small
    operators.

    What helps: with torch.nn.utils.parametrize.cached(): around the forward, or the loop that calls the cell.

    When to ignore it: When the weight changes between its uses.
    """
    models = max((use.calls for use in modules if use.depth == 0), default=0.0)
    for use in modules:
        times = ratio(use.calls, models)
        if use.type != "ParametrizationList" or times < TWICE:
            continue
        spent = use.share * step.duration.value
        again = spent * (1 - 1 / times)
        owner = use.path.replace(".parametrizations.", ".")
        summary = f"{owner} is computed {times:.0f} times per forward: {in_step(spent, step)}"
        looping = [line for line in case.lines if line.role == "forward" and line.hits >= times]
        source = max(looping, key=lambda line: line.duration.value).source if looping else None
        advice = "Wrap the forward in torch.nn.utils.parametrize.cached(), so that the weight is computed once."
        saving = modelled(again, AGAIN_AT_LEAST * again, again, step.steady)
        yield parametrization_again.finding(summary, advice, saving, category="", source=source)


@rule("ST412", "backward-again")
def graph_again(step: StepSummary, backward_again: Estimate, lines: tuple[LineUse, ...] = ()) -> Finding | None:
    """Backward goes through the same graph twice in a step

    What it means: With retain_graph=True, each backward that reaches a graph runs through it again. The
    discriminator's loss reaches back through the generator if its images are not detached, and these gradients are
    thrown away. Or several losses of one forward are differentiated one by one.

    How we know: Each operator of forward has a sequence number, and the frames of autograd have the numbers of the
    operators that they differentiate. A number that appears twice in a step was differentiated twice. The savings are
    the time of the repeated frames; gradients of gradients do not count. The finding's line is the first one of the
    loop that calls backward.

    What helps: Call detach() on what the first loss must not train (fake.detach()), and leave out retain_graph. Add
    losses up, and call backward once.

    When to ignore it: When each loss needs its own gradients (gradient surgery, balancing of losses).
    """
    if ratio(backward_again.value, step.duration.value) < LEAST_AGAIN:
        return None
    backwards = [line.source for line in lines if line.role == "backward"]
    source = min(backwards, key=lambda line: line.place, default=None)
    summary = f"Backward runs through the same graph again: {in_step(backward_again.value, step)}"
    advice = "detach() what the first loss must not train, without retain_graph; or add the losses for one backward."
    return graph_again.finding(summary, advice, capped(backward_again, step.duration), source=source)
