"""ST423 and ST424: operators that are slow for their shapes, with what gives the same in less time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from steptime.advice.evidence import Case
from steptime.advice.line_evidence import sampled_lines
from steptime.advice.rule import Finding, rule
from steptime.advice.run_uses import ShapedUse, SpreadUse, StepSummary
from steptime.advice.savings import in_step, modelled, ratio, spent_in
from steptime.quantities import SourceLine

LEAST = 0.05
"""Fraction of the step that another way likely saves, from which on it is reported."""
WHOLE = frozenset({"long int", "int", "short int", "signed char", "unsigned char", "bool"})
"""Dtypes of rows that integers can stand for."""
MOST_COLUMNS = 8
"""Columns of which a row fits into one integer of 64 bits, with a byte for each."""
KEYS = 50_000.0
"""ns for the dozen operators that pack and unpack rows. Measured: 117 to 47 µs in place of 84 to 200 for 64 rows; 80 to
98 % less for 256 to 200,000 rows of 2 to 8 numbers (torch 2.13, one thread), and 94 to 98 % for rows in runs."""
MUCH = 4_000_000
"""Numbers that nn.Bilinear makes for each output (rows times both widths), from which on it runs out of the caches: its
matmul takes 91 to 98 % less (five sizes). Below, 53 to 86 % less with eight outputs or more, once 25 % (fourteen), and
17 to 92 % with fewer (fifteen; forward and backward, torch 2.13, one thread)."""
SEVERAL = 8
"""Outputs of nn.Bilinear."""
MOST_AT_ONCE = 1 << 26
"""Numbers of the product for all outputs at once: more would take long to allocate."""
BLOCK = 16
"""Channels that oneDNN computes together in a convolution channel by channel."""
SMALLEST, SMALLEST_OF_ONE, FEWEST_PRODUCTS = 11, 7, 400_000
"""Numbers of a window in each dimension, of one channel, and products of a call for each block of channels, from which
on two passes pay. Measured, forward and backward: 20 to 51 % less for 11 × 11, 49 to 80 % for 21 × 21, 80 to 87 % for
31 × 31 (3 and 16 channels, 1 or 8 pictures of 96 or 256 pixels a side), 25 to 97 % for one channel; more time for 5 × 5
and 7 × 7, and for pictures of 32 pixels a side where the products are fewer (torch 2.13, one thread)."""
LARGE, SMALLEST_OF_LARGE = 2_000_000, 15
"""Numbers of the pictures, in whole blocks of channels, and of a window in each dimension: the result in between then
costs what a window of 11 × 11 saves (107 % more to 14 % less time)."""


@dataclass(frozen=True, slots=True)
class _Faster:
    """Faster way for calls of an operator. what: the slow one, in words. better: advice. called: last names of the
    functions that run it. sure, likely, most: ns per step that it saves."""

    what: str
    better: str
    called: frozenset[str]
    sure: float
    likely: float
    most: float


def _unique(use: ShapedUse) -> _Faster | None:
    shape = use.shapes[0] if use.shapes else ()
    fits = len(shape) == 2 and use.settings[1:2] == ("0",) and shape[1] <= MOST_COLUMNS
    if not fits or use.dtypes[:1] == () or use.dtypes[0] not in WHOLE:
        return None
    better = (
        "Pack the columns of a row into one integer (key = (x * size_y + y) * size_z + z for three columns from 0 to "
        "their sizes), take the unique of the keys, and unpack the rows. The sizes' product must be below 2**63."
    )
    return _by_keys("unique", better, use, use.calls * KEYS)


def _consecutive(use: ShapedUse) -> _Faster | None:
    shape = use.shapes[0] if use.shapes else ()
    if len(shape) != 2 or use.settings[3:4] != ("0",):
        return None
    better = (
        "Compare all rows at once: (x[1:] != x[:-1]).any(1) is True where another row starts; its cumsum is the "
        "inverse, and x at these places are the rows."
    )
    return _by_keys("unique_consecutive", better, use, use.calls * KEYS / 2)


def _by_keys(called: str, better: str, use: ShapedUse, making: float) -> _Faster:
    """Rows that are compared at once. making: ns per step to make what is compared."""
    spent, what = use.duration, f"{called}(dim=0) compares {use.shapes[0][0]:,} rows one by one"
    sure, likely = 0.75 * spent - 2 * making, 0.93 * spent - making
    return _Faster(what, better, frozenset({called}), sure, likely, 0.98 * spent)


def _bilinear(use: ShapedUse) -> _Faster | None:
    if len(use.shapes) < 3 or len(use.shapes[2]) != 3:
        return None
    rows, (outputs, first, second) = prod(use.shapes[0][:-1]), use.shapes[2]
    if rows * outputs * second > MOST_AT_ONCE:
        return None
    much, several = rows * first * second >= MUCH, outputs >= SEVERAL
    sure, likely, most = (0.8, 0.92, 0.98) if much else (0.25, 0.65, 0.86) if several else (0.15, 0.35, 0.9)
    return _Faster(
        f"Bilinear computes its {outputs:,} outputs one by one"
        if outputs > 1
        else "Bilinear makes all products of both inputs",
        "Take them from one matmul: ((x1 @ weight.transpose(0, 1).flatten(1)).unflatten(-1, (outputs, -1)) * "
        "x2.unsqueeze(-2)).sum(-1) + bias.",
        frozenset({"bilinear"}),
        sure * use.duration,
        likely * use.duration,
        most * use.duration,
    )


def _window(use: ShapedUse) -> _Faster | None:
    given, (channels, _, high, wide) = use.shapes[0], use.shapes[1]
    size, single = min(high, wide), channels == 1
    plain = len(given) > 2 and given[-3] == channels and use.settings[3:6:2] == ("[1, 1]", "[1, 1]")
    if use.trains or use.source is None or "conv" in use.module.lower() or not plain:  # a layer that is frozen
        return None
    padding = [*map(int, re.findall(r"\d+", use.settings[4]))] or [high // 2, wide // 2]  # "same" has no numbers
    blocks = prod(given[:-3]) * -(-channels // BLOCK)
    sides = [max(0, given[at] + 2 * padding[at] - use.shapes[1][at] + 1) for at in (-2, -1)]
    large = blocks * BLOCK * prod(sides) > LARGE
    smallest = SMALLEST_OF_ONE if single else SMALLEST_OF_LARGE if large else SMALLEST
    if size < smallest or blocks * prod(sides) * high * wide < FEWEST_PRODUCTS:
        return None
    sure, likely = (0.2, 1 - 4 / size) if single else (max(0.1, 1 - 13.5 / size), 1 - 8 / size)
    return _Faster(
        f"A window of {high} × {wide} of fixed weights is convolved in full",
        f"If it is the product of two vectors, as a Gaussian or a box is, convolve with the column ({high} × 1), then "
        f"with the row (1 × {wide}): {high + wide} products for each number in place of {high * wide}.",
        frozenset({"conv2d"}),
        sure * use.duration,
        likely * use.duration,
        (1 - 2 / size) * use.duration,
    )


WAYS = {
    "unique_dim": _unique,
    "unique_consecutive": _consecutive,
    "bilinear": _bilinear,
    "conv2d": _window,
}
"""Faster way by the plain name of an operator."""


@rule(
    "ST423",
    "slow-operator",
    supersedes=(
        "dominant-operator", "memory-bound-pointwise", "work-without-gradient", "overhead-bound", "outside-model",
        "dispatch-loop", "copies-and-casts", "large-part",
    ),
)  # fmt: skip
def slow_operator(step: StepSummary, shaped: tuple[ShapedUse, ...], case: Case) -> Iterator[Finding]:
    """An operator is slow for its arguments

    What it means: Three operators have a faster form for some arguments. unique of rows (dim=0) sorts and compares
    row by row, while unique of plain numbers is fast. nn.Bilinear computes its outputs one by one, with small
    operators for each, forward and backward. A fixed convolution kernel (a blur, the Gaussian of a structural
    similarity) is usually the product of a column and a row. Two convolutions, with the column and with the row, take
    2 k multiplications for each number instead of k².

    How we know: The profile has the operators with the shapes of their arguments, and whether weights get a gradient.
    The savings are a fraction of the operator's time. Each faster form was measured against the operator in many
    sizes (torch 2.13, one thread), and the fraction depends on the size. Sizes in which the faster form is not faster
    are excluded.

    What helps: The form that the finding names. Results are the same except for rounding.

    When to ignore it: When the columns of a row do not fit into one integer, or the kernel is no product of two
    vectors.
    """
    if step.device != "cpu":
        return
    kinds: dict[tuple[str, SourceLine | None], list[tuple[ShapedUse, _Faster]]] = defaultdict(list)
    for use in shaped:
        if use.name in WAYS and (faster := WAYS[use.name](use)) is not None and faster.likely > 0:
            kinds[use.name, use.source].append((use, faster))
    for found in kinds.values():
        spent = sum(use.duration for use, _ in found)
        likely, sure, most = (sum(getattr(faster, name) for _, faster in found) for name in ("likely", "sure", "most"))
        if ratio(likely, step.duration.value) >= LEAST:
            use, faster = max(found, key=lambda each: each[0].duration)
            yield slow_operator.finding(
                f"{faster.what}: {in_step(spent, step)}",
                faster.better,
                modelled(likely, sure, most, step.steady),
                source=_calling_line(use, faster.called, case),
            )


PRODUCTS = (
    "A matmul makes no tensor of that size: (x[:, None] * y[None]).sum(-1) is x @ y.T, batches of it "
    "x @ y.mT or einsum; for cosines, normalize both first."
)
DISTANCES = (
    "Take torch.cdist(x, y), or, for squares, x.pow(2).sum(-1)[:, None] + y.pow(2).sum(-1)[None] - 2 * x @ y.T: no "
    "tensor of that size is made."
)
SURELY, LIKELY, AT_MOST = 0.35, 0.85, 0.99
"""Fraction of the time of tensors of all pairs. Measured, forward and backward, 64 to 2,000 rows of 3 to 512 numbers in
up to 16 batches: 84 to 99 % less for squared distances by a matmul, 70 to 99 % for roots by cdist, 35 to 89 %
for sums of absolute values, 70 to 99 % for products, 98 to 100 % for cosines (torch 2.13, one thread)."""


@rule(
    "ST424",
    "all-pairs",
    supersedes=("dominant-operator", "memory-bound-pointwise", "outside-model", "copies-and-casts", "large-part"),
)
def all_pairs(step: StepSummary, spread: tuple[SpreadUse, ...], case: Case) -> Iterator[Finding]:
    """A tensor of all pairs is made and summed up

    What it means: Two tensors are broadcast against each other, subtracted or multiplied for each pair of rows, and
    the result is summed over the features. The tensor in between has a number for each pair *and* each feature. It
    is written, read, squared and summed, forward and backward, at the speed of memory.

    How we know: The profile shows three things. An operator on two inputs makes a result with eight times as many
    numbers as either, or its inputs were expanded so. A later operator sums that result over dimensions that both
    inputs have. And nothing else in forward needs a tensor of that shape: other operators only measure, sum or scale
    it. The savings are 85 % of the time of all operators on such tensors; the interval starts at 35 %.

    What helps: A matmul sums while it multiplies. Squared distances are |x|² + |y|² - 2 x·y; torch.cdist gives
    distances, with p=1 sums of absolute values. Rounding differs for squared distances close to zero: use
    clamp(min=0) before a root.

    When to ignore it: When the tensor in between is needed itself.
    """
    if step.device != "cpu":
        return
    for use in spread:
        spent = min(use.duration, spent_in(case.categories, "compute"))
        if ratio(LIKELY * spent, step.duration.value) >= LEAST:
            does, better = ("subtracts", DISTANCES) if use.kind == "distance" else ("multiplies", PRODUCTS)
            size = " × ".join(f"{side:,}" for side in use.shape)
            yield all_pairs.finding(
                f"Broadcasting {does} all pairs, in tensors of {size}, to sum them up: {in_step(spent, step)}",
                better,
                modelled(LIKELY * spent, SURELY * spent, AT_MOST * spent, step.steady),
                source=_pairing_line(use, case),
            )


SIGNS = {
    "distance": re.compile(r"[\w\])] ?- ?[\w(]|\bsub|distance"),
    "product": re.compile(r"[\w\])] ?\* ?[\w(]|\bmul|similarity"),
}
"""What a line that makes a tensor of all pairs has, by the kind of the pairs."""


def _pairing_line(use: SpreadUse, case: Case) -> SourceLine | None:
    """The line with most time in the function that makes them, of those that subtract or multiply."""
    spent = sampled_lines(case.paths, use.source) if use.source is not None else {}
    sign = SIGNS[use.kind]
    return max((line for line in spent if sign.search(line.text)), key=lambda line: spent[line], default=use.source)


def _calling_line(use: ShapedUse, called: frozenset[str], case: Case) -> SourceLine | None:
    """The line with most time in the function that calls an operator, of those that name what runs it; of all timed
    lines where the function is not known, as steps with very many operators have no stacks."""
    spent = {line.source: line.duration.value for line in case.lines}
    if use.source is not None:
        spent = sampled_lines(case.paths, use.source)
    modules = {each.path.rpartition(".")[2] for each in case.modules if each.type == use.module}
    names = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(called | modules)))})\(")
    return max((line for line in spent if names.search(line.text)), key=lambda line: spent[line], default=use.source)
