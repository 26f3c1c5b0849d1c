"""Searches of the schedule for what steps leave behind: leaks, and containers that become longer.

A look a few steps after another takes a buffer that is emptied every hundred steps for a leak. So what was reported is
looked at again to the end of the job, and withdrawn once it was freed."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Generator
from typing import Any

from steptime.probe.allowance import SECOND
from steptime.probe.device import memory_in_use
from steptime.probe.memory.containers import Lengths, growing, lengths
from steptime.probe.memory.leaks import APART, LOOKS, LeakSearch, of_cycle
from steptime.probe.session import Session

LEAST_FOR_LOOKS = SECOND // 5
"""So many ns for looking at results, and for leaks, in any case: a job of long steps has spent the rest by then."""
MUCH_GROWN, PART = 32 << 20, 8
"""Bytes by which memory grows, without anything found that keeps it, until it is looked for again; a PART of it must be
in the objects that are found."""
SELDOM = 200
"""Times as long as a look at what was reported takes: ns to the next one, at least."""

now = time.perf_counter_ns


class EarlyLeakSearch:
    """Search for leaks between the first windows, which are excluded anyway. A short job, or one with short epochs, has
    ended or released everything before the search in steady steps. It reports only what keeps graphs."""

    def __init__(self, session: Session) -> None:
        self._session, self._search, self._last = session, LeakSearch(), -APART
        self._open, self.found = True, False
        self.look()

    def look(self) -> None:
        """Takes a look at a boundary; does nothing if the last look is too near, or takes too long."""
        session, start = self._session, now()
        if not self._open or session.steps - self._last < APART:
            return
        self._search.look(session.steps, sys._getframe())
        self._last, took = session.steps, now() - start
        self._open = not self._search.done and took * LOOKS <= max(session.allowance.share(), LEAST_FOR_LOOKS)
        for leak in self._search.leaks:
            if (leak := of_cycle(leak))["name"] and leak["nodes"]:
                session.recorder.fact("leak", **leak)
                self.found = True
        session.recorder.pause(start)


class LateLeakSearch:
    """Search for leaks when memory has grown and no holder is known: for objects that not every step leaves behind (the
    end of an epoch, an evaluation), or if looking was too expensive before. Its looks are so far apart that memory
    grows between them."""

    def __init__(self, session: Session) -> None:
        self._session, self._search = session, self._anew()
        self._memory, self._step = memory_in_use(), session.steps
        self._next = self._apart = self._cost = 0

    def _anew(self) -> LeakSearch:
        return LeakSearch(young=False, least=MUCH_GROWN // PART)

    def look(self) -> LeakSearch | None:
        """Takes a look at a boundary in user code. Returns the search once it is done."""
        session, start = self._session, now()
        if not self._apart:
            if memory_in_use() - self._memory < MUCH_GROWN or session.allowance.share() < LOOKS * self._cost:
                return None
            self._apart = max(APART, (session.steps - self._step) // 2)
        elif session.steps < self._next:
            return None
        self._search.look(session.steps, sys._getframe())
        self._next, self._cost = session.steps + self._apart, now() - start
        session.recorder.pause(start)
        if self._search.done:
            return self._search
        if session.allowance.share() < LOOKS * self._cost:
            self._search, self._apart = self._anew(), 0
        return None


class ReportedGrowth:
    """Findings that a search has reported, by name, held weakly: objects of a leak, and lengths of containers. A graph
    that becomes deeper is not examined again: one that an epoch's end frees has held all of that epoch."""

    def __init__(self, session: Session, search: LeakSearch, containers: list[dict[str, Any]], look: Lengths) -> None:
        self._session, self._due = session, 0
        names = {each["name"] for each in containers}
        self._lengths = {name: length for name, length in _by_name(look).items() if name in names}
        self._longest = dict(self._lengths)
        named = any(leak["name"] for leak in search.leaks)
        self._late = None if named else LateLeakSearch(session)
        self._follow(search)

    def _follow(self, search: LeakSearch) -> None:
        leak = next((each for each in search.leaks if not each["nodes"]), None)
        self._kept: list[weakref.ref[Any]] = search.samples if leak is not None else []
        self._name = leak["name"] if leak is not None else ""
        self._epoch = len(self._session.described) if leak is not None and leak["graphs"] else 0

    def look(self) -> None:
        """Records, at a boundary in user code, which reported objects were freed since."""
        if self._late is not None and (search := self._late.look()) is not None:
            self._late = None
            _report(self._session, search)
            self._follow(search)
        start = now()
        if start < self._due or not (self._kept or self._lengths):
            return
        freed = [self._name] if self._kept and self._is_freed() else []
        if self._lengths:
            found = _by_name(lengths(sys._getframe()))
            freed += [name for name in self._lengths if name in found and self._is_shorter(name, found[name])]
        for name in freed:
            self._lengths.pop(name, None)
        if freed:
            self._session.recorder.fact("freed", names=freed)
        self._session.recorder.pause(start)
        self._due = now() + SELDOM * (now() - start)

    def _is_freed(self) -> bool:
        """True if most of a leak's objects are gone. Those with graphs count within one epoch only, as above."""
        if self._epoch and self._epoch != len(self._session.described):
            self._kept = []
        gone = sum(reference() is None for reference in self._kept)
        if 2 * gone <= len(self._kept):
            return False
        self._kept = []
        return True

    def _is_shorter(self, name: str, length: int) -> bool:
        longest = self._longest[name] = max(self._longest[name], length)
        return length < max(self._lengths[name], longest // 2)


def _by_name(look: Lengths) -> dict[str, int]:
    """The longest container of each name."""
    found: dict[str, int] = {}
    for (name, _), length in look.items():
        found[name] = max(length, found.get(name, 0))
    return found


def _report(session: Session, search: LeakSearch) -> None:
    for leak in search.leaks:
        session.recorder.fact("leak", **of_cycle(leak))


def search_growth(session: Session) -> Generator[None, None, ReportedGrowth]:
    """Generator that examines the living objects several times, a few steps apart, for objects that outlive their step
    and for their holders, and the lengths of the job's own containers, which costs little. Yields between the steps."""
    search, share = LeakSearch(), max(session.allowance.share(), LEAST_FOR_LOOKS)
    looks: list[Lengths] = []
    steps, affordable = list[int](), True
    while len(looks) < LOOKS or (affordable and not search.done):  # it starts again if young objects become old
        for _ in range(APART if looks else 0):
            yield
        start = now()
        if affordable:
            search.look(session.steps, sys._getframe())
            affordable = (took := now() - start) * LOOKS <= share or search.done
            if not affordable:
                session.recorder.note(f"leaks were not looked for: to look at what lives takes {took / SECOND:.1f} s")
        looks.append(lengths(sys._getframe()))
        steps.append(session.steps)
        session.recorder.pause(start)
    start, containers = now(), growing(looks, steps, sys._getframe())
    if affordable:
        _report(session, search)
    for container in containers:
        session.recorder.fact("growing", **container)
    session.recorder.pause(start)
    return ReportedGrowth(session, search, containers, looks[-1])
