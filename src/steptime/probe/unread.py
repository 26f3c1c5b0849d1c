"""Results of a call that its caller never reads, by the caller's bytecode (Python 3.10 to 3.14): a name that it binds
and nowhere loads, or the weights of torch's attention where only its first result is taken."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from steptime.probe.sites import READS_LOCALS, names_by_line, names_of

MODULE_CALL = torch.nn.Module._wrapped_call_impl
HIDDEN = frozenset({"CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN"})
"""Instructions that do nothing."""
WEIGHTS, PLACE = "need_weights", 4
"""Argument of torch's attention that says whether its second result is wanted, and its place (torch 2.4 to 2.13)."""
KNOWN_CALLS = 4096
"""Most calls remembered, as a job may make code forever."""

_known: dict[tuple[CodeType, int], tuple[tuple[int, ...], bool]] = {}


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Returns the frame that calls a module, from inside of torch's function for that."""
    while frame is not None and frame.f_code is not MODULE_CALL.__code__:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def dropped_by(caller: FrameType, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """Returns the places of the module's results that nobody reads: none where a hook of the module may, and of
    attention that was not asked for its weights."""
    if module.__dict__.get("_forward_hooks") or torch.nn.modules.module._global_forward_hooks:
        return []
    key = caller.f_code, caller.f_lasti
    if key not in _known:
        if len(_known) >= KNOWN_CALLS:
            return []
        _known[key] = _results(*key)
    dropped, first = _known[key]
    if isinstance(module, torch.nn.MultiheadAttention):
        wanted = kwargs.get(WEIGHTS, args[PLACE] if len(args) > PLACE else True)
        return [1] if wanted is True and (first or 1 in dropped) else []
    return list(dropped)


def _results(code: CodeType, call: int) -> tuple[tuple[int, ...], bool]:
    """(places of the results that are never read, whether only the first is taken) of the call at an offset."""
    behind = (each for each in dis.get_instructions(code) if each.offset > call and each.opname not in HIDDEN)
    following = next(behind, None)
    if following is None:
        return (), False
    if following.opname == "UNPACK_SEQUENCE":
        names = list(islice(_stored(behind), following.arg))
        if len(names) != following.arg or READS_LOCALS.intersection(code.co_names):
            return (), False
        read = {name for _, loads in names_by_line(code).values() for name in loads}
        return tuple(at for at, name in enumerate(names) if name and name not in read), False
    index = next(behind, None)
    taken = following.opname.startswith("LOAD") and following.argval == 0 and index is not None
    return (), taken and index is not None and index.argrepr in ("", "[]") and index.opname.startswith("BINARY")


def _stored(instructions: Iterator[dis.Instruction]) -> Iterator[str]:
    """Yields the names that instructions bind one after the other, "" for one that others may read; ends at the first
    that binds none."""
    for each in instructions:
        private = each.opname.startswith("STORE_FAST")
        stored = [name for store, name in names_of(each) if store]
        if not stored or not each.opname.startswith("STORE"):
            return
        yield from (name if private or name == "_" else "" for name in stored)
