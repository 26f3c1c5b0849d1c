"""Means of the last steps for the job's own loggers (`steptime.log_to`), computed in the job's process.

They come from the journal's records when these are written, which adds no cost per step. Every few seconds the means go
to the writer, at the end of a step, in a recorded pause that belongs to no step. Steps that the probe slows, or in
which the job evaluates, compiles or starts a loader's workers, are left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from steptime.journal import WORDS, Flag, Kind
from steptime.probe import device
from steptime.probe.messages import say
from steptime.probe.ours import pass_on
from steptime.probe.patches import Follower
from steptime.probe.steps import Untrained

Write = Callable[[dict[str, float], int], None]
"""Function that takes values by name, and the step."""

INPUT, FORWARD, BACKWARD, OPTIMIZER, APART, UNTRAINED = "input", "forward", "backward", "optimizer", "", "-"
PARTS = {
    int(Kind.LOADER_NEXT): INPUT,
    int(Kind.FORWARD): FORWARD,
    int(Kind.BACKWARD): BACKWARD,
    int(Kind.OPTIMIZER_STEP): OPTIMIZER,
    int(Kind.SCALER_STEP): OPTIMIZER,
    int(Kind.ZERO_GRAD): OPTIMIZER,
    int(Kind.LOADER_START): APART,
    int(Kind.CHECKPOINT): APART,
    int(Kind.COMPILE): APART,
    int(Kind.PAUSE): APART,
    int(Kind.BOUNDARY): APART,
}
"""Part of the step for each kind of record; APART counts for no step."""
LOADER_NEXT, CALL, PASS, UNTIMED = int(Kind.LOADER_NEXT), int(Kind.FORWARD), int(Kind.BACKWARD), int(Kind.BOUNDARY)
GRADIENT, EXHAUSTED = int(Flag.GRADIENT), int(Flag.EXHAUSTED)
UPDATES = (int(Kind.OPTIMIZER_STEP), int(Kind.SCALER_STEP))
SIGNS = frozenset((*UPDATES, CALL, PASS))
"""Kinds of records that may end a step."""
SPOILS = (int(Kind.LOADER_START), int(Kind.CHECKPOINT), int(Kind.COMPILE), UNTIMED)
"""Kinds of records that exclude a step."""
RARE = frozenset((*SPOILS, CALL))
"""Kinds of records that may not belong to the step, and are checked."""
KIND, FLAGS, THREAD, SIGN = 0xFF, 0xFF00, 0xFFFF0000, ~0xFFFFFF00
"""Bits of a record's head (see journal.head). KIND: its kind. SIGN: kind and identity."""
MOST_OPEN = 1000
"""Records of one step that are remembered as possible children of later ones."""
MOST_SUMMED = 2000
"""Records of one block that are summed, which takes a millisecond; in earlier ones only steps are counted."""
BLOCKS = 256
"""Written blocks of the journal that wait for the end of a step: a minute's; the oldest are dropped."""
FIRST = 1_000_000_000
"""ns until the first write; the period then doubles up to the requested one."""


class StepTally:
    """Sums over the whole steps of the thread in `fast_path`. batch_sizes: size by the loader's iterator, None if
    unknown."""

    def __init__(self, fast_path: Any, batch_sizes: dict[int, int | None]) -> None:
        self._fast_path, self._batch_sizes = fast_path, batch_sizes
        self.steps = 0
        """Number of ended steps, excluded ones too."""
        self.silent = True
        """True if no step has ended since the last write: the kind of boundary is unknown, or has changed."""
        self._newest = self._closing = 0
        self._start, self._clean_from = 0, 0
        self._open: list[tuple[int, int, int]] = []
        self._step: dict[str, int] = {}
        self._untrained, self._samples, self._spoilt = 0, 0, False
        self._clear()

    def _clear(self) -> None:
        self._count, self._wall, self._sums = 0, 0, dict.fromkeys((INPUT, FORWARD, BACKWARD, OPTIMIZER), 0)
        self._seen = 0

    def spoil(self, until: int) -> None:
        """Excludes steps that start before `until`, ns."""
        self._clean_from = until

    def learn(self, steps: int) -> None:
        """Takes the kind of the newest record as the one that ends steps; called at the end of a step, with all records
        added. steps: number of ended steps."""
        self._closing, self._start, self.steps = self._newest, 0, max(self.steps, steps)

    def add(self, records: list[int]) -> None:
        """Adds the journal's records, three integers each, in the order of their ends."""
        thread, first = self._fast_path.thread, max(0, len(records) - WORDS * MOST_SUMMED)
        if first:
            closing = self._closing | thread
            self.steps += sum(head & ~FLAGS in (closing, UNTIMED | thread) for head in records[:first:WORDS])
            self._start = 0
            self._next_step()
        times = iter(records[first:])  # each step of the job pays for what follows
        closing, opened, step, parts = self._closing, self._open, self._step, PARTS
        for head, start, end in zip(times, times, times, strict=True):
            part = parts.get(head & KIND)
            if part is None or head & THREAD != thread:
                continue
            start = start if start > self._start else self._start
            if (opened and opened[-1][0] >= start) or head & KIND in RARE:
                part, own = self._charged(head, start, end)
            else:
                own = end - start
                if part is INPUT and not head >> 8 & EXHAUSTED:
                    self._samples += self._batch_sizes.get(head >> 32) or 0
            step[part] = step.get(part, 0) + own
            opened.append((start, end, head & KIND))
            if head & KIND in SIGNS:
                self._newest = head & SIGN
                if self._newest == closing:
                    self._step_ends(end)
            elif head & KIND == UNTIMED:
                self._step_ends(end)
        del opened[:-MOST_OPEN]

    def _charged(self, head: int, start: int, end: int) -> tuple[str, int]:
        """Returns the part of a record, and its ns without its children, which come before it."""
        kind, inner, passes, passed = head & KIND, 0, 0, start
        while self._open and self._open[-1][0] >= start:
            child_start, child_end, child = self._open.pop()
            inner += child_end - child_start
            if child == PASS:
                passes, passed = passes + 1, child_end
        own = max(0, end - start - inner)
        if kind in UPDATES and passes == 1:  # a closure with the step in it: the update starts after its backward
            own = min(own, end - passed)
        if kind == CALL and not head >> 8 & GRADIENT and self._closing & KIND != CALL:
            self._untrained += 1
            return UNTRAINED, own
        if kind == LOADER_NEXT and not head >> 8 & EXHAUSTED:
            self._samples += self._batch_sizes.get(head >> 32) or 0
        self._spoilt = self._spoilt or kind in SPOILS
        return PARTS[kind], own

    def _step_ends(self, end: int) -> None:
        self.steps += 1
        self.silent = False
        if self._start >= max(self._clean_from, 1) and self._untrained <= Untrained.MANY and not self._spoilt:
            self._count += 1
            self._wall += end - self._start - self._step.get(APART, 0)
            self._seen += self._samples
            for part in self._sums:
                self._sums[part] += self._step.get(part, 0)
        self._start = end
        self._next_step()

    def _next_step(self) -> None:
        self._open.clear()
        self._step.clear()
        self._untrained, self._samples, self._spoilt = 0, 0, False

    def take(self) -> dict[str, float]:
        """Returns the means of the steps since the last call, {} without any. The parts sum to the step."""
        if not self._count or self._wall <= 0:
            return {}
        per_step = self._count * 1e6
        values = {"step_ms": self._wall / per_step}
        values |= {f"{part}_ms": spent / per_step for part, spent in self._sums.items()}
        values["other_ms"] = (self._wall - sum(self._sums.values())) / per_step
        if self._seen:
            values["samples_per_second"] = self._seen * 1e9 / self._wall
        self._clear()
        return values


class StepMetrics(Follower):
    """Periodic writer of the session's step means. step: function for the step number; None: number of seen steps."""

    def __init__(self, session: Any, write: Write, every: float, step: Callable[[], int] | None) -> None:
        self._session, self._write, self._step = session, write, step
        self._tally = StepTally(session.fast_path, session.described)
        self._blocks: deque[list[int]] = deque(maxlen=BLOCKS)
        self._period, self._most = min(FIRST, int(every * 1e9)), int(every * 1e9)
        self._due = time.perf_counter_ns() + self._period
        self._mode = 0
        session.recorder.journal.readers.append(self._blocks.append)
        session.logging.append(self)

    @property
    def steps(self) -> int:
        """Number of seen steps."""
        return self._tally.steps

    def boundary(self, steps: int) -> None:
        """Called in the training thread when a step has ended."""
        time_now = time.perf_counter_ns()
        if self._session.slowed:
            self._tally.spoil(time_now)
        self._read()
        if time_now >= self._due:
            self._period = min(2 * self._period, self._most)
            self._due = time_now + self._period
            if self._tally.silent:
                self._mode = 0
            self._tally.silent = True
            self.write()
        if self._mode != self._session.counter.mode:
            self._mode = self._session.counter.mode
            self._session.recorder.journal.flush()
            self._read()
            self._tally.learn(steps)

    def _read(self) -> None:
        while self._blocks:
            self._tally.add(self._blocks.popleft())

    def write(self) -> None:
        """Writes the means since the last time, if there are any; in the training thread."""
        start = time.perf_counter_ns()
        try:
            self._session.recorder.journal.flush()
            self._read()
            values = self._tally.take()
            if values:
                values["memory_mib"] = device.memory_in_use() / 2**20
                named = {f"steptime/{name}": value for name, value in values.items()}
                self._write(named, self._tally.steps if self._step is None else int(self._step()))
        except Exception as error:  # noqa: BLE001 - the probe's boundary: a logger's failure never reaches the job
            self.end()
            say(f"no more numbers are logged ({type(error).__name__}: {error}); the job goes on")
            pass_on(error)
        self._session.recorder.pause(start)

    def end(self) -> None:
        readers, logging = self._session.recorder.journal.readers, self._session.logging
        if self in logging:
            logging.remove(self)
            readers[:] = [each for each in readers if getattr(each, "__self__", None) is not self._blocks]
