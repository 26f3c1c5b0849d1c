"""What lines read or compute in excess: functions of packages and of Python's library that they call, with time and
results; long containers that every evaluation of a line reads whole; files that are always the same; arrays in double
precision and one-hot vectors; and rows that a loader's generator makes and nobody uses.

Of containers only number, kind and length are kept, of results and names of files a hash."""

from __future__ import annotations

import linecache
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from keyword import iskeyword
from math import prod
from types import CodeType, FrameType
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.main_memory import bytes_at, readable
from steptime.probe.objects import attributes
from steptime.probe.sampling import described, path_of

LONG = 1_000
"""Entries of a container that is worth a word where a line reads it whole."""
CONTAINERS = (list, tuple, deque)
"""Exact types; who hands on a dictionary or a set looks something up in it, as a rule."""
ARRAYS = "arrays"
"""Kind of a list of numpy's arrays; its entries are all their numbers."""
PATHS = ("pathlib", "pathlib._local")
"""Modules of Path (Python 3.10 to 3.14)."""
MOST_NAMES, MOST_CALLS, MOST_RESULTS = 8, 8, 512
"""Of one line: names that are looked up, functions that it calls, and results of one function that are compared."""
MOST_LOOKS = 4
"""Results of a line that are looked at whether they are one-hot, or lie in a larger memory."""
CLASSES, ROWS = 32, 8
"""Least length of a one-hot vector that is worth a word, and vectors that are looked at."""
ONE = {torch.float32: b"\x80\x3f", torch.float64: b"\xf0\x3f", torch.bfloat16: b"\x80\x3f", torch.float16: b"\x3c"}
"""Bytes of 1.0 without its zeros."""
OWN = 0.5
"""Most of a line's time that watched functions below it may take, for what it reads to be its own."""
MOST_FACTS = 24
"""Lines that are written, those with most time."""
LEAST_DOUBLES, DEEP = 1_024, 2
"""Numbers of an array whose precision counts; how deep it may be in a result."""
DOUBLE, SINGLE = ("float64", "complex128"), ("float32", "complex64", "float16")
PER_DOUBLE = 100
"""ns per number of a line in double precision, at most: who takes longer parses text or runs Python (exp of complex
numbers takes 45, normal numbers 25; numpy 2.4)."""
MOST_BYTES = 1 << 20
"""Of a row that is looked for among the items of a batch."""
FETCHES = os.path.join("torch", "utils", "data", "_utils", "fetch.py")
"""The file that takes items from a dataset."""
READ_WHOLE = re.compile(r"(?<![\w.\"'])([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?![\w.\"'\[(])(?!\s*=(?!=))")
"""A variable, or an attribute of one, that a line neither indexes nor calls nor binds."""
_TORCH = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "")
_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
FILES_OF_TORCH = os.path.join(_TORCH, "serialization.py")
"""The only part of torch whose calls are timed: the others are operators, which a profile shows."""

_Key = tuple[CodeType, int]
_Costs = list[tuple["_Work", int]]
"""Lines that have made something, with the ns that each took."""


class _Outward:
    """A function that a line calls. spent: ns; results: what it gave, as fingerprints; again, repeated: calls that gave
    what had been there, and their ns; files: hashes of the names of files that it was given."""

    __slots__ = ("again", "count", "files", "name", "repeated", "results", "spent")

    def __init__(self, name: str) -> None:
        self.name = name
        self.spent = self.count = self.again = self.repeated = 0
        self.results: set[int] = set()
        self.files: set[int] = set()


class _Work:
    """A line. seen, spent: evaluations and their ns; inside: ns of that in watched functions; read: what all of them
    read whole, by name: (number of the object or hash of the file's name, kind, entries); None before the first.
    doubles: evaluations that gave an array in double precision; one_hot: shape of one-hot vectors that it gave;
    memory: bytes in which the tensors of one evaluation lie, and of these alone; dropped: ns of those whose result
    was bound again before it was read, `unread` of `bound`; taken: ns of the rows that a loader took from there,
    made: their number; rows: of batches, of so many items."""

    __slots__ = ("bound", "calls", "doubles", "dropped", "inside", "items", "made", "memory", "one_hot", "part",
                 "read", "rows", "seen", "spent", "taken", "unread")  # fmt: skip

    def __init__(self, part: str) -> None:
        self.part, self.seen, self.spent, self.inside = part, 0, 0, 0
        self.bound = self.unread = self.doubles = self.dropped = self.made = self.taken = self.items = self.rows = 0
        self.memory = 0, 0
        self.one_hot: tuple[int, ...] = ()
        self.read: dict[str, tuple[int, str, int]] | None = None
        self.calls: dict[CodeType, _Outward] = {}

    @property
    def found(self) -> bool:
        """True if the line has shown something besides its time."""
        return bool(self.read or self.calls or self.made or self.dropped or self.items or self.one_hot)


class WorkObserver:
    """Observer of what the lines of some functions read, call and make. names: for each function, the names that its
    lines bind and read, attributes with a leading dot. fingerprint: function that returns the hash of a result, None
    for what has none. single: True if arrays of single precision were made, too."""

    def __init__(
        self,
        names: Mapping[CodeType, Mapping[int, tuple[set[str], set[str]]]],
        fingerprint: Callable[[Any], int | None],
    ) -> None:
        self._lines: dict[_Key, _Work] = {}
        self._bound, self._fingerprint = names, fingerprint
        self._unread: dict[CodeType, dict[str, _Costs]] = {}
        self._consumed: dict[CodeType, _Costs] = {}
        self.single = False
        self._names: dict[_Key, list[list[str]]] = {}
        self._outside: dict[CodeType, bool] = {}
        self._reached: dict[CodeType, set[str]] = {}

    def reached(self, code: CodeType, line: int) -> None:
        """Called when a line runs: the values that it binds are made again."""
        bound, read = self._bound[code].get(line, ((), ()))
        self._reached.setdefault(code, set()).update(bound)
        self._consumed.pop(code, None)
        if unread := self._unread.get(code):
            costs = [unread.pop(name, []) for name in read]
            self._consumed[code] = [cost for each in costs for cost in each]
            for each in costs:
                each.clear()  # what one of several variables is read of is used

    def rebound(self, frame: FrameType, line: int, names: Iterable[str], took: int) -> None:
        """Called when a line of a generator has bound variables. What they held before, if nobody read it, was made for
        nothing, as was what only made that."""
        code = frame.f_code
        unread = self._unread.setdefault(code, {})
        work = self._work(frame, line)
        work.bound += 1
        costs = [(work, took), *self._consumed.pop(code, ())]
        for dropped in [unread.pop(name, []) for name in names]:
            for work, spent in dropped:
                work.dropped += spent
                work.unread += 1
            dropped.clear()  # once, of several variables
        if len(costs) <= MOST_CALLS:
            unread.update((name, costs) for name in names if name in code.co_varnames)

    def yielded(self, frame: FrameType, line: int, took: int) -> None:
        """Called when a generator has yielded a row after `took` ns, to a loader or to a filter before it."""
        if frame.f_back is not None and frame.f_back.f_code.co_filename.endswith(FETCHES):
            work = self._work(frame, line)
            work.made += 1
            work.taken += took

    def collated(self, frame: FrameType, result: Any) -> None:
        """Called when a function that a loader calls has returned: counts the items that are rows of its result."""
        if frame.f_back is not None and frame.f_back.f_code.co_filename.endswith(FETCHES):
            items: Any = sites.variables(frame.f_back).get("data")
            known = self._lines.get((frame.f_code, frame.f_code.co_firstlineno))
            left = type(items) is list and (known is None or known.items < MOST_RESULTS)
            if left and (rows := _rows(items, result)):
                work = self._work(frame, frame.f_code.co_firstlineno)
                work.items, work.rows = work.items + len(items), work.rows + rows

    def evaluated(self, frame: FrameType, line: int, took: int, given: Iterable[Any], *, ran: bool) -> None:
        """Called when a line has made the results `given` in `took` ns. ran: True if its function ran before."""
        work = self._work(frame, line)
        work.seen += 1
        work.spent += took
        doubles = 0
        work.memory = max(work.memory, _memory(given) if work.seen <= MOST_LOOKS else (0, 0))
        for each in given:
            for kind, numbers in _precisions(each, DEEP):
                doubles += numbers * (kind == "64")
                self.single |= kind == "32"
            work.one_hot = work.one_hot or (one_hot(each) if work.seen <= MOST_LOOKS else ())
        work.doubles += 0 < took <= PER_DOUBLE * doubles
        if work.read is None or work.read:
            read = dict(self._read(frame, line, ran))
            known = read if work.read is None else work.read
            work.read = {name: found for name, found in read.items() if known.get(name, (0,))[0] == found[0]}

    def _work(self, frame: FrameType, line: int) -> _Work:
        key = frame.f_code, line
        if key not in self._lines:
            self._lines[key] = _Work(path_of(frame)[0])
        return self._lines[key]

    def _read(self, frame: FrameType, line: int, ran: bool) -> Iterator[tuple[str, tuple[int, str, int]]]:
        code, key = frame.f_code, (frame.f_code, line)
        if key not in self._names:
            text = linecache.getline(code.co_filename, line).partition("#")[0]
            found = dict.fromkeys(name for name in READ_WHOLE.findall(text) if not iskeyword(name))
            self._names[key] = [name.split(".") for name in found][:MOST_NAMES]
        values = sites.variables(frame) if self._names[key] else {}
        for name, *below in self._names[key]:
            value = values.get(name, frame.f_globals.get(name))
            for attribute in below:
                value = dict(attributes(value)).get(attribute)
            read = _whole(value)
            if read is not None and not self._is_anew(frame, name, below, ran, read):
                yield ".".join((name, *below)), read

    def _is_anew(self, frame: FrameType, name: str, below: list[str], ran: bool, read: tuple[int, str, int]) -> bool:
        """True for what may be another object each time, even if it has the number of the one before."""
        code, caller = frame.f_code, frame.f_back
        bound = self._reached.get(code, set())
        if name in bound or any(f".{each}" in bound for each in below):
            return True
        if name not in code.co_varnames or ran:
            return False
        if below:  # of a method's arguments its object stays
            return not code.co_argcount or name != code.co_varnames[0]
        if caller is None or caller.f_code not in self._bound:
            return True
        return read not in dict(self._read(caller, caller.f_lineno, ran)).values()  # an argument: as its caller has it

    def inside(self, caller: CodeType, line: int, took: int) -> None:
        """Called when a watched function has taken `took` ns of a line: what is passed to it is not the line's own."""
        if (caller, line) in self._lines:
            self._lines[caller, line].inside += took

    def is_outside(self, code: CodeType) -> bool:
        """True for a function of an installed package or of Python's standard library; torch's functions (except
        FILES_OF_TORCH) and ours do not count."""
        known = self._outside.get(code)
        if known is None:
            file = code.co_filename
            of_torch = file.startswith((_TORCH, _OURS)) and file != FILES_OF_TORCH
            known = self._outside[code] = not of_torch and sites.whose(file) != sites.USER and not file.startswith("<")
        return known

    def called(self, frame: FrameType, line: int, caller: FrameType, result: Any, took: int, *, later: bool) -> None:
        """Called when a function has returned `result` to a line, after `took` ns. later: True after the first step."""
        calls = self._work(caller, line).calls
        if frame.f_code not in calls and len(calls) >= MOST_CALLS:
            return
        call = calls.get(frame.f_code)
        if call is None:
            module = str(frame.f_globals.get("__name__", ""))
            name = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
            call = calls[frame.f_code] = _Outward(f"{module}.{name}")
        call.spent += took
        call.count += 1
        call.files.update(_files(frame) if len(call.files) < MOST_CALLS else ())
        found = self._fingerprint(result) if len(call.results) < MOST_RESULTS else None
        if found is not None:
            again = later and found in call.results
            call.again += again
            call.repeated += took * again
            call.results.add(found)

    def facts(self, steps: int) -> list[dict[str, Any]]:
        """Returns the fields of `LineWork` for each line, for `RepeatFacts`. steps: number of examined steps."""
        longest = sorted(self._lines.items(), key=lambda each: -each[1].spent)
        for _, work in longest:
            work.read = work.read if work.inside <= OWN * work.spent else None
        own = [each for each in longest if each[1].found or each[1].inside <= OWN * each[1].spent]
        known = sorted(own, key=lambda each: not each[1].found)
        return [
            {
                "site": described(key),
                "part": work.part,
                "evaluations": work.seen / steps,
                "duration": work.spent / steps,
                "own": max(0, work.spent - work.inside) / steps,
                "one_hot": work.one_hot,
                "held": work.memory[0],
                "used": work.memory[1],
                "double": 2 * work.doubles >= max(1, work.seen),
                "dropped": work.dropped / steps,
                "unread": work.unread / max(1, work.bound),
                "made": work.made / steps,
                "taken": work.taken / steps,
                "kept": work.rows / max(1, work.items) if work.items else 1.0,
                "read": [{"name": name, "kind": kind, "entries": entries}
                         for name, (_, kind, entries) in (work.read or {}).items()],
                "calls": [{"name": call.name, "duration": call.spent / steps,
                           "one_file": len(call.files) == 1 and call.count > 1} for call in work.calls.values()],
            }
            for key, work in known[:MOST_FACTS]
        ]  # fmt: skip

    def repeated(self, steps: int, left_out: Iterable[_Key]) -> Iterator[dict[str, Any]]:
        """Yields the calls with a repeated result, as of `RepeatedLine`, without those at lines `left_out`."""
        left, later = set(left_out), max(1, steps - 1)
        for key, work in self._lines.items():
            for call in work.calls.values() if key not in left else ():
                if call.repeated:
                    yield {
                        "site": described(key),
                        "outer": None,
                        "part": work.part,
                        "depth": 1,
                        "evaluations": call.count / max(1, steps),
                        "again": call.again / later,
                        "results": len(call.results),
                        "duration": call.repeated / later,
                        "called": call.name,
                    }


def _whole(value: Any) -> tuple[int, str, int] | None:
    """(number, kind, entries) of a long container; (hash, "file", 0) of what may be a file's name."""
    kind = type(value)
    if any(kind is each for each in CONTAINERS) and len(value) >= LONG:
        return id(value), kind.__name__, len(value)
    if kind is list and value and type(value[0]).__module__ == "numpy" and getattr(value[0], "ndim", 0):
        return id(value), ARRAYS, len(value) * value[0].size
    name = _file(value)
    return (hash(name), "file", 0) if name else None


def one_hot(value: Any) -> tuple[int, ...]:
    """Shape of a tensor in main memory whose last dimension's vectors have a single one each; () for other values."""
    if not readable(value) or value.dtype not in ONE or value.ndim < 2:
        return ()
    shape, length = tuple(value.shape), value.shape[-1] * value.element_size()
    count = value.numel() // max(1, value.shape[-1])
    if not value.is_contiguous() or shape[-1] < CLASSES or not count:
        return ()
    looked_at = (number * count // ROWS for number in range(ROWS))
    rows = (bytes_at(value.data_ptr() + row * length, length) for row in looked_at)
    return shape if all(row.strip(b"\0") == ONE[value.dtype] for row in rows) else ()


def _rows(items: list[Any], batch: Any) -> int:
    """Items with a row in a batch, where each row of its arrays is an item's array; else 0."""
    made: dict[tuple[tuple[int, ...], int], set[int]] = {}
    for at, item in enumerate(items):
        for each in _arrays(item, DEEP):
            made.setdefault((tuple(each.shape), _bytes(each)), set()).add(at)
    found: set[int] = set()
    for array in _arrays(batch, DEEP):
        shape = tuple(array.shape[1:])
        for row in array if shape else ():
            taken = made.get((shape, _bytes(row)))
            if not taken:
                return 0
            found |= taken
    return len(found)


def _bytes(array: Any) -> int:
    """Hash of an array's bytes, if they are few; else 0."""
    size = prod(array.shape) * array.itemsize
    start = array.data_ptr() if type(array) is torch.Tensor else array.ctypes.data
    return hash(bytes_at(start, size)) if size <= MOST_BYTES else 0


def _arrays(value: Any, deep: int) -> Iterator[Any]:
    """Arrays in main memory, without gaps, of a batch or an item."""
    kind = type(value)
    if kind is torch.Tensor:
        if value.dim() and value.is_contiguous() and readable(value):
            yield value
    elif kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        if value.ndim and value.flags.c_contiguous and value.dtype.kind in "biufc":
            yield value
    elif deep and kind in (list, tuple, dict) and len(value) <= MOST_NAMES:
        for each in value.values() if kind is dict else value:
            yield from _arrays(each, deep - 1)


def _precisions(value: Any, deep: int) -> Iterator[tuple[str, int]]:
    """ "64" or "32", and its numbers, for each large array of such floating-point numbers, complex ones too."""
    for array in _arrays(value, deep):
        of = str(array.dtype)
        if (numbers := prod(array.shape)) >= LEAST_DOUBLES and of.endswith((*DOUBLE, *SINGLE)):
            yield ("64" if of.endswith(DOUBLE) else "32"), numbers


def _memory(given: Iterable[Any]) -> tuple[int, int]:
    """(bytes of the memory that these tensors lie in, bytes of these alone)."""
    tensors = [array for each in given for array in _arrays(each, DEEP) if type(array) is torch.Tensor]
    whole = {storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in tensors)}
    return sum(whole.values()), sum(each.numel() * each.element_size() for each in tensors)


def _file(value: Any) -> str:
    kind = type(value)
    if kind is str:
        return value if len(value) < 4096 and ("." in value or os.sep in value) else ""
    return str(value) if kind.__module__ in PATHS else ""


def _files(frame: FrameType) -> Iterator[int]:
    """Hashes of the names of files among a function's first arguments."""
    code = frame.f_code
    values = sites.variables(frame)
    for name in code.co_varnames[: min(2, code.co_argcount)]:
        if found := _file(values.get(name)):
            yield hash(found)
