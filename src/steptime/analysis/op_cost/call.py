"""An operator call: its arguments as a trace holds them, and the type of its cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

ELEMENT_BYTES = {
    "float": 4, "double": 8, "long int": 8, "long": 8, "int": 4, "short int": 2, "short": 2, "signed char": 1,
    "unsigned char": 1, "char": 1, "bool": 1, "c10::Half": 2, "c10::BFloat16": 2, "c10::complex<float>": 8,
    "c10::complex<double>": 16, "c10::complex<c10::Half>": 4, "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1,
    "c10::Float8_e4m3fnuz": 1, "c10::Float8_e5m2fnuz": 1, "c10::Float8_e8m0fnu": 1, "c10::qint8": 1, "c10::quint8": 1,
    "c10::qint32": 4, "unsigned short": 2, "unsigned int": 4, "unsigned long": 8,
}  # fmt: skip
"""Bytes per element of Kineto's C++ types. An argument of any other type is no tensor, or one of unknown size."""
FORMATS = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
    "c10::Float8_e4m3fn": "float8", "c10::Float8_e5m2": "float8", "c10::Float8_e4m3fnuz": "float8",
    "c10::Float8_e5m2fnuz": "float8", "signed char": "int8", "char": "int8",
}  # fmt: skip
"""C++ types to the dtypes of `Machine.matrix`."""
SCALAR_TYPES = {
    0: "unsigned char", 1: "signed char", 2: "short int", 3: "int", 4: "long int", 5: "c10::Half", 6: "float",
    7: "double", 8: "c10::complex<c10::Half>", 9: "c10::complex<float>", 10: "c10::complex<double>", 11: "bool",
    15: "c10::BFloat16", 23: "c10::Float8_e5m2", 24: "c10::Float8_e4m3fn", 25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
}  # fmt: skip
"""c10::ScalarType, as a dtype argument is printed."""
LIST = "TensorList"
LARGEST = 1 << 50
"""Most elements of a tensor: a petabyte."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor argument of an operator. item: bytes per element."""

    shape: tuple[int, ...]
    type: str
    item: int

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * self.item

    @property
    def dtype(self) -> str:
        """Name of the tensor's dtype as in `Machine.matrix`, else its C++ type; "" for tensors of a list."""
        return "" if self.type == LIST else FORMATS.get(self.type, self.type)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of an operator's call, by position. tensors: tensors of each argument, empty for an argument without.
    texts: printed value of each argument, "" if not recorded. in_place: True if the operator's name ends with "_"."""

    tensors: tuple[tuple[Tensor, ...], ...]
    texts: tuple[str, ...]
    in_place: bool = False

    def tensor(self, position: int) -> Tensor:
        """The tensor at a position. Raises LookupError when there is none."""
        return self.tensors[position][0]

    def has(self, position: int) -> bool:
        """True if there is a tensor at a position."""
        return position < len(self.tensors) and bool(self.tensors[position])

    def text(self, position: int) -> str:
        """The printed value at a position. Raises LookupError where it was not recorded."""
        if not self.texts[position]:
            raise LookupError(position)
        return self.texts[position]

    def numbers(self, position: int) -> tuple[int, ...]:
        """List of integers at a position, "[1, 1]" or "1". Raises LookupError or ValueError if it is unknown."""
        found = json.loads(self.text(position).lower())
        return tuple(int(each) for each in (found if isinstance(found, list) else [found]))

    def number(self, position: int) -> int:
        """Integer or truth value that is printed at a position."""
        return int(json.loads(self.text(position).lower()))

    def size(self, *positions: int) -> int:
        """Bytes of the tensors at some positions together; positions without a tensor count as 0."""
        return sum(tensor.bytes for each in positions if each < len(self.tensors) for tensor in self.tensors[each])

    @property
    def all_tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the call, including those in lists."""
        return tuple(tensor for listed in self.tensors for tensor in listed)

    @property
    def read(self) -> int:
        """Bytes of all tensors of the call."""
        return sum(tensor.bytes for tensor in self.all_tensors)

    @property
    def largest(self) -> Tensor:
        """Tensor of the call with most bytes. Raises ValueError if there is none."""
        return max(self.all_tensors, key=lambda tensor: tensor.bytes)


def parse(shapes: str, types: str, inputs: str, *, in_place: bool = False, list_item: int = 4) -> Call:
    """Call from the raw JSON of "Input Dims", "Input type" and "Concrete Inputs" ("" for none).

    list_item: bytes per element in tensor lists, whose types are not in a trace. Raises ValueError or TypeError if a
    text is malformed, LookupError for a list whose shapes were not recorded (before torch 2.1)."""
    dimensions, kinds = json.loads(shapes), json.loads(types) if types else []
    texts = json.loads(inputs) if inputs else []
    tensors = tuple(_tensors(shape, kind, list_item) for shape, kind in zip(dimensions, kinds, strict=False))
    if not any(tensors) and any(kind == LIST for kind in kinds):
        raise LookupError("the shapes of the lists were not recorded")
    return Call(tensors, tuple(map(str, texts)), in_place)


def _tensors(shape: list[object], kind: str, list_item: int) -> tuple[Tensor, ...]:
    if kind == LIST:
        return tuple(Tensor(_sides(each), kind, list_item) for each in shape if isinstance(each, list))
    if kind not in ELEMENT_BYTES:
        return ()
    return (Tensor(_sides(shape), kind, ELEMENT_BYTES[kind]),)


def _sides(shape: list[object]) -> tuple[int, ...]:
    """Sides of a shape. Raises ValueError if it is no shape."""
    sides = tuple(side for side in shape if isinstance(side, int) and side >= 0)
    if len(sides) != len(shape) or prod(sides) > LARGEST:
        raise ValueError("no shape of a tensor")
    return sides


@dataclass(frozen=True, slots=True)
class OpCost:
    """Cost of one call. flops: None if the arithmetic is unknown (a Triton template). bytes: read and written.
    operations: number of elements that a pointwise operator writes, each one operation that no peak bounds. dtype:
    dtype of the matmul, as in `Machine.matrix_rate`. dimensions: sides of a matmul by name ("m", "n", "k"; for a
    convolution "channels in" and "channels out" of one group)."""

    flops: float | None
    bytes: float
    dtype: str = "float32"
    dimensions: tuple[tuple[str, int], ...] = ()
    operations: int = 0


Model = Callable[[Call], OpCost]


def item_of(call: Call, position: int, usual: int) -> int:
    """Bytes per element of the dtype that a call has as an argument at a position; `usual` if it was not recorded."""
    known = position < len(call.texts) and call.texts[position].isdigit()
    return ELEMENT_BYTES[SCALAR_TYPES[int(call.texts[position])]] if known else usual


def named(model: Model, names: str) -> dict[str, Model]:
    """Dictionary that gives one cost model to several operators, whose names are in one text."""
    return dict.fromkeys(names.split(), model)
