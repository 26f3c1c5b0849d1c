"""Rehearsal in float64, in which two runs of the same training agree to 1e-13 of the parameters' movement.

Rounding of float32 hides a missing term of the loss, or other options of an optimizer; rounding of float64 does not.
Random numbers depend on the function's name, the shape and the count of both. A call that is missing, or inside a
compiled region, then shifts no other call's numbers.
"""

from __future__ import annotations

import functools
import zlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from steptime.probe.changes.applier import wrap_top_module
from steptime.probe.objects import modules_of

DRAWING = ("rand", "randn", "randint", "bernoulli", "normal", "multinomial", "rand_like", "randn_like", "randint_like")
DRAWN_INTO = ("uniform_", "normal_", "bernoulli_", "exponential_", "random_", "geometric_", "log_normal_", "cauchy_")
"""Functions of torch, and methods of tensors, that draw random numbers."""
SINGLE = (torch.float32, torch.bfloat16, torch.float16)


def install() -> None:
    """Switches to float64 and keyed random numbers, at the import of torch."""
    torch.set_default_dtype(torch.float64)
    import torch._inductor.config as inductor  # takes a second, and is needed here alone

    inductor.fallback_random = True  # compiled regions draw what torch's own functions do
    counts: Counter[tuple[Any, ...]] = Counter()
    for name in DRAWING:
        setattr(torch, name, _keyed(getattr(torch, name), name, counts))
    for name in DRAWN_INTO:
        setattr(torch.Tensor, name, _keyed(getattr(torch.Tensor, name), name, counts))
    torch.nn.modules.module.register_module_forward_pre_hook(_inputs_of)


def _inputs_of(module: torch.nn.Module, inputs: Any) -> Any:
    """Converts what a module with weights in float64 gets from the job in lower precision: of a part that is called by
    itself, or before the first training forward."""
    weights = [each for each in module._parameters.values() if each is not None]
    single = any(isinstance(each, torch.Tensor) and each.dtype in SINGLE for each in inputs)
    if single and any(each.dtype is torch.float64 for each in weights):
        return tuple(map(_double, inputs))
    return None


def _keyed(original: Callable[..., Any], name: str, counts: Counter[tuple[Any, ...]]) -> Callable[..., Any]:
    """Wraps `original` so that it draws from a seed made of its name, its arguments and their count."""

    @functools.wraps(original)
    def drawn(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("generator") is not None:
            return original(*args, **kwargs)
        key = (name, *map(_form, args), *((key, _form(value)) for key, value in sorted(kwargs.items())))
        counts[key] += 1
        seed = zlib.crc32(repr((key, counts[key])).encode())
        generators = [torch.default_generator]
        if torch.cuda.is_initialized():
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        states = [each.get_state() for each in generators]
        for each in generators:
            each.manual_seed(seed)
        try:
            return original(*args, **kwargs)
        finally:
            for each, state in zip(generators, states, strict=True):
                each.set_state(state)

    drawn._torchdynamo_disable = True  # type: ignore[attr-defined]
    return drawn


def _form(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, torch.Tensor) else repr(value)


def top_module(module: torch.nn.Module) -> None:
    """Converts a top module, before its first training forward, and its later inputs from lower precision to
    float64."""
    for each in modules_of(module):
        for tensor in (*each._parameters.values(), *each._buffers.values()):
            if tensor is not None and tensor.dtype in SINGLE:
                tensor.data = tensor.data.double()

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: call(*map(_double, args), **{name: _double(v) for name, v in kwargs.items()})

    wrap_top_module(module, wrap)


def _double(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype in SINGLE else value
    if isinstance(value, dict):
        return {name: _double(each) for name, each in value.items()}
    return type(value)(map(_double, value)) if type(value) in (list, tuple) else value
