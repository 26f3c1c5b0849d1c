"""Source lines of the user: whose code a frame runs, the lines where loaders and optimizers were built, and the names
that a function's lines bind and read, from its bytecode (Python 3.10 to 3.14).

No frame and no object of the user is kept; construction sites are stored in weak tables.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import inspect
import linecache
import os
import re
import sys
import sysconfig
import tokenize
from collections.abc import Iterator, Mapping
from types import CodeType, FrameType, ModuleType
from typing import Any

import torch

from steptime.probe.objects import SideTable
from steptime.probe.ours import pass_on

USER, LIBRARY, INNER = 2, 1, 0
"""Owners of a file: the user, an installed package, or INNER (Python, torch and steptime)."""
BUILT = ("python.data_loader", "python.optimizer")
"""Names under which DataLoader.__init__ and Optimizer.__init__ log their use (torch 2.4 to 2.13)."""
KNOWN_FILES = 8192
"""Most file names remembered, as a job may make code forever."""
READS_LOCALS = frozenset({"locals", "vars", "dir", "eval", "exec"})
"""Functions through which a job may hold its dictionary of locals. Up to Python 3.12 a frame has only one, and reading
it updates it: the job would find new variables in it."""
ONLY_THE_FRAME = 3
"""References to a dictionary of locals that nobody else holds: the frame's, ours, and getrefcount's."""
TRACED_FROM = (3, 11)
"""Python whose trace functions leave variables alone that they did not read."""

_INNER_FOLDERS = (
    os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), ""),
    os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ""),
)
_STANDARD = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)
_GENERATED = re.compile(r"(__main__|\w+\.)[^/\\]*_[a-z0-9_]{8}\.py")
"""Files that a library writes while the job runs: a module's name and the eight characters of `tempfile`."""
_TEMPORARY = tuple(
    os.path.abspath(each)
    for each in (*map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp", "/usr/tmp")
    if each
)
"""Folders for them. `tempfile.gettempdir()` would keep its answer, and a job may choose another folder later."""
_INSTALLED = (os.path.join("", "site-packages", ""), os.path.join("", "dist-packages", ""))
_whose: dict[str, int] = {}
_built: SideTable[dict[str, Any]] = SideTable()
_loaded: SideTable[dict[str, Any]] = SideTable()
"""Line that built the loader of a dataset; {} if several did."""


def whose(file: str) -> int:
    """Returns USER, LIBRARY or INNER. Code without a file (`<string>`, generated code) is INNER, except IPython's
    cells."""
    known = _whose.get(file)
    if known is None:
        known = _classify(file)
        if len(_whose) < KNOWN_FILES:
            _whose[file] = known
    return known


def _classify(file: str) -> int:
    if file.startswith("<"):
        return USER if file.startswith("<ipython-input-") else INNER
    path = os.path.abspath(file)
    if path.startswith(_INNER_FOLDERS):
        return INNER
    if any(mark in path for mark in _INSTALLED) or _is_generated(path):
        return LIBRARY
    return INNER if path.startswith(_STANDARD) else USER


def whose_frame(frame: FrameType) -> int:
    """Returns the owner of a frame's code (USER, LIBRARY or INNER). `python -c` and a script from stdin are the user's,
    although they have no file."""
    file = frame.f_code.co_filename
    if file in ("<string>", "<stdin>"):
        return USER if frame.f_globals.get("__name__") == "__main__" else INNER
    return whose(file)


def frames_of(frame: FrameType | None, least: int = USER) -> Iterator[FrameType]:
    """Yields the user's frames from `frame` outwards. With `least` LIBRARY, an installed package's count too."""
    while frame is not None:
        if whose_frame(frame) >= least:
            yield frame
        frame = frame.f_back


def user_frame(frame: FrameType | None, least: int = USER) -> tuple[str, int, str] | None:
    """Returns (file, line, function) of the innermost frame of `frames_of`, or None. No generator: it runs in steps."""
    while frame is not None:
        if whose_frame(frame) >= least:
            code = frame.f_code
            return os.path.abspath(code.co_filename), frame.f_lineno or code.co_firstlineno, code.co_name
        frame = frame.f_back
    return None


def variables(frame: FrameType) -> Mapping[str, Any]:
    """Returns the variables of a function or a module that runs; {} for a class body, and for a function that may hold
    its dictionary of locals.

    Up to Python 3.12 reading them makes that dictionary. It would keep alive what the job deletes, and a trace
    function's frame is written back from it. So it is emptied, and the frame marked as written (frameobject.c of 3.11
    and 3.12: nothing is written for a name that the dictionary lacks)."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_globals if code.co_name == "<module>" else {}
    if READS_LOCALS.intersection(code.co_names):
        return {}
    entries = frame.f_locals
    found = dict(entries)
    if type(entries) is dict:
        if sys.getrefcount(entries) <= ONLY_THE_FRAME:
            entries.clear()
        if sys.version_info >= TRACED_FROM:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
    return found


def source_line(file: str, line: int, function: str = "", text: str = "") -> dict[str, Any]:
    """Returns the fields of a `SourceLine`."""
    return {"file": file, "line": line, "function": function, "text": text}


def line_at(place: tuple[str, int, str]) -> dict[str, Any]:
    """Returns the `SourceLine` of a place, with its current text in the file."""
    file, line, function = place
    return source_line(file, line, function, linecache.getline(file, line).strip())


def _is_generated(path: str) -> bool:
    folder, name = os.path.split(path)
    return folder in _TEMPORARY and _GENERATED.fullmatch(name) is not None


def line_of(place: tuple[str, int, str] | None) -> dict[str, Any] | None:
    """Returns the `SourceLine` of a place with its current text, as `line_at` does; None for an unknown place."""
    return line_at(place) if place is not None else None


def site_of(built: Any) -> dict[str, Any] | None:
    """Returns the `SourceLine` where a DataLoader or an optimizer was built; None if that is unknown."""
    return _built.of(built)


def _remember(frame: FrameType) -> None:
    """Stores the construction site of the object whose __init__ `frame` runs."""
    arguments = variables(frame)
    built = arguments.get("self")
    outer = frame.f_back
    place = user_frame(outer) or user_frame(outer, LIBRARY)
    if built is None or place is None:
        return
    line = line_at(place)
    dataset = arguments.get("dataset")
    _built.keep(built, line if dataset is None else _first_line(dataset, line, outer))


def _first_line(dataset: Any, line: dict[str, Any], outer: FrameType | None) -> dict[str, Any]:
    """Returns where the user built the loader that a package rebuilds over the same dataset, as Accelerate and
    Lightning do: its arguments can be changed there. `line` if that is unknown."""
    first = _loaded.of(dataset)
    if user_frame(outer) != user_frame(outer, LIBRARY):
        return first or line
    _loaded.keep(dataset, line if first is None or first == line else {})
    return line


def install() -> None:
    """Starts to store the sites of loaders and optimizers, whose constructors first call torch's log of API use.

    Their classes stay the same: libraries that inspect or replace `__init__` (Lightning does) find torch's. nn.Module
    logs too; another name costs one lookup in a tuple."""
    log, frame_of, failed = torch._C._log_api_usage_once, sys._getframe, False

    def _log_api_usage_once(*arguments: Any) -> Any:
        nonlocal failed
        if arguments and arguments[0] in BUILT and not failed:
            try:
                _remember(frame_of(1))
            except Exception as error:  # noqa: BLE001 - the probe's boundary: without a site the report has a line less
                failed = True
                pass_on(error)
        return log(*arguments)

    torch._C._log_api_usage_once = _log_api_usage_once


READS = ("LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT")
INLINE = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<lambda>")
"""Functions that the compiler makes of a part of a line, which reads their names."""


def code_facts(code: CodeType, loop: bool) -> dict[str, Any]:
    """Returns the fields of `CodeFacts` without base, plus `span`: the count of its line numbers."""
    names = names_by_line(code)
    first = min([code.co_firstlineno, *names])
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
        "file": os.path.abspath(code.co_filename),
        "function": getattr(code, "co_qualname", code.co_name),
        "first_line": first,
        "loop": loop,
        "lines": lines,
        "span": max([code.co_firstlineno, *names]) - first + 1,
    }


LONGEST_TEXT = 1_000
"""Most lines of a function whose text is recorded; of a longer one, the first."""


def text_facts(code: CodeType) -> dict[str, Any] | None:
    """Returns the fields of `FunctionText`; None for code without a file that can be read."""
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :][:LONGEST_TEXT]
    with contextlib.suppress(SyntaxError, IndentationError, tokenize.TokenError):  # of a file that has changed since
        lines = lines if code.co_name == "<module>" else inspect.getblock(lines)
    place = {"file": os.path.abspath(code.co_filename), "function": getattr(code, "co_qualname", code.co_name)}
    return {**place, "first_line": code.co_firstlineno, "text": "".join(lines)} if lines else None


def line_that_calls(name: str) -> dict[str, Any] | None:
    """Returns the first line of the user's loaded modules whose text calls a function with such a name ending and does
    not switch it off; None if there is none."""
    for module in list(sys.modules.values()):
        file = module.__dict__.get("__file__") if type(module) is ModuleType else None
        if not isinstance(file, str) or whose(file) != USER:
            continue
        for number, text in enumerate(linecache.getlines(file), 1):
            code = text.partition("#")[0]
            if "False" not in code and "(None)" not in code and f"{name}(" in code:
                return source_line(os.path.abspath(file), number, "", text.strip())
    return None


def codes_in(*codes: CodeType) -> Iterator[CodeType]:
    """Yields these code objects, and all that are nested in them."""
    found = list(codes)
    for code in found:
        yield code
        found += [each for each in code.co_consts if isinstance(each, CodeType)]


def names_by_line(code: CodeType) -> dict[int, tuple[set[str], set[str]]]:
    """Returns (names bound, names read or called) by line.

    A called method counts by its name; other attributes have a leading dot (".grad"), so that they are not taken for
    variables."""
    found: dict[int, tuple[set[str], set[str]]] = {}
    for line, stored, name in _accesses(code):
        stores, loads = found.setdefault(line, (set(), set()))
        if name:
            (stores if stored else loads).add(name)
    return found


def _accesses(code: CodeType) -> Iterator[tuple[int, bool, str]]:
    """Yields (line, whether it stores, name); an empty name for each line, with or without names."""
    line = code.co_firstlineno
    starts = {offset: number for offset, _, number in code.co_lines() if number}
    for instruction in dis.get_instructions(code):
        line = starts.get(instruction.offset, line)
        if instruction.opname in ("RESUME", "COPY_FREE_VARS", "MAKE_CELL", "RETURN_GENERATOR"):
            continue  # they are on the line of the `def`, which never runs as a line
        yield line, False, ""
        yield from ((line, stored, name) for stored, name in names_of(instruction))
        inner = instruction.argval
        if isinstance(inner, CodeType) and inner.co_name in INLINE:
            yield from ((at, False, name) for at, stored, name in _accesses(inner) if not stored and name != ".0")


def names_of(instruction: dis.Instruction) -> Iterator[tuple[bool, str]]:
    """Yields (True if it is bound, name) for each name in one instruction."""
    operation, value = instruction.opname, instruction.argval
    if operation == "STORE_ATTR":
        yield True, f".{value}"
    elif operation in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
        # From 3.12 the lowest bit of an attribute's argument says that a call follows.
        displayed = instruction.argrepr
        called = operation == "LOAD_METHOD" or "NULL|self" in displayed or "+ NULL" in displayed
        yield False, str(value) if called else f".{value}"
    elif operation.startswith(READS):
        yield from ((False, str(name)) for name in (value if isinstance(value, tuple) else (value,)))
    elif operation.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
        names = value if isinstance(value, tuple) else (value,)
        yield True, str(names[0])
        if len(names) > 1:  # 3.13: two instructions in one; the second loads or stores
            yield "LOAD_FAST" not in operation, str(names[1])
