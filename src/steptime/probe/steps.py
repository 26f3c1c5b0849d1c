"""Counting steps while the job runs. Standard library only; the exact boundaries are found from the journal later.

A step ends with the last optimiser of a cycle. How many updates a cycle has is learnt from the last one: an optimiser
that steps again has begun the next cycle. Without optimisers the end of a backward counts, without backwards the end of
a root's forward.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque

OPTIMIZER, BACKWARD, FORWARD = 1, 2, 3
BACKWARDS_WITHOUT_UPDATE = 3
"""So many backwards without an update make backward the boundary, until an update comes (long accumulation)."""

RECENT = 32
"""Boundaries remembered to know the usual step's duration."""


class Pace:
    """How long a step takes, from the last boundaries."""

    def __init__(self) -> None:
        self._boundaries: deque[int] = deque(maxlen=RECENT)

    def boundary(self, time_ns: int) -> None:
        self._boundaries.append(time_ns)

    def usual(self) -> int:
        """Median duration of the recent steps, ns."""
        durations = sorted(after - before for before, after in itertools.pairwise(self._boundaries))
        return durations[len(durations) // 2] if durations else 0


class Slower:
    """Whether steps have become slower for good, by single ones that are looked at now and then."""

    SINGLE, TIMES, OFTEN = 8, 1.3, 2
    """Steps that are compared; how much longer the latest of them are; how often it is told."""

    def __init__(self, usual: int) -> None:
        """usual: ns of a step so far."""
        self._first = [usual] * self.SINGLE
        self._latest: deque[int] = deque(maxlen=self.SINGLE)
        self._left = self.OFTEN

    @property
    def looking(self) -> bool:
        """Whether anybody wants to know."""
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
        """Steps that will end before the next one begins, after step `step`; 0 where that is not known."""
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

    def update_begins(self, optimizer: int) -> None:
        if self._depth == 0:
            if optimizer in self._cycle:
                self._cycle_length, self._updates = max(1, self._updates), 0
                self._cycle.clear()
            self._cycle.add(optimizer)
        self._depth += 1

    def update_ends(self) -> bool:
        """The step has ended, nested or not. One whose begin was not told is passed over."""
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
        """An update seen by the optimiser's hook only, while the watch is off."""
        if self._updates >= self._cycle_length:
            self._updates = 0
        self._updates += 1
        if self._updates < self._cycle_length:
            return False
        self._updates = 0
        self._cycle.clear()
        return True

    def backward_begins(self) -> None:
        self._backward_depth += 1
        self.backwards += 1

    def backward_ends(self) -> bool:
        """A backward pass, or a partial one (autograd.grad), has ended. One whose begin was not told is passed over."""
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
