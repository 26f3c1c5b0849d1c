"""Norms over the last dimension that a model computes in separate operators, from a trace of a device.

The root of a reduced tensor identifies a norm. Next to it on its stream are the kernels that reduce the tensor and
those that multiply it by the result; kernels of backward are found by their forward operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from steptime.advice.device_uses import WrittenNormUse
from steptime.advice.kernels import elements, plain_name, shapes_of
from steptime.analysis.idle import outermost_operator
from steptime.analysis.op_cost.call import ELEMENT_BYTES
from steptime.analysis.operators import source_behind
from steptime.arrays import Int64
from steptime.trace.links import UNKNOWN, Links
from steptime.trace.table import ABSENT, Trace

ROOTS = frozenset({"rsqrt", "sqrt", "std"})
MEANS = frozenset({"mean", "sum"})
DEVIATIONS = frozenset({"var", "std", "var_mean", "std_mean"})
BEFORE = MEANS | DEVIATIONS | {"pow", "square", "mul", "sub", "add", "copy", "to", "_to_copy"}
AFTER = frozenset({"mul", "div", "add", "sub", "reciprocal", "copy", "to", "_to_copy"})
MOST_BEFORE, MOST_AFTER = 7, 5
"""Most kernels on each side of the root: a layer norm has mean, difference, square, mean and epsilon before it,
quotient, weight, bias and casts after it."""
FORWARD_TENSORS, BACKWARD_TENSORS = 2, 3
"""Tensors that one pass reads and writes: forward the input and the output; backward the input, the output's gradient
and the input's gradient."""
SMALLEST = 1 << 16
"""Least number of elements of a tensor: the root of a loss or of a gradient's norm is not a norm of the model."""
Shape = tuple[int, ...]


def written_norms(trace: Trace, links: Links, rows: Int64, steps: int) -> tuple[WrittenNormUse, ...]:
    """Norms that are written as several operators, longest first. rows: kernels that operators launched in the steps,
    without the optimizer's, by stream and time. steps: number of steps."""
    if not len(rows):
        return ()
    kernels = _Kernels(trace, links, rows)
    found: dict[tuple[Shape, tuple[str, ...]], list[Int64]] = defaultdict(list)
    for run in kernels.norms():
        found[kernels.shape(run), tuple(map(kernels.name, run))].append(rows[run])
    uses = (kernels.use(shape, names, np.stack(runs), steps) for (shape, names), runs in found.items())
    return tuple(sorted(uses, key=lambda use: -use.duration))


class _Kernels:
    """Sequence of kernels with their operators' plain names and shapes."""

    def __init__(self, trace: Trace, links: Links, rows: Int64) -> None:
        self._trace, self._links, self._rows = trace, links, rows
        self._operators = links.operator[rows].astype(np.int64)
        self._plain = [plain_name(symbol) for symbol in trace.symbols]
        self._texts: list[tuple[Shape, ...]] = [shapes_of(text) for text in trace.shapes]
        self._forward = links.forward[self._operators]

    def name(self, at: int) -> str:
        """Plain name of the operator that launched a kernel."""
        return self._plain[int(self._trace.events.name[self._operators[at]])]

    def shapes(self, at: int) -> tuple[Shape, ...]:
        """Shapes of its input tensors; () if not recorded."""
        number = int(self._trace.events.shapes[self._operators[at]])
        return self._texts[number] if number != ABSENT else ()

    def shape(self, run: list[int]) -> Shape:
        """Largest input tensor of any of these kernels."""
        return max((shape for at in run for shape in self.shapes(at)), key=elements, default=())

    def norms(self) -> Iterator[list[int]]:
        """Positions of the kernels of each norm, in order, without overlaps."""
        free, roots = 0, np.array([name in ROOTS for name in self._plain], np.bool_)
        forward = self._forward == UNKNOWN
        for at in np.flatnonzero(roots[self._trace.events.name[self._operators]] & forward).tolist():
            if at < free or not self.shapes(at):
                continue
            whole = self._whole(at, free)
            if whole is None:
                continue
            before = self._side(at, range(at - 1, max(free, at - MOST_BEFORE) - 1, -1), BEFORE, whole)
            after = self._side(at, range(at + 1, min(len(self._rows), at + MOST_AFTER + 1)), AFTER, whole)
            if self._is_norm(before, after, at, whole):
                run = [*reversed(before), at, *after]
                free = run[-1] + 1
                yield run

    def _whole(self, at: int, free: int) -> Shape | None:
        """Tensor whose reduction over its last dimension is the root's input; None without one."""
        for place in range(at, max(free, at - MOST_BEFORE) - 1, -1):
            if self.name(place) in MEANS | DEVIATIONS and self.shapes(place):
                whole = self.shapes(place)[0]
                fits = place == at or _over_last(whole, self.shapes(at)[0])
                return whole if fits and elements(whole) >= SMALLEST else None
        return None

    def _side(self, at: int, places: range, names: frozenset[str], whole: Shape) -> list[int]:
        """Kernels on one side of the root that work on the tensor or its reduction."""
        found: list[int] = []
        for place in places:
            shapes = self.shapes(place)
            largest = self.shape([place])
            sums = self.name(place) == "add" and largest == whole and not any(len(shape) == 1 for shape in shapes)
            alike = (largest == whole and not sums) or _over_last(whole, largest)  # a sum of two is a residual's
            if self.name(place) not in names or self._place(place) != self._place(at) or not alike:
                break
            found.append(place)
        return found

    def _place(self, at: int) -> tuple[int, int]:
        """(stream, step) of a kernel."""
        return int(self._trace.events.stream[self._rows[at]]), int(self._links.step[self._rows[at]])

    def _is_norm(self, before: list[int], after: list[int], at: int, whole: Shape) -> bool:
        scaled = any(self.name(place) in ("mul", "div") and whole in self.shapes(place) for place in after)
        return scaled and any(self.name(place) in MEANS | DEVIATIONS for place in (*before, at))

    def use(self, shape: Shape, names: tuple[str, ...], runs: Int64, steps: int) -> WrittenNormUse:
        """Norms of one kind. runs: (n, kernels) rows."""
        mine = runs.ravel()
        places = np.isin(self._rows, mine)
        own = self._operators[places]
        forward = np.unique(np.concatenate((own, outermost_operator(self._trace, self._links, own))))
        again = (self._forward != UNKNOWN) & np.isin(self._forward, forward)
        everyone = np.concatenate((mine, self._rows[again]))
        tensors = FORWARD_TENSORS + (BACKWARD_TENSORS if again.any() else 0)
        centred = "sub" in names or not DEVIATIONS.isdisjoint(names)
        return WrittenNormUse(
            kind="layer norm" if centred else "RMS norm",
            shape=shape,
            calls=len(runs) / steps,
            kernels=len(everyone) / steps,
            duration=float(self._trace.events.duration[everyone].sum()) / steps,
            bytes=float(tensors * elements(shape) * self._item(runs[0, 0]) * len(runs)) / steps,
            operators=names,
            source=source_behind(self._trace, self._links, runs[0, 0]),
        )

    def _item(self, kernel: int) -> int:
        types = int(self._trace.events.dtypes[self._links.operator[kernel]])
        return item_of(self._trace.dtypes[types] if types != ABSENT else "")


def item_of(dtypes: str) -> int:
    """Bytes per element of the first tensor with a known dtype, from a trace's text; 4 if there is none."""
    return next((size for part in dtypes.split('"') if (size := ELEMENT_BYTES.get(part))), 4)


def _over_last(whole: Shape, reduced: Shape) -> bool:
    """True if `reduced` is `whole` reduced over its last dimension, which may remain as 1."""
    kept: tuple[Shape, Shape] = (whole[:-1], (*whole[:-1], 1))
    return len(whole) > 1 and reduced in kept
