"""Some steps of one rank's trace, with all that is known about them: what most functions of this room take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from steptime.analysis.device_activity import has_kernels
from steptime.analysis.threads import autograd_tracks, training_track
from steptime.analysis.timeline import Phase
from steptime.analysis.trace_steps import device_step_bounds
from steptime.arrays import Int64
from steptime.intervals import EMPTY, Intervals
from steptime.machine.machine import Machine
from steptime.trace.links import Links, link
from steptime.trace.table import Referable, Trace


@dataclass(frozen=True, slots=True, eq=False)
class StepContext(Referable):
    """Steps of a trace; made by `step_context`. All times are ns on the trace's clock.

    boundaries: (n, 2), the steps as the CPU sees them, in time order, without overlap. windows: (n, 2), as the
    breakdown has them: on an accelerator each ends where the device ends it. phases, compiling: what a recording knows
    next to the trace; phases is empty for a bare trace. thread: the system's id of the training thread, None or 0 if
    unknown. machine: whose peaks count. stacks: whether Python functions were recorded, which slows the steps. shift:
    from the journal's clock to the trace's.
    """

    trace: Trace
    boundaries: Int64
    windows: Int64
    phases: Mapping[Phase, Intervals] = field(default_factory=dict)
    compiling: Intervals = field(default_factory=lambda: EMPTY)
    thread: int | None = None
    machine: Machine | None = None
    stacks: bool = False
    shift: int = 0

    def __len__(self) -> int:
        return len(self.boundaries)

    @property
    def on_device(self) -> bool:
        """True if a device did something: then the accelerator's definition of the categories applies."""
        return has_kernels(self.trace)

    @property
    def links(self) -> Links:
        """Links between the trace's events, with the step of each."""
        return link(self.trace, self.boundaries)

    @property
    def track(self) -> int | None:
        """The training thread's track; None without work on a CPU."""
        return training_track(self.trace, self.thread)

    @property
    def tracks(self) -> tuple[int, ...]:
        """The training thread's track and those of autograd's engine; empty when nothing ran on a host."""
        return () if self.track is None else (self.track, *autograd_tracks(self.trace, self.track))

    @property
    def input(self) -> Intervals:
        """When batches were prepared, as far as the recording knows."""
        return self.phases.get(Phase.INPUT, EMPTY)

    def only(self, rows: Int64) -> StepContext:
        """Some of the steps, in time order."""
        return replace(self, boundaries=self.boundaries[rows], windows=self.windows[rows])


def step_context(
    trace: Trace,
    boundaries: Int64,
    *,
    phases: Mapping[Phase, Intervals] | None = None,
    compiling: Intervals = EMPTY,
    thread: int | None = None,
    machine: Machine | None = None,
    stacks: bool = False,
    shift: int = 0,
) -> StepContext:
    """The steps of a trace as host and device have them; parameters as the fields of `StepContext`."""
    windows = device_step_bounds(trace, boundaries) if has_kernels(trace) else boundaries
    return StepContext(trace, boundaries, windows, phases or {}, compiling, thread, machine, stacks, shift)
