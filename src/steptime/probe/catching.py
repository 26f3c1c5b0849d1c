"""Sampling of the training thread's stack from another thread: during slow steps (`steptime run --catch`), and in a few
steps of a loop with too many lines to time each.

The thread wakes when the current step could have reached its limit. If the step still runs, the thread samples the
training thread's frames every few milliseconds until the step ends; shorter steps are not disturbed. The training
thread writes the result at the next boundary. No frame is kept.

All ranks profile the same slow step, which one rank predicts: if slow steps are periodic, the rank that caught a few of
them knows the next one. It names that step in a file of the recording, which can be written only once, early enough for
all ranks to read it when they look for requests. The job's process groups carry no message. Ranks that train together
count their steps alike (`steps.StepNumber`).
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from _thread import allocate_lock, get_ident, start_new_thread
from collections import Counter, deque
from collections.abc import Collection, Container, Iterable
from typing import Any

from steptime.journal import WORDS, Kind
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.patches import Follower
from steptime.probe.sampling import MOST_LINES, MOST_PATHS, described, path_of
from steptime.probe.steps import BACKWARD, FORWARD, OPTIMIZER

ALIKE, ALIKE_AMONG_OTHERS, KEPT = 3, 4, 32
"""ALIKE, ALIKE_AMONG_OTHERS: slow steps at equal distances that make a period, without and with other slow steps
between them. A busy machine slows other steps, too: of 32 random ones among a thousand steps, three are at equal
distances more often than not, four in one case of fifty. KEPT: number of latest slow steps that are compared."""


def distance(numbers: Collection[int]) -> int:
    """Returns the period of the slow steps, in steps; 0 if the latest have none. numbers: step numbers of slow steps,
    the latest last."""
    last = list(numbers)[-KEPT:]
    known, latest = set(last), max(last, default=0)
    chains = {apart: _chain(known, latest, apart) for each in known if (apart := latest - each) > 1}
    apart = max(chains, key=lambda each: (chains[each], each), default=0)
    length = chains.get(apart, 0)
    between = sum(number > latest - (length - 1) * apart for number in known) - (length - 1)
    return apart if length >= (ALIKE_AMONG_OTHERS if between else ALIKE) else 0


def _chain(known: Collection[int], latest: int, apart: int) -> int:
    return next(length for length in itertools.count(1) if latest - length * apart not in known)


def next_one(latest: int, distance: int, ended: int, lead: int) -> int:
    """Returns the first slow step that starts at least `lead` steps from now. latest: a slow step; distance: the
    period; ended: number of steps so far."""
    return latest + distance * max(1, -(-(ended + 1 + lead - latest) // distance))


class Occurrences:
    """Predicted slow steps of the job, profiled one after the other, as this rank knows them."""

    MOST = 3
    """Number of slow steps to profile: more than one, since they differ as other steps do."""

    def __init__(self, recording: str, caught: Collection[int]) -> None:
        """caught: numbers of the slow steps that this rank has seen, newest last; the caller adds to it."""
        self._recording, self._caught = recording, caught
        self.number, self.step = 1, 0
        """number: count of the next occurrence, from 1. step: its step, 0 if unknown."""

    def look(self, ended: int, lead: int) -> None:
        """Reads which step another rank has named for profiling, or names one. ended: number of steps so far; lead:
        number of steps that all ranks need to read the file. Names none if the recording cannot be written."""
        if self.step or self.number > self.MOST:
            return
        self.step = self._named()
        if not self.step and (apart := distance(self._caught)):
            try:
                written_once(self._path(), {"step": next_one(max(self._caught), apart, ended, lead)})
            except OSError as error:  # no room, or a file system without hard links: the watch goes on
                self.number = self.MOST + 1
                pass_on(error)
                return
            self.step = self._named()

    def near(self, ended: int, steps: int) -> bool:
        """True if the named step starts within `steps` steps."""
        return bool(self.step) and self.step - 1 - ended <= steps

    def over(self) -> None:
        """Goes on to the next occurrence, after this one was profiled or missed."""
        self.number, self.step = self.number + 1, 0

    def _named(self) -> int:
        with suppressed(OSError, ValueError, KeyError, TypeError, OverflowError), open(self._path()) as file:
            return int(json.load(file)["step"])
        return 0

    def _path(self) -> str:
        return os.path.join(self._recording, f"slow-step-{self.number}.json")


def written_once(path: str, content: dict[str, Any]) -> bool:
    """Writes a JSON file atomically and only once, on shared file systems too. False if it exists. Raises OSError."""
    partial = f"{path}.{os.uname().nodename}-{os.getpid()}-{get_ident()}"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(content, file)
    try:
        os.link(partial, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(partial)
    return True


LOOK_NS = 5_000_000
"""Time between two samples of a slow step, ns. One takes about 20 µs and the interpreter's lock."""
LEAST_WAIT, MOST_WAIT = 2_000_000, 250_000_000
"""Bounds of the time between two checks of the clock, ns."""
WAKES = 4
"""Checks of the clock per usual step, if every n-th step is sampled."""
MOST_CAUGHT = 100
"""Number of slow steps that are sampled; of further ones only the duration is known, as of every step."""
MOST_LOOKS = 20_000
"""Samples of one step: a hundred seconds. A job that hangs is for `steptime hang`."""
LEARNING = 16
"""Boundaries between two estimates of the usual step time."""
BLOCKS, LEAST_STEPS = 8, 4
"""Written blocks of the journal, half a second each, for that estimate; fewest steps in them."""
SIGNS = {
    OPTIMIZER: (int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP)),
    BACKWARD: (int(Kind.BACKWARD),),
    FORWARD: (int(Kind.FORWARD),),
}
"""Kinds of the records that end a step, by the counter's mode."""
KIND, SIGN, NEWEST = 0xFF, ~0xFFFFFF00, 64
"""KIND, SIGN: bits of a record's head with its kind, and with kind and identity. NEWEST: latest records to search."""

now = time.perf_counter_ns


class Looks:
    """Stack samples of one thread, taken by another one: ns by path, as exact as the distance between samples."""

    def __init__(self, thread: int) -> None:
        self.count, self.last = 0, now()
        self._thread = thread
        self._spent: Counter[Any] = Counter()

    def look(self) -> None:
        """Charges the time since the last sample to the path where the thread is now."""
        frame = sys._current_frames().get(self._thread)
        path, time_now = path_of(frame), now()
        del frame
        self._spent[path] += time_now - self.last
        self.last, self.count = time_now, self.count + 1

    def paths(self) -> list[dict[str, Any]]:
        """Returns the paths with most time, as `SampleFacts` has them."""
        return [
            {"duration": duration, "part": part, "lines": [described(each) for each in lines[:MOST_LINES]]}
            for (part, lines), duration in self._spent.most_common(MOST_PATHS)
            if lines
        ]


class LookingThread:
    """Thread that samples the thread that makes it, until `stop`."""

    def __init__(self) -> None:
        self._looks, self._over, self._done = Looks(get_ident()), allocate_lock(), allocate_lock()
        self._over.acquire()
        self._done.acquire()
        start_new_thread(self._look_on, ())

    def _look_on(self) -> None:
        try:
            while not self._over.acquire(timeout=LOOK_NS / 1e9) and self._looks.count < MOST_LOOKS:
                self._looks.look()
        finally:
            self._done.release()

    def stop(self) -> list[dict[str, Any]]:
        """Ends the thread; returns the sampled paths."""
        self._over.release()
        self._done.acquire()
        return self._looks.paths()


def usual_step(blocks: Iterable[list[int]], signs: Container[int]) -> int:
    """Returns the median time between the ends of two steps, ns, from the journal's records; 0 if there are few. It
    reads records because boundaries of short steps are not reported one by one (`patches.FastPath`)."""
    ends: dict[int, list[int]] = {}
    for block in blocks:
        for place in range(0, len(block), WORDS):
            if block[place] & KIND in signs:
                ends.setdefault(block[place] & SIGN, []).append(block[place + 2])
    most: list[int] = max(ends.values(), key=len, default=[])
    durations = sorted(after - before for before, after in itertools.pairwise(most))
    return durations[len(durations) // 2] if len(durations) >= LEAST_STEPS else 0


def ends_behind(blocks: Iterable[list[int]], closing: int, start: int) -> int:
    """Returns the number of steps that ended after `start` (ns), from the journal's records. closing: head of a record
    that ends a step."""
    heads_and_ends = ((block[place], block[place + 2]) for block in blocks for place in range(0, len(block), WORDS))
    return sum(head == closing and end > start for head, end in heads_and_ends)


class SlowStepObserver(Follower):
    """Thread that samples slow steps. limits: one of "times" (multiple of the usual step), "ns" (duration that a step
    must exceed), "every" (one in so many steps is sampled whole). thread: identifier of the training thread.

    It finds the ends of steps in the journal's newest records: most boundaries are not reported
    (`patches.FastPath`)."""

    def __init__(self, limits: dict[str, Any], thread: int, session: Any) -> None:
        self.every = int(limits.get("every") or 0)
        self._limits, self._thread = limits, thread
        self._session, self._signs = session, SIGNS.get(session.counter.mode, SIGNS[OPTIMIZER])
        self._usual, self._ended, self._reported = session.step_timer.usual(), now(), 0
        self.numbers: deque[int] = deque(maxlen=KEPT)
        """Numbers of the latest slow steps."""
        self._caught: deque[dict[str, Any]] = deque()
        self._blocks: deque[list[int]] = deque(maxlen=BLOCKS)
        session.recorder.journal.readers.append(self._blocks.append)
        self._left = MOST_CAUGHT
        self._over = allocate_lock()
        self._over.acquire()

    def start(self) -> None:
        start_new_thread(self._look_on, ())

    def boundary(self, steps: int) -> None:
        """Called in the training thread when a step has ended; `steps`: number of steps so far."""
        self._reported += 1
        if self._reported % LEARNING == 0:
            self._usual = usual_step(self._blocks, self._signs) or self._session.step_timer.usual()
        self._write(steps)

    def finish(self) -> None:
        """Ends the thread, so that work after the last step does not count as a slow step. Then writes the caught steps
        that are not written yet."""
        if self._over.locked():
            self._over.release()
        self._write()

    def _write(self, steps: int = 0) -> None:
        """Writes the caught steps. steps: number of ended steps; 0 if unknown."""
        while self._caught:  # the other thread may append meanwhile
            caught = self._caught.popleft()
            if steps:
                blocks = [*self._blocks, list(self._session.recorder.journal.records)]
                behind = ends_behind(blocks, self._session.ended.closing, caught["start"])
                self.numbers.append(steps + 1 - behind)
            self._session.recorder.fact("caught", **caught)

    def _look_on(self) -> None:
        try:
            while self._left and self._session.active and not self._over.acquire(timeout=self._wait() / 1e9):
                start = self._last_end()
                if not self._session.slowed and now() - start > self._limit():
                    self._look_into(start)
        except Exception as error:  # noqa: BLE001 - the probe's boundary: a thread of ours never reaches the user
            self._session.failed(error)
            pass_on(error)

    def _last_end(self) -> int:
        """Returns the end of the last step, ns."""
        newest = self._session.recorder.journal.records[-WORDS * NEWEST :]
        for place in range(len(newest) - WORDS, -1, -WORDS):
            if newest[place] & KIND in self._signs:
                self._ended = max(self._ended, newest[place + 2])
                break
        return self._ended

    def _limit(self) -> float:
        """Returns the ns that the current step may take without being sampled."""
        if self.every:
            return 0.0 if (self._session.steps + 1) % self.every == 0 else float("inf")
        return max(float(self._limits.get("ns") or 0), float(self._limits.get("times") or 0) * float(self._usual))

    def _wait(self) -> float:
        """Returns the ns until the current step reaches its limit; with `every`, until the next check of the count."""
        left = self._usual / WAKES if self.every else self._last_end() + self._limit() - now()
        return min(MOST_WAIT, max(LEAST_WAIT, left))

    def _look_into(self, start: int) -> None:
        """Samples the step that started at `start` until it ends."""
        looks = Looks(self._thread)
        while self._last_end() == start and looks.count < MOST_LOOKS:
            if self._over.acquire(timeout=LOOK_NS / 1e9):
                self._over.release()
                break
            looks.look()
        if self._session.slowed:
            return  # a profile began with it
        self._left -= 1
        self._caught.append({"start": start, "end": looks.last, "usual": self._usual, "paths": looks.paths()})
