"""Operators over lists of tensors: _foreach_* and the fused optimisers. FLOPs are zero.

A trace does not say the type of a list's tensors; `parse` is told what the kernel's name says.
"""

from __future__ import annotations

from steptime.work.arguments import Call
from steptime.work.model import Model, Work, named

FOREACH = "_foreach_"
REDUCING = ("_foreach_norm", "_foreach_max")
REPLACING = ("_foreach_copy",)


def foreach(name: str) -> Model | None:
    """The model of a _foreach_ operator, by its name without namespace; None for another operator."""
    if not name.startswith(FOREACH):
        return None
    if name.rstrip("_") == "_foreach_zero":
        return lambda call: Work(0.0, call.size(0))
    if name in REDUCING:
        return lambda call: Work(0.0, call.size(0) + sum(tensor.item for tensor in call.tensors[0]))
    if name.rstrip("_") in REPLACING:
        return lambda call: Work(0.0, call.size(0, 1))
    return _updated


def _updated(call: Call) -> Work:
    """Reads all lists, writes one like the first."""
    return Work(0.0, call.read + call.size(0))


def _unscaled(call: Call) -> Work:
    """_amp_foreach_non_finite_check_and_unscale_(gradients, …): reads and writes them."""
    return Work(0.0, 2 * call.size(0))


def _fused(call: Call) -> Work:
    """_fused_*(parameters, gradients, states, …): reads all, writes all but the gradients."""
    return Work(0.0, 2 * call.read - call.size(1))


MODELS: dict[str, Model] = {
    **named(_unscaled, "_amp_foreach_non_finite_check_and_unscale"),
    **named(_fused, "_fused_adam _fused_adamw _fused_sgd _fused_adagrad"),
}
