"""Times of the lines in all functions of the user's that run below the training loop, for a few steps.

The line timeline gives up a function that runs thousands of lines a step. Here any function may run, wherever it is
called from (a loader, a hook): of one that is called often every n-th call is timed and counts n times; of a long call
its first lines tell how the rest is spent. No frame of the user's is kept.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

from steptime.probe import sites

MOST_HITS = 2_000
"""Lines timed of one function before it is timed half as often."""
LONG_CALL = 500
"""Lines timed of one call; how its rest is spent, those tell that ran again and again."""
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
    """One function of the user's: how often it was called, and of how many calls one is timed."""

    __slots__ = ("calls", "every", "hits")

    def __init__(self) -> None:
        self.calls = self.hits = 0
        self.every = 1


class _Call:
    """One timed call. lines: ns by line, calls of timed functions taken out; own: how often each line ran.

    line: the one that runs, 0 before the first; inside: ns of timed functions in it. over: it has ended, and what goes
    on in its frame is another call (of a generator).
    """

    __slots__ = ("begin", "code", "function", "hits", "inside", "last", "line", "lines", "outer", "over", "own")

    def __init__(self, function: _Function, code: CodeType, outer: _Path) -> None:
        self.function, self.code, self.outer, self.line = function, code, outer, 0
        self.lines: Counter[int] = Counter()
        self.own: Counter[int] = Counter()
        self.hits, self.inside, self.over = 0, 0.0, False
        self.begin = self.last = now()


class LineSampler:
    """Times functions in the thread that starts it, until it is stopped."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, _Function | None] = {}
        self._calls: list[_Call] = []
        self._times: Counter[tuple[_Path, _Place]] = Counter()
        self._shortest = 1 << 62
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
                each.f_trace = self._timed(each, function)
                self._attached.append(each.f_trace)
        sys.settrace(self._trace)
        return True

    def give_up(self) -> None:
        """Ends it somewhere in the user's program; the trace function lives on until `stop`, as the interpreter may be
        about to call it (see `LineTimeline.give_up`)."""
        if sys.gettrace() is self._trace:
            sys.settrace(None)
        self._end = self._end or now()

    def _make(self) -> _Local:
        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            try:
                function = self._function(frame.f_code)
                if function is None:
                    return None
                function.calls += 1
                if function.calls % function.every:
                    return None
                return self._timed(frame, function)
            except Exception:  # noqa: BLE001 - the probe's boundary: what was timed so far is kept, the job goes on
                self.give_up()
                return None

        return trace

    def _function(self, code: CodeType) -> _Function | None:
        """None for code that is not the user's."""
        try:
            return self._functions[code]
        except KeyError:
            own = sites.whose(code.co_filename) == sites.USER
            found = self._functions[code] = _Function() if own else None
            return found

    def _timed(self, frame: FrameType, function: _Function) -> _Local:
        call = _Call(function, frame.f_code, path_of(frame.f_back))
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
            except Exception:  # noqa: BLE001 - the probe's boundary: what was timed so far is kept, the job goes on
                self.give_up()
            return local

        return local

    def _line(self, call: _Call, frame: FrameType) -> None:
        time_now = now()
        self._spend(call, time_now)
        call.hits += 1
        call.line, call.inside = frame.f_lineno, 0.0
        if call.hits >= LONG_CALL:
            frame.f_trace_lines = False
        call.last = now()

    def _return(self, call: _Call, end: int) -> None:
        while self._calls and self._calls.pop() is not call:
            pass  # left by an exception that nobody saw
        factor = 1.0
        if call.hits < LONG_CALL:
            self._spend(call, end)
        else:
            factor = (end - call.begin) / max(1, call.last - call.begin)
        function = call.function
        part, places = call.outer
        for line, duration in call.lines.items():
            spent = duration - call.own[line] * self._shortest
            self._times[(part, places), (call.code, line)] += round(factor * function.every * spent)
        if self._calls:
            self._calls[-1].inside += function.every * (end - call.begin)
        function.hits += call.hits
        if function.hits > MOST_HITS:
            function.hits, function.every = 0, 2 * function.every

    def _spend(self, call: _Call, end: int) -> None:
        """Charges what has passed since the last line event to the line that ran."""
        passed = end - call.last
        if call.line:
            self._shortest = min(self._shortest, passed)
            call.lines[call.line] += passed - round(call.inside)
            call.own[call.line] += 1

    def stop(self, steps: int) -> dict[str, Any]:
        """Ends it; the fields of `SampleFacts`, of so many steps. What still runs has its time so far."""
        self.give_up()
        while self._calls:
            self._calls[-1].over = True
            self._return(self._calls[-1], self._end)
        for frame in _outwards(sys._getframe(1)) if self._attached else ():
            if frame.f_trace in self._attached:
                frame.f_trace, frame.f_trace_lines = None, True
        self._attached.clear()
        times, self._times = self._times, Counter()
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
