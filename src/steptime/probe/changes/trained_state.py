"""Trained state of a job, saved and restored, so that each block of a trial in one process starts with the same."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from steptime.probe import device
from steptime.probe.free_memory import free_memory
from steptime.probe.objects import each_once, modules_of, parameters_of, tensors_in, updated_by

ROOM = 2.0
"""Free memory that must be there, in sizes of the saved state, because the job goes on next to it."""
RESERVE = 1 << 30
"""Bytes that must stay free in addition."""


class NoRoomError(Exception):
    """Error: neither the device nor the CPU has room for the saved state."""


class TrainedState:
    """Copy of modules' parameters and buffers, optimizers' states, and the random streams of Python, NumPy and torch,
    held on the device if its memory allows, else on the CPU. Raises NoRoomError if neither has room.

    A generator of the job's own, and tensors outside of modules, are not restored."""

    def __init__(self, top_modules: Sequence[torch.nn.Module], optimizers: Sequence[Any]) -> None:
        self._tensors = list(each_once(*map(_tensors_of, top_modules), *map(updated_by, optimizers)))
        states = [(each, dict(each.state)) for each in optimizers]
        size = sum(each.nbytes for each in self._tensors)
        size += sum(each.nbytes for _, state in states for each in tensors_in(state))
        place = _place(size)
        with torch.no_grad():
            self._copies = [_copied(each, place) for each in self._tensors]
            self._states = [
                (each, {key: _copied(value, place) for key, value in state.items()}) for each, state in states
            ]
        self._streams = _Streams()

    def restore(self) -> None:
        """Writes the state back, in place."""
        with torch.no_grad():
            for tensor, kept in zip(self._tensors, self._copies, strict=True):
                tensor.copy_(kept)
            for optimizer, state in self._states:
                for key in [each for each in optimizer.state if each not in state]:
                    del optimizer.state[key]  # it was made later, and would be
                for key, kept in state.items():
                    optimizer.state[key] = _restored(optimizer.state.get(key), kept)
        self._streams.restore()


def _tensors_of(top_module: torch.nn.Module) -> Iterator[Any]:
    yield from parameters_of(top_module)
    for module in modules_of(top_module):
        own = (
            module.buffers()
            if isinstance(module, torch.jit.ScriptModule)
            else module.__dict__.get("_buffers", {}).values()
        )
        yield from (each for each in own if each is not None)


def _place(size: int) -> str:
    """Returns "" to keep copies on each tensor's device, or "cpu" for the CPU."""
    needed = ROOM * size + RESERVE
    if device.in_use():
        free, _ = torch.cuda.mem_get_info()
        if free >= needed:
            return ""
    free_on_host = free_memory() if size else None
    if free_on_host is not None and free_on_host < needed:
        raise NoRoomError(f"no room to keep {size / 1e9:.1f} GB of what is trained next to the job")
    return "cpu"


def _copied(value: Any, place: str) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().to(place or value.device, copy=True)
    if isinstance(value, dict):
        return {key: _copied(each, place) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_copied(each, place) for each in value]
    return copy.deepcopy(value)


def _restored(present: Any, kept: Any) -> Any:
    """Copies the saved state into existing tensors, so that their layout, and references to them, stay valid."""
    if isinstance(kept, torch.Tensor):
        fits = isinstance(present, torch.Tensor) and present.shape == kept.shape
        return present.copy_(kept) if fits else kept.clone()
    if isinstance(kept, dict):
        there = present if isinstance(present, dict) else {}
        for key in [each for each in there if each not in kept]:
            del there[key]
        there.update({key: _restored(there.get(key), each) for key, each in kept.items()})
        return there
    if isinstance(kept, list) and isinstance(present, list | tuple) and len(kept) == len(present):
        return type(present)(_restored(one, other) for one, other in zip(present, kept, strict=True))
    return copy.deepcopy(kept)


class _Streams:
    """States of the random generators that jobs use implicitly."""

    def __init__(self) -> None:
        self._numpy = getattr(sys.modules.get("numpy"), "random", None)
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._own = self._numpy.get_state() if self._numpy is not None else None
        self._cuda = torch.cuda.get_rng_state() if device.in_use() else None

    def restore(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._numpy is not None:
            self._numpy.set_state(self._own)
        if self._cuda is not None:
            torch.cuda.set_rng_state(self._cuda)
