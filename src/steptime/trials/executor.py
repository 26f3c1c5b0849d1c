"""Place and time of a trial's processes: on this machine one at any time, several of a round in turns where the
job bears that."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import psutil

from steptime.launcher.devices import free_bytes
from steptime.launcher.outcome import Progress
from steptime.launcher.turns import CannotAlternateError, Turn, Turns
from steptime.trials.containment import Layer, Workspace, ground_of
from steptime.trials.execute import LONG, ScheduledRun, execute
from steptime.trials.trial import Run

SLICE, FEWEST_SLICED = 0.25, 8
"""Limits for processes that take turns: seconds of a turn, and its steps at least, of which the first two do not count
where they are shorter than LONG_STEP."""
LONG_STEP = LONG / 1e9
"""Seconds."""
LONGEST_SLICED, LONGEST_ON_DEVICE = 2.0, 0.5
"""Seconds of a step from which on processes do not take turns: the machine changes within one; on a device, where a
slice is several of them, it would be as long as a process."""
ROOM = 2.0
"""Times the peak of all processes that take turns, their loader workers among them, that must be free in memory."""
CONTEXT = 1 << 30
"""Bytes of a device that a process takes besides its tensors: what the driver and the libraries keep for it."""

Block = Sequence[ScheduledRun]
"""Turns that run one after the other on one device: a variant is compared with the baselines of its own block."""
Notify = Callable[[ScheduledRun, Progress | None], None]
"""Called when a turn starts, and where it is known how far it has come."""


class Executor(Protocol):
    """Runs blocks of turns."""

    @property
    def width(self) -> int:
        """How many blocks run at the same time, each on a device of its own."""

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """True if so many processes of a block take turns with one another (`launcher.turns`). peak: bytes of one, as
        in `Run.peak_bytes`."""

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        """The runs, each as soon as it has ended. Closing the generator ends what is running. Raises what `execute`
        raises."""

    def close(self) -> None:
        """Nothing will be run any more."""


def may_alternate(
    workspace: Workspace,
    step_seconds: float,
    peak: int,
    processes: int,
    resident: int | None,
    devices: Sequence[str] = (),
) -> bool:
    """True if so many processes may take turns: where a slice holds enough of their steps, memory has room for them,
    and they are not told apart by what has changed when they end. peak: bytes of one; of its tensors on a device where
    `resident` says what it takes besides of the host's memory. devices: UUIDs of those that the job works on."""
    room = psutil.virtual_memory().available > ROOM * processes * (peak if resident is None else resident)
    if resident is not None:
        room &= free_bytes(devices) > processes * (ROOM * peak + CONTEXT)
    longest = LONGEST_SLICED if resident is None else LONGEST_ON_DEVICE
    return room and step_seconds <= longest and ground_of(workspace).layer is not Layer.COPY


class LocalExecutor:
    """This machine, one process of the trial at a time: two would disturb each other's times. alternating: several of a
    block live at the same time and take turns, unless that is seen to do them harm. resident, devices: as of
    `may_alternate`."""

    width = 1

    def __init__(self, *, alternating: bool = False, resident: int | None = None, devices: Sequence[str] = ()) -> None:
        self.alternating, self._resident, self._devices = alternating, resident, devices

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """See Executor."""
        return self.alternating and may_alternate(
            workspace, step_seconds, peak, processes, self._resident, self._devices
        )

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        """See Executor."""
        for block in blocks:
            if all(scheduled.options.alternating for scheduled in block):
                yield from self._in_turns(workspace, block, notify)
            else:
                yield from (_alone(workspace, scheduled, notify) for scheduled in block)

    def _in_turns(self, workspace: Workspace, block: Block, notify: Notify) -> Generator[Run, None, None]:
        """The runs of a block whose processes take turns. One that failed is run again alone: where that goes well,
        taking turns does the job harm, and nothing takes turns from there on."""
        came: Sequence[Run] = ()
        with suppress(CannotAlternateError):
            came = _together(workspace, block, notify, on_device=self._resident is not None)
        kept = {run.variant: run for run in came if not run.failure or not run.alternated}
        for scheduled in block if came else ():
            if scheduled.variant.name not in kept:
                kept[scheduled.variant.name] = alone = _alone(workspace, scheduled, notify)
                self.alternating &= bool(alone.failure)
        if came and self.alternating:
            yield from (kept[scheduled.variant.name] for scheduled in block)
            return
        self.alternating = False
        for scheduled in block:
            yield _alone(workspace, scheduled, notify)

    def close(self) -> None:
        """See Executor."""


def _alone(workspace: Workspace, scheduled: ScheduledRun, notify: Notify) -> Run:
    """A turn by itself."""
    notify(scheduled, None)
    plain = replace(scheduled, options=replace(scheduled.options, alternating=False))
    return execute(workspace, plain, lambda progress: notify(scheduled, progress))


def _together(workspace: Workspace, block: Block, notify: Notify, *, on_device: bool) -> Sequence[Run]:
    """The runs of a block, in its order. Raises what `execute` raises, all of them ended."""
    longest = max(scheduled.step_seconds for scheduled in block)
    turns = Turns(max(SLICE, FEWEST_SLICED * longest if on_device or longest < LONG_STEP else 0.0))

    def run(scheduled: ScheduledRun, among: Turn) -> Run:
        try:
            among.await_()
            notify(scheduled, None)
            return execute(workspace, scheduled, lambda progress: notify(scheduled, progress), among)
        finally:
            among.leave()

    with ThreadPoolExecutor(len(block)) as pool:
        running = [pool.submit(run, scheduled, turns.turn()) for scheduled in block]
        try:
            for each in as_completed(running):
                each.result()  # raises what it has raised
        finally:
            turns.end()
    return [each.result() for each in running]
