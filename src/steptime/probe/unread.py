"""Results of a call that its caller never reads, by the caller's bytecode (Python 3.10 to 3.14): a name that no path
through the code loads before it is bound again. Or the weights of torch's attention, if only its first result is used.
And the gradients of torch.autograd.grad, of whose tuple the code takes some by constants."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from steptime.probe.sites import READS_LOCALS, codes_in, names_of

MODULE_CALL = torch.nn.Module._wrapped_call_impl
GRAD_CALL = torch.autograd.grad
FRAMES_BELOW = 8
"""Frames between that function and an observer of the pass that it starts, at most."""
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
CALLS_OTHERS = frozenset({"map", "starmap"})
"""Functions that call another one from C, and give something else than it does."""
CONSTANTS = frozenset({"LOAD_CONST", "LOAD_SMALL_INT"})
INDEXED = frozenset({("BINARY_SUBSCR", ""), ("BINARY_OP", "[]")})
"""How a version of Python indexes."""
MOST_LOOKED_AT = 5_000
"""Instructions after a call; if more can follow it, its results count as read."""
KNOWN_CALLS = 4096
"""Most calls remembered, as a job may make code forever."""

_known: dict[tuple[CodeType, int], tuple[tuple[int, ...], bool]] = {}


def caller_of(frame: FrameType | None) -> FrameType | None:
    """Returns the frame that calls a module, from a frame inside of torch's function that calls it."""
    while frame is not None and frame.f_code is not MODULE_CALL.__code__:
        frame = frame.f_back
    return frame.f_back if frame is not None else None


def dropped_by(caller: FrameType, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """Returns the indices of the module's results that nobody reads; [] if a hook of the module may read them, and for
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


def asked_by(frame: FrameType | None) -> tuple[list[Any], frozenset[int]] | None:
    """Returns (tensors whose gradients torch.autograd.grad was asked for, positions of those that its caller reads),
    from a frame inside of the pass. None if the caller may read all."""
    for _ in range(FRAMES_BELOW):
        if frame is None or frame.f_code is GRAD_CALL.__code__:
            break
        frame = frame.f_back
    if frame is None or frame.f_code is not GRAD_CALL.__code__ or frame.f_back is None:
        return None
    caller = frame.f_back
    keys = _keys(caller.f_code, caller.f_lasti)
    if keys is None:
        return None
    names = frame.f_locals
    inputs = names["inputs"]
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else names.get("inputs_tuple", inputs)
    if type(names["inputs"]) is dict or names["is_grads_batched"] or not isinstance(inputs, tuple):
        return None
    places = range(len(inputs))
    if any(not isinstance(key, slice) and not -len(inputs) <= key < len(inputs) for key in keys):
        return None
    read = (places[key] if isinstance(key, slice) else (places[key],) for key in keys)
    found = frozenset(place for each in read for place in each)
    return (list(inputs), found) if 0 < len(found) < len(inputs) else None


@lru_cache(KNOWN_CALLS)
def _keys(code: CodeType, call: int) -> tuple[int | slice, ...] | None:
    """Places and slices by which code reads the tuple that a call at an offset gives, None where it may read all."""
    every = [each for each in dis.get_instructions(code) if each.opname not in HIDDEN]
    number = sum(each.offset <= call for each in every)  # the offset may be that of the call's cache
    calls = every[number - 1].opname.startswith("CALL") and not CALLS_OTHERS.intersection(code.co_names)
    if number >= len(every) or not calls:
        return None
    if every[number].opname == "UNPACK_SEQUENCE":
        unread = frozenset(_results(code, call)[0])
        return tuple(place for place in range(every[number].arg or 0) if place not in unread)
    if (key := _subscript(every, number)) is not None:
        return (key,)
    name = next(_stored(iter(every[number : number + 1]), _of_module(code)), "")
    if not name or READS_NAMES & _names(code) or len(list(names_of(every[number]))) > 1:
        return None
    handlers = getattr(dis.Bytecode(code), "exception_entries", ())
    start = every[number + 1] if number + 1 < len(every) else None
    found = [
        _subscript(every, at + 1) if _is_last(every[at], name) else None for at in _loads(name, every, start, handlers)
    ]
    return tuple(key for key in found if key is not None) if None not in found else None


def _is_last(instruction: dis.Instruction, name: str) -> bool:
    """True if what an instruction loads last is a name, and it loads that once."""
    names = [other for _, other in names_of(instruction)]
    return names.count(name) == 1 and names[-1] == name


def _subscript(every: list[dis.Instruction], number: int) -> int | slice | None:
    """The constant by which what is on the stack is indexed from an instruction on, None without one."""
    following, constants = every[number : number + 4], list[Any]()
    for each in following:
        if each.opname not in CONSTANTS:
            break
        constants.append(each.argval)
    operations = [(each.opname, each.argrepr) for each in following[len(constants) :]]
    if len(constants) == 2 and operations and operations[0][0] == "BUILD_SLICE":
        constants, operations = [slice(*constants)], operations[1:]
    if len(constants) == 2 and operations and operations[0][0] == "BINARY_SLICE":
        return slice(*constants)
    if len(constants) == 1 and operations and operations[0] in INDEXED and isinstance(constants[0], int | slice):
        return constants[0]
    return None


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
        unread = (
            at for at, name in enumerate(names) if name and next(_loads(name, every, start, handlers), None) is None
        )
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
    others = set[str]().union(*(_names(each) for each in codes_in(code) if each is not code))
    return frozenset() if READS_NAMES & (others | _names(code)) else frozenset(code.co_names) - others


def _names(code: CodeType) -> set[str]:
    """Names, not attributes, that code loads from its module."""
    return {str(each.argval) for each in dis.get_instructions(code) if each.opname in ("LOAD_NAME", "LOAD_GLOBAL")}


def _loads(name: str, every: list[dis.Instruction], start: dis.Instruction | None, handlers: Any) -> Iterator[int]:
    """Yields the places of instructions that load a name, on any way from one of them to where it is bound again; ends
    with -1 where that is not known. handlers: of exceptions, with the offsets that each is for."""
    at = {each.offset: number for number, each in enumerate(every)}
    ahead, seen = [at[start.offset]] if start is not None else [], set[int]()
    while ahead:
        number = ahead.pop()
        if number in seen or number >= len(every):
            continue
        seen.add(number)
        if len(seen) > MOST_LOOKED_AT:
            yield -1
            return
        each = every[number]
        ahead += [at[entry.target] for entry in handlers if entry.start <= each.offset < entry.end]
        named = {store for store, other in names_of(each) if other == name}
        if False in named:
            yield number
        if True in named:
            continue
        if each.opcode in (*dis.hasjrel, *dis.hasjabs):
            ahead.append(at[each.argval])
        if not each.opname.startswith((*ENDS, *JUMPS)):
            ahead.append(number + 1)
