"""Trial in one process: the changes of several variants are switched on and off at step boundaries, in blocks that
start and end with an idle device. Blocks a tenth of a second apart avoid the differences between processes on a shared
machine.

The job's loop goes on and draws new batches; parameters, buffers, optimizer state and random streams are reset to those
of the first block. This process decides nothing: the reader of the blocks says which variants go on.
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
from steptime.probe.identity import ranks
from steptime.probe.loader import ready
from steptime.probe.ours import pass_on

BLOCKS, GOING = "blocks.jsonl", "going"
"""Files in the recording. BLOCKS: measurements. GOING: masks of the variants that go on, one per line."""
BLOCK = 150_000_000
"""ns of a block: long compared with a switch, short compared with the seconds over which a shared machine's speed
changes."""
FEWEST = 4
"""Least steps of a block."""
SETTLING, LONG = 2, 100_000_000
"""Steps after a switch that do not count, because caches are cold; one if steps take longer than LONG, ns."""
FIRST, MOST_FIRST = 3, 8
"""Steps of a variant before its first block, and the most if it still compiles."""
BETWEEN = 2
"""Variants between two blocks of the unchanged job."""

Script = Generator[None, None, None]
now = time.perf_counter_ns


class SwitchingTrial(Trial):
    """Driver of a trial in one process. A variant is a bit of a mask: 1 the first, 2 the second, 3 both."""

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
        """Does nothing: the outcome of each change is written with its blocks."""

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
        if ranks() > 1:
            return "the job has several ranks, which steptime cannot switch together"
        stuck = next((each for each in self.appliers if not each.switchable), None)
        return f"{type(stuck).__name__} cannot be taken back" if stuck is not None else ""

    def _masks(self) -> list[int]:
        """Returns the masks that go on. Before the file exists: all variants without a compiler, or else the first, so
        that none waits for another one's compiler."""
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
        """Takes back the active changes, restores the trained state, and puts a variant in force."""
        for applier in reversed(self.acting):
            applier.off()
        self.acting = []
        self._kept.restore()
        for applier in sorted(self._of(mask), key=lambda each: each.order):
            self._ask(applier, "on")
            self.acting.append(applier)

    def _first_calls(self, mask: int) -> Script:
        """Runs the first steps of a variant, which compile and choose algorithms, each timed by itself."""
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
        """Returns the time at which the device becomes idle, ns."""
        if device.in_use():
            device.drained()
        return now()

    def _block(self, round_: int, mask: int, control: bool) -> Script:
        """Measures one block: `host_ns` until its last step was launched, `wall_ns` until the device was idle."""
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
        """Returns counts of other work than training: evaluations, saved files, new epochs, compilations."""
        session = self._session
        return session.untrained.latest, session.saves, session.iterators.added, self._compilations()

    def _waiting(self) -> int:
        """Returns the batches that workers have made ahead: a block that takes more than are made is too fast to be
        real."""
        return sum(ready(each) or 0 for each in self._session.iterators.living())


def order(going: Sequence[int], round_: int, *, leads: bool) -> Iterator[tuple[int, bool]]:
    """Yields the (mask, is control) of a round: variants and the control between blocks of the unchanged job, in
    reverse order every second round. Rounds with combined variants have no control, as its noise is known by then.
    leads: the round starts with a block of the unchanged job."""
    several = [(mask, False) for mask in going]
    if all(mask.bit_count() == 1 for mask in going):
        several.append((0, True))
    several = several[::-1] if round_ % 2 else several
    if leads:
        yield 0, False
    for start in range(0, len(several), BETWEEN):
        yield from several[start : start + BETWEEN]
        yield 0, False
