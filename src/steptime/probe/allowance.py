"""Budget for the time that measuring costs the job.

All measurements of a process together may take LEAST, or SHARE of the run so far if that is more. So a short job ends
at most a few seconds later, and a long one earns each window within a minute or two. One measurement gets half of the
rest, which leaves something for later ones, and at most LONGEST, because the other ranks and health checks wait
meanwhile.

Each event costs microseconds when the profiler stops. The number of events per step is estimated from cheap counts
before the first window, and computed from its cost afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

SECOND = 1_000_000_000
LEAST, SHARE, LONGEST = 3 * SECOND, 1 / 20, 10 * SECOND
PER_NODE, PER_CALL, PER_PARAMETER = 15, 3, 25
"""Profiler events per node of the autograd graph (backward included), per call of a C function of torch from Python
(work without gradients has no nodes), and per parameter that an optimizer updates one by one. Measured: 9 to 20, 1 to 3
and 12 to 25, in transformers, perceptrons with SGD and Adam, LSTM cells and loops of small operators (torch 2.13)."""
DETAILED, BARE = 16_000, 5_500
"""Cost of one event to the job, ns, with and without tensor shapes: recording, sorting, writing and freeing. Measured
on a 2-CPU EPYC (torch 2.12 and 2.13): 10 to 20 µs in steps with 114,000 events, and 4 to 6 µs."""
STACKED_DETAILED, STACKED_BARE, PER_STACK_CALL = 30_000, 6_500, 5_000
"""Cost of one event with Python stacks, ns: with shapes and allocations (20 to 29 µs), without both (5 to 6 µs), and
for each function call, which becomes an event, too."""
DISCOVERED_CALL = 4_000
"""Cost of one call during discovery, ns: 4.0 µs for a user's function, 1.8 µs for one in C."""
SLOWED = 4
"""Most slowdown charged to a measured step, in usual steps. Longer delays are the job's, for example an evaluation."""


def graph_nodes() -> int:
    """Returns the number of autograd nodes that this thread has made so far, as torch numbers them
    (ATen/SequenceNumber.h); 0 if torch does not report it."""
    numbered: Callable[[], int] = getattr(torch._C._autograd, "_get_sequence_nr", lambda: 0)
    return int(numbered())


@dataclass(frozen=True)
class Form:
    """Size of a profiler window. steps: whole ones. detailed: with shapes, module ranges and, with stacks,
    allocations."""

    steps: int
    detailed: bool


class Allowance:
    """Budget of one process. slowed: ns that measured steps took beyond the usual. fixed: ns of held time that a
    smaller window would not save, such as the first start of a device's tracer. events, calls: profiler events, and
    function calls with stacks, per step, as far as known. detailed: True after a window with shapes."""

    def __init__(self, held: Callable[[], int], clock: Callable[[], int] = time.perf_counter_ns) -> None:
        """held: returns the ns for which the probe has held the job so far; clock: returns ns."""
        self._held, self._clock = held, clock
        self._start = clock()
        self.slowed = self.fixed = self.events = self.calls = 0
        self.detailed = False

    @property
    def spent(self) -> int:
        """Cost of all measurements so far, ns."""
        return self._held() - self.fixed + self.slowed

    def share(self, asked: bool = False) -> int:
        """Returns the ns that the next measurement may cost; 0 if it must wait. asked: by the user; then LONGEST."""
        if asked:
            return LONGEST
        whole = max(LEAST, int((self._clock() - self._start) * SHARE))
        return max(0, min(LONGEST, (whole - self.spent) // 2))

    def expect(self, nodes: int, torch_calls: int, calls: int, parameters: int) -> None:
        """Estimates the events of a step from counts of one step. parameters: updated by an optimizer one by one."""
        self.events = PER_NODE * nodes + PER_CALL * torch_calls + PER_PARAMETER * parameters
        self.calls = calls

    def plain(self, steps: int, asked: bool = False) -> Form | None:
        """Returns the largest affordable window of up to `steps` steps, or None. One step without shapes is offered
        only before the first window with shapes, because a later window replaces an earlier one."""
        share = self.share(asked)
        if (most := min(steps, share // max(1, self.events * DETAILED))) > 0:
            return Form(most, detailed=True)
        bare = not self.detailed and 0 < self.events * BARE <= share
        return Form(1, detailed=False) if bare else None

    def stacked(self, asked: bool = False) -> Form | None:
        """Returns an affordable window of one step with stacks, or None."""
        share, of_calls = self.share(asked), self.calls * PER_STACK_CALL
        for each, detailed in ((STACKED_DETAILED, True), (STACKED_BARE, False)):
            if 0 <= self.events * each + of_calls < share:
                return Form(1, detailed)
        return None

    def learn(self, form: Form, cost: int) -> None:
        """Computes the events per step from a plain window of this form, which cost so many ns on this machine."""
        self.events = -(-cost // (form.steps * (DETAILED if form.detailed else BARE)))
        self.detailed |= form.detailed

    def steps_took(self, steps: int, usual: int, took: int) -> None:
        """Charges the slowdown of measured steps. usual: ns of a step; took: ns of all, without pauses of the job."""
        self.slowed += max(0, min(took - steps * usual, SLOWED * steps * usual))
