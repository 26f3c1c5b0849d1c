"""The work of one operator call, from the shapes and types that the trace holds: FLOPs and bytes.

FLOPs: those of matrix products, convolutions, attention and recurrent layers, a multiply and an add counted as two, as
torch.utils.flop_counter counts them; zero for operators whose arithmetic never binds. Bytes: each input read once and
each output written once, which is the least that must move when nothing stays in a cache; temporaries of an operator
do not count. docs/roofline.md has the definitions; each family of operators has a module of its own.
"""

from __future__ import annotations

from steptime.work import attention, convolution, elementwise, matmul, movement, optimizer, recurrent, reduction
from steptime.work.arguments import parse
from steptime.work.compiled import compiled
from steptime.work.model import Model, Work

__all__ = ["MODELS", "Work", "depends_on_values", "work_of"]

MODELS: dict[str, Model] = {
    **elementwise.MODELS,
    **reduction.MODELS,
    **movement.MODELS,
    **optimizer.MODELS,
    **matmul.MODELS,
    **convolution.MODELS,
    **attention.MODELS,
    **recurrent.MODELS,
}
"""By the operator's name without namespace, overload and in-place mark."""

VALUED = frozenset().union(
    reduction.MODELS, movement.MODELS, convolution.MODELS, attention.MODELS, ("_scaled_mm", "_scaled_grouped_mm")
)


def work_of(name: str, shapes: str, types: str, inputs: str, *, list_item: int = 4) -> Work | None:
    """The work of one call, None without a model or without the arguments it needs.

    shapes, types, inputs: raw JSON of "Input Dims", "Input type" and "Concrete Inputs" ("" for none). list_item: bytes
    of an element of tensor lists, which a trace does not say.
    """
    model = _model(name)
    if model is None or not shapes:
        return None
    try:
        return model(parse(shapes, types, inputs, in_place=_base(name).endswith("_"), list_item=list_item))
    except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return None


def depends_on_values(name: str) -> bool:
    """Whether an operator's work depends on more than shapes and types: strides, masks, dimensions to sum over.

    What changes from call to call without changing the work (a learning rate, a seed) need not be looked at.
    """
    return _base(name).rstrip("_") in VALUED or _base(name) in VALUED


def _model(name: str) -> Model | None:
    base = _base(name)
    return MODELS.get(base) or MODELS.get(base.rstrip("_")) or optimizer.foreach(base) or compiled(base)


def _base(name: str) -> str:
    """Without namespace and overload."""
    return name.rsplit("::", 1)[-1].split(".", 1)[0]
