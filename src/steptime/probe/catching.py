"""Looks into the training thread from another one: in slow steps while they last, in a job that was asked to catch
them (`steptime run --catch`); and in a few steps of a loop that runs too many lines to be timed one by one.

A thread of ours wakes when a step that began could have reached its limit. Where the step lasts still, it looks at the
training thread's frames every few milliseconds until the step ends; to a step that is no longer than the limit nothing
happens. The training thread writes the result at the next boundary. No frame is kept.

The next slow step is named in advance, so that all ranks profile the very same one. Where slow steps come at even
distances, the rank that has caught a few of them knows when the next one will come. It names that step in a file of the
recording that nobody can write twice, so far ahead that all ranks read it in time, where they look for requests anyway:
there is no word in the job's own process groups. Ranks that train together count their steps alike
(`steps.StepNumber`).
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
"""Slow steps at the same distance: with none between them, and where a busy machine makes others slow, too: of 32 that
lie anywhere in a thousand steps, three are at the same distance more often than not, four in one case of fifty. How
many of the latest are looked at."""


def distance(numbers: Collection[int]) -> int:
    """Steps from each slow step to the next, where the latest one and enough before it are always so far apart; else
    0. numbers: of the slow steps, the latest one last."""
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
    """The first slow step that starts `lead` steps from now or later, where `ended` have. latest: a slow one."""
    return latest + distance * max(1, -(-(ended + 1 + lead - latest) // distance))


class Occurrences:
    """The slow steps of a job that are profiled, one after the other, as this rank knows of them."""

    MOST = 3
    """They differ, as other steps do."""

    def __init__(self, recording: str, caught: Collection[int]) -> None:
        """caught: numbers of slow steps that this rank has seen, newest last; more come."""
        self._recording, self._caught = recording, caught
        self.number, self.step = 1, 0
        """Which occurrence comes next, and its step: 0 where that is not known."""

    def look(self, ended: int, lead: int) -> None:
        """Reads which step was named; names one where nobody has. ended: steps so far; lead: steps until one that all
        ranks can know of in time. Where the recording cannot be written, none is named."""
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
        """True if it starts within so many steps."""
        return bool(self.step) and self.step - 1 - ended <= steps

    def over(self) -> None:
        """It was profiled, or missed."""
        self.number, self.step = self.number + 1, 0

    def _named(self) -> int:
        with suppressed(OSError, ValueError, KeyError, TypeError, OverflowError), open(self._path()) as file:
            return int(json.load(file)["step"])
        return 0

    def _path(self) -> str:
        return os.path.join(self._recording, f"slow-step-{self.number}.json")


def written_once(path: str, content: dict[str, Any]) -> bool:
    """Writes a JSON file, whole or not at all, and only once, on shared file systems too: False where it is there
    already. Raises OSError."""
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
"""Between two looks into a slow step; one takes some 20 us, and the interpreter's lock."""
LEAST_WAIT, MOST_WAIT = 2_000_000, 250_000_000
"""ns between two looks at the clock."""
WAKES = 4
"""Looks at the clock within a usual step, where one of so many is looked into."""
MOST_CAUGHT = 100
"""Slow steps that are looked into; of more only that they are long is known, as of every step."""
MOST_LOOKS = 20_000
"""Into one step: a hundred seconds. A job that hangs is for `steptime hang`."""
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
        start_new_thread(self._look_on, ())

    def _look_on(self) -> None:
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
    steps' boundaries are not told one by one (`patches.FastPath`), so these are not asked."""
    ends: dict[int, list[int]] = {}
    for block in blocks:
        for place in range(0, len(block), WORDS):
            if block[place] & KIND in signs:
                ends.setdefault(block[place] & SIGN, []).append(block[place + 2])
    most: list[int] = max(ends.values(), key=len, default=[])
    durations = sorted(after - before for before, after in itertools.pairwise(most))
    return durations[len(durations) // 2] if len(durations) >= LEAST_STEPS else 0


def ends_behind(blocks: Iterable[list[int]], closing: int, start: int) -> int:
    """Steps that have ended after `start`, ns, in records as the journal keeps them, by the head of the records that
    end them."""
    heads_and_ends = ((block[place], block[place + 2]) for block in blocks for place in range(0, len(block), WORDS))
    return sum(head == closing and end > start for head, end in heads_and_ends)


class SlowStepObserver(Follower):
    """limits: "times" the usual step or "ns" that a step must exceed, or "every" so many steps one that is looked into
    whole. thread: the training thread's identity.

    Where steps end, the journal's newest records say: of most of them nobody is told (`patches.FastPath`).
    """

    def __init__(self, limits: dict[str, Any], thread: int, session: Any) -> None:
        self.every = int(limits.get("every") or 0)
        self._limits, self._thread = limits, thread
        self._session, self._signs = session, SIGNS.get(session.counter.mode, SIGNS[OPTIMIZER])
        self._usual, self._ended, self._reported = session.step_timer.usual(), now(), 0
        self.numbers: deque[int] = deque(maxlen=KEPT)
        """The latest slow steps."""
        self._caught: deque[dict[str, Any]] = deque()
        self._blocks: deque[list[int]] = deque(maxlen=BLOCKS)
        session.recorder.journal.readers.append(self._blocks.append)
        self._left = MOST_CAUGHT
        self._over = allocate_lock()
        self._over.acquire()

    def start(self) -> None:
        start_new_thread(self._look_on, ())

    def boundary(self, steps: int) -> None:
        """In the training thread: a step has ended; `steps`: how many there were."""
        self._reported += 1
        if self._reported % LEARNING == 0:
            self._usual = usual_step(self._blocks, self._signs) or self._session.step_timer.usual()
        self._write(steps)

    def finish(self) -> None:
        """Work behind the last step is no step; the thread ends by itself soon."""
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

    def _look_into(self, start: int) -> None:
        """Until the step that began then ends."""
        looks = Looks(self._thread)
        while self._last_end() == start and looks.count < MOST_LOOKS:
            if self._over.acquire(timeout=LOOK_NS / 1e9):
                self._over.release()
                break
            looks.look()
        if self._session.slowed:
            return  # a profile began with it
        self._left -= 1
        self._caught.append({"begin": start, "end": looks.last, "usual": self._usual, "paths": looks.paths()})
