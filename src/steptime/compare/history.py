"""A history: the recordings in a folder by job and machine, in order of time. The room's central type.

One law: a history only contains what the recordings say. Its index may be deleted at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steptime.quantities import BETWEEN_RUNS, Estimate, Jump, jumps

SCHEMA_VERSION = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One recording in a history. path: its folder, as named by the user. job: script or module that it ran. commit: ""
    outside of a repository. machine: host and device. started_epoch_ns: start, 0 if unknown. running: True if it may
    still be written to. step: None if there is none to report, with the reason in `problem`. busy: sentence if other
    programs used the CPUs, else "". trial: True for a variant of a trial or a search for non-finite values, which are
    no plain runs of the job. bytes: size on disk."""

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
    """Recordings of one job on one machine, the oldest first. reported: recordings with a step, without those made
    under load if there are enough others. levels: changes of the step's level; `at` of each is an index in
    `reported`."""

    job: str
    machine: str
    entries: tuple[Entry, ...]
    reported: tuple[Entry, ...]
    levels: tuple[Jump, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Recordings of a folder. folder: its path, as named by the user. tracks: history of each job on each machine, the
    one with the newest recording first. variants: recordings of trials, which are in no track. problems: sentences on
    what could not be read."""

    schema_version: int
    folder: str
    tracks: tuple[JobHistory, ...]
    variants: tuple[Entry, ...]
    problems: tuple[str, ...] = ()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All recordings, the oldest first."""
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
    """Newest change of level that made a job's step longer and that no later change reverted; None if there is none."""
    for place in range(len(track.levels) - 1, -1, -1):
        jump = track.levels[place]
        if jump.after > jump.before and all(later.after > jump.before for later in track.levels[place + 1 :]):
            return jump
    return None
