"""Budget for the time that measuring costs the job.

All measurements of a process together may take LEAST, or SHARE of the run so far if that is more. So a short job ends
at most a few seconds later, and a long one earns each window within a minute or two. One measurement gets half of the
rest, which leaves something for later ones, and at most LONGEST, because the other ranks and health checks wait
meanwhile.

How many events a step has nobody knows before the profiler has run, and each costs microseconds when it stops, and
kilobytes until then. So they are estimated from what can be counted for nothing, and known from what the first window
has cost.

A window may take a PART of the free memory, at most MOST_BYTES. If that is too little, it has fewer steps, then no
shapes, then it is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from steptime.probe.free_memory import free_memory
from steptime.probe.identity import ranks_here

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
"""The same with Python's stacks: with shapes and each allocation (20 to 29), without both (5 to 6), and for each call
of a function, which becomes an event, too."""
DETAILED_BYTES, BARE_BYTES = 3_100, 1_300
STACKED_DETAILED_BYTES, STACKED_BARE_BYTES, STACK_CALL_BYTES = 5_700, 1_800, 1_600
"""Bytes that an event, or a call with stacks, takes when its window ends, in the same forms: the peak of resident
memory in windows of steps with 180,000 to 720,000 operators, and with 222,000 calls (torch 2.13). While it is recorded
an event takes a seventh of that."""
PART, MOST_BYTES = 4, 1 << 30
"""A quarter of what is free: an evaluation in the middle of a window has events, too, and the job's own memory grows.
And a gigabyte, however much is free: of 350,000 events, whose trace has 160 MB; a larger one says nothing more of a
step, and other jobs may count on what is free."""
FASTEST_EVENT = 2_500
"""ns between two events of small operators while a profiler without shapes is on, at least."""
TIMES = 3
"""So many times its steps' time a window may last in any case: the profiler slows small operators so much."""
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
    """Form of a profiler window. steps: number of whole steps. detailed: True with shapes, module ranges and, with
    stacks, allocations."""

    steps: int
    detailed: bool


class Allowance:
    """Time that measuring may cost one process. slowed: ns by which measured steps were longer than usual. fixed: ns
    that no smaller measurement would have saved, such as the first start of a device's tracer. events, calls: number
    per step of profiler events, and of function calls with stacks, as known so far by the time that they take, which
    the machine's load lengthens; kept: the same numbers by memory. detailed: True if a window with shapes was taken."""

    def __init__(
        self,
        held: Callable[[], int],
        clock: Callable[[], int] = time.perf_counter_ns,
        free: Callable[[], int | None] = free_memory,
    ) -> None:
        """held: ns for which the probe has held the job so far; clock: ns; free: bytes of memory."""
        self._held, self._clock, self._free = held, clock, free
        self._start = clock()
        self.slowed = self.fixed = self.events = self.calls = self.kept = 0
        self._stacked: dict[bool, int] = {}
        self.detailed = False

    @property
    def spent(self) -> int:
        """Cost of all measurements so far, ns."""
        return self._held() - self.fixed + self.slowed

    def again(self) -> None:
        """Counts all costs so far as fixed, so that all is measured anew: the steps were of another kind."""
        self.fixed += self.spent

    def share(self, asked: bool = False) -> int:
        """Returns the ns that the next measurement may cost; 0 if it must wait. asked: True on request: LONGEST."""
        if asked:
            return LONGEST
        whole = max(LEAST, int((self._clock() - self._start) * SHARE))
        return max(0, min(LONGEST, (whole - self.spent) // 2))

    def expect(self, nodes: int, torch_calls: int, calls: int, parameters: int) -> None:
        """Estimates the number of events from counts of one step: autograd nodes, calls of torch functions, all calls,
        and parameters that are updated one by one."""
        self.events = self.kept = PER_NODE * nodes + PER_CALL * torch_calls + PER_PARAMETER * parameters
        self.calls = calls

    def room(self, asked: bool = False) -> int:
        """Bytes of memory that the next window may take. If several ranks of a job are on one machine, each takes its
        part at the same time. asked: True if the user requested the window."""
        free, most = self._free(), sys.maxsize if asked else MOST_BYTES
        return most if free is None else min(most, free // (PART * ranks_here()))

    def plain(self, steps: int, asked: bool = False) -> Form | None:
        """Largest form of a window of at most `steps` steps that may be taken now; None if it must wait. Without shapes
        only if no window with shapes was taken, because a later window replaces an earlier one."""
        share, room = self.share(asked), self.room(asked)
        most = min(share // max(1, self.events * DETAILED), room // max(1, self.kept * DETAILED_BYTES))
        if most > 0:
            return Form(min(steps, most), detailed=True)
        bare = not self.detailed and 0 < self.events * BARE <= share and self.kept * BARE_BYTES <= room
        return Form(1, detailed=False) if bare else None

    def stacked(self, asked: bool = False) -> Form | None:
        """Largest form of a window of one step with stacks that may be taken now; None if it must wait."""
        share, room = self.share(asked), self.room(asked)
        for each, detailed in ((STACKED_DETAILED, True), (STACKED_BARE, False)):
            form = Form(1, detailed)
            cost = self._stacked.get(detailed, self.events * each + self.calls * PER_STACK_CALL)
            if 0 <= cost < share and self.bytes_of(form, stacks=True) <= room:
                return form
        return None

    def bytes_of(self, form: Form, *, stacks: bool) -> int:
        """Bytes of memory that a window of this form takes, as far as is known."""
        if stacks:
            each = STACKED_DETAILED_BYTES if form.detailed else STACKED_BARE_BYTES
            return self.kept * each + self.calls * STACK_CALL_BYTES
        return form.steps * self.kept * (DETAILED_BYTES if form.detailed else BARE_BYTES)

    def patience(self, form: Form, longest: int, usual: int, *, stacks: bool, asked: bool) -> int:
        """ns that a window may last, at most `longest`: until events at the highest possible rate, or at the rate of
        the job's steps, fill TIMES the room. usual: duration of a step, ns."""
        room, due = TIMES * self.room(asked), form.steps * usual
        times = max(TIMES, room // max(1, self.bytes_of(form, stacks=stacks)))
        return min(longest, max(room // BARE_BYTES * FASTEST_EVENT, times * due))

    def learn(self, form: Form, cost: int, grown: int, *, stacks: bool = False) -> None:
        """Updates the estimates after a window of this form, which show a step's cost on this machine with its load.
        cost: time that the window took, ns; grown: memory that it took, bytes."""
        if stacks:
            self._stacked[form.detailed] = cost
            return
        self.events = -(-cost // (form.steps * (DETAILED if form.detailed else BARE)))
        self.kept = max(self.kept, grown // (form.steps * (DETAILED_BYTES if form.detailed else BARE_BYTES)))
        self.detailed |= form.detailed

    def steps_took(self, steps: int, usual: int, took: int) -> None:
        """Charges the slowdown of measured steps. usual: ns of one; took: ns of all, without pauses of the job."""
        self.slowed += max(0, min(took - steps * usual, SLOWED * steps * usual))
