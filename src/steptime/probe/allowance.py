"""Cost that measuring may have, and has had so far.

All measurements of a process together may take LEAST, or a SHARE of the run so far where that is more: a short job
ends a few seconds later at most, and a long one pays for each window within a minute or two of its own time. One
measurement gets half of what is left, so that an expensive early one leaves something to those behind it, and never
more than LONGEST, because the other ranks and whoever watches the job's health wait meanwhile.

How many events a step has nobody knows before the profiler has run, and each costs microseconds when it stops. So they
are estimated from what can be counted for nothing, and known from what the first window has cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SECOND = 1_000_000_000
LEAST, SHARE, LONGEST = 3 * SECOND, 1 / 20, 10 * SECOND
PER_NODE, PER_CALL, PER_PARAMETER = 15, 3, 25
"""Events of the profiler: for each node of the autograd graph, its backward included; for each of torch's functions
called from Python, of which there are no nodes without gradients; for each parameter that an optimizer updates one by
one. Counted in transformers, perceptrons with SGD and Adam, LSTM cells and loops of small operators (torch 2.13): 9 to
20, 1 to 3 and 12 to 25."""
DETAILED, BARE = 16_000, 5_500
"""ns that an event costs the job: recorded, sorted, written and freed, with the shapes of its tensors and without.
Measured on a 2-CPU EPYC with torch 2.12 and 2.13: 10 to 20 of steps with 114,000 events, and 4 to 6."""
STACKED_DETAILED, STACKED_BARE, PER_STACK_CALL = 30_000, 6_500, 5_000
"""The same with Python's stacks: with shapes and each allocation (20 to 29), without both (5 to 6), and for each call
of a function, which becomes an event, too."""
DISCOVERED_CALL = 4_000
"""ns that discovery takes for a call of a function: 4.0 of one of the user's, 1.8 of one in C."""
SLOWED = 4
"""Times the usual step. Further time of a slowed step is an evaluation in the middle of it, not our doing."""


def graph_nodes() -> int:
    """Number of autograd nodes that this thread has made so far: torch numbers them (ATen/SequenceNumber.h); 0 where
    torch does not tell."""
    numbered: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
    return int(numbered())


@dataclass(frozen=True)
class Form:
    """How much of a window is taken. steps: whole ones. detailed: with shapes, ranges of modules and, where it has
    stacks, each allocation."""

    steps: int
    detailed: bool


class Allowance:
    """Allowance of one process. slowed: ns by which measured steps were longer than usual. fixed: ns of the time held
    that no smaller measurement would have saved, as a device's tracer takes for its first start. events, calls: of the
    profiler, and of functions with stacks, in a step, as far as is known. detailed: whether a window with shapes was
    taken."""

    def __init__(self, held: Callable[[], int], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """held: ns for which the probe has held the job so far; clock: ns."""
        self._held, self._clock = held, clock
        self._start = clock()
        self.slowed = self.fixed = self.events = self.calls = 0
        self.detailed = False

    @property
    def spent(self) -> int:
        """ns that measuring has cost the job so far."""
        return self._held() - self.fixed + self.slowed

    def share(self, asked: bool = False) -> int:
        """ns that the next measurement may cost: 0 where it must wait. asked: for by the user, who pays for it."""
        if asked:
            return LONGEST
        whole = max(LEAST, int((self._clock() - self._start) * SHARE))
        return max(0, min(LONGEST, (whole - self.spent) // 2))

    def expect(self, nodes: int, torch_calls: int, calls: int, parameters: int) -> None:
        """Estimates a step from counts of one step; parameters: that are updated one by one."""
        self.events = PER_NODE * nodes + PER_CALL * torch_calls + PER_PARAMETER * parameters
        self.calls = calls

    def plain(self, steps: int, asked: bool = False) -> Form | None:
        """The most of a window of so many steps that may be taken now. Without shapes only while there are none: a
        later window replaces an earlier one."""
        share = self.share(asked)
        if (most := min(steps, share // max(1, self.events * DETAILED))) > 0:
            return Form(most, detailed=True)
        bare = not self.detailed and 0 < self.events * BARE <= share
        return Form(1, detailed=False) if bare else None

    def stacked(self, asked: bool = False) -> Form | None:
        """The same of a window of one step with stacks."""
        share, of_calls = self.share(asked), self.calls * PER_STACK_CALL
        for each, detailed in ((STACKED_DETAILED, True), (STACKED_BARE, False)):
            if 0 <= self.events * each + of_calls < share:
                return Form(1, detailed)
        return None

    def learn(self, form: Form, cost: int) -> None:
        """A plain window of that form cost so many ns: what a step costs is known now, on this machine."""
        self.events = -(-cost // (form.steps * (DETAILED if form.detailed else BARE)))
        self.detailed |= form.detailed

    def steps_took(self, steps: int, usual: int, took: int) -> None:
        """A measurement lasted so many steps and ns, without those for which the job was held. usual: ns of a step."""
        self.slowed += max(0, min(took - steps * usual, SLOWED * steps * usual))
