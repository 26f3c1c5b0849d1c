"""A trial in one process: several variants' changes are switched on and off at the boundaries of steps, in blocks that
start and end with an idle device. Differences between processes on a shared machine do not exist between blocks a tenth
of a second apart.

The job's own loop goes on and draws new batches; parameters, buffers, optimizer state and random streams are those of
the first block at the start of every one. Nothing is decided here: who reads the blocks says what goes on.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from steptime.journal import append_to
from steptime.probe import device
from steptime.probe.changes.applier import Applier
from steptime.probe.changes.models import Compile
from steptime.probe.changes.trained_state import NoRoomError, TrainedState
from steptime.probe.changes.trial import TOP_MODULE_STEPS, Trial, make_applier
from steptime.probe.identity import process_group
from steptime.probe.loader import ready
from steptime.probe.ours import pass_on

BLOCKS, GOING = "blocks.jsonl", "going"
"""Files in the recording: what was measured, and which variants go on, a line each (a bit for each that is on)."""
BLOCK = 150_000_000
"""ns of a block: long next to a switch, short next to the seconds in which a shared machine changes its speed."""
FEWEST = 4
"""Steps of one."""
SETTLING, LONG = 2, 100_000_000
"""Steps behind a switch that do not count, whose caches are cold; of steps longer than that, ns, one."""
FIRST, MOST_FIRST = 3, 8
"""Steps of a variant before its first block, and at most where it still compiles."""
BETWEEN = 2
"""Variants between two blocks of the job as it is."""

Script = Generator[None, None, None]
now = time.perf_counter_ns


class SwitchingTrial(Trial):
    """The trial's side in the process. A variant is a bit of a mask: 1 the first, 2 the second, 3 both."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__({**plan, "changes": ()})
        assert self.variant is not None
        self.parity = None
        self.variants = [[make_applier(each) for each in changes] for changes in self.variant.switched]
        self.appliers = [each for several in self.variants for each in several]
        for applier in self.appliers:
            applier.optimizers = self._living
        self.acting = []
        self._tried: set[int] = set()
        self._place = 0
        self._path, self._going = (os.path.join(plan["recording"], name) for name in (BLOCKS, GOING))
        self._script: Script | None = None

    def _living(self) -> list[Any]:
        return list(self._session.optimizers.living())

    def _prepare(self) -> None:
        for applier in self.appliers:
            self._ask(applier, "prepare")

    def _stepped(self, steps: int) -> None:
        assert self.variant is not None
        if steps == 1:
            self._guard(self._describe)
        if steps <= self.variant.warm_up:
            for applier in self.appliers:
                self._ask(applier, "boundary", steps)
        if steps == max(TOP_MODULE_STEPS, self.variant.warm_up):
            self._observer.remove()
            self._script = self._run()
        try:
            if self._script is not None:
                next(self._script)
        except StopIteration:
            self.variant.end()
        except Exception as error:  # noqa: BLE001 - the probe's boundary: the trial goes on with processes
            self._write(refused=f"{type(error).__name__}: {error}")
            self.variant.end()
            pass_on(error)
        self.variant.boundary(steps)

    def _write_facts(self, final: bool) -> None:
        """Writes the outcome of each change next to its blocks."""

    def _write(self, **row: Any) -> None:
        append_to(self._path, json.dumps(row).encode() + b"\n")

    # -- blocks ----------------------------------------------------------------------------------------------------

    def _run(self) -> Script:
        if (reason := self._refusal()) or not self.top_modules:
            self._write(refused=reason or "no module was called that learns")
            return
        try:
            self._kept = TrainedState(self.top_modules, self._living())
        except NoRoomError as error:
            self._write(refused=str(error))
            return
        yield from self._first_calls(0)
        for round_ in itertools.count():
            going = self._masks()
            if not going:
                return
            leads = not round_
            for mask in going:
                if mask not in self._tried:
                    leads = True
                    yield from self._first_calls(mask)
            for mask, control in order(going, round_, leads=leads):
                yield from self._block(round_, mask, control)

    def _refusal(self) -> str:
        distributed = process_group()
        if distributed is not None and distributed.get_world_size() > 1:
            return "the job has several ranks, which would have to switch together"
        stuck = next((each for each in self.appliers if not each.switchable), None)
        return f"{type(stuck).__name__} cannot be taken back" if stuck is not None else ""

    def _masks(self) -> list[int]:
        """What goes on. Before anybody has said so, all do that need no compiler, or else the first: no variant waits
        for another one's compiler."""
        try:
            with open(self._going, encoding="ascii") as file:
                return [int(line) for line in file.read().split()]
        except OSError as error:
            singles = [1 << number for number in range(len(self.variants))]
            plain = [mask for mask in singles if not any(isinstance(each, Compile) for each in self._of(mask))]
            pass_on(error)
            return plain or singles[:1]

    def _of(self, mask: int) -> list[Applier]:
        return [each for number, several in enumerate(self.variants) if mask >> number & 1 for each in several]

    def _switch(self, mask: int) -> None:
        """Takes back what is on, restores what was trained, and puts a variant in force."""
        for applier in reversed(self.acting):
            applier.off()
        self.acting = []
        self._kept.restore()
        for applier in sorted(self._of(mask), key=lambda each: each.order):
            self._ask(applier, "on")
            self.acting.append(applier)

    def _first_calls(self, mask: int) -> Script:
        """The first steps of a variant, which compile and choose algorithms, each timed by itself."""
        self._tried.add(mask)
        self._write(begun=mask)
        self._switch(mask)
        times: list[int] = []
        compiled = False
        while len(times) < FIRST or (compiled and len(times) < MOST_FIRST):
            before, start = self._compilations(), self._idle()
            yield
            self._notify("boundary", self._steps)
            times.append(self._idle() - start)
            compiled = self._compilations() > before
        if not mask:
            self._usual = max(1, min(times))
        reported = [{"applied": a.applied, "exercised": a.exercised, "detail": a.detail} for a in self.acting]
        self._write(first=mask, step_ns=times, changes=reported)

    def _compilations(self) -> int:
        return int(self._session.housekeeping.compilations)

    def _idle(self) -> int:
        """The time at which the device has nothing to do."""
        if device.in_use():
            device.drained()
        return now()

    def _block(self, round_: int, mask: int, control: bool) -> Script:
        """One block: `host_ns` until its last step was launched, `wall_ns` until the device had done it."""
        self._switch(mask)
        for _ in range(SETTLING if self._usual < LONG else 1):
            yield
        steps = max(FEWEST, round(BLOCK / self._usual))
        before, waiting, start = self._besides(), self._waiting(), self._idle()
        for _ in range(steps):
            yield
        host = now() - start
        wall = self._idle() - start
        self._write(
            block=mask,
            control=control,
            round=round_,
            place=self._place,
            steps=steps,
            host_ns=host,
            wall_ns=wall,
            apart=self._besides() != before,
            taken=waiting - self._waiting(),
        )
        self._place += 1

    def _besides(self) -> tuple[int, ...]:
        """Counts that rise with what is no training: evaluations, saved files, new epochs, compilations."""
        session = self._session
        return session.untrained.latest, session.saves, session.iterators.added, self._compilations()

    def _waiting(self) -> int:
        """Batches that workers have made ahead: a block that takes more than are made is too fast to be true."""
        return sum(ready(each) or 0 for each in self._session.iterators.living())


def order(going: Sequence[int], round_: int, *, leads: bool) -> Iterator[tuple[int, bool]]:
    """A round: variants and the control between blocks of the job as it is, each second round in the reverse order.
    Masks, and whether it is the control. Where sets are tried, which come behind all else, it has shown its noise.
    leads: no block of the job as it is lies right before."""
    several = [(mask, False) for mask in going]
    if all(mask.bit_count() == 1 for mask in going):
        several.append((0, True))
    several = several[::-1] if round_ % 2 else several
    if leads:
        yield 0, False
    for start in range(0, len(several), BETWEEN):
        yield from several[start : start + BETWEEN]
        yield 0, False
