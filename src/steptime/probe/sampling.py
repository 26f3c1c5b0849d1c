"""Line times of all user functions that run below the training loop, for a few steps.

The line timeline drops a function that runs thousands of lines per step. This sampler times any function, wherever it
is called from (a loader, a hook). Of frequent calls it times some by line and all as a whole, and scales the line times
to the whole; of a long call it times the first lines. Code called by a call that is not timed by line is estimated from
the timed calls. No frame of the user's is kept.
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
"""Lines timed of one call; the lines that ran repeatedly then share the rest of its time."""
LONGEST_EVENT = 1_000
"""Upper bound of the tracer's own cost per line, ns. The estimate is the shortest line that ran."""
CALIBRATIONS, CALIBRATING_CALLS = 5, 40
"""Rounds of calibration, of which the quickest counts, and calls per round: a fifth of a millisecond in all."""
DEEPEST = 200
"""Frames looked at, from a call outwards."""
HOT = 0.03
"""Of the time: functions that take so much, with what they call, are worth a second look."""
MOST_PATHS, MOST_LINES = 60, 12
"""Most paths that are written, by time, and innermost lines of each."""
PARTS = (
    (os.path.join("torch", "utils", "data", ""), "input"),
    (os.path.join("torch", "optim", ""), "optimizer"),
    (os.path.join("torch", "autograd", ""), "backward"),
    (os.path.join("torch", "_tensor.py"), "backward"),
    (os.path.join("torch", "nn", "modules", "module.py"), "forward"),
)
"""Part of the step that calls a function, by the innermost file of torch's in the stack."""

now = time.perf_counter_ns
_Place = tuple[CodeType, int]
_Path = tuple[str, tuple[_Place, ...]]
_Local = Callable[[FrameType, str, Any], Any]


class _Function:
    """A user function. every: one of so many calls is timed by line, on average; left: calls until the next."""

    __slots__ = ("every", "hits", "left")

    def __init__(self) -> None:
        self.hits = self.left = 0
        self.every = 1


class _Node:
    """A function called from one line of another. all: ns of all calls there; timed: ns of the calls timed by line,
    both without the tracer's time; lines: ns by line of the timed calls, without called user functions; ran: their
    executions; calls, of_lines: number of all calls, and of the timed ones."""

    __slots__ = ("all", "calls", "code", "lines", "of_lines", "outer", "path", "ran", "timed")

    def __init__(self, code: CodeType, outer: _Node | None, path: _Path) -> None:
        self.code, self.outer, self.path = code, outer, path
        self.all = self.timed = self.calls = self.of_lines = 0
        self.lines: Counter[int] = Counter()
        self.ran: Counter[int] = Counter()

    def has_timed(self, own: dict[int, int], ran: Counter[int], rest: int, net: int) -> None:
        """Adds a call of `net` ns that was timed by line. own, ran: ns and executions by line; rest: ns after timing
        had stopped, for the lines that ran repeatedly."""
        again = {line: duration for line, duration in own.items() if duration > 0 and ran[line] > 1}
        together = sum(again.values())
        for line, duration in own.items():
            self.lines[line] += duration + (rest * again.get(line, 0) // together if together else 0)
            self.ran[line] += ran[line] + (rest * ran[line] // together if together and ran[line] > 1 else 0)
        self.all += net
        self.timed += net
        self.calls += 1
        self.of_lines += 1


class _Call:
    """One timed call. lines: ns by line, without called user functions; ran: executions by line.

    line: the current one, 0 before the first; inside: ns of user functions called in it, with the tracer's time; nets:
    ns of all of them, without. entered: time of the tracer's call, ns. over: the call has ended; a generator's frame
    may go on as another call."""

    __slots__ = ("entered", "function", "hits", "inside", "last", "line", "lines", "nets", "node", "over",
                 "ran")  # fmt: skip

    def __init__(self, function: _Function, node: _Node, entered: int) -> None:
        self.function, self.node, self.entered, self.line = function, node, entered, 0
        self.lines, self.ran = Counter[int](), Counter[int]()
        self.hits = self.inside = self.nets = 0
        self.over = False
        self.last = now()

    def has_called(self, gross: int, net: int) -> None:
        """Adds a user function called from the current line. gross, net: ns with and without the tracer's time."""
        self.inside += gross
        self.nets += net

    def spend(self, end: int) -> int:
        """Charges the ns since the last line event to the current line; returns them."""
        own = end - self.last - self.inside
        self.lines[self.line] += own
        self.ran[self.line] += 1
        self.inside = 0
        return own


class LineSampler:
    """Timer of the lines of user functions in the calling thread, from `start` to `stop`."""

    def __init__(self) -> None:
        self._functions: dict[CodeType, _Function | None] = {}
        self._nodes: dict[tuple[_Node | None, int | _Path, CodeType], _Node] = {}
        self._calls: list[_Call] = []
        self._shortest = LONGEST_EVENT
        self._inside = self._outside = 0
        """Tracer's ns for a call measured as a whole: within the measurement, and around it."""
        self._skipping: tuple[_Node, int, int] | None = None
        self._chance = random.Random(0).random  # of its own: the job's random numbers stay as they are
        self._trace = self._make()
        self._attached: list[_Local] = []
        self._start = self._end = 0
        self.hot: tuple[CodeType, ...] = ()
        """Functions that take a good part of the time, known when it has stopped."""

    def start(self, frame: FrameType | None = None) -> bool:
        """Starts the timing; False if a debugger or coverage traces. User frames from `frame` outwards are timed."""
        if sys.gettrace() is not None:
            return False
        for each in reversed([each for each in outwards(frame) if sites.whose_frame(each) == sites.USER]):
            if each.f_trace is None and (function := self._function(each.f_code)) is not None:
                each.f_trace = self._timed(function, self._node(each), now())
                self._attached.append(each.f_trace)
        self._measure_itself()
        self._start = now()
        sys.settrace(self._trace)
        return True

    def _measure_itself(self) -> None:
        """Measures the tracer's cost for a line and a call, with functions that do nothing."""

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
        """Returns the ns of CALIBRATING_CALLS calls without tracing, and with: those measured, and the rest."""
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
        """Ends the timing anywhere in the user's program. The trace function lives on until `stop`, because the
        interpreter may be about to call it (see `LineTimeline.give_up`)."""
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
                if function.left and node.timed:  # a first call shows how those after it are spent
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
        """Returns the state of a user function; None for other code."""
        try:
            return self._functions[code]
        except KeyError:
            own = sites.whose(code.co_filename) == sites.USER
            found = self._functions[code] = _Function() if own else None
            return found

    def _skipped(self, node: _Node, entered: int) -> _Local:
        """Times a call as a whole, because its time is not its caller's own."""
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
        node.calls += 1
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
        net = max(1, sum(own.values()) + rest + call.nets)
        node.has_timed(own, call.ran, rest, net)
        function.hits += call.hits
        if function.hits > MOST_HITS:
            function.hits, function.every = 0, 2 * function.every
        if self._calls:
            self._calls[-1].has_called(now() - call.entered + self._outside, net)

    def stop(self, steps: int) -> dict[str, Any]:
        """Ends the timing; returns the fields of `SampleFacts` for `steps` steps. Running calls count so far."""
        self.give_up()
        if self._skipping is not None:
            self._left_out(*self._skipping, self._end)
        while self._calls:
            self._calls[-1].over = True
            self._return(self._calls[-1], self._end)
        for frame in outwards(sys._getframe(1)) if self._attached else ():
            if frame.f_trace in self._attached:
                frame.f_trace, frame.f_trace_lines = None, True
        self._attached.clear()
        times, ran = self._times()
        self._nodes.clear()
        return {
            "steps": steps,
            "paths": [
                {
                    "duration": duration,
                    "part": part,
                    "lines": [described(each) for each in (place, *outer)[:MOST_LINES]],
                    "ran": ran[(part, outer), place],
                }
                for ((part, outer), place), duration in times.most_common(MOST_PATHS)
                if duration > 0
            ],
        }

    def _times(self) -> tuple[Counter[tuple[_Path, _Place]], Counter[tuple[_Path, _Place]]]:
        """Returns ns and executions by path: those of the timed calls' lines, scaled to all calls at each level, by
        their time and by their number."""
        times, ran = Counter[tuple[_Path, _Place]](), Counter[tuple[_Path, _Place]]()
        factors, often = dict[_Node | None, float](), dict[_Node | None, float]()
        spent = Counter[CodeType]()
        for node in self._nodes.values():  # a caller comes before what it calls
            spent[node.code] += round(factors.get(node.outer, 1.0) * node.all)
            factor = factors[node] = factors.get(node.outer, 1.0) * node.all / max(1, node.timed)
            often[node] = often.get(node.outer, 1.0) * node.calls / max(1, node.of_lines)
            for line, duration in node.lines.items():
                times[node.path, (node.code, line)] += round(factor * duration)
                ran[node.path, (node.code, line)] += round(often[node] * node.ran[line])
        least = HOT * (self._end - self._start)
        self.hot = tuple(code for code, duration in spent.items() if duration >= least)
        return times, ran


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame and the frames that called it."""
    for _ in range(DEEPEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def path_of(frame: FrameType | None) -> _Path:
    """Returns the part of the step and the user's lines, from a frame outwards."""
    part, found = "", list[_Place]()
    for each in outwards(frame):
        whose = sites.whose_frame(each)
        if whose == sites.USER:
            found.append((each.f_code, each.f_lineno or each.f_code.co_firstlineno))
        elif whose == sites.INNER and not part:
            file = each.f_code.co_filename
            part = next((name for mark, name in PARTS if mark in file), "")
    return part, tuple(found[:MOST_LINES])


def described(place: _Place) -> dict[str, Any]:
    """Returns a line as a `SourceLine` of facts."""
    code, line = place
    return sites.line_at((os.path.abspath(code.co_filename), line, getattr(code, "co_qualname", code.co_name)))
