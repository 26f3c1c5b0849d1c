"""Where and when the processes of a trial run: on this machine one at any time, several of a round in turns where the
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
"""Of processes that take turns: seconds of one, and its steps at least, of which the first two do not count where they
are shorter than LONG_STEP."""
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
Tell = Callable[[ScheduledRun, Progress | None], None]
"""Called when a turn begins, and where it is known how far it has come."""


class Executor(Protocol):
    """Runs blocks of turns."""

    @property
    def width(self) -> int:
        """How many blocks run at the same time, each on a device of its own."""

    def alternates(self, stand: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """Whether so many processes of a block take turns with one another (`launcher.turns`). peak: bytes of one, as
        in `Run.peak_bytes`."""

    def run(self, stand: Workspace, blocks: Sequence[Block], tell: Tell) -> Generator[Run, None, None]:
        """The runs, each as soon as it has ended. Closing the generator ends what is running. Raises what `execute`
        raises."""

    def close(self) -> None:
        """Nothing will be run any more."""


def may_alternate(
    stand: Workspace,
    step_seconds: float,
    peak: int,
    processes: int,
    resident: int | None,
    devices: Sequence[str] = (),
) -> bool:
    """Whether so many processes may take turns: where a slice holds enough of their steps, memory has room for them,
    and they are not told apart by what has changed when they end. peak: bytes of one; of its tensors on a device where
    `resident` says what it takes besides of the host's memory. devices: UUIDs of those that the job works on."""
    room = psutil.virtual_memory().available > ROOM * processes * (peak if resident is None else resident)
    if resident is not None:
        room &= free_bytes(devices) > processes * (ROOM * peak + CONTEXT)
    longest = LONGEST_SLICED if resident is None else LONGEST_ON_DEVICE
    return room and step_seconds <= longest and ground_of(stand).layer is not Layer.COPY


class LocalExecutor:
    """This machine, one process of the trial at a time: two would disturb each other's times. alternating: several of a
    block live at the same time and take turns, unless that is seen to do them harm. resident, devices: as of
    `may_alternate`."""

    width = 1

    def __init__(self, *, alternating: bool = False, resident: int | None = None, devices: Sequence[str] = ()) -> None:
        self.alternating, self._resident, self._devices = alternating, resident, devices

    def alternates(self, stand: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        """See Executor."""
        return self.alternating and may_alternate(stand, step_seconds, peak, processes, self._resident, self._devices)

    def run(self, stand: Workspace, blocks: Sequence[Block], tell: Tell) -> Generator[Run, None, None]:
        """See Executor."""
        for block in blocks:
            if all(turn.options.alternating for turn in block):
                yield from self._in_turns(stand, block, tell)
            else:
                yield from (_alone(stand, turn, tell) for turn in block)

    def _in_turns(self, stand: Workspace, block: Block, tell: Tell) -> Generator[Run, None, None]:
        """The runs of a block whose processes take turns. One that failed is run again alone: where that goes well,
        taking turns does the job harm, and nothing takes turns from there on."""
        came: Sequence[Run] = ()
        with suppress(CannotAlternateError):
            came = _together(stand, block, tell, on_device=self._resident is not None)
        kept = {run.variant: run for run in came if not run.failure or not run.alternated}
        for turn in block if came else ():
            if turn.variant.name not in kept:
                kept[turn.variant.name] = alone = _alone(stand, turn, tell)
                self.alternating &= bool(alone.failure)
        if came and self.alternating:
            yield from (kept[turn.variant.name] for turn in block)
            return
        self.alternating = False
        for turn in block:
            yield _alone(stand, turn, tell)

    def close(self) -> None:
        """See Executor."""


def _alone(stand: Workspace, turn: ScheduledRun, tell: Tell) -> Run:
    """A turn by itself."""
    tell(turn, None)
    plain = replace(turn, options=replace(turn.options, alternating=False))
    return execute(stand, plain, lambda progress: tell(turn, progress))


def _together(stand: Workspace, block: Block, tell: Tell, *, on_device: bool) -> Sequence[Run]:
    """The runs of a block, in its order. Raises what `execute` raises, all of them ended."""
    longest = max(turn.step_seconds for turn in block)
    turns = Turns(max(SLICE, FEWEST_SLICED * longest if on_device or longest < LONG_STEP else 0.0))

    def run(turn: ScheduledRun, among: Turn) -> Run:
        try:
            among.await_()
            tell(turn, None)
            return execute(stand, turn, lambda progress: tell(turn, progress), among)
        finally:
            among.leave()

    with ThreadPoolExecutor(len(block)) as pool:
        running = [pool.submit(run, turn, turns.turn()) for turn in block]
        try:
            for each in as_completed(running):
                each.result()  # raises what it has raised
        finally:
            turns.end()
    return [each.result() for each in running]
