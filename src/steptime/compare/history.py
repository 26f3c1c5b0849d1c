"""A history: the recordings in a folder, by job and machine, in the order in which they were made. The room's central
type.

One law: a history only tells what the recordings say. Its index may be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.quantities import BETWEEN_RUNS, Estimate, Jump, jumps

SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording. path: as the folder was named. job: its script or module. commit: "" outside of a repository.
    machine: host and device. started_epoch_ns: 0 where that cannot be read. running: it may still be written to.
    step: None where no step could be accounted for, and why in `problem`. busy: other programs used the CPUs, "" where
    they did not. trial: a variant of a trial, or a run that looked for numbers that are not finite: no plain run of the
    job. bytes: on the disk."""

    path: str
    job: str
    command: str
    commit: str
    dirty: bool | None
    machine: str
    torch: str
    started_epoch_ns: int
    running: bool
    bytes: int
    step: Estimate | None = None
    steady: int = 0
    peak_bytes: int | None = None
    busy: str = ""
    trial: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JobHistory:
    """The recordings of one job on one machine, the oldest first. levels: where the step's level changed; a jump's `at`
    is a place in `reported`: those that have a step, without those made next to other load where enough others are."""

    job: str
    machine: str
    entries: tuple[Entry, ...]
    reported: tuple[Entry, ...]
    levels: tuple[Jump, ...]


@dataclass(frozen=True, slots=True)
class History:
    """folder: as it was named. tracks: the one with the newest recording first. variants: recordings of trials, which
    are in no track. problems: what could not be read, a sentence each."""

    schema_version: int
    folder: str
    tracks: tuple[JobHistory, ...]
    variants: tuple[Entry, ...]
    problems: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All of them, the oldest first."""
        every = [*self.variants, *(entry for track in self.tracks for entry in track.entries)]
        return tuple(sorted(every, key=lambda entry: (entry.started_epoch_ns, entry.path)))


def history_of(
    folder: str, entries: Sequence[Entry], problems: tuple[str, ...] = (), *, noise_floor: float = BETWEEN_RUNS
) -> History:
    ordered = sorted(entries, key=lambda entry: (entry.started_epoch_ns, entry.path))
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in ordered:
        if not entry.trial:
            groups.setdefault((entry.job, entry.machine), []).append(entry)
    tracks = [_track(job, machine, found, noise_floor) for (job, machine), found in groups.items()]
    tracks.sort(key=lambda track: -track.entries[-1].started_epoch_ns)
    return History(SCHEMA_VERSION, folder, tuple(tracks), tuple(entry for entry in ordered if entry.trial), problems)


def _track(job: str, machine: str, entries: Sequence[Entry], noise_floor: float) -> JobHistory:
    measured = [entry for entry in entries if entry.step is not None and entry.step.value > 0]
    calm = [entry for entry in measured if not entry.busy]
    reported = calm if len(calm) >= 2 else measured
    steps = [entry.step for entry in reported if entry.step is not None]
    values = np.array([step.value for step in steps], np.float64)
    found = jumps(values, noise_floor, [max(step.high - step.value, step.value - step.low) for step in steps])
    return JobHistory(job, machine, tuple(entries), tuple(reported), found)


def slowed(track: JobHistory) -> Jump | None:
    """The newest change of level that made the step longer and that no later one took back."""
    for place in range(len(track.levels) - 1, -1, -1):
        jump = track.levels[place]
        if jump.after > jump.before and all(later.after > jump.before for later in track.levels[place + 1 :]):
            return jump
    return None
