"""A chain of operators as one kernel in `triton.language`: a first version for the user to tune, where Inductor makes
several.

Each program holds the dimensions that the chain reduces over, or a tile of those that a last sum reduces over, which
then adds its part atomically. Dimensions that all tensors run through alike are one. Sides are constants.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from steptime.analysis.op_cost.call import Tensor

DTYPES = {"float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "bool": "bool"}
"""torch's and Triton's name for each of Kineto's types that a chain may have."""
LARGEST = 1 << 15
"""Most elements of a program's block: 128 KiB in float32, half of the registers of a multiprocessor."""
FAR = 1 << 31
"""Offsets are 32 bits wide."""
TILE, LINE = 32, 1024
"""Sides of a tile: of a dimension, and of the last one where nothing else is in the block."""
TANH, INNER = "(2 * tl.sigmoid(2 * {0}) - 1)", "tl.sigmoid(1.5957691216 * ({x} + 0.044715 * {x} * {x} * {x}))"
GELU_TANH, NORMAL = INNER.format(x="{0}"), "0.5 * (1 + tl.erf(0.7071067812 * {0}))"
SLOPE_TANH = (
    "{0} * (" + INNER.format(x="{1}") + " * (1 + {1} * (1 - " + INNER.format(x="{1}") + ") * (1.5957691216 + "
    "0.2140644442 * {1} * {1})))"
)
FORMULAS = {
    "abs": "tl.abs({0})", "add": "{0} + {1} * {2}", "clamp_min": "tl.maximum({0}, {1})", "cos": "tl.cos({0})",
    "div": "{0} / {1}", "eq": "{0} == {1}", "erf": "tl.erf({0})", "exp": "tl.exp({0})", "ge": "{0} >= {1}",
    "gelu": f"{{0}} * {NORMAL}", "gelu tanh": f"{{0}} * {GELU_TANH}", "gt": "{0} > {1}", "le": "{0} <= {1}",
    "gelu_backward": "{0} * (0.5 * (1 + tl.erf(0.7071067812 * {1})) + 0.3989422804 * {1} * tl.exp(-0.5 * {1} * {1}))",
    "gelu_backward tanh": SLOPE_TANH, "leaky_relu": "tl.where({0} > 0, {0}, {1} * {0})", "log": "tl.log({0})",
    "leaky_relu_backward": "tl.where({1} > 0, {0}, {2} * {0})", "log1p": "tl.log(1 + {0})",
    "logical_and": "({0} != 0) & ({1} != 0)", "lt": "{0} < {1}", "masked_fill": "tl.where({1}, {2}, {0})",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})", "mul": "{0} * {1}", "ne": "{0} != {1}",
    "neg": "-{0}", "pow 2": "{0} * {0}", "pow 3": "{0} * {0} * {0}", "pow 0.5": "tl.sqrt({0})", "pow -1": "1 / {0}",
    "pow -0.5": "1 / tl.sqrt({0})", "reciprocal": "1 / {0}", "relu": "tl.maximum({0}, 0.0)", "rsqrt": "tl.rsqrt({0})",
    "rsub": "{1} - {0} * {2}", "sigmoid": "tl.sigmoid({0})", "sigmoid_backward": "{0} * {1} * (1 - {1})",
    "silu": "{0} * tl.sigmoid({0})", "sin": "tl.sin({0})", "sqrt": "tl.sqrt({0})", "square": "{0} * {0}",
    "silu_backward": "{0} * tl.sigmoid({1}) * (1 + {1} * (1 - tl.sigmoid({1})))", "sub": "{0} - {1} * {2}",
    "tanh": TANH, "tanh_backward": "{0} * (1 - {1} * {1})", "threshold_backward": "tl.where({1} > {2}, {0}, 0.0)",
    "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip
"""Expression of each operator by its arguments; "name text" for one with a printed argument that chooses it."""
DEFAULTS = {"add": ("1",), "sub": ("1",), "rsub": ("1",), "leaky_relu": ("0.01",)}
"""Arguments at the end that a trace may lack."""
SPREAD = {
    "_softmax": "tl.exp({0} - {top}) / {total}", "_log_softmax": "{0} - {top} - tl.log({total})",
    "_softmax_backward_data": "{1} * ({0} - {total})", "_log_softmax_backward_data": "{0} - tl.exp({1}) * {total}",
}  # fmt: skip
TOTALS = {"_softmax": "tl.exp({0} - {top})", "_log_softmax": "tl.exp({0} - {top})",
          "_softmax_backward_data": "{0} * {1}", "_log_softmax_backward_data": "{0}"}  # fmt: skip
"""What a softmax adds up over its dimension; the maximum is subtracted before."""
FOLDS = {
    "sum": ("sum", "0.0"),
    "mean": ("sum", "0.0"),
    "amax": ("max", '-float("inf")'),
    "amin": ("min", 'float("inf")'),
}


class NoSkeletonError(ValueError):
    """Raised for a chain that one kernel of this form cannot compute; its message is the end of a sentence on why."""


@dataclass(frozen=True, slots=True)
class Statement:
    """Operator of the chain, as a statement of the kernel. words: its arguments as Python, tensors as names (x0, v1).
    result: its result. over: indices of the dimensions that it reduces over. remark: the user's line."""

    name: str
    words: tuple[str, ...]
    result: Tensor
    over: tuple[int, ...] = ()
    kept: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class _Axes:
    """Dimensions of the chain's largest tensor. sides: of each. places: of each tensor by its name, the dimension that
    each of its own is. reduced: by statement."""

    sides: list[int]
    places: dict[str, tuple[int, ...]]
    reduced: list[tuple[int, ...]]


def skeleton(statements: Sequence[Statement], inputs: Sequence[Tensor]) -> str:
    """Python text of a function `fused`, which computes the chain by one kernel. Raises NoSkeletonError."""
    tensors = {f"x{number}": each for number, each in enumerate(inputs)}
    if max(each.elements for each in (*inputs, statements[-1].result)) >= FAR:
        raise NoSkeletonError("an offset into its tensors has more than 31 bits")
    axes = _aligned(statements, tensors)
    last = statements[-1]
    tensors["out"], axes.places["out"] = last.result, axes.places[f"v{len(statements)}"]
    strides = {name: _strides(tensors[name], axes.places[name], len(axes.sides)) for name in tensors}
    if last.name in FOLDS:  # a reduced dimension of the result is not stored along
        strides["out"] = [0 if at in axes.reduced[-1] else each for at, each in enumerate(strides["out"])]
    groups = _merged(axes, list(strides.values()))
    return _Kernel(statements, tensors, axes, strides, groups).text()


def _aligned(statements: Sequence[Statement], tensors: dict[str, Tensor]) -> _Axes:
    """Dimension of each tensor's dimensions, by torch's rule: shapes end together."""
    shape = statements[0].result.shape if not statements[0].over else tensors["x0"].shape
    axes = _Axes([1] * len(shape), {}, [])
    for number, each in enumerate(statements, 1):
        before = axes.places.get(f"v{number - 1}", tuple(range(len(shape))))
        for word in each.words:
            if word in tensors:
                own = tensors[word].shape
                if len(own) > len(before):
                    raise NoSkeletonError(f"{each.name} adds dimensions to a reduced result")
                places = before[len(before) - len(own) :]
                if axes.places.setdefault(word, places) != places:
                    raise NoSkeletonError(f"{each.name} takes {word} along other dimensions than before")
                for at, side in zip(places, own, strict=True):
                    axes.sides[at] = max(axes.sides[at], side)
        kept = tuple(at for place, at in enumerate(before) if each.kept or place not in each.over)
        axes.places[f"v{number}"] = kept if each.name in FOLDS else before
        axes.reduced.append(tuple(before[place] for place in each.over))
    return axes


def _strides(tensor: Tensor, places: tuple[int, ...], dimensions: int) -> list[int]:
    """Elements between neighbours along each dimension of the chain, 0 along those that the tensor lacks."""
    found = [0] * dimensions
    for place, at in enumerate(places):
        found[at] = prod(tensor.shape[place + 1 :]) if tensor.shape[place] > 1 else 0
    return found


def _merged(axes: _Axes, strides: Sequence[Sequence[int]]) -> list[list[int]]:
    """Dimensions in groups, each of which all tensors and reductions run through as one."""
    groups: list[list[int]] = []
    for at in (at for at, side in enumerate(axes.sides) if side > 1):
        before = groups[-1][-1] if groups else None
        alike = before is not None and all((before in each) == (at in each) for each in axes.reduced)
        if alike and before is not None and all(each[before] == each[at] * axes.sides[at] for each in strides):
            groups[-1].append(at)
        else:
            groups.append([at])
    return groups


@dataclass(frozen=True, slots=True)
class _Kernel:
    """The kernel's text. groups: as `_merged` returns them; each is an index i0, i1, …"""

    statements: Sequence[Statement]
    tensors: dict[str, Tensor]
    axes: _Axes
    strides: dict[str, list[int]]
    groups: list[list[int]]

    def side(self, group: int) -> int:
        return prod(self.axes.sides[at] for at in self.groups[group])

    def groups_of(self, statement: int) -> list[int]:
        reduced = self.axes.reduced[statement]
        return [number for number, group in enumerate(self.groups) if group[0] in reduced]

    @property
    def blocks(self) -> dict[int, int]:
        """Side of the block along each group of dimensions that it has. Raises NoSkeletonError if one is too large."""
        adds = self.statements[-1].name in ("sum", "mean")
        whole = {group for number in range(len(self.statements) - adds) for group in self.groups_of(number)}
        found = {group: 1 << (self.side(group) - 1).bit_length() for group in whole}
        final = len(self.groups) - 1
        for group in {final, *(self.groups_of(len(self.statements) - 1) if adds else ())} - whole:
            least = LINE if group == final and not found else TILE
            found[group] = min(1 << (self.side(group) - 1).bit_length(), least)
        if prod(found.values()) > LARGEST:
            raise NoSkeletonError(f"its reductions are over {prod(map(self.side, whole)):,} elements at a time")
        return dict(sorted(found.items()))

    @property
    def programs(self) -> int:
        blocks = self.blocks
        return prod(ceil(self.side(group) / blocks.get(group, 1)) for group in range(len(self.groups)))

    @property
    def adding(self) -> bool:
        """True if several programs add to one result."""
        blocks, last = self.blocks, len(self.statements) - 1
        return any(blocks[group] < self.side(group) for group in self.groups_of(last))

    def text(self) -> str:
        names = [name for name in self.tensors if name != "out"]
        result, given = self.tensors["out"], ", ".join(names)
        dtype = "float64" if self.precise else "float32" if self.adding else DTYPES[result.type]
        made = "zeros" if self.adding else "empty"
        added = "    # Programs add their parts in any order: the last digits differ from call to call.\n"
        return (
            f"\n\ndef fused({given}):\n"
            f"{added if self.adding else ''}"
            f"    out = torch.{made}({list(result.shape)}, dtype=torch.{dtype}, device=x0.device)\n"
            f"    kernel[({self.programs},)]({', '.join(f'{name}.contiguous()' for name in names)}, out)\n"
            f"    return out.to(torch.{DTYPES[result.type]})\n"
            "\n\nif triton is not None:\n\n    @triton.jit\n"
            f"    def kernel({given}, out):\n" + "".join(f"        {line}\n" for line in self.lines())
        )

    @property
    def precise(self) -> bool:
        return any(each.type == "double" for each in self.tensors.values())

    def lines(self) -> Iterator[str]:
        blocks = self.blocks
        yield "at = tl.program_id(0)"
        for group in reversed(range(len(self.groups))):
            size, side = blocks.get(group, 1), self.side(group)
            parts, along = ceil(side / size), ""
            if group in blocks:
                spread = ", ".join(":" if each == group else "None" for each in blocks)
                along = f"tl.arange(0, {size})" + (f"[{spread}]" if len(blocks) > 1 else "")
            first = f"at % {parts}" if group else "at"
            first = "" if parts == 1 else f"{first} * {size}" if size > 1 else first
            yield f"i{group} = {' + '.join(filter(None, (first, along)))}"
            if parts > 1 and group:
                yield f"at = at // {parts}"
        yield f"zero = tl.zeros(({'1, ' * len(blocks)}), tl.int32)"
        yield f"inside = {self.limits(blocks)}"
        for name in (each for each in self.tensors if each != "out"):
            kind = self.tensors[name].type
            cast = "tl.int1" if kind == "bool" else "tl.float64" if self.precise else "tl.float32"
            yield f"a{name[1:]} = tl.load({self.pointer(name)}, other=0).to({cast})"
        for number, each in enumerate(self.statements):
            *before, found = self.computed(number, each)
            yield from before
            yield f"v{number + 1} = {found}{each.remark}"
        store = "atomic_add" if self.adding else "store"
        yield f"tl.{store}({self.pointer('out', value=f'v{len(self.statements)}')})"

    def pointer(self, name: str, value: str = "") -> str:
        """Arguments of a load or, with a value, of a store: the address and the mask."""
        strides, blocks = self.strides[name], self.blocks
        used = {group: strides[own[-1]] for group, own in enumerate(self.groups) if strides[own[-1]]}
        offset = " + ".join(f"i{group}" if by == 1 else f"i{group} * {by}" for group, by in used.items())
        mask = f"mask={self.limits(each for each in used if each in blocks) or 'zero == 0'}"
        return ", ".join(filter(None, (f"{name} + zero{' + ' + offset if offset else ''}", value, mask)))

    def limits(self, groups: Iterable[int]) -> str:
        """Expression that is True for the elements of a block inside the tensor."""
        return " & ".join(f"(i{group} < {self.side(group)})" for group in groups)

    def computed(self, number: int, each: Statement) -> Iterator[str]:
        """Yields the statements before the operator's expression, and then the expression."""
        words = [re.sub(r"^x(\d+)$", r"a\1", re.sub(r'^\w+=(?!=)"?(.*?)"?$', r"\1", word)) for word in each.words]
        over = [list(self.blocks).index(group) for group in self.groups_of(number)]
        if each.name in FOLDS:
            fold, neutral = FOLDS[each.name]
            found = self.folded(fold, words[0], neutral, over)
            count = prod(self.axes.sides[at] for at in self.axes.reduced[number])
            yield f"{found} / {count}" if each.name == "mean" else found
        elif each.name in SPREAD:
            top, total = f"top{number + 1}", f"total{number + 1}"
            if "{top}" in SPREAD[each.name]:
                yield f"{top} = {self.folded('max', words[0], FOLDS['amax'][1], over)}"
            yield f"{total} = {self.folded('sum', TOTALS[each.name].format(*words, top=top), '0.0', over)}"
            yield SPREAD[each.name].format(*words, top=top, total=total)
        elif each.name in ("to", "_to_copy"):
            own, wide = DTYPES[each.result.type], "float64" if self.precise else "float32"
            yield f"{words[0]} != 0" if own == "bool" else f"{words[0]}.to(tl.{own}).to(tl.{wide})"
        else:
            yield _expression(each.name, words)

    def folded(self, fold: str, value: str, neutral: str, over: Sequence[int]) -> str:
        found = f"tl.where(inside, {value}, {neutral})"
        for axis in over:
            found = f"tl.{fold}({found}, axis={axis}, keep_dims=True)"
        return found


def _expression(name: str, words: Sequence[str]) -> str:
    """Expression of a pointwise operator. Raises NoSkeletonError for one that has none."""
    chosen = next((f"{name} {word}" for word in words[1:] if f"{name} {word}" in FORMULAS), name)
    if name == "clamp" and len(words) > 1:
        low, high = (*words[1:], "None")[:2]
        found = words[0] if low == "None" else f"tl.maximum({words[0]}, {low})"
        return found if high == "None" else f"tl.minimum({found}, {high})"
    if chosen not in FORMULAS or (name == "div" and len(words) > 2):
        raise NoSkeletonError(f"{name} has no formula here")
    formula = FORMULAS[chosen]
    needed = 1 + max(map(int, re.findall(r"\{(\d)\}", formula)))
    full = [*words, *DEFAULTS.get(name, ())]
    if len(full) < needed:
        raise NoSkeletonError(f"an argument of {name} was not recorded")
    return formula.format(*(word if re.fullmatch(r"[\w.]+|float\(.*\)", word) else f"({word})" for word in full))
