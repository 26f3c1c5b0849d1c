"""Instrumentation of the ranges that torch itself opens, around a loader's next, an optimizer's step and zero_grad.

They are entered with and without a profiler (torch 2.4 to 2.13), so this adds no frame and no hook. Each step pays for
every call in here, whose code is out of the cache: hence so few calls.
"""

from __future__ import annotations

import sys
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from steptime.journal import Flag, Kind
from steptime.probe.inlay import Inlay, LaidTable
from steptime.probe.loader import busy_shares, collated, distinguish, fetched
from steptime.probe.ours import pass_on
from steptime.probe.patches import Listener, now

RANGES = (
    ("enumerate(DataLoader)#", int(Kind.LOADER_NEXT)),
    ("Optimizer.step#", int(Kind.OPTIMIZER_STEP)),
    ("Optimizer.zero_grad#", int(Kind.ZERO_GRAD)),
)
ZERO_GRAD, LOADER_NEXT, EXHAUSTED = int(Kind.ZERO_GRAD), int(Kind.LOADER_NEXT), int(Flag.EXHAUSTED)
FETCH, COLLATE = int(Kind.FETCH), int(Kind.COLLATE)
KNOWN_NAMES = 4096
"""Most names of ranges remembered, as a job may make up new names forever."""
OPTIMIZER_STEP = int(Kind.OPTIMIZER_STEP)
NOT_OURS, UNKNOWN = 0, -1
SHORT = 20_000
"""ns: a shorter zero_grad counts as the rest of the step on the fast path. Timing it costs 2.5 µs, because the clock's
code and page are out of the cache by then."""
SHORT_BATCH = 500_000
"""ns: after a shorter batch, items and collate of this process are not timed separately on the fast path, which would
cost 9 µs. The separately timed batches are a fair sample, because the next one always is."""


ENTER = """
if not torch.compiler.is_dynamo_compiling():
    "entered"(self)
BODY
"""
EXIT = """
if not torch.compiler.is_dynamo_compiling() and "id"(self) in "opened":
    try:
        BODY
    finally:
        "left"(self, exc_type)
else:
    BODY
"""


class RangePatch:
    """Timer of the ranges opened through torch.autograd.profiler.record_function, whose methods TorchScript also
    compiles, from their source.

    If a name has only one possible owner, a table keeps the head of its records (see journal.head) until `forget`. Such
    a range is recorded without a look at the frame that opened it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._known: dict[str, int] = {}
        self._short: set[str] = set()
        self._opened: LaidTable[int, tuple[int, int]] = LaidTable()
        """Open ranges that are timed: (head, start ns) by id of torch's range object."""
        target = torch.autograd.profiler.record_function
        self._inlays = (
            Inlay(target.__enter__, ENTER, entered=self._entered),
            Inlay(target.__exit__, EXIT, id=id, opened=self._opened, left=self._left),
        )

    def install(self) -> None:
        for inlay in self._inlays:
            inlay.install()

    def remove(self) -> None:
        for inlay in self._inlays:
            inlay.remove()
        self._opened.clear()

    def forget(self) -> None:
        """Forgets all names, because a new loader's iterator or optimizer may have one of them."""
        self._known.clear()
        self._short.clear()

    def again(self) -> None:
        """Forgets which zero_grads are short, so that they are timed again, and all names if the table is full."""
        if len(self._known) >= KNOWN_NAMES:
            self._known.clear()
        for name in self._short:
            self._known.pop(name, None)
        self._short.clear()

    def _entered(self, opened: Any) -> None:
        """Called when a range starts; the caller of our caller's frame opens it."""
        head = self._known.get(opened.name, UNKNOWN)
        if head:
            start = now()
            if start < self._listener.fast_path.until and head > 0:
                self._opened[id(opened)] = head, start
            else:
                self._starts(opened, start, sys._getframe(2))
        elif self._opened:
            self._opened.pop(id(opened), None)  # of one that never was left, and is gone

    def _starts(self, opened: Any, start: int, frame: FrameType) -> None:
        """Starts a range with an unknown name, or off the fast path."""
        try:
            found = self._look(opened.name, frame, start)
            if found is not None:
                self._opened[id(opened)] = found
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)

    def _look(self, name: str, frame: FrameType, start: int) -> tuple[int, int] | None:
        """Returns (head, start ns) of a range, after a report to the listener; None for one that is not timed.
        Remembers a name with only one possible owner."""
        kind = next((kind for prefix, kind in RANGES if name.startswith(prefix)), 0)
        if not kind:
            self._remember(name, NOT_OURS)
            return None
        if kind == ZERO_GRAD:
            self._remember(name, kind)
            return kind, start
        owner = frame.f_locals.get("self")
        if owner is None:
            return None  # a range of the user's, named like torch's
        head = kind | self._listener.range_starts(kind, owner, start) << 32
        if self._listener.only(kind, owner):
            self._remember(name, head)
        else:
            self._known.pop(name, None)
        return head, start

    def _remember(self, name: str, head: int) -> None:
        if len(self._known) < KNOWN_NAMES:
            self._known[name] = head

    def _left(self, opened: Any, exc_type: Any) -> None:
        """Called when a timed range has ended."""
        end, fast_path = now(), self._listener.fast_path
        head, start = self._opened.pop(id(opened))
        kind = head & 255
        plain = kind == OPTIMIZER_STEP or (kind == LOADER_NEXT and fast_path.together)
        if plain and not exc_type and end < fast_path.until and get_ident() == fast_path.trainer:
            fast_path.records += head + fast_path.thread, start, end
        else:
            self._ends(opened, head, start, end, exc_type is not None)

    def _ends(self, opened: Any, head: int, start: int, end: int, failed: bool) -> None:
        """Ends a range off the fast path, or one with more to record."""
        fast_path, kind = self._listener.fast_path, head & 255
        try:
            if end >= fast_path.until:
                self._listener.range_ends(kind, head >> 32, start, end, failed)
                return
            if kind == ZERO_GRAD and end - start < SHORT:
                self._known[opened.name] = NOT_OURS
                self._short.add(opened.name)
            if kind == LOADER_NEXT and start < (fetch := fetched.get(identifier := get_ident(), 0)):
                collate = collated.get(identifier, 0)
                if fetch < collate:
                    reading, collating = busy_shares(identifier, fetch, collate, end)
                    fast_path.keep(head - kind + FETCH | reading << 8, fetch, collate)
                    fast_path.keep(head - kind + COLLATE | collating << 8, collate, end)
                if end - start < SHORT_BATCH:
                    distinguish(False)
                    fast_path.together = True
            fast_path.keep(head | EXHAUSTED << 8 if failed else head, start, end)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)
