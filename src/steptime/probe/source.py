"""What the lines of a function bind and read, from its bytecode. Standard library only; Python 3.10 to 3.14."""

from __future__ import annotations

import dis
import linecache
import os
from collections.abc import Iterator
from types import CodeType
from typing import Any

READS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Functions that the compiler makes of a part of a line: their names are read by the line that they stand in."""


def code_facts(code: CodeType, loop: bool) -> dict[str, Any]:
    """`CodeFacts` without its base, and `span`: how many numbers its lines take."""
    names = names_by_line(code)
    first = min([code.co_firstlineno, *names])
    file = os.path.abspath(code.co_filename)
    lines = [
        {
            "line": line,
            "text": linecache.getline(code.co_filename, line).strip(),
            "stores": sorted(stores),
            "loads": sorted(loads),
        }
        for line, (stores, loads) in sorted(names.items())
    ]
    return {
        "file": file,
        "function": getattr(code, "co_qualname", code.co_name),
        "first_line": first,
        "loop": loop,
        "lines": lines,
        "span": max([code.co_firstlineno, *names]) - first + 1,
    }


def names_by_line(code: CodeType) -> dict[int, tuple[set[str], set[str]]]:
    """Names bound and names read or called, by line.

    A method that is called counts by its name; any other attribute has a dot before it (".grad"), so that it is not
    taken for a variable.
    """
    found: dict[int, tuple[set[str], set[str]]] = {}
    for line, stored, name in _accesses(code):
        stores, loads = found.setdefault(line, (set(), set()))
        if name:
            (stores if stored else loads).add(name)
    return found


def _accesses(code: CodeType) -> Iterator[tuple[int, bool, str]]:
    """(line, whether it stores, name); an empty name for lines without any."""
    line = code.co_firstlineno
    starts = {offset: number for offset, _, number in code.co_lines() if number}
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        if instruction.opname in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR"):
            continue  # they stand on the line of the `def`, which never runs as a line
        yield line, False, ""
        yield from ((line, stored, name) for stored, name in _names(instruction))
        inner = instruction.argval
        if isinstance(inner, CodeType) and inner.co_name in INLINE:
            yield from ((at, False, name) for at, stored, name in _accesses(inner) if not stored and name != ".0")


def _names(instruction: dis.Instruction) -> Iterator[tuple[bool, str]]:
    operation, value = instruction.opname, instruction.argval
    if operation == "STORE_ATTR":
        yield True, f".{value}"
    elif operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
        yield False, str(value) if _is_call(instruction) else f".{value}"
    elif operation.startswith(READS):
        yield from ((False, str(name)) for name in (value if isinstance(value, tuple) else (value,)))
    elif operation.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
        names = value if isinstance(value, tuple) else (value,)
        yield True, str(names[0])
        if len(names) > 1:  # 3.13: two instructions in one; the second loads or stores
            yield "LOAD_FAST" not in operation, str(names[1])


def _is_call(instruction: dis.Instruction) -> bool:
    """LOAD_METHOD, or from 3.12 an attribute whose argument's lowest bit says that a call follows."""
    if instruction.opname == "LOAD_METHOD":
        return True
    return "NULL|self" in instruction.argrepr or "+ NULL" in instruction.argrepr
