"""Results that come again: lines that compute what they have computed before, in a few steps.

A line is an evaluation: what it binds, or what it returns, once the next line is reached. Of evaluations that take
long, the result is fingerprinted by its bytes in memory, without asking torch; nothing of it is kept. Results that are
all one number (buffers to fill), and those that change after they were made (copies to work on), do not count: they
have to be made again.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from functools import partial
from inspect import CO_GENERATOR
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch

from steptime.probe import sites
from steptime.probe.line_work import WorkObserver
from steptime.probe.main_memory import NATIVE, bytes_at, readable, span
from steptime.probe.objects import attributes, being_traced, unasked
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.sampling import described, outwards, path_of

LEAST_TIME = 20_000
"""ns of an evaluation that is looked at: a fingerprint of a small result takes three to five microseconds."""
LEAST_ELEMENTS = 16
"""Of arrays in a result: single numbers come again by chance."""
WHOLE, PIECES, PIECE = 1 << 20, 256, 4096
"""Bytes of an array that are hashed in full; of a larger one, so many pieces of so many bytes."""
MOST_ITEMS, DEEPEST = 32, 3
"""Of a list, a tuple or a dictionary in a result, at equal distances of a longer one; how deep they may be in each
other."""
MOST_EVALUATIONS = 512
"""Of one line."""
LONG_CALL = 100
"""Lines of one call that are looked at."""
MOST_FACTS = 24
"""Lines that are written, those with most repeated time."""
BY_CALLERS = 0.3
"""Of the repeated time: two lines that ask for the same one after the other are named from there on."""
VALUES = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
CONTAINERS = (list, tuple, dict)
RECORDS = (torch.distributions.Distribution, OrderedDict)
"""Types that are made again for what they hold, as dataclasses are: Hugging Face's outputs are dictionaries. Of others,
that a function has worked on and returns, nothing follows."""

now = time.perf_counter_ns
_Key = tuple[CodeType, int]


def fingerprint(value: Any, *, long: bool = False) -> int | None:
    """Hash of a result; None if the result holds no array or cannot be examined. long: True if it may be a long
    container, such as what a function reads from a file."""
    found: list[int] = []
    with suppressed(RuntimeError):  # a tensor without memory, as functorch's are
        if _gather(value, found, DEEPEST, long) >= LEAST_ELEMENTS:
            return hash(tuple(found))
    return None


def _gather(value: Any, found: list[int], deep: int, long: bool) -> int:
    """Appends hashes; returns the elements of arrays, far below zero where something is opaque."""
    kind = type(value)
    if kind in NATIVE:
        if not readable(value):
            return OPAQUE
        found.append(hash((tuple(value.shape), tuple(value.stride()), value.dtype)))
        return _bytes(value.data_ptr(), span(value), value.element_size(), found)
    if kind.__module__ == "numpy" and kind.__name__ == "ndarray":
        if value.dtype.kind not in "biufc" or not value.flags.c_contiguous:
            return OPAQUE
        found.append(hash((value.shape, value.dtype.str)))
        return _bytes(value.ctypes.data, value.size, value.itemsize, found)
    if kind in VALUES:
        found.append(hash(value))
        return 0
    parts = _parts(value, long) if deep else None
    if parts is None:
        return OPAQUE
    count = len(value) if kind in CONTAINERS else 0
    found.append(hash((kind, count) if kind in CONTAINERS else kind.__qualname__))
    return sum(_gather(each, found, deep - 1, long) for each in parts) + count * (count > MOST_ITEMS)


def _parts(value: Any, long: bool) -> list[Any] | None:
    """Contents of a container or a record; None for other objects, and for long ones."""
    kind = type(value)
    if kind in CONTAINERS and (long or len(value) <= MOST_ITEMS):
        chosen = islice(value.items() if kind is dict else value, 0, None, max(1, -(-len(value) // MOST_ITEMS)))
        return [part for pair in chosen for part in pair] if kind is dict else list(chosen)
    made = issubclass(kind, RECORDS) or "__dataclass_fields__" in kind.__dict__
    held = attributes(value) if made else []
    return [part for pair in held for part in pair] if 0 < len(held) <= MOST_ITEMS else None


def _has_graph(value: Any, deep: int = DEEPEST) -> bool:
    """True if backward may go to a tensor in a result."""
    if type(value) in NATIVE:
        return bool(value.requires_grad)
    return deep > 0 and any(_has_graph(each, deep - 1) for each in _parts(value, False) or ())


OPAQUE = -(1 << 60)


def _bytes(start: int, count: int, size: int, found: list[int]) -> int:
    """Appends the hash of an array's memory; returns its elements, 0 where all are one number."""
    if not count:
        return 0
    length = count * size
    if length <= WHOLE:
        data = bytes_at(start, length)
    else:
        apart = (length - PIECE) // (PIECES - 1) // size * size
        data = b"".join(bytes_at(start + number * apart, PIECE) for number in range(PIECES))
    found.append(hash(data))
    return 0 if data == data[:size] * (len(data) // size) else count


class _Evaluated:
    """A line and the fingerprints of what it gave, with the step and the lines that called for it last. outer: the line
    that calls its function, of several the one of `callers` with most repeated time; depth: how many watched functions
    run then. repeated: ns, again: number, of evaluations whose result had been there before; with_graph: ns of those to
    whose result backward may go. askers: ns of those that another line of one call asked for in the same step, by (that
    line, the line that asks again). changed: what it bound was changed later."""

    __slots__ = (
        "again", "askers", "callers", "changed", "depth", "evaluations", "outer", "part", "repeated", "results",
        "with_graph",
    )  # fmt: skip

    def __init__(self, outer: _Key | None, part: str, depth: int) -> None:
        self.outer, self.part, self.depth = outer, part, depth
        self.results: dict[int, tuple[int, list[_Key], bool]] = {}
        self.callers = Counter[_Key]()
        self.evaluations = self.repeated = self.again = self.with_graph = 0
        self.askers = Counter[tuple[_Key, _Key]]()
        self.changed = False

    def gave(self, found: int, step: int, callers: list[_Key], took: int, *, graph: bool = False) -> None:
        """Called when the line has made a result in `took` ns. found: the result's hash. callers: the lines that run,
        outermost first. graph: True if backward goes through it; a result made without gradients is no substitute."""
        self.evaluations += 1
        if found in self.results and step and graph <= self.results[found][2]:
            self.repeated += took
            self.again += 1
            self.with_graph += took * graph
            self.callers.update({callers[-1]: took} if callers and callers[-1][1] else {})
            self.outer = next((key for key, _ in self.callers.most_common(1)), self.outer)
            before, known, _ = self.results[found]
            apart = next((pair for pair in zip(known, callers, strict=False) if pair[0] != pair[1]), None)
            if before == step and apart is not None and apart[0][0] is apart[1][0]:
                self.askers[apart] += took
        self.results[found] = step, callers, graph


class _Running:
    """A function that runs: its current line (0 before the first), the time since when, the time that the probe's own
    looks took since, and the bindings of its variables: name to (line, identity, fingerprint)."""

    __slots__ = ("bound", "code", "entered", "hits", "line", "ours", "start")

    def __init__(self, code: CodeType, entered: int = 0) -> None:
        """entered: ns of the clock, less what our looks had taken by then; 0 for what ran already."""
        self.code, self.line, self.start, self.ours, self.entered, self.hits = code, 0, 0, 0, entered, 0
        self.bound: dict[str, tuple[_Key, int, int]] = {}


class RepeatObserver:
    """Observer of the results of some user functions, in the thread that starts it, until it is stopped or has taken
    `budget` ns. others: function for the ns that our other observers have taken in this thread."""

    def __init__(self, codes: Iterable[CodeType], budget: int, others: Callable[[], int] = int) -> None:
        names = {code: sites.names_by_line(code) for code in codes}
        self._stores = {code: {line: stores for line, (stores, _) in lines.items()} for code, lines in names.items()}
        self._lines: dict[_Key, _Evaluated] = {}
        self._work = WorkObserver(names, partial(fingerprint, long=True))
        self.works: list[dict[str, Any]] = []
        """What the lines go through, for `RepeatFacts`, known when it has stopped."""
        self._open: list[_Running] = []
        self._budget, self._others, self.ours, self.steps = budget, others, 0, 0
        self._trace, self._local = self._make()
        self._on = False

    def start(self, frame: FrameType | None) -> bool:
        """Starts the observation; False if another tracer is on, or if tracing writes variables (Python 3.10). frame:
        the innermost running frame; observed functions among it and its callers are traced from here on."""
        if sys.gettrace() is not None or not self._stores or sys.version_info < sites.TRACED_FROM:
            return False
        for each in reversed([each for each in outwards(frame) if each.f_code in self._stores]):
            if each.f_trace is None:
                self._open.append(_Running(each.f_code))
                each.f_trace = self._local
        self._on = True
        sys.settrace(self._trace)
        return True

    @property
    def single(self) -> bool:
        """True if a line has made an array of single precision."""
        return self._work.single

    def boundary(self) -> None:
        """Counts a step. Results of later steps are compared with those of the first."""
        self.steps += 1

    def give_up(self) -> None:
        """Ends the observation somewhere in the user's program; the trace function lives on until `stop`."""
        self._on = False
        if sys.gettrace() is self._trace:
            sys.settrace(None)

    def stop(self, frame: FrameType | None) -> list[dict[str, Any]]:
        """Ends the observation. Returns the lines whose results came again in several steps, in the form of
        `RepeatFacts.lines`. frame: the innermost running frame."""
        self.give_up()
        for each in outwards(frame):
            if each.f_trace is self._local:
                each.f_trace = None
        self._open.clear()
        again = sorted(filter(self._comes_again, self._lines), key=lambda key: -self._lines[key].repeated)
        again = [key for key in again if (key[0], -key[1]) not in again or key[1] > 0]  # a call says what its line does
        facts = [self._fact(key) for key in again[:MOST_FACTS]]
        changed = [key for key, line in self._lines.items() if line.changed]
        facts += self._work.repeated(self.steps, (*((code, abs(line)) for code, line in again), *changed))
        self.works = self._work.facts(max(1, self.steps))
        self._lines.clear()
        return sorted(facts, key=lambda fact: -fact["duration"])[:MOST_FACTS]

    def _comes_again(self, key: _Key) -> bool:
        """True if the line repeats results, and neither it nor a caller changes them: a changed result must be made
        again."""
        seen: set[_Key] = set()
        at: _Key | None = (key[0], abs(key[1]))
        while at is not None and at not in seen:
            seen.add(at)
            line = self._lines.get(at) or self._lines.get((at[0], -at[1]))
            if line is None:
                break
            if line.changed:
                return False
            at = line.outer
        return self._lines[key].repeated > 0

    def _fact(self, key: _Key) -> dict[str, Any]:
        line, steps = self._lines[key], max(1, self.steps - 1)
        first, again = next((pair for pair, took in line.askers.most_common(1) if took >= BY_CALLERS * line.repeated),
                            (None, None))  # fmt: skip
        return {
            "site": described((key[0], abs(key[1]))),
            "outer": described(line.outer) if line.outer is not None else None,
            "part": line.part,
            "depth": line.depth,
            "first": described(first) if first is not None else None,
            "asker": described(again) if again is not None else None,
            "evaluations": line.evaluations / max(1, self.steps),
            "again": line.again / steps,
            "results": len(line.results),
            "duration": line.repeated / steps,
            "with_graph": line.with_graph / steps,
        }

    # -- the trace function ----------------------------------------------------------------------------------------

    def _make(self) -> tuple[Any, Any]:
        def local(frame: FrameType, event: str, argument: Any) -> Any:
            began = now()
            try:
                if self._on and event in ("line", "return"):
                    with unasked():
                        self._at(frame, event, argument, began)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: what was seen so far is kept, the job goes on
                self.give_up()
                pass_on(error)
            self.ours += now() - began
            if self._on and self.ours > self._budget:
                self.give_up()
            return local

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if code not in self._stores:
                top, caller = self._open[-1] if self._open else None, frame.f_back
                if caller is not None and caller.f_code.co_name in sites.INLINE:
                    caller = caller.f_back
                if top is None or caller is None or caller.f_code is not top.code or not self._work.is_outside(code):
                    return None
                return self._outside(frame, caller, top.line)
            self._open.append(_Running(code, now() - self._looking()))
            return local

        return trace, local

    def _outside(self, frame: FrameType, caller: FrameType, line: int) -> Any:
        """The trace function of a package's function that a watched line calls."""
        frame.f_trace_lines = False

        def returns(frame: FrameType, event: str, argument: Any) -> Any:
            began = now()
            try:
                if event == "return":
                    frame.f_trace, frame.f_trace_lines = None, True  # a generator goes on as another call
                    took = began - start - (self._looking() - ours)
                    if self._on and took >= LEAST_TIME and line and not being_traced():
                        with unasked():
                            self._work.called(frame, line, caller, argument, took, later=self.steps > 0)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: what was seen so far is kept, the job goes on
                self.give_up()
                pass_on(error)
            self.ours += now() - began
            return None

        start, ours = now(), self._looking()
        return returns

    def _looking(self) -> int:
        """ns that all looks have taken."""
        return self.ours + self._others()

    def _at(self, frame: FrameType, event: str, argument: Any, time_now: int) -> None:
        code = frame.f_code
        while self._open and self._open[-1].code is not code:
            self._open.pop()  # left by an exception that nobody saw
        if not self._open:
            self._open.append(_Running(code))
        top = self._open[-1]
        took = time_now - top.start - (self._looking() - top.ours)
        names = sorted(name for name in self._stores[code].get(top.line, ()) if not name.startswith("."))
        self._check(frame, top, [name for name in names if name in top.bound])  # += binds what it has changed
        if names and code.co_flags & CO_GENERATOR:
            self._work.rebound(frame, top.line, names, took)
        if top.line and took >= LEAST_TIME and not being_traced():
            returned = argument if event == "return" else None
            values = sites.variables(frame) if names and returned is None else {}
            given = [values.get(name) for name in names] if values else [returned]
            self._work.evaluated(frame, top.line, took, given, ran=not top.entered)
            self._evaluated(frame, top, (values, names, returned), took)
        if event == "return":
            self._check(frame, top, tuple(top.bound))
            took = time_now - self._looking() - top.entered
            if code.co_flags & CO_GENERATOR and argument is not None and top.entered:
                self._work.yielded(frame, top.line or frame.f_lineno, took)
            elif argument is not None:
                self._work.collated(frame, argument)
            self._returned(frame, top, argument, took)
            self._open.pop()
        else:  # what the line gave the last time is there until it runs
            self._check(frame, top, [name for name, known in top.bound.items() if known[0] == (code, frame.f_lineno)])
            top.line, top.start, top.ours = frame.f_lineno, now(), self._looking() + now() - time_now
            top.hits += 1
            self._work.reached(code, top.line)
            if top.hits >= LONG_CALL and top.entered:  # a loop: the whole call says enough
                frame.f_trace_lines, top.line = False, 0

    def _evaluated(self, frame: FrameType, top: _Running, given: tuple[Any, list[str], Any], took: int) -> None:
        values, names, returned = given
        self._count(frame, (top.code, top.line), len(self._open), (values, names, returned), took)
        for name in names if values else ():
            if (one := fingerprint(values.get(name))) is not None:
                top.bound[name] = (top.code, top.line), id(values[name]), one

    def _returned(self, frame: FrameType, top: _Running, result: Any, took: int) -> None:
        """A whole call is an evaluation of the line that calls, whatever that does with the result."""
        caller = self._open[-2] if len(self._open) > 1 else None
        if top.entered and took >= LEAST_TIME and caller is not None and caller.line and not being_traced():
            if frame.f_code.co_name not in sites.INLINE:
                self._work.inside(caller.code, caller.line, took)
            self._count(frame, (caller.code, -caller.line), len(self._open) - 1, ({}, [], result), took)

    def _count(self, frame: FrameType, key: _Key, depth: int, given: tuple[Any, list[str], Any], took: int) -> None:
        line, (values, names, returned) = self._line(frame, key, depth), given
        result = tuple(map(values.get, names)) if values else returned
        found = fingerprint(result)
        if found is None or line.evaluations >= MOST_EVALUATIONS:
            return
        line.depth = depth  # more of what ran when the observer started has gone on since
        callers = [(each.code, each.line) for each in self._open[: depth - 1]]
        line.gave(found, self.steps, callers, took, graph=_has_graph(result))

    def _line(self, frame: FrameType, key: _Key, depth: int) -> _Evaluated:
        """key: of a call, with the line below zero."""
        if key not in self._lines:
            outer = self._open[depth - 2] if depth > 1 else None
            called = (outer.code, outer.line) if outer is not None and outer.line else None
            self._lines[key] = _Evaluated(called, path_of(frame)[0], depth)
        return self._lines[key]

    def _check(self, frame: FrameType, top: _Running, names: Iterable[str]) -> None:
        """Marks lines whose results these variables hold, if they have changed since: they are copies to work on."""
        values = sites.variables(frame) if names else {}
        for name in names:
            key, identity, before = top.bound.pop(name)
            value = values.get(name)
            if value is not None and id(value) == identity and fingerprint(value) != before:
                self._lines[key].changed = True
