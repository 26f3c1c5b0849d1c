"""Listening to the ranges that torch opens itself, around a loader's next, an optimiser's step and zero_grad.

They are entered whether a profiler runs or not (torch 2.4 to 2.13), so listening costs no frame and no hook. Every call
in here is paid for by each step of the job, out of a cold cache: hence so few of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

import torch

from steptime.capture.probe.listener import Listener, now
from steptime.capture.probe.loader import collated, fetched
from steptime.journal import Flag, Kind

RANGES = (
    ("enumerate(DataLoader)#", int(Kind.LOADER_NEXT)),
    ("Optimizer.step#", int(Kind.OPTIMIZER_STEP)),
    ("Optimizer.zero_grad#", int(Kind.ZERO_GRAD)),
)
ZERO_GRAD, LOADER_NEXT, EXHAUSTED = int(Kind.ZERO_GRAD), int(Kind.LOADER_NEXT), int(Flag.EXHAUSTED)
FETCH, COLLATE = int(Kind.FETCH), int(Kind.COLLATE)
KNOWN_NAMES = 4096
"""Names of ranges remembered; a job that makes up new names for ever must not grow our table."""
NOT_OURS = (0, 0)
SHORT = 20_000
"""ns: a shorter zero_grad counts as the rest of the step while nobody waits for a border; to time it costs 2.5 us, as
the clock's own code and page are out of the cache by then."""


class RangePatch:
    """Reads the ranges that are opened through torch.autograd.profiler.record_function.

    A name with one possible owner is known by (kind, number) until `forget`: its range is then only kept, without a
    look at the frame that opened it.
    """

    def __init__(self, listener: Listener) -> None:
        self._target = torch.autograd.profiler.record_function
        self._enter = self._target.__enter__
        self._exit = self._target.__exit__
        self._listener = listener
        self._known: dict[str, tuple[int, int]] = {}

    def install(self) -> None:
        """Replaces the class's two methods. `_steptime` of an instance: (kind, number, begin) of a range of ours."""
        self._target._steptime = None
        self._target.__enter__ = self._make_enter()
        self._target.__exit__ = self._make_exit()

    def remove(self) -> None:
        """Puts the originals back."""
        self._target.__enter__ = self._enter
        self._target.__exit__ = self._exit
        if "_steptime" in vars(self._target):
            del self._target._steptime

    def forget(self) -> None:
        """A name may mean another one from now on: there is a new loader's iterator or optimiser. Also called at times,
        so that a zero_grad that was short is timed again."""
        self._known.clear()

    def _make_enter(self) -> Callable[..., Any]:
        original, listener, known, look = self._enter, self._listener, self._known, self._look
        frame_of = sys._getframe

        @functools.wraps(original)
        def __enter__(self: Any) -> Any:
            opened = known.get(self.name)
            if opened is not NOT_OURS:
                begin = now()
                if opened is not None and begin < listener.quiet_until:
                    self._steptime = (*opened, begin)
                else:
                    try:
                        found = look(self.name, frame_of(1), begin)
                        if found is not None:
                            self._steptime = found
                    except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                        listener.failed(error)
            return original(self)

        return __enter__

    def _look(self, name: str, frame: FrameType, begin: int) -> tuple[int, int, int] | None:
        """Whose range it is; tells the listener. Remembers a name whose owner cannot be another."""
        kind = next((kind for prefix, kind in RANGES if name.startswith(prefix)), 0)
        if not kind:
            self._remember(name, NOT_OURS)
            return None
        if kind == ZERO_GRAD:
            self._remember(name, (kind, 0))
            return kind, 0, begin
        owner = frame.f_locals.get("self")
        if owner is None:
            return None  # a range of the user's, named like torch's
        number = self._listener.range_begins(kind, owner, begin)
        if self._listener.only(kind, owner):
            self._remember(name, (kind, number))
        return kind, number, begin

    def _remember(self, name: str, opened: tuple[int, int]) -> None:
        if len(self._known) < KNOWN_NAMES:
            self._known[name] = opened

    def _make_exit(self) -> Callable[..., Any]:
        original, listener, known = self._exit, self._listener, self._known
        keep, threads = listener.keep, listener.threads

        @functools.wraps(original)
        def __exit__(self: Any, exc_type: Any, exc_value: Any, traceback: Any) -> Any:
            result = original(self, exc_type, exc_value, traceback)
            opened = getattr(self, "_steptime", None)
            if opened is not None:
                end = now()
                try:
                    kind, number, begin = opened
                    if end >= listener.quiet_until:
                        listener.range_ends(kind, number, begin, end, exc_type is not None)
                        return result
                    if kind == ZERO_GRAD and end - begin < SHORT:
                        known[self.name] = NOT_OURS
                    identifier = get_ident()
                    thread = threads[identifier]
                    if kind == LOADER_NEXT and begin < (fetch := fetched.get(identifier, 0)):
                        collate = collated.get(identifier, 0)
                        if fetch < collate:
                            keep((FETCH, 0, thread, number, fetch, collate))
                            keep((COLLATE, 0, thread, number, collate, end))
                    keep((kind, 0 if exc_type is None else EXHAUSTED, thread, number, begin, end))
                except Exception as error:  # noqa: BLE001 - the probe's border: nothing of ours reaches the user
                    listener.failed(error)
            return result

        return __exit__
