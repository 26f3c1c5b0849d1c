"""Live count of the steps. The analysis finds the exact boundaries in the journal later.

A step ends with the last optimizer of a cycle. The number of updates per cycle is that of the last one: an optimizer
that steps again starts the next cycle. Without optimizers a step ends with a backward, without backwards with a top
module's forward.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque

from steptime.journal import NEWEST, WORDS, Journal

OPTIMIZER, BACKWARD, FORWARD = 1, 2, 3
BACKWARDS_WITHOUT_UPDATE = 3
"""Backwards without an update after which backward is the boundary, until an update comes (long accumulation)."""

RECENT = 32
"""Boundaries remembered to know the usual step time."""


class StepNumber:
    """Number of ended steps. Short steps are reported only now and then (`patches.FastPath`); the journal's records
    show the others. So ranks that train together count alike."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._steps = self._before = 0
        self.reported = self.closing = 0
        """reported: number of reported steps. closing: head of the records that end steps."""

    def one(self, closing: int, passed: bool) -> int:
        """Counts a reported step, and returns the number of ended steps. closing: head of the record that ended it;
        passed: True if unreported steps may have ended before it."""
        self._steps, self.reported = self._steps + 1, self.reported + 1
        if passed and self.closing:
            # None while another thread writes: they are counted the next time.
            self._steps = max(self._steps, self._before + (self._journal.count(self.closing) or 0))
        if closing != self.closing and self._journal.count(closing) is not None:
            self.closing, self._before = closing, self._steps
        return self._steps

    def step_before(self) -> tuple[int, int]:
        """Returns (start, end) in ns of the step before the last one, reported or not; (0, 0) if its records are no
        longer in memory."""
        ends = []
        for block in (self._journal.records[-WORDS * NEWEST :], self._journal.newest):
            for place in range(len(block) - WORDS, -1, -WORDS):
                if block[place] == self.closing:
                    ends.append(block[place + 2])
                    if len(ends) == 3:
                        return ends[2], ends[1]
        return 0, 0


class StepTimer:
    """Usual step time, from the last boundaries."""

    def __init__(self) -> None:
        self._boundaries: deque[tuple[int, int]] = deque(maxlen=RECENT)

    def boundary(self, time_ns: int, steps: int) -> None:
        """Adds a reported boundary; `steps`: number of ended steps."""
        self._boundaries.append((time_ns, steps))

    def usual(self) -> int:
        """Returns the median of the recent steps, ns. Single reported steps include our own work, means over several
        unreported ones the job's occasional work: the shorter median counts."""
        single, passed = [], []
        for (start, first), (end, last) in itertools.pairwise(self._boundaries):
            if last - first == 1:
                single.append(end - start)
            elif last > first:
                passed.append((end - start) // (last - first))
        return min((sorted(each)[len(each) // 2] for each in (single, passed) if each), default=0)


class Slower:
    """Detector of steps that have become slower for good, from occasional single steps."""

    SINGLE, TIMES, OFTEN = 8, 1.3, 2
    """SINGLE: steps that are compared. TIMES: factor by which the latest are longer. OFTEN: number of detections."""

    def __init__(self, usual: int) -> None:
        """usual: step time so far, ns. Steps that prove shorter replace it: the first ones of a job are often slow, and
        would hide what grows from then on."""
        self._usual = float(usual)
        self._latest: deque[int] = deque(maxlen=self.SINGLE)
        self._left = self.OFTEN

    @property
    def looking(self) -> bool:
        """True while further detections are possible."""
        return self._left > 0

    def step(self, duration: int) -> bool:
        """Adds a step of `duration` ns. True once if three in four of the latest steps are slower."""
        self._latest.append(duration)
        if len(self._latest) < self.SINGLE:
            return False
        level, longer = statistics.median(self._latest), self.TIMES * self._usual
        if sum(each > longer for each in self._latest) < self.SINGLE * 3 // 4:
            self._usual = min(self._usual, level)
            return False
        self._left, self._usual = self._left - 1, level
        self._latest.clear()
        return True


class Untrained:
    """Finder of steps before which the job evaluated or gathered experience: over MANY forwards without gradients."""

    MANY = 4

    def __init__(self) -> None:
        self.now = 0
        self.latest = self.distance = 0
        """latest: the last such step. distance: steps from the one before it, or from the start."""

    def boundary(self, step: int) -> None:
        """Called when step `step` has ended."""
        if self.now > self.MANY:
            self.latest, self.distance = step, step - self.latest
        self.now = 0

    def steps_to_next(self, step: int) -> int:
        """Returns the number of steps that end after step `step` and before the next step of this kind; 0 if
        unknown."""
        return max(0, self.latest + self.distance - 1 - step) if self.distance else 0


class StepCounter:
    """Counter of the training thread's updates, backwards and forwards; its methods return True if a step has ended.

    mode: kind of event that ends steps, 0 before the first one; changed: True at the first boundary of a new mode."""

    def __init__(self) -> None:
        self.mode = 0
        self.changed = False
        self.updated = False
        self.backwards = 0
        self._depth = 0
        self._backward_depth = 0
        self._update_in_backward = False
        self._cycle: set[int] = set()
        self._updates = 0
        self._cycle_length = 1
        self._torn = False  # timers were off where the cycle began, perhaps in its middle: its length says nothing

    def update_starts(self, optimizer: int) -> None:
        if self._depth == 0:
            if optimizer in self._cycle:
                if not self._torn:
                    self._cycle_length = max(1, self._updates)
                self._updates, self._torn = 0, False
                self._cycle.clear()
            self._cycle.add(optimizer)
        self._depth += 1

    def update_ends(self) -> bool:
        """Counts an update, nested or not; ignores one whose start was not reported. Returns True if a step has
        ended."""
        if not self._depth:
            return False
        self._depth -= 1
        if self._depth:
            return False
        self.updated = True
        if self._backward_depth:
            self._update_in_backward = True
            return False
        self._updates += 1
        return self._updates == self._cycle_length and self._boundary(OPTIMIZER)

    def untimed_update(self) -> bool:
        """Counts an update that only the optimizer's hook has seen, while the timers are off."""
        if self._updates >= self._cycle_length:
            self._updates = 0
        self._updates += 1
        if self._updates < self._cycle_length:
            return False
        self._updates = 0
        self._torn = True
        self._cycle.clear()
        return True

    def backward_starts(self) -> None:
        self._backward_depth += 1
        self.backwards += 1

    @property
    def is_outermost(self) -> bool:
        """True while a backward runs that is not inside another one."""
        return self._backward_depth == 1

    def backward_ends(self, unchanged: bool = False) -> bool:
        """Counts a backward, or a partial one (autograd.grad); ignores one whose start was not reported. unchanged:
        True if it belongs to the step of the pass before. Returns True if a step has ended."""
        if not self._backward_depth:
            return False
        self._backward_depth -= 1
        if self._backward_depth or self._depth:
            return False
        if self._update_in_backward:
            self._update_in_backward = False
            return self._boundary(OPTIMIZER)
        if self.updated or unchanged or self.backwards < BACKWARDS_WITHOUT_UPDATE:
            return False
        return self._boundary(BACKWARD)

    def forward_ends(self) -> bool:
        return self.mode == FORWARD and not self.backwards

    def infer(self) -> None:
        """Marks this as an inference job, until a backward comes."""
        self.mode = FORWARD

    def _boundary(self, mode: int) -> bool:
        self.changed = self.mode not in (0, mode)
        self.mode = mode
        return True
