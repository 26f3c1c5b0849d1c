"""Results of a call that its caller never reads, by the caller's bytecode (Python 3.10 to 3.14): a name that it binds
and that no way through the code loads before it is bound anew, or the weights of torch's attention where only its first
result is taken."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from steptime.probe.sites import READS_LOCALS, names_of

MODULE_CALL = torch.nn.Module._wrapped_call_impl
HIDDEN = frozenset({"CACHE", "NOP", "EXTENDED_ARG", "NOT_TAKEN"})
"""Instructions that do nothing."""
ENDS = ("RETURN_VALUE", "RETURN_CONST", "RAISE", "RERAISE", "WITH_EXCEPT_START")
"""Starts of instructions that no way goes on behind: what a `with` does with an exception is to let it pass."""
JUMPS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
"""Starts of instructions that always jump."""
READS_NAMES = READS_LOCALS | {"globals"}
"""Functions by which code may read any name."""
WEIGHTS, PLACE = "need_weights", 4
"""Argument of torch's attention that says whether its second result is wanted, and its place (torch 2.4 to 2.13)."""
MOST_LOOKED_AT = 5_000
"""Instructions behind a call; where more can follow it, its results count as read."""
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
    every = list(dis.get_instructions(code))
    behind = (each for each in every if each.offset > call and each.opname not in HIDDEN)
    following = next(behind, None)
    if following is None:
        return (), False
    if following.opname == "UNPACK_SEQUENCE":
        names = list(islice(_stored(behind, _of_module(code)), following.arg))
        if len(names) != following.arg or READS_NAMES & _names(code):
            return (), False
        start, handlers = next(behind, None), getattr(dis.Bytecode(code), "exception_entries", ())
        unread = (at for at, name in enumerate(names) if name and not _is_read(name, every, start, handlers))
        return tuple(unread), False
    index = next(behind, None)
    taken = following.opname.startswith("LOAD") and following.argval == 0 and index is not None
    return (), taken and index is not None and index.argrepr in ("", "[]") and index.opname.startswith("BINARY")


def _stored(instructions: Iterator[dis.Instruction], module: frozenset[str]) -> Iterator[str]:
    """Yields the names that instructions bind one after the other, "" for one that others may read; ends at the first
    that binds none. module: names of a module that only its own statements read."""
    for each in instructions:
        private = each.opname.startswith("STORE_FAST")
        stored = [name for store, name in names_of(each) if store]
        if not stored or not each.opname.startswith("STORE"):
            return
        yield from (name if private or name in {"_", *module} else "" for name in stored)


def _of_module(code: CodeType) -> frozenset[str]:
    """Names of a script's own statements that no function in it has; none of a notebook's cell, whose names the next
    cell may read."""
    if code.co_name != "<module>" or not Path(code.co_filename).is_file():
        return frozenset()
    inner, others = [each for each in code.co_consts if isinstance(each, CodeType)], set[str]()
    while inner:
        each = inner.pop()
        others |= _names(each)
        inner += [one for one in each.co_consts if isinstance(one, CodeType)]
    return frozenset() if READS_NAMES & (others | _names(code)) else frozenset(code.co_names) - others


def _names(code: CodeType) -> set[str]:
    """Names, not attributes, that code loads from its module."""
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_NAME", "LOAD_GLOBAL")}


def _is_read(name: str, every: list[dis.Instruction], start: dis.Instruction | None, handlers: Any) -> bool:
    """True if some way through the code from an instruction on loads a name before it is bound again, or that is not
    known. handlers: of exceptions, with the offsets that each is for."""
    at = {each.offset: number for number, each in enumerate(every)}
    ahead, seen = [at[start.offset]] if start is not None else [], set[int]()
    while ahead:
        number = ahead.pop()
        if number in seen or number >= len(every):
            continue
        seen.add(number)
        if len(seen) > MOST_LOOKED_AT:
            return True
        each = every[number]
        ahead += [at[entry.target] for entry in handlers if entry.start <= each.offset < entry.end]
        named = {store for store, other in names_of(each) if other == name}
        if False in named:
            return True
        if True in named:
            continue
        if each.opcode in (*dis.hasjrel, *dis.hasjabs):
            ahead.append(at[each.argval])
        if not each.opname.startswith((*ENDS, *JUMPS)):
            ahead.append(number + 1)
    return False
