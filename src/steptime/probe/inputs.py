"""Samples and tokens per step, from the inputs of the model. Jobs that make batches by hand have no loader that reports
a batch size.

No number is better than a wrong one. The discovery steps are examined call by call; later calls are checked a few times
per second. Only shapes are read, never values.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, UserDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from steptime.probe.objects import being_traced, modules_of, unasked

MOST_CALLS = 1_000
"""Most model calls in the examined steps."""
MOST_WITHOUT = 100
"""Most calls without gradients in them."""
LEAST_LENGTH = 2
"""Least length of a row of tokens."""
PERIOD = 200_000_000
"""Time between two checks of the inputs once their size is known, ns."""
LOOKS, LOOK_PERIOD, ALIKE = 16, 10_000_000, 0.75
"""Calls without gradients that are looked at, ns between two of them, and the least fraction of them with the same
number of rows."""
ODD_SHARE, LEAST_ODD = 8, 3
"""Batches count as varying if at least LEAST_ODD checks, and more than one in ODD_SHARE, differ. A smaller last batch
of an epoch counts as whole, like a loader's."""
IDS = "input_ids"
"""Name of the tokens in Hugging Face's models."""
GRAPHS = ("torch_geometric.", "torch_sparse.", "dgl.")
"""Packages whose first dimension counts nodes."""
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16})
PLAIN = (type(None), bool, int, float, str)
SEQUENTIAL = (
    torch.nn.RNNBase, torch.nn.MultiheadAttention, torch.nn.Transformer, torch.nn.TransformerEncoderLayer,
    torch.nn.TransformerDecoderLayer, torch.nn.RNNCellBase,
)  # fmt: skip
"""Modules that read (time, batch) if `batch_first` is False, and a single sequence without a batch dimension. A loop
over recurrent cells may have either dimension first."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a call's inputs. rows: first dimension of all its tensors. length: second dimension of its integer
    tensors, if all are 2-D and equal. named: True if one is called `input_ids`. several: True if there are several.
    least: fewest dimensions of its floating-point tensors, or None. largest: shape of the tensor with most elements."""

    rows: int
    length: int | None
    named: bool
    several: bool
    least: int | None
    largest: tuple[int, ...]


def size_of(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Size | None:
    """Returns the size of a call; None if the first dimension of its arguments may not be the batch."""
    given = list(_given(arguments, named))
    tensors = [(name, each) for name, each in given if isinstance(each, torch.Tensor)]
    if len(tensors) < sum(not isinstance(each, PLAIN) for _, each in given):
        return None  # a graph, a packed sequence, a list of images: nobody knows what its tensors' dimensions are
    with unasked():
        if any(each.layout is not torch.strided or each.is_nested for _, each in tensors):
            return None
        shapes = [(name, each.dtype in INTEGERS, tuple(each.shape)) for name, each in tensors if each.dim()]
        numbers = [each.dim() for _, each in tensors if each.dim() and each.is_floating_point()]
    rows = {shape[0] for _, _, shape in shapes}
    if len(rows) != 1 or 0 in rows or max(len(shape) for _, _, shape in shapes) < 2:
        return None  # of one dimension alone: a single sample, or tokens in one row
    integers = [(name, shape) for name, whole, shape in shapes if whole]
    flat = {shape for _, shape in integers if len(shape) == 2 and shape[1] >= LEAST_LENGTH}
    length = next(iter(flat))[1] if len(flat) == 1 else None
    named_so = any(name == IDS for name, _ in integers)
    largest = max((shape for _, _, shape in shapes), key=math.prod)
    return Size(rows.pop(), length, named_so, len(integers) > 1, min(numbers, default=None), largest)


def _given(arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields names ("" for positional arguments) and values. Opens a batch that is a dictionary."""
    for name, each in (*(("", each) for each in arguments), *named.items()):
        fields = each.__dict__.get("data") if UserDict in type(each).__mro__ else each  # Hugging Face's batches
        if type(fields) is dict and all(isinstance(key, str) for key in fields):
            yield from fields.items()
        else:
            yield name, each


@dataclass(slots=True)
class _ModelCall:
    """Call of a model with gradients. module: its id; size: None if unknown; output: shapes of the results."""

    module: int
    size: Size | None
    output: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class CallWithout:
    """Call of a module without gradients. module: id of the module; place: line of the user's code; same: True if the
    call got a tensor that the module also got with gradients, or no tensor that could be compared."""

    module: int
    tensors: list[weakref.ref[torch.Tensor]]
    place: tuple[str, int, str] | None
    same: bool

    def trained(self, module: int, given: list[torch.Tensor]) -> None:
        """Called when a module is called with gradients: compares its tensors with those of this call."""
        self.same = self.same or (self.module == module and _shared(self.tensors, given))


def _shared(known: Iterable[weakref.ref[torch.Tensor]], given: list[torch.Tensor]) -> bool:
    return any(reference() is each for reference in known for each in given)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Common shape of the calls in the examined steps. module: function that returns the module whose calls count.
    rows, tokens: number per call; tokens is None if the model reads none. dimensions: number of the largest tensor's
    dimensions; elements: mean number in it per call."""

    module: Callable[[], torch.nn.Module | None]
    name: str
    rows: int
    tokens: int | None
    dimensions: int = 0
    elements: float = 0.0


@dataclass
class InputObserver:
    """Observer of the training thread's calls, backwards and updates during discovery. spoilt: True if no result is
    reliable."""

    spoilt: bool = False
    _passes: list[list[_ModelCall]] = field(default_factory=lambda: [[]])
    _modules: dict[int, weakref.ref[torch.nn.Module]] = field(default_factory=dict)
    _tensors: list[weakref.ref[torch.Tensor]] = field(default_factory=list)
    _trained_on: dict[int, list[weakref.ref[torch.Tensor]]] = field(default_factory=dict)
    _without: list[CallWithout] = field(default_factory=list)
    _open: _ModelCall | None = None
    in_backward: bool = False
    _updates: int = 0
    _in_update: int = 0
    _calls: int = 0

    def called(
        self,
        module: torch.nn.Module,
        arguments: tuple[Any, ...],
        named: Mapping[str, Any],
        place: tuple[str, int, str] | None = None,
    ) -> None:
        """Called when the user calls a module with parameters. place: line of the call."""
        given = [each for _, each in _given(arguments, named) if isinstance(each, torch.Tensor)]
        self._compare(id(module), given, place)
        if self.spoilt or self.in_backward or not torch.is_grad_enabled():
            return
        self._calls += 1
        again = any(known() is each for known in self._tensors for each in given)
        if again and any(id(module) == call.module for calls in self._passes[self._updates :] for call in calls):
            self.spoilt = True  # the same batch twice in a step (SAM, LBFGS), not two batches
        self._tensors += map(weakref.ref, given)
        self._modules.setdefault(id(module), weakref.ref(module))
        self._open = _ModelCall(id(module), size_of(arguments, named))
        self._passes[-1].append(self._open)
        self.spoilt = self.spoilt or self._calls > MOST_CALLS

    def _compare(self, module: int, given: list[torch.Tensor], place: tuple[str, int, str] | None) -> None:
        """Compares a call's tensors with those of the module's calls of the other kind: with gradients, or without."""
        trained_on = self._trained_on.setdefault(module, [])
        if torch.is_grad_enabled():
            trained_on += map(weakref.ref, given)
            for call in self._without:
                call.trained(module, given)
        elif len(self._without) < MOST_WITHOUT:
            same = not given or _shared(trained_on, given)
            self._without.append(CallWithout(module, list(map(weakref.ref, given)), place, same))

    def without_gradients(self, module: torch.nn.Module) -> tuple[CallWithout, ...]:
        """Returns the calls of a module without gradients."""
        return tuple(call for call in self._without if call.module == id(module))

    def returned(self, result: Any) -> None:
        """Called when the call has ended."""
        if self._open is not None:
            self._open.output = tuple(tuple(each.shape) for each in _results(result) if not each.is_nested)
            self._open = None

    def backward(self, starts: bool) -> None:
        """Called when a pass through autograd's engine starts or ends."""
        self.in_backward, self._open = starts, None
        if starts and self._passes[-1]:
            self._passes.append([])
            if self._in_update:
                self._in_update += 1
                self.spoilt = self.spoilt or self._in_update > 2  # a closure that is called again and again

    def update(self, starts: bool) -> None:
        """Called when an optimizer's step starts or ends."""
        self._in_update = int(starts)
        if not starts:
            self._tensors.clear()
            self._updates = len(self._passes) - 1

    def found(self, optimizers: int) -> Inputs | None:
        """Returns the inputs, or None if anything contradicts them. optimizers: number in the job. Several ones with
        several models may train on the same samples several times, as a GAN does."""
        passes = [calls for calls in self._passes[:-1] if calls]
        models = {call.module for calls in passes for call in calls}
        alike = all(len(calls) == len(models) and {call.module for call in calls} == models for calls in passes)
        if self.spoilt or not passes or not alike or (len(models) > 1 and optimizers > 1):
            return None
        calls = [call for each in passes for call in each]
        sizes = [call.size for call in calls]
        if any(size is None or size.rows != (sizes[0] and sizes[0].rows) for size in sizes):
            return None
        modules = {number: self._modules[number]() for number in models}
        if any(module is None or not _batch_first(module, calls) for module in modules.values()):
            return None
        return _inputs(passes[0][0], [call for call in calls if call.module == passes[0][0].module], self._modules)


def _inputs(
    first: _ModelCall, calls: list[_ModelCall], modules: dict[int, weakref.ref[torch.nn.Module]]
) -> Inputs | None:
    module, size = modules[first.module](), first.size
    if module is None or size is None:
        return None
    rows = size.rows
    outputs = [shapes[0][0] for call in calls if (shapes := [each for each in call.output if each])]
    if any(each % rows for each in outputs):  # an image without a batch, whose first dimension is its channels
        return None
    read = {_length(call) for call in calls}
    embeds = any(isinstance(each, torch.nn.Embedding) for each in modules_of(module))
    length = read.pop() if len(read) == 1 and embeds else None
    largest = [call.size.largest for call in calls if call.size is not None]
    elements = sum(map(math.prod, largest)) / len(largest)
    tokens = length and rows * length
    return Inputs(modules[first.module], type(module).__name__, rows, tokens, len(size.largest), elements)


def _length(call: _ModelCall) -> int | None:
    """Returns the tokens per row, or None if its integers may be classes or columns of a table. Text is named
    `input_ids`, comes with a second tensor of its shape (labels or a mask), or gives an output of its length."""
    size = call.size
    if size is None or size.length is None:
        return None
    as_long = any(
        shape[:2] == (size.rows, size.length) if len(shape) > 2 else shape[:1] == (size.rows * size.length,)
        for shape in call.output
    )
    return size.length if size.named or size.several or as_long else None


def _batch_first(module: torch.nn.Module, calls: Iterable[_ModelCall]) -> bool:
    """True if the first dimension can be the batch, judging by the submodules."""
    sequential = False
    for each in modules_of(module):
        if type(each).__module__.startswith(GRAPHS):
            return False
        if isinstance(each, SEQUENTIAL):
            sequential = True
            if isinstance(each, torch.nn.RNNCellBase) or not getattr(each, "batch_first", True):
                return False
    # A sequence alone, without a batch: its first dimension is time.
    own = [call.size for call in calls if call.size is not None]
    return not sequential or all(size.length is not None if size.least is None else size.least > 2 for size in own)


def _results(result: Any) -> Iterator[torch.Tensor]:
    """Yields the tensors of a result, in order."""
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, list | tuple) else (result,)
    yield from (each for each in parts if isinstance(each, torch.Tensor))


class InputCheck:
    """Check that a model's inputs keep their size."""

    def __init__(self, inputs: Inputs, changed: Callable[[], None]) -> None:
        self._inputs, self._changed = inputs, changed
        self._looks = self._odd = 0
        self.due = 0
        """Time of the next check, ns."""

    def look(self, start: int, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Checks a call of the model with gradients. start: ns."""
        self.due = start + PERIOD
        if being_traced():
            return
        size, tokens = size_of(arguments, named), self._inputs.tokens
        self._looks += 1
        length = size.length if size is not None else None
        odd = size is None or size.rows != self._inputs.rows or (tokens and tokens != size.rows * (length or 0))
        self._odd += bool(odd)
        if self._odd >= LEAST_ODD and self._odd * ODD_SHARE > self._looks:
            self.due = 1 << 62
            self._changed()


class RowsWithout:
    """Observer of the batch size in a model's calls without gradients. report: function called once with the number of
    rows that most of LOOKS calls have, and the elements of such a row as a multiple of a training row's. It is not
    called if the numbers differ."""

    def __init__(self, inputs: Inputs, report: Callable[[int, float], None]) -> None:
        self._inputs, self._report = inputs, report
        self._calls, self._elements = Counter[int](), Counter[int]()
        self.due = 0
        """Time of the next look, ns."""

    def look(self, start: int, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Looks at a call of the model without gradients. start: ns."""
        self.due = start + LOOK_PERIOD
        if being_traced():
            return
        with unasked():
            tensors = [each for _, each in _given(arguments, named) if isinstance(each, torch.Tensor)]
            shapes = [tuple(each.shape) for each in tensors if not each.is_nested]
        shape, dimensions = max(shapes, key=math.prod, default=()), self._inputs.dimensions
        # A dimension less: a single sample without the batch's.
        rows = shape[0] if len(shape) == dimensions else int(len(shape) == dimensions - 1)
        self._calls[rows] += 1
        self._elements[rows] += math.prod(shape)
        if self._calls.total() >= LOOKS:
            self.due = 1 << 62
            ((rows, count),) = self._calls.most_common(1)
            if rows and count >= ALIKE * LOOKS:
                of_a_row = self._elements[rows] / count / rows
                self._report(rows, of_a_row * self._inputs.rows / max(1.0, self._inputs.elements))
