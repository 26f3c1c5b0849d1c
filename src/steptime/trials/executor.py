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
from steptime.machine.identity import usable_cpus
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
AT_ONCE = 2
"""Processes that start, and rehearsals that run, at the same time: nothing is timed meanwhile."""
SPARE = 2 << 30
"""Bytes of free memory for the fork server of the next round, a process that has imported torch."""

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
    def at_once(self) -> int:
        """Number of rehearsals that run at the same time on one device: they are not timed."""

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
    are forks (`launcher.forks`), which share memory with their server. resident, devices: as in `may_alternate`. host:
    bytes of host memory of one process, if none of it is on a device: processes then start, and rehearsals run, at the
    same time."""

    width = 1

    def __init__(
        self,
        *,
        alternating: bool = False,
        forking: bool = False,
        resident: int | None = None,
        devices: Sequence[str] = (),
        host: int | None = None,
        forks: ForkServer | None = None,
    ) -> None:
        self.alternating, self._resident, self._devices = alternating, resident, devices
        self.forking, self._forks = forking, (forks or ForkServer()) if forking else None
        self._host, self._timed = host, False

    @property
    def at_once(self) -> int:
        """Number of rehearsals that run at the same time (see Executor)."""
        if self._host is None or not self.alternating or usable_cpus() < AT_ONCE:
            return 1
        return AT_ONCE if psutil.virtual_memory().available > ROOM * AT_ONCE * self._host else 1

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """True if this many processes of a block take turns (see Executor)."""
        return self.alternating and may_alternate(
            workspace, step_seconds, peak, processes, self._resident, self._devices
        )

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        """Yields the runs of all blocks (see Executor)."""
        for block in self._joined(workspace, blocks):
            rehearsed = all(scheduled.rehearsal for scheduled in block)
            if self._forks is not None and len(block) > 1 and not rehearsed:
                if self._timed:
                    self._forks.renew()  # its layout in memory is common to its forks; each round shall have another
                self._timed = True
            if all(scheduled.options.alternating for scheduled in block) or (rehearsed and len(block) > 1):
                yield from self._in_turns(workspace, block, notify)
            else:
                forks = self._forks_for(block)
                yield from (_alone(workspace, scheduled, notify, forks) for scheduled in block)

    def _joined(self, workspace: Workspace, blocks: Sequence[Block]) -> Sequence[Block]:
        """Blocks, with rehearsals that run at the same time in one."""
        every = [scheduled for block in blocks for scheduled in block]
        apart = len({scheduled.variant.name for scheduled in every}) == len(every) > 1
        together = apart and all(scheduled.rehearsal for scheduled in every) and self.at_once > 1
        return [every] if together and ground_of(workspace).layer is not Layer.COPY else blocks

    def _forks_for(self, block: Block) -> ForkServer | None:
        """Fork server for a block, if it can fork all of its processes: started in another way, one would differ."""
        own = any(change.kind in BEFORE_START for scheduled in block for change in scheduled.variant.changes)
        return None if own else self._forks

    def _in_turns(self, workspace: Workspace, block: Block, notify: Notify) -> Generator[Run, None, None]:
        """Yields the runs of a block whose processes take turns. A failed one runs again alone: if that succeeds,
        taking turns harms the job, and the executor stops doing so."""
        came: Sequence[Run] = ()
        turns = self._turns_of(block)
        with suppress(CannotAlternateError):
            came = _together(workspace, block, notify, self._forks_for(block), turns)
        kept = {run.variant: run for run in came if not run.failure or (turns.at_once == 1 and not run.alternated)}
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

    def _turns_of(self, block: Block) -> Turns:
        longest = max(scheduled.step_seconds for scheduled in block)
        sliced = self._resident is not None or longest < LONG_STEP
        return Turns(max(SLICE, FEWEST_SLICED * longest if sliced else 0.0), self.at_once)

    def close(self) -> None:
        """Ends the fork server."""
        if self._forks is not None:
            self._forks.close()


def _alone(workspace: Workspace, scheduled: ScheduledRun, notify: Notify, forks: ForkServer | None = None) -> Run:
    """Runs one process by itself."""
    notify(scheduled, None)
    plain = replace(scheduled, options=replace(scheduled.options, alternating=False))
    return execute(workspace, plain, lambda progress: notify(scheduled, progress), forks=forks)


def _together(
    workspace: Workspace, block: Block, notify: Notify, forks: ForkServer | None, turns: Turns
) -> Sequence[Run]:
    """Runs the processes of a block in turns, and returns their runs in order. Raises what `execute` raises, after all
    have ended."""

    def run(scheduled: ScheduledRun, among: Turn) -> Run:
        try:
            among.start()
            notify(scheduled, None)
            return execute(workspace, scheduled, lambda progress: notify(scheduled, progress), among, forks)
        finally:
            among.leave()

    def start_next(server: ForkServer) -> None:
        try:
            turns.of_ours.append(server.start_next())
            server.await_next()
        finally:
            turns.ready(server)

    with ThreadPoolExecutor(len(block) + 1) as pool:
        places = [turns.turn() for _ in block]
        if forks is not None and not block[0].rehearsal and psutil.virtual_memory().available > SPARE:
            turns.unready.add(forks)
            pool.submit(start_next, forks)
        running = [pool.submit(run, scheduled, place) for scheduled, place in zip(block, places, strict=True)]
        try:
            for each in as_completed(running):
                each.result()  # raises what it has raised
        finally:
            turns.end()
    return [each.result() for each in running]
