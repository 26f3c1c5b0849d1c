"""Listening to the ranges that torch opens itself, around a loader's next, an optimiser's step and zero_grad.

They are entered whether a profiler runs or not (torch 2.4 to 2.13), so listening costs no frame and no hook. Every call
in here is paid for by each step of the job, out of a cold cache: hence so few of them.
"""

from __future__ import annotations

import sys
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from steptime.journal import Flag, Kind
from steptime.probe.inlay import Inlay, LaidTable
from steptime.probe.loader import busy_shares, collated, fetched, tell_apart
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
"""Names of ranges remembered; a job that makes up new names for ever must not grow our table."""
OPTIMIZER_STEP = int(Kind.OPTIMIZER_STEP)
NOT_OURS, UNKNOWN = 0, -1
SHORT = 20_000
"""ns: a shorter zero_grad counts as the rest of the step while nobody waits for a boundary; to time it costs 2.5 us, as
the clock's own code and page are out of the cache by then."""
SHORT_BATCH = 500_000
"""ns: after a batch that took less, items and collate of this process are not told apart any more while nobody waits
for a boundary: to stamp both costs 9 us. The batches that are told apart are a fair sample: the next one always is."""


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
    """Reads the ranges that are opened through torch.autograd.profiler.record_function, whose methods TorchScript
    compiles, too: from their source.

    A name with one possible owner is known by the head of its record (see journal.head) until `forget`: its range is
    then only kept, without a look at the frame that opened it.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._known: dict[str, int] = {}
        self._short: set[str] = set()
        self._opened: LaidTable[int, tuple[int, int]] = LaidTable()
        """Ranges of ours that are open: (head, begin) by the identity of their object."""
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
        """A name may mean another one from now on: there is a new loader's iterator or optimiser."""
        self._known.clear()
        self._short.clear()

    def again(self) -> None:
        """Called at times, so that a zero_grad that was short is timed again, and there is room for further names."""
        if len(self._known) >= KNOWN_NAMES:
            self._known.clear()
        for name in self._short:
            self._known.pop(name, None)
        self._short.clear()

    def _entered(self, opened: Any) -> None:
        """A range begins: the caller of the frame that calls us opens it."""
        head = self._known.get(opened.name, UNKNOWN)
        if head:
            begin = now()
            if begin < self._listener.quiet.until and head > 0:
                self._opened[id(opened)] = head, begin
            else:
                self._begins(opened, begin, sys._getframe(2))
        elif self._opened:
            self._opened.pop(id(opened), None)  # of one that never was left, and is gone

    def _begins(self, opened: Any, begin: int, frame: FrameType) -> None:
        """A range of a name that is not known, or that somebody waits for."""
        try:
            found = self._look(opened.name, frame, begin)
            if found is not None:
                self._opened[id(opened)] = found
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)

    def _look(self, name: str, frame: FrameType, begin: int) -> tuple[int, int] | None:
        """Whose range it is; tells the listener. Remembers a name whose owner cannot be another."""
        kind = next((kind for prefix, kind in RANGES if name.startswith(prefix)), 0)
        if not kind:
            self._remember(name, NOT_OURS)
            return None
        if kind == ZERO_GRAD:
            self._remember(name, kind)
            return kind, begin
        owner = frame.f_locals.get("self")
        if owner is None:
            return None  # a range of the user's, named like torch's
        head = kind | self._listener.range_begins(kind, owner, begin) << 32
        if self._listener.only(kind, owner):
            self._remember(name, head)
        else:
            self._known.pop(name, None)
        return head, begin

    def _remember(self, name: str, head: int) -> None:
        if len(self._known) < KNOWN_NAMES:
            self._known[name] = head

    def _left(self, opened: Any, exc_type: Any) -> None:
        """A range of ours has ended."""
        end, quiet = now(), self._listener.quiet
        head, begin = self._opened.pop(id(opened))
        kind = head & 255
        plain = kind == OPTIMIZER_STEP or (kind == LOADER_NEXT and quiet.together)
        if plain and not exc_type and end < quiet.until and get_ident() == quiet.trainer:
            quiet.records += head + quiet.thread, begin, end
        else:
            self._ends(opened, head, begin, end, exc_type is not None)

    def _ends(self, opened: Any, head: int, begin: int, end: int, failed: bool) -> None:
        """A range has ended: one that somebody waits for, or that there is more to say of."""
        quiet, kind = self._listener.quiet, head & 255
        try:
            if end >= quiet.until:
                self._listener.range_ends(kind, head >> 32, begin, end, failed)
                return
            if kind == ZERO_GRAD and end - begin < SHORT:
                self._known[opened.name] = NOT_OURS
                self._short.add(opened.name)
            if kind == LOADER_NEXT and begin < (fetch := fetched.get(identifier := get_ident(), 0)):
                collate = collated.get(identifier, 0)
                if fetch < collate:
                    reading, collating = busy_shares(identifier, fetch, collate, end)
                    quiet.keep(head - kind + FETCH | reading << 8, fetch, collate)
                    quiet.keep(head - kind + COLLATE | collating << 8, collate, end)
                if end - begin < SHORT_BATCH:
                    tell_apart(False)
                    quiet.together = True
            quiet.keep(head | EXHAUSTED << 8 if failed else head, begin, end)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
            self._listener.failed(error)
            pass_on(error)
