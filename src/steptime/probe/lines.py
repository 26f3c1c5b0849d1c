"""Line timeline: time of each line of the user's loop, for a few steps.

No reference to a frame of the user's is ever kept, because it would keep batches and graphs alive. A mark inside the
loop's frame finds it again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from steptime.journal import Kind
from steptime.probe import sites
from steptime.probe.ours import pass_on
from steptime.probe.sites import code_facts

LINE = int(Kind.LINE)
MOST_RECORDS = 20_000
"""Records per window: half a megabyte of journal. A loop with more lines in six steps is timed for fewer steps."""
MOST_CALLS = 1_000
"""Calls of one function other than the loop; beyond, its time counts for the line that calls it."""
MOST_HITS = 4_000
"""Executed lines of one function other than the loop; beyond, likewise: one busy function must not use up the
window."""
MOST_REPORTED = 255
"""Largest number of calls in a record: its flags are one byte."""
MOST_CALLED = 1_000_000
"""Calls of untimed functions that the tracer sees before it stops: half a second in all."""
MOST_LINES = 4_000
"""Most lines of one function: each has an identity number."""
ENTERED, LEFT = ("PY_START", "PY_RESUME", "PY_THROW"), ("PY_RETURN", "PY_YIELD", "PY_UNWIND")
"""Events of sys.monitoring for entering and leaving a function."""
FREE_TOOLS = (3, 4)
"""Tool numbers of sys.monitoring that Python's documentation leaves free."""

now = time.perf_counter_ns


class _Mark:
    """Mark in `frame.f_trace` between two boundaries. Callable, because Python calls it if tracing is turned on."""

    def __call__(self, *_: Any) -> Any:
        return self


class LoopFrame:
    """Finder of the frame that runs the training loop: the innermost one alive at two boundaries.

    `code`: its code object, None until `look` has found it. A mark costs nothing while no tracer is on; while one is,
    nothing is marked."""

    def __init__(self) -> None:
        self.code: CodeType | None = None
        self._mark = _Mark()

    def mark(self, frame: FrameType | None) -> None:
        """Marks this frame and all frames outwards from it, at a boundary."""
        if sys.gettrace() is not None:
            return
        for each in sites.frames_of(frame, sites.LIBRARY):
            if each.f_trace is None or isinstance(each.f_trace, _Mark):  # one of a script that was begun again
                each.f_trace = self._mark

    def look(self, frame: FrameType | None) -> None:
        """Finds the innermost marked frame, at a later boundary, and removes all marks."""
        for each in sites.frames_of(frame, sites.LIBRARY):
            if each.f_trace is self._mark:
                self.code = self.code or each.f_code
                del each.f_trace


class _Open:
    """Current line of a traced function: its identity, its start (ns), and calls of untimed functions since."""

    __slots__ = ("calls", "code", "identity", "start")

    def __init__(self, code: CodeType, identity: int, start: int) -> None:
        self.code, self.identity, self.start, self.calls = code, identity, start, 0


class LineClock:
    """Records (identity, start ns, end ns, calls) of executed lines, from the events of traced functions.

    A line that calls a traced function goes on meanwhile, so its record encloses the function's."""

    def __init__(self, bases: dict[int, int], loop: CodeType | None) -> None:
        self.records: list[tuple[int, int, int, int]] = []
        self.full, self._reported = False, 0
        self.dropped: list[CodeType] = []
        self._dropped_identities: list[range] = []
        self._hits: dict[int, int] = {}
        self._bases, self._loop = bases, loop
        self._stack: list[_Open] = []
        self._calls: dict[int, int] = {}

    def enter(self, code: CodeType, line: int = 0) -> None:
        """Called when a traced function starts or a generator resumes. line: where it already runs, 0 at its start."""
        self._stack.append(_Open(code, self._bases[id(code)] + line if line else 0, now()))

    def at(self, code: CodeType, line: int) -> None:
        """Called when the function reaches a line. Functions entered after it and still open were left unseen."""
        time_now = now()
        stack = self._stack
        if not stack or stack[-1].code is not code:
            self._unwind(code, time_now)
        top = stack[-1]
        if top.identity:
            self.records.append((top.identity, top.start, time_now, top.calls))
        top.identity, top.start, top.calls = self._bases[id(code)] + line, time_now, 0
        if code is not self._loop:
            hits = self._hits[id(code)] = self._hits.get(id(code), 0) + 1
            if hits > MOST_HITS:
                self._drop(code)
        self.full = self.full or len(self.records) > MOST_RECORDS or not self._bases

    def _unwind(self, code: CodeType, time_now: int) -> None:
        if any(each.code is code for each in self._stack):
            while self._stack[-1].code is not code:
                self._close(self._stack.pop(), time_now)
        else:
            self._stack.append(_Open(code, 0, time_now))

    def leave(self, code: CodeType) -> None:
        """Called when the function returns, yields or is left by an exception."""
        if any(each.code is code for each in self._stack):
            time_now = now()
            self._unwind(code, time_now)
            self._close(self._stack.pop(), time_now)
            calls = self._calls[id(code)] = self._calls.get(id(code), 0) + 1
            if code is not self._loop and calls > MOST_CALLS:
                self._drop(code)

    def called(self) -> None:
        """Counts a call of an untimed function: the event itself took time of the current line."""
        self._reported += 1
        self.full = self.full or self._reported > MOST_CALLED
        if self._stack:
            self._stack[-1].calls += 1

    def _close(self, top: _Open, time_now: int) -> None:
        if top.identity:
            self.records.append((top.identity, top.start, time_now, top.calls))

    def _drop(self, code: CodeType) -> None:
        """Stops timing a function that runs too often."""
        base = self._bases.pop(id(code), None)
        if base is not None:
            self.dropped.append(code)
            first = base + code.co_firstlineno
            self._dropped_identities.append(range(first, first + _span(code)))

    def kept(self) -> list[tuple[int, int, int, int]]:
        """Returns the records, without those of dropped functions, whose time counts for the calling lines."""
        dropped = self._dropped_identities
        return [record for record in self.records if not any(record[0] in each for each in dropped)]

    def close(self) -> None:
        time_now = now()
        while self._stack:
            self._close(self._stack.pop(), time_now)


class _Tracer:
    """Backend for Python <= 3.11: sys.settrace, with a local tracer in the chosen functions only."""

    def __init__(self, clock: LineClock, failed: Callable[[], None]) -> None:
        self._clock, self._failed = clock, failed
        self._trace, self._local = self._make()

    def _make(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        clock, failed = self._clock, self._failed
        bases = clock._bases

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            try:
                if event == "line":
                    if id(frame.f_code) not in bases:
                        return None
                    clock.at(frame.f_code, frame.f_lineno)
                    if clock.full:
                        failed()
                elif event == "return":
                    clock.leave(frame.f_code)
            except Exception as error:  # noqa: BLE001 - the probe's boundary: a failed timeline ends, the user's program goes on
                failed()
                pass_on(error)
            return local

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            code = frame.f_code
            if id(code) not in bases:
                clock.called()
                if clock.full:
                    failed()
                return None
            clock.enter(code)
            return local

        return trace, local

    def start(self, live: list[FrameType]) -> bool:
        """Starts tracing. live: chosen frames that already run, innermost first."""
        for frame in reversed(live):
            self._clock.enter(frame.f_code, frame.f_lineno)
            frame.f_trace = self._local
        sys.settrace(self._trace)
        return True

    def stop(self, frame: FrameType | None) -> None:
        """Turns tracing off, unless somebody else has turned on theirs."""
        if sys.gettrace() is self._trace:
            sys.settrace(None)
        while frame is not None:
            if frame.f_trace is self._local:
                del frame.f_trace
            frame = frame.f_back


def event_costs() -> tuple[int, int]:
    """Returns the tracer's cost, ns, for a call of an untimed function and for a traced line: the fastest block with
    tracing minus the fastest without. Call it while nobody traces."""
    clock = LineClock({id(_sample_lines.__code__): 0}, None)
    tracer = _Tracer(clock, lambda: None)
    found = []
    for work, events in ((_sample_calls, SAMPLES), (_sample_lines, SAMPLES * SAMPLE_LINES)):
        times: dict[bool, list[int]] = {True: [], False: []}
        for traced in (False, True) * SAMPLE_BLOCKS:
            if traced:
                sys.settrace(tracer._trace)
            start = now()
            for _ in range(SAMPLES):
                work()
            end = now()
            if traced:
                sys.settrace(None)
            times[traced].append(end - start)
        found.append(max(0, (min(times[True]) - min(times[False])) // events))
    call, line = found
    return call, line


SAMPLES, SAMPLE_LINES, SAMPLE_BLOCKS = 20, 8, 4


def _sample_calls() -> None:
    return


def _sample_lines() -> int:
    a = 1
    b = a
    a = b
    b = a
    a = b
    b = a
    a = b
    return a


class _Monitor:
    """Backend for Python >= 3.12: sys.monitoring, with events in the chosen functions only, which slows no others."""

    def __init__(self, clock: LineClock, codes: Iterable[CodeType], failed: Callable[[], None]) -> None:
        self._clock, self._failed = clock, failed
        self._codes = tuple(codes)
        self._thread = threading.get_ident()
        self._tool = -1

    def start(self, live: list[FrameType]) -> bool:
        """Starts monitoring; False if no tool number is free."""
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        self._tool = next((tool for tool in FREE_TOOLS if monitoring.get_tool(tool) is None), -1)
        if self._tool < 0:
            return False
        monitoring.use_tool_id(self._tool, "steptime")
        for frame in reversed(live):
            self._clock.enter(frame.f_code, frame.f_lineno)
        events, clock = monitoring.events, self._clock
        entered, left = self._guard(lambda code, _: clock.enter(code)), self._guard(lambda code, _: clock.leave(code))
        callbacks = {"LINE": self._guard(self._at), **dict.fromkeys(ENTERED, entered), **dict.fromkeys(LEFT, left)}
        for name, callback in callbacks.items():
            monitoring.register_callback(self._tool, getattr(events, name), callback)
        inside = events.LINE | events.PY_START | events.PY_RESUME | events.PY_RETURN | events.PY_YIELD
        for code in self._codes:
            monitoring.set_local_events(self._tool, code, inside)
        monitoring.set_events(self._tool, events.PY_UNWIND | events.PY_THROW)
        return True

    def _guard(self, inner: Callable[[CodeType, int], None]) -> Callable[..., None]:
        thread, of_thread, bases = self._thread, threading.get_ident, self._clock._bases

        def callback(code: CodeType, argument: int, *_: Any) -> None:
            if id(code) in bases and of_thread() == thread:
                try:
                    inner(code, argument)
                except Exception as error:  # noqa: BLE001 - the probe's boundary: a failed timeline ends, the user's program goes on
                    self._failed()
                    pass_on(error)

        return callback

    def _at(self, code: CodeType, line: int) -> None:
        self._clock.at(code, line)
        if self._clock.full:
            self._failed()

    def stop(self, frame: FrameType | None) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined,unused-ignore]
        if self._tool < 0:
            return
        monitoring.set_events(self._tool, 0)
        for code in self._codes:
            monitoring.set_local_events(self._tool, code, 0)
        for name in ("LINE", *ENTERED, *LEFT):
            monitoring.register_callback(self._tool, getattr(monitoring.events, name), None)
        monitoring.free_tool_id(self._tool)
        self._tool = -1


class LineTimeline:
    """Timer of the lines of some functions from `start` to `stop`, both called at a boundary in the training thread.

    `append(kind, flags, identity, start, end)` appends a record; its flags are the untimed calls in it, at most
    MOST_REPORTED. `fact(kind, **fields)` writes `CodeFacts` and `LineCostFacts`, `note(text)` a sentence. Records are
    written at `stop`, because appending costs more than the lines take."""

    _next_base = 1

    def __init__(
        self, append: Callable[[int, int, int, int, int], None], fact: Callable[..., None], note: Callable[[str], None]
    ) -> None:
        self._append, self._fact, self._note = append, fact, note
        self._clock: LineClock | None = None
        self._backend: _Tracer | _Monitor | None = None
        self._ended = 0
        self.overflowed = False
        """True if the loop ran too many lines to be timed one by one."""

    def start(self, loop: CodeType | None, functions: Iterable[CodeType], frame: FrameType | None) -> bool:
        """Starts with `frame` at a boundary; returns False if there is nothing to time or another tracer is on."""
        codes = {id(code): code for code in (*functions, *((loop,) if loop else ())) if _traceable(code)}
        if not codes:
            return False
        if sys.gettrace() is not None:
            self._note("lines were not timed: a debugger or a coverage tool uses sys.settrace")
            return False
        self._clock = LineClock({key: self._describe(code, code is loop) for key, code in codes.items()}, loop)
        live = [each for each in sites.frames_of(frame, sites.LIBRARY) if id(each.f_code) in codes]
        if loop is not None:
            live = live[: next((n for n, each in enumerate(live, 1) if each.f_code is loop), 0)]
        self._backend = (
            _Monitor(self._clock, codes.values(), self.give_up)
            if hasattr(sys, "monitoring")
            else _Tracer(self._clock, self.give_up)
        )
        if not self._backend.start(live):
            self._note("lines were not timed: sys.monitoring has no free tool ID")
            self._backend = self._clock = None
            return False
        return True

    def _describe(self, code: CodeType, loop: bool) -> int:
        """Writes the function's facts. Returns the offset from line numbers to identities."""
        facts = code_facts(code, loop)
        base = LineTimeline._next_base
        LineTimeline._next_base += facts.pop("span")
        self._fact("code", base=base, **facts)
        return base - int(facts["first_line"])

    def give_up(self) -> None:
        """Ends the timeline anywhere in the user's program; keeps the records so far.

        The trace function lives on until `stop`: the interpreter may be about to call it, and has no reference of its
        own if a garbage collection comes first (Python 3.11, `call_trace` in Python/ceval.c)."""
        if self._clock is not None:
            self._clock.close()  # what runs from here on is no line's that was open
        if self._backend is not None:
            self._backend.stop(sys._getframe(1))
        self._ended = self._ended or now()

    def stop(self) -> None:
        clock, self._clock = self._clock, None
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.stop(sys._getframe())
        if clock is None:
            return
        clock.close()
        if isinstance(backend, _Tracer) and sys.gettrace() is None:
            call, line = event_costs()
            self._fact("line_cost", call=call, line=line)
        for identity, start, end, calls in clock.kept():
            self._append(LINE, min(calls, MOST_REPORTED), identity, start, end)
        self.overflowed = clock.full
        if clock.full:
            many = f"{MOST_RECORDS} of them" if len(clock.records) > MOST_RECORDS else f"{MOST_CALLED} calls in them"
            self._note(f"the loop runs too many lines: the line timeline ended after {many}")
        for code in clock.dropped:
            self._note(f"{code.co_name} runs too many lines to be timed: they count for the line that calls it")


def _traceable(code: CodeType) -> bool:
    """True for the user's own code, not made by TorchDynamo, and not too long to number its lines."""
    made = any(name.startswith(("__compiled_fn", "__resume_at", "___torch")) for name in code.co_names)
    return not made and not code.co_name.startswith("torch_dynamo_resume") and _span(code) <= MOST_LINES


def _span(code: CodeType) -> int:
    return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno) - code.co_firstlineno + 1
