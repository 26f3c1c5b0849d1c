"""Times of the lines in all functions of the user's that run below the training loop, for a few steps.

The line timeline gives up a function that runs thousands of lines per step. Here any function may run, wherever it is
called from (a loader, a hook): of one that is called often some calls are timed by line, and tell how the time of all
of them is spent, which is taken of each; of a long call its first lines tell how the rest is spent. Code that is called
in a call that is not timed by line is reported by that of the others, too. No frame of the user's is kept.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from steptime.probe import sites
from steptime.probe.ours import pass_on

MOST_HITS = 2_000
"""Lines timed of one function before it is timed half as often."""
LONG_CALL = 500
"""Lines timed of one call; how its rest is spent, those tell that ran again and again."""
LONGEST_EVENT = 1_000
"""ns that the tracer takes at a line, of which no line is free: what it takes indeed is the shortest line that ran."""
CALIBRATIONS, CALIBRATING_CALLS = 5, 40
"""Calls of which the quickest counts: a fifth of a millisecond in all."""
DEEPEST = 200
"""Frames looked at, from a call outwards."""
MOST_PATHS, MOST_LINES = 60, 12
"""Written: the paths with most time, and of each the innermost lines."""
PARTS = (
    (os.path.join("torch", "utils", "data", ""), "input"),
    (os.path.join("torch", "optim", ""), "optimizer"),
    (os.path.join("torch", "autograd", ""), "backward"),
    (os.path.join("torch", "_tensor.py"), "backward"),
    (os.path.join("torch", "nn", "modules", "module.py"), "forward"),
)
"""Which part of a step calls a function, by the file of torch's that stands nearest to it in the stack."""

now = time.perf_counter_ns
_Place = tuple[CodeType, int]
_Path = tuple[str, tuple[_Place, ...]]
_Local = Callable[[FrameType, str, Any], Any]


class _Function:
    """One function of the user's. every: of how many calls one is timed, on average; left: calls until the next."""

    __slots__ = ("every", "hits", "left")

    def __init__(self) -> None:
        self.hits = self.left = 0
        self.every = 1


class _Node:
    """A function as one line of another calls it. all: ns of all its calls there; timed: of those that were timed, the
    tracer's own time taken out of both; lines: of those, ns by line, other functions of the user's taken out."""

    __slots__ = ("all", "code", "lines", "outer", "path", "timed")

    def __init__(self, code: CodeType, outer: _Node | None, path: _Path) -> None:
        self.code, self.outer, self.path = code, outer, path
        self.all = self.timed = 0
        self.lines: Counter[int] = Counter()


class _Call:
    """One timed call. lines: ns by line, calls of the user's functions taken out; ran: how often each line ran.

    line: the one that runs, 0 before the first; inside: ns of the user's functions in it, the tracer's included; nets:
    ns of all of them, without. entered: when the tracer was called. over: it has ended, and what goes on in its frame
    is another call (of a generator).
    """

    __slots__ = ("entered", "function", "hits", "inside", "last", "line", "lines", "nets", "node", "over",
                 "ran")  # fmt: skip

    def __init__(self, function: _Function, node: _Node, entered: int) -> None:
        self.function, self.node, self.entered, self.line = function, node, entered, 0
        self.lines, self.ran = Counter[int](), Counter[int]()
        self.hits = self.inside = self.nets = 0
        self.over = False
        self.last = now()

    def has_called(self, gross: int, net: int) -> None:
        """A function of the user's, from the line that runs."""
        self.inside += gross
        self.nets += net

    def spend(self, end: int) -> int:
        """Charges what has passed since the last line event to the line that ran; returns it."""
        own = end - self.last - self.inside
        self.lines[self.line] += own
        self.ran[self.line] += 1
        self.inside = 0
        return own


class LineSampler:
    """Times functions in the thread that starts it, until it is stopped."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, _Function | None] = {}
        self._nodes: dict[tuple[_Node | None, int | _Path, CodeType], _Node] = {}
        self._calls: list[_Call] = []
        self._shortest = LONGEST_EVENT
        self._inside = self._outside = 0
        """ns of the tracer's in a call that is only measured as a whole: within what is measured, and around that."""
        self._skipping: tuple[_Node, int, int] | None = None
        self._chance = random.Random(0).random  # of its own: the job's random numbers stay as they are
        self._trace = self._make()
        self._attached: list[_Local] = []
        self._end = 0

    def start(self, frame: FrameType | None = None) -> bool:
        """False, and nothing is done, while a debugger or coverage traces. frame: those of the user's from it outwards,
        which run already, are timed from their next line on."""
        if sys.gettrace() is not None:
            return False
        for each in reversed([each for each in _outwards(frame) if sites.whose_frame(each) == sites.USER]):
            if each.f_trace is None and (function := self._function(each.f_code)) is not None:
                each.f_trace = self._timed(function, self._node(each), now())
                self._attached.append(each.f_trace)
        self._measure_itself()
        sys.settrace(self._trace)
        return True

    def _measure_itself(self) -> None:
        """Cost of measuring a line and a call, by functions that do nothing."""

        def nothing() -> None:
            return

        def lines() -> None:
            one = 1
            two = one
            del one, two

        caller = _Call(_Function(), _Node(nothing.__code__, None, ("", ())), 0)
        node = _Node(nothing.__code__, caller.node, ("", ()))
        node.timed, called = 1, _Function()
        called.left = 1 << 62
        self._functions[nothing.__code__], self._nodes[caller.node, 0, nothing.__code__] = called, node
        self._functions[lines.__code__] = _Function()
        calls, self._calls = self._calls, [caller]
        try:
            found = [self._timed_calls(nothing, node, caller) for _ in range(CALIBRATIONS)]
            sys.settrace(self._trace)
            for _ in range(CALIBRATING_CALLS):
                lines()
        finally:  # a signal's handler may raise here: nothing of ours traces on
            sys.settrace(None)
            self._calls = calls
            for code in (nothing.__code__, lines.__code__):
                self._functions.pop(code, None)
                self._nodes.pop((caller.node, 0, code), None)
        bare, inside, around = (min(column) for column in zip(*found, strict=True))
        self._inside = max(0, inside - bare) // CALIBRATING_CALLS
        self._outside = max(0, around - bare) // CALIBRATING_CALLS

    def _timed_calls(self, nothing: Callable[[], None], node: _Node, caller: _Call) -> tuple[int, int, int]:
        """ns of so many calls without us, of what is measured of them, and of the rest."""
        node.all = caller.inside = 0
        first = now()
        for _ in range(CALIBRATING_CALLS):
            nothing()
        second = now()
        sys.settrace(self._trace)
        for _ in range(CALIBRATING_CALLS):
            nothing()
        sys.settrace(None)
        return second - first, node.all, now() - second - caller.inside

    def give_up(self) -> None:
        """Ends it somewhere in the user's program; the trace function lives on until `stop`, as the interpreter may be
        about to call it (see `LineTimeline.give_up`)."""
        if sys.gettrace() is self._trace:
            sys.settrace(None)
        self._end = self._end or now()

    def _make(self) -> _Local:
        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            try:
                if self._skipping is not None:
                    return None
                entered, function = now(), self._function(frame.f_code)
                if function is None:
                    return None
                node = self._node(frame)
                if function.left and node.timed:  # a first call tells how those after it are spent
                    function.left -= 1
                    frame.f_trace_lines = False
                    return self._skipped(node, entered)
                if function.every > 1:  # by chance: turns may keep step with what the job does in turns
                    function.left = int(self._chance() * (2 * function.every - 1))
                return self._timed(function, node, entered)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: what was timed so far is kept, the job goes on
                self.give_up()
                pass_on(error)
                return None

        return trace

    def _node(self, frame: FrameType) -> _Node:
        outer = self._calls[-1] if self._calls else None
        path = path_of(frame.f_back) if outer is None else ("", ())
        key = (outer.node if outer else None, outer.line if outer else path, frame.f_code)
        try:
            return self._nodes[key]
        except KeyError:
            made = self._nodes[key] = _Node(frame.f_code, key[0], path_of(frame.f_back))
            return made

    def _function(self, code: CodeType) -> _Function | None:
        """None for code that is not the user's."""
        try:
            return self._functions[code]
        except KeyError:
            own = sites.whose(code.co_filename) == sites.USER
            found = self._functions[code] = _Function() if own else None
            return found

    def _skipped(self, node: _Node, entered: int) -> _Local:
        """Time of a call that is not timed by line, as that is not its caller's own."""
        over = False

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal over
            end = now()
            if event == "return" and not over:
                over, frame.f_trace_lines = True, True
                self._left_out(node, entered, start, end)
            return local

        start = now()
        self._skipping = node, entered, start
        return local

    def _left_out(self, node: _Node, entered: int, start: int, end: int) -> None:
        self._skipping = None
        net = end - start - self._inside
        node.all += net
        if self._calls:
            self._calls[-1].has_called(now() - entered + self._outside, net)

    def _timed(self, function: _Function, node: _Node, entered: int) -> _Local:
        call = _Call(function, node, entered)
        self._calls.append(call)

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            try:
                if call.over:
                    return local
                if event == "line":
                    self._line(call, frame)
                elif event == "return":
                    call.over = True
                    self._return(call, now())
            except Exception as error:  # noqa: BLE001 - the probe's boundary: what was timed so far is kept, the job goes on
                self.give_up()
                pass_on(error)
            return local

        return local

    def _line(self, call: _Call, frame: FrameType) -> None:
        time_now = now()
        if call.line:
            self._shortest = min(self._shortest, call.spend(time_now))
        call.hits += 1
        call.line, call.inside = frame.f_lineno, 0
        if call.hits >= LONG_CALL:
            frame.f_trace_lines = False
        call.last = now()

    def _return(self, call: _Call, end: int) -> None:
        while self._calls and self._calls.pop() is not call:
            pass  # left by an exception that nobody saw
        rest = 0
        if call.hits >= LONG_CALL:
            rest = end - call.last - call.inside
        elif call.line:
            call.spend(end)
        node, function = call.node, call.function
        own = {line: duration - call.ran[line] * self._shortest for line, duration in call.lines.items()}
        again = {line: duration for line, duration in own.items() if duration > 0 and call.ran[line] > 1}
        together = sum(again.values())
        for line, duration in own.items():
            node.lines[line] += duration + (rest * again.get(line, 0) // together if together else 0)
        net = max(1, sum(own.values()) + rest + call.nets)
        node.all += net
        node.timed += net
        function.hits += call.hits
        if function.hits > MOST_HITS:
            function.hits, function.every = 0, 2 * function.every
        if self._calls:
            self._calls[-1].has_called(now() - call.entered + self._outside, net)

    def stop(self, steps: int) -> dict[str, Any]:
        """Ends it; the fields of `SampleFacts`, of so many steps. Running code has its time so far."""
        self.give_up()
        if self._skipping is not None:
            self._left_out(*self._skipping, self._end)
        while self._calls:
            self._calls[-1].over = True
            self._return(self._calls[-1], self._end)
        for frame in _outwards(sys._getframe(1)) if self._attached else ():
            if frame.f_trace in self._attached:
                frame.f_trace, frame.f_trace_lines = None, True
        self._attached.clear()
        times = self._times()
        self._nodes.clear()
        return {
            "steps": steps,
            "paths": [
                {
                    "duration": duration,
                    "part": part,
                    "lines": [described(each) for each in (place, *outer)[:MOST_LINES]],
                }
                for ((part, outer), place), duration in times.most_common(MOST_PATHS)
                if duration > 0
            ],
        }

    def _times(self) -> Counter[tuple[_Path, _Place]]:
        """ns by path: the lines of the timed calls for all of them, at each level of calls."""
        times, factors = Counter[tuple[_Path, _Place]](), dict[_Node | None, float]()
        for node in self._nodes.values():  # a caller comes before what it calls
            factor = factors[node] = factors.get(node.outer, 1.0) * node.all / max(1, node.timed)
            for line, duration in node.lines.items():
                times[node.path, (node.code, line)] += round(factor * duration)
        return times


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame and those that called it."""
    for _ in range(DEEPEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def path_of(frame: FrameType | None) -> _Path:
    """The part of the step, and the user's lines, from a frame outwards."""
    part, found = "", list[_Place]()
    for each in _outwards(frame):
        whose = sites.whose_frame(each)
        if whose == sites.USER:
            found.append((each.f_code, each.f_lineno or each.f_code.co_firstlineno))
        elif whose == sites.INNER and not part:
            file = each.f_code.co_filename
            part = next((name for mark, name in PARTS if mark in file), "")
    return part, tuple(found[:MOST_LINES])


def described(place: _Place) -> dict[str, Any]:
    """A line as facts have it."""
    code, line = place
    return sites.line_at((os.path.abspath(code.co_filename), line, getattr(code, "co_qualname", code.co_name)))
