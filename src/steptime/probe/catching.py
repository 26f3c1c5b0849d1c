"""Looks into the training thread from another one: in slow steps while they last, in a job that was asked to catch
them (`steptime run --catch`); and in a few steps of a loop that runs too many lines to be timed one by one.

A thread of ours wakes when a step that began could have reached its limit. Where the step lasts still, it
looks at the training thread's frames every few milliseconds until the step ends; to a step that is no longer than the
limit nothing happens. What was seen is written at the next boundary, by the training thread. No frame is kept.
"""

from __future__ import annotations

import itertools
import sys
import time
from _thread import allocate_lock, get_ident, start_new_thread
from collections import Counter, deque
from collections.abc import Container, Iterable
from typing import Any

from steptime.journal import WORDS, Kind
from steptime.probe.occurrences import KEPT
from steptime.probe.patches import Follower
from steptime.probe.sampling import MOST_LINES, MOST_PATHS, described, path_of
from steptime.probe.steps import BACKWARD, FORWARD, OPTIMIZER

LOOK_NS = 5_000_000
"""Between two looks into a slow step; one takes some 20 us, and the interpreter's lock."""
LEAST_WAIT, MOST_WAIT = 2_000_000, 250_000_000
"""ns between two looks at the clock."""
WAKES = 4
"""Looks at the clock within a usual step, where one of so many is looked into."""
MOST_CAUGHT = 100
"""Slow steps that are looked into; of more only that they are long is known, as of every step."""
MOST_LOOKS = 20_000
"""Into one step: a hundred seconds. What hangs is for `steptime hang`."""
LEARNING = 16
"""Boundaries between two looks at what is usual."""
BLOCKS, LEAST_STEPS = 8, 4
"""Written blocks of the journal, half a second each, from which that is learnt; steps in them at least."""
SIGNS = {
    OPTIMIZER: (int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)),
    BACKWARD: (int(Kind.BACKWARD),),
    FORWARD: (int(Kind.FORWARD),),
}
"""Records that a step ends with."""
KIND, SIGN, NEWEST = 0xFF, ~0xFFFFFF00, 64
"""The kind in the head of a record, with its identity, too; records that are looked at."""

now = time.perf_counter_ns


class Looks:
    """Looks into a thread from another one: how long it was where, as far as looks some ms apart can tell."""

    def __init__(self, thread: int) -> None:
        self.count, self.last = 0, now()
        self._thread = thread
        self._spent: Counter[Any] = Counter()

    def look(self) -> None:
        """Charges the time since the last look to where the thread is now."""
        frame = sys._current_frames().get(self._thread)
        path, time_now = path_of(frame), now()
        del frame
        self._spent[path] += time_now - self.last
        self.last, self.count = time_now, self.count + 1

    def paths(self) -> list[dict[str, Any]]:
        """Those with most time, as facts have them."""
        return [
            {"duration": duration, "part": part, "lines": [described(each) for each in lines[:MOST_LINES]]}
            for (part, lines), duration in self._spent.most_common(MOST_PATHS)
            if lines
        ]


class LookingThread:
    """Looks into the thread that makes it until it is stopped."""

    def __init__(self) -> None:
        self._looks, self._over, self._done = Looks(get_ident()), allocate_lock(), allocate_lock()
        self._over.acquire()
        self._done.acquire()
        start_new_thread(self._watch, ())

    def _watch(self) -> None:
        try:
            while not self._over.acquire(timeout=LOOK_NS / 1e9) and self._looks.count < MOST_LOOKS:
                self._looks.look()
        finally:
            self._done.release()

    def stop(self) -> list[dict[str, Any]]:
        """What was seen."""
        self._over.release()
        self._done.acquire()
        return self._looks.paths()


def usual_step(blocks: Iterable[list[int]], signs: Container[int]) -> int:
    """Median distance between two steps' ends, ns, in records as the journal keeps them; 0 where there are few. Short
    steps' boundaries are not told one by one (`patches.Quiet`), so these are not asked."""
    ends: dict[int, list[int]] = {}
    for block in blocks:
        for place in range(0, len(block), WORDS):
            if block[place] & KIND in signs:
                ends.setdefault(block[place] & SIGN, []).append(block[place + 2])
    most: list[int] = max(ends.values(), key=len, default=[])
    durations = sorted(after - before for before, after in itertools.pairwise(most))
    return durations[len(durations) // 2] if len(durations) >= LEAST_STEPS else 0


def ends_behind(blocks: Iterable[list[int]], closing: int, begin: int) -> int:
    """Steps that have ended after `begin`, ns, in records as the journal keeps them, by the head of the records that
    end them."""
    heads_and_ends = ((block[place], block[place + 2]) for block in blocks for place in range(0, len(block), WORDS))
    return sum(head == closing and end > begin for head, end in heads_and_ends)


class SlowStepWatch(Follower):
    """limits: "times" the usual step or "ns" that a step must exceed, or "every" so many steps one that is looked into
    whole. thread: the training thread's identity.

    Where steps end, the journal's newest records say: of most of them nobody is told (`patches.Quiet`).
    """

    def __init__(self, limits: dict[str, Any], thread: int, session: Any) -> None:
        self.every = int(limits.get("every") or 0)
        self._limits, self._thread = limits, thread
        self._session, self._signs = session, SIGNS.get(session.counter.mode, SIGNS[OPTIMIZER])
        self._usual, self._ended, self._told = session.pace.usual(), now(), 0
        self.numbers: deque[int] = deque(maxlen=KEPT)
        """Of the latest slow steps."""
        self._caught: deque[dict[str, Any]] = deque()
        self._blocks: deque[list[int]] = deque(maxlen=BLOCKS)
        session.recorder.journal.readers.append(self._blocks.append)
        self._left = MOST_CAUGHT
        self._over = allocate_lock()
        self._over.acquire()

    def start(self) -> None:
        start_new_thread(self._watch, ())

    def boundary(self, steps: int) -> None:
        """In the training thread: a step has ended; `steps`: how many there were."""
        self._told += 1
        if self._told % LEARNING == 0:
            self._usual = usual_step(self._blocks, self._signs) or self._session.pace.usual()
        self._write(steps)

    def finish(self) -> None:
        """What lies behind the last step is no step; the thread ends by itself soon."""
        if self._over.locked():
            self._over.release()
        self._write()

    def _write(self, steps: int = 0) -> None:
        """steps: how many have ended, where that is known."""
        while self._caught:  # the other thread may append meanwhile
            caught = self._caught.popleft()
            if steps:
                blocks = [*self._blocks, list(self._session.recorder.journal.records)]
                behind = ends_behind(blocks, self._session.ended.closing, caught["begin"])
                self.numbers.append(steps + 1 - behind)
            self._session.recorder.fact("caught", **caught)

    def _watch(self) -> None:
        try:
            while self._left and self._session.active and not self._over.acquire(timeout=self._wait() / 1e9):
                begin = self._last_end()
                if not self._session.slowed and now() - begin > self._limit():
                    self._look_into(begin)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: a thread of ours never reaches the user
            self._session.failed(error)

    def _last_end(self) -> int:
        """When the last step ended, ns."""
        newest = self._session.recorder.journal.records[-WORDS * NEWEST :]
        for place in range(len(newest) - WORDS, -1, -WORDS):
            if newest[place] & KIND in self._signs:
                self._ended = max(self._ended, newest[place + 2])
                break
        return self._ended

    def _limit(self) -> float:
        """ns that the step which runs may take unseen."""
        if self.every:
            return 0.0 if (self._session.steps + 1) % self.every == 0 else float("inf")
        return max(float(self._limits.get("ns") or 0), float(self._limits.get("times") or 0) * float(self._usual))

    def _wait(self) -> float:
        """ns until the step that runs has reached its limit; of steps that are looked into whole, until it may be one's
        turn."""
        left = self._usual / WAKES if self.every else self._last_end() + self._limit() - now()
        return min(MOST_WAIT, max(LEAST_WAIT, left))

    def _look_into(self, begin: int) -> None:
        """Until the step that began then ends."""
        looks = Looks(self._thread)
        while self._last_end() == begin and looks.count < MOST_LOOKS:
            if self._over.acquire(timeout=LOOK_NS / 1e9):
                self._over.release()
                break
            looks.look()
        if self._session.slowed:
            return  # a profile began with it
        self._left -= 1
        self._caught.append({"begin": begin, "end": looks.last, "usual": self._usual, "paths": looks.paths()})
