"""Counting steps while the job runs. The exact boundaries are found from the journal later.

A step ends with the last optimizer of a cycle. How many updates a cycle has is learnt from the last one: an optimizer
that steps again has begun the next cycle. Without optimizers the end of a backward counts, without backwards the end of
a root's forward.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque

from steptime.journal import NEWEST, WORDS, Journal

OPTIMIZER, BACKWARD, FORWARD = 1, 2, 3
BACKWARDS_WITHOUT_UPDATE = 3
"""So many backwards without an update make backward the boundary, until an update comes (long accumulation)."""

RECENT = 32
"""Boundaries remembered to know the usual step's duration."""


class StepNumber:
    """How many steps have ended. Short steps are reported now and then (`patches.FastPath`): the records of the others
    say how many they were. So ranks that train together count alike."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._steps = self._before = 0
        self.reported = self.closing = 0
        """Number of reported steps; the head of the records that end them."""

    def one(self, closing: int, passed: bool) -> int:
        """One has ended. closing: head of the record that has ended it; passed: whether there may have been others
        since the last one that we were told of. Returns how many have ended."""
        self._steps, self.reported = self._steps + 1, self.reported + 1
        if passed and self.closing:
            # None while another thread writes: they are counted the next time.
            self._steps = max(self._steps, self._before + (self._journal.count(self.closing) or 0))
        if closing != self.closing and self._journal.count(closing) is not None:
            self.closing, self._before = closing, self._steps
        return self._steps

    def step_before(self) -> tuple[int, int]:
        """Start and end of the step before the last one, ns, which nobody of us had to be told of; (0, 0) where its
        records are written, or were too many."""
        ends = []
        for block in (self._journal.records[-WORDS * NEWEST :], self._journal.newest):
            for place in range(len(block) - WORDS, -1, -WORDS):
                if block[place] == self.closing:
                    ends.append(block[place + 2])
                    if len(ends) == 3:
                        return ends[2], ends[1]
        return 0, 0


class StepTimer:
    """How long a step takes, from the last boundaries."""

    def __init__(self) -> None:
        self._boundaries: deque[tuple[int, int]] = deque(maxlen=RECENT)

    def boundary(self, time_ns: int, steps: int) -> None:
        """A step ended that we are told of; `steps`: how many have."""
        self._boundaries.append((time_ns, steps))

    def usual(self) -> int:
        """Median duration of the recent steps, ns. Where most of them are passed over, the single ones are longer by
        what we do in them, and the mean of the others by what the job does now and then: the shorter one holds."""
        single, passed = [], []
        for (start, first), (end, last) in itertools.pairwise(self._boundaries):
            if last - first == 1:
                single.append(end - start)
            elif last > first:
                passed.append((end - start) // (last - first))
        return min((sorted(each)[len(each) // 2] for each in (single, passed) if each), default=0)


class Slower:
    """Detector of steps that have become slower for good, from single ones that are looked at now and then."""

    SINGLE, TIMES, OFTEN = 8, 1.3, 2
    """Steps that are compared; how much longer the latest of them are; how often it is told."""

    def __init__(self, usual: int) -> None:
        """usual: ns of a step so far."""
        self._first = [usual] * self.SINGLE
        self._latest: deque[int] = deque(maxlen=self.SINGLE)
        self._left = self.OFTEN

    @property
    def looking(self) -> bool:
        """True if anybody wants to know."""
        return self._left > 0

    def step(self, duration: int) -> bool:
        """A step took so many ns: True once where three in four of the latest are longer than the usual one before."""
        if len(self._first) < self.SINGLE:
            self._first.append(duration)
            return False
        self._latest.append(duration)
        usual = self.TIMES * statistics.median(self._first)
        if sum(each > usual for each in self._latest) < self.SINGLE * 3 // 4:
            return False
        self._left -= 1
        self._first.clear()
        self._latest.clear()
        return True


class Untrained:
    """Steps before which the job evaluated, or gathered experience: with more than MANY forwards without gradients."""

    MANY = 4

    def __init__(self) -> None:
        self.now = 0
        self.latest = self.distance = 0
        """The last such step, and how many steps lay between it and the one before."""

    def boundary(self, step: int) -> None:
        """Step `step` has ended."""
        if self.now > self.MANY:
            self.latest, self.distance = step, step - self.latest if self.latest else 0
        self.now = 0

    def steps_to_next(self, step: int) -> int:
        """Steps that will end before the next one starts, after step `step`; 0 where that is not known."""
        return max(0, self.latest + self.distance - 1 - step) if self.distance else 0


class StepCounter:
    """Told of updates, backwards and forwards of the training thread; answers True where a step has ended.

    `mode` is what boundaries are taken from, 0 before the first one; `changed` is True at the first boundary of a new
    mode.
    """

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

    def update_starts(self, optimizer: int) -> None:
        if self._depth == 0:
            if optimizer in self._cycle:
                self._cycle_length, self._updates = max(1, self._updates), 0
                self._cycle.clear()
            self._cycle.add(optimizer)
        self._depth += 1

    def update_ends(self) -> bool:
        """The step has ended, nested or not. One whose start was not told is passed over."""
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

    def unwatched_update(self) -> bool:
        """An update seen by the optimizer's hook only, while the watch is off."""
        if self._updates >= self._cycle_length:
            self._updates = 0
        self._updates += 1
        if self._updates < self._cycle_length:
            return False
        self._updates = 0
        self._cycle.clear()
        return True

    def backward_starts(self) -> None:
        self._backward_depth += 1
        self.backwards += 1

    def backward_ends(self) -> bool:
        """A backward pass, or a partial one (autograd.grad), has ended. One whose start was not told is passed over."""
        if not self._backward_depth:
            return False
        self._backward_depth -= 1
        if self._backward_depth or self._depth:
            return False
        if self._update_in_backward:
            self._update_in_backward = False
            return self._boundary(OPTIMIZER)
        if self.updated or self.backwards < BACKWARDS_WITHOUT_UPDATE:
            return False
        return self._boundary(BACKWARD)

    def forward_ends(self) -> bool:
        return self.mode == FORWARD and not self.backwards

    def infer(self) -> None:
        """The job is taken for one that only infers, until a backward comes."""
        self.mode = FORWARD

    def _boundary(self, mode: int) -> bool:
        self.changed = self.mode not in (0, mode)
        self.mode = mode
        return True
