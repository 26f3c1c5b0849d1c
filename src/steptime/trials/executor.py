"""Place and time of a trial's processes: on this machine one at a time, or several of a round that take turns, where
the job allows it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

import psutil

from steptime.launcher.devices import free_bytes
from steptime.launcher.forks import ForkServer
from steptime.launcher.outcome import Progress
from steptime.launcher.turns import CannotAlternateError, Turn, Turns
from steptime.trials.containment import Layer, Workspace, ground_of
from steptime.trials.execute import LONG, ScheduledRun, execute
from steptime.trials.trial import Run

SLICE, FEWEST_SLICED = 0.25, 8
"""Length of a turn, s, and its least number of steps; the first two of these do not count if shorter than LONG_STEP."""
LONG_STEP = LONG / 1e9
"""`execute.LONG` in seconds."""
LONGEST_SLICED, LONGEST_ON_DEVICE = 2.0, 0.5
"""Seconds per step above which processes do not take turns: the machine would change within one turn; on a device,
where a slice has several steps, a slice would be as long as a process."""
ROOM = 2.0
"""Free memory that processes in turns need, as a multiple of their peaks, loader workers included."""
CONTEXT = 1 << 30
"""Bytes of device memory that a process takes besides its tensors, for driver and libraries."""

BEFORE_START = ("environment", "preload")
"""Changes that act before a process starts."""
Block = Sequence[ScheduledRun]
"""Runs in sequence on one device: a variant is compared with the baselines of its own block."""
Notify = Callable[[ScheduledRun, Progress | None], None]
"""Callback for the start of a run (None), and for its progress."""


class Executor(Protocol):
    """Interface of the classes that run blocks."""

    @property
    def width(self) -> int:
        """Number of blocks that run at the same time, each on a device of its own."""

    forking: bool
    """True if processes are forks of one that has imported torch."""

    @property
    def preparing(self) -> float:
        """Seconds that each round takes besides its processes."""

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """True if this many processes of a block take turns (`launcher.turns`). step_seconds: seconds per step; peak:
        peak memory of one process, bytes, as in `Run.peak_bytes`."""

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        """Yields each run as soon as it has ended. Closing the generator kills the running ones. Raises what `execute`
        raises."""

    def close(self) -> None:
        """Releases the executor's resources; nothing runs after it."""


def may_alternate(
    workspace: Workspace,
    step_seconds: float,
    peak: int,
    processes: int,
    resident: int | None,
    devices: Sequence[str] = (),
) -> bool:
    """True if this many processes may take turns: steps are short enough for slices, memory has room for all, and
    changes of the user's files need not be attributed to one process. peak: bytes of one process; bytes on the device
    if `resident`, its host memory in bytes, is given. devices: UUIDs of the job's devices."""
    room = psutil.virtual_memory().available > ROOM * processes * (peak if resident is None else resident)
    if resident is not None:
        room &= free_bytes(devices) > processes * (ROOM * peak + CONTEXT)
    longest = LONGEST_SLICED if resident is None else LONGEST_ON_DEVICE
    return room and step_seconds <= longest and ground_of(workspace).layer is not Layer.COPY


class LocalExecutor:
    """Executor on this machine, one process at a time, because two would disturb each other's times. alternating:
    several processes of a block live at the same time and take turns, until that proves to harm the job. forking: they
    are forks (`launcher.forks`), which share memory with their server. resident, devices: as in `may_alternate`."""

    width = 1

    def __init__(
        self,
        *,
        alternating: bool = False,
        forking: bool = False,
        resident: int | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self.alternating, self._resident, self._devices = alternating, resident, devices
        self.forking, self._forks = forking, ForkServer() if forking else None
        self._timed = False

    @property
    def preparing(self) -> float:
        """Seconds of a start of the fork server."""
        return self._forks.took if self._forks is not None and not self._forks.off else 0.0

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """True if this many processes of a block take turns (see Executor)."""
        return self.alternating and may_alternate(
            workspace, step_seconds, peak, processes, self._resident, self._devices
        )

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        """Yields the runs of all blocks (see Executor)."""
        for block in blocks:
            if self._forks is not None and len(block) > 1:
                if self._timed:
                    self._forks.renew()  # its layout in memory is common to its forks; each round shall have another
                self._timed = True
            if all(scheduled.options.alternating for scheduled in block):
                yield from self._in_turns(workspace, block, notify)
            else:
                forks = self._forks_for(block)
                yield from (_alone(workspace, scheduled, notify, forks) for scheduled in block)

    def _forks_for(self, block: Block) -> ForkServer | None:
        """Fork server for a block, if it can fork all of its processes: started in another way, one would differ."""
        own = any(change.kind in BEFORE_START for scheduled in block for change in scheduled.variant.changes)
        return None if own else self._forks

    def _in_turns(self, workspace: Workspace, block: Block, notify: Notify) -> Generator[Run, None, None]:
        """Yields the runs of a block whose processes take turns. A failed one runs again alone: if that succeeds,
        taking turns harms the job, and the executor stops doing so."""
        came: Sequence[Run] = ()
        with suppress(CannotAlternateError):
            came = _together(workspace, block, notify, self._forks_for(block), on_device=self._resident is not None)
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
        """Ends the fork server."""
        if self._forks is not None:
            self._forks.renew()


def _alone(workspace: Workspace, scheduled: ScheduledRun, notify: Notify, forks: ForkServer | None = None) -> Run:
    """Runs one process by itself."""
    notify(scheduled, None)
    plain = replace(scheduled, options=replace(scheduled.options, alternating=False))
    return execute(workspace, plain, lambda progress: notify(scheduled, progress), forks=forks)


def _together(
    workspace: Workspace, block: Block, notify: Notify, forks: ForkServer | None, *, on_device: bool
) -> Sequence[Run]:
    """Runs the processes of a block in turns, and returns their runs in order. Raises what `execute` raises, after all
    have ended."""
    longest = max(scheduled.step_seconds for scheduled in block)
    turns = Turns(max(SLICE, FEWEST_SLICED * longest if on_device or longest < LONG_STEP else 0.0))

    def run(scheduled: ScheduledRun, among: Turn) -> Run:
        try:
            among.await_()
            notify(scheduled, None)
            return execute(workspace, scheduled, lambda progress: notify(scheduled, progress), among, forks)
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
