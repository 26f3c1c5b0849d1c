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
    """Steps of a trace; made by `step_context`. All times are ns on the trace's clock. boundaries: (n, 2), the steps as
    the CPU sees them, in time order, without overlap. windows: (n, 2), the steps as the breakdown has them: on an
    accelerator, each ends where the device ends it. phases, compiling: instants of the phases and of compilation, from
    the recording; empty for a bare trace. thread: the system's id of the training thread, None or 0 if unknown.
    machine: machine whose peaks count. stacks: True if Python functions were recorded, which slows the steps. shift: ns
    to add to the journal's clock for the trace's."""

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
        """True if the trace holds work of a device, so that the accelerator's definition of the categories applies."""
        return has_kernels(self.trace)

    @property
    def links(self) -> Links:
        """Links between the trace's events, with the step of each."""
        return link(self.trace, self.boundaries)

    @property
    def track(self) -> int | None:
        """Track of the training thread; None without work on a CPU."""
        return training_track(self.trace, self.thread)

    @property
    def tracks(self) -> tuple[int, ...]:
        """Tracks of the training thread and of autograd's engine; empty if nothing ran on a CPU."""
        return () if self.track is None else (self.track, *autograd_tracks(self.trace, self.track))

    @property
    def input(self) -> Intervals:
        """Instants at which batches were prepared, as far as the recording knows."""
        return self.phases.get(Phase.INPUT, EMPTY)

    def only(self, rows: Int64) -> StepContext:
        """The context with only some of its steps, in time order."""
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
    """Context of some steps of a trace. Parameters: as the fields of `StepContext`."""
    windows = device_step_bounds(trace, boundaries) if has_kernels(trace) else boundaries
    return StepContext(trace, boundaries, windows, phases or {}, compiling, thread, machine, stacks, shift)
