"""A comparison: differences between reports beyond noise, as plain versioned data. The room's central type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from steptime.advice.whole_run import NO_OTHER_WORK, OtherWork
from steptime.errors import RecordingError
from steptime.quantities import Estimate
from steptime.report.json import content, start_of

SCHEMA_VERSION = 3
_START = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"steptime":')


class DifferenceOutcome(Enum):
    """Outcome of comparing a quantity."""

    MORE = "more"
    """The quantity grew, beyond noise."""
    LESS = "less"
    """The quantity shrank, beyond noise."""
    NONE = "no difference found"
    """The interval includes no difference, and is narrow enough to rule out one that matters."""
    UNDECIDED = "undecided"
    """The interval includes both no difference and large ones, or the measurement is uncertain."""


class Fate(Enum):
    """Fate of an operator, a kernel, a line, a cause of idle time or a finding."""

    APPEARED = "appeared"
    VANISHED = "vanished"
    GREW = "grew"
    SHRANK = "shrank"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the job or the machine that differs. kind: "machine", "software", "code", "loader", "batch", "model"
    or "flag"; before, after: text."""

    kind: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity on both sides. kind: "step", "category", "phase", "memory" or "sample".

    before, after: in the quantity's unit, None if not measured. change: after - before, with the noise between runs in
    its interval; None if one side was not measured. reason: why it is undecided, "" if because of the interval."""

    kind: str
    name: str
    before: Estimate | None
    after: Estimate | None
    change: Estimate | None
    outcome: DifferenceOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a step that changed by more than a trifle. kind: "operator", "kernel", "line", "idle" or "copy";
    before, after: ns per step, None if absent. calls_before, calls_after: per step, None if absent or not counted."""

    kind: str
    name: str
    fate: Fate
    before: float | None
    after: float | None
    calls_before: float | None = None
    calls_after: float | None = None
    category: str = ""

    @property
    def change(self) -> float:
        """Change of the part, ns per step."""
        return (self.after or 0.0) - (self.before or 0.0)


@dataclass(frozen=True, slots=True)
class OneSidedFinding:
    """A finding that only one side has."""

    code: str
    name: str
    fate: Fate
    summary: str


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the things compared. label: short and unique among them. against_first: of its step, None for the first.
    samples_per_s: in a steady step, None where the size of a batch is not known. kernels: per step (on a CPU:
    operators), None without a profile. growth: of memory, bytes per step, 0 where none is certain, None where it
    was not measured. caveat: why its times cannot be trusted, "" where they can. categories: (name, ns per step).
    other: work between the steps."""

    label: str
    source: str
    steptime: str
    commit: str
    step: Estimate
    steady: int
    mode: str
    bottleneck: str
    categories: tuple[tuple[str, float], ...]
    peak_bytes: int | None = None
    samples_per_s: float | None = None
    kernels: float | None = None
    growth: float | None = None
    against_first: Difference | None = None
    caveat: str = ""
    other: OtherWork = NO_OTHER_WORK

    @property
    def run_ns(self) -> float:
        """Time of the run per step, with the work between the steps, ns."""
        return self.step.value / (1 - self.other.share)


@dataclass(frozen=True, slots=True)
class LikelyCause:
    """Likely cause of the step's change. category: the one that changed most with it; share: its fraction of the step's
    change, may exceed 1. setting: name of the setting that explains the change, piece: name of the piece; "" for
    none."""

    sentence: str
    category: str = ""
    share: float | None = None
    setting: str = ""
    piece: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A run at which the step's level changed. run: its number, from 0. before, after: median of the runs at each
    level, ns. confirmed: True if later runs agree; False for a last run that differs alone."""

    run: int
    before: float
    after: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Trend:
    """Trend of three or more runs, in the given order. slope: of the step per run, relative to the first run (unit
    "1"); None for fewer than four runs. levels: changes of level."""

    slope: Estimate | None
    levels: tuple[Level, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Noise:
    """Difference between unchanged runs of one job. noise_floor: fraction of the step. measured: True if from repeated
    runs, not assumed. sentence: explanation for a reader."""

    noise_floor: float
    measured: bool
    sentence: str


class Ruling(Enum):
    """Result of a gate's check of a bound."""

    PASSED = "passed"
    BREACHED = "breached"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One bound of a gate. bound: as given. change: of the quantity in the bound's unit ("1" for percent), None if not
    measured."""

    bound: str
    ruling: Ruling
    sentence: str
    change: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last run compared with the first, and all runs. by: "categories", or "phases" if only those are known on both
    sides. sentence: summary. pieces: the largest change first. caveats: limits of the comparison. next_command: ready
    to paste."""

    schema_version: int
    steptime: str
    runs: tuple[ComparedRun, ...]
    settings: tuple[Setting, ...]
    step: Difference
    parts: tuple[Difference, ...]
    by: str
    pieces: tuple[Piece, ...]
    findings: tuple[OneSidedFinding, ...]
    cause: LikelyCause
    sentence: str
    noise: Noise
    next_command: str
    sample: Difference | None = None
    memory: Difference | None = None
    trend: Trend | None = None
    caveats: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


def is_comparison(path: Path) -> bool:
    """True if a file starts like the JSON of a comparison. False if it cannot be read."""
    return _START.match(start_of(path, 256)) is not None


def read_file(path: Path, name: str) -> Comparison:
    """Comparison from a JSON file that the user calls `name`. Raises RecordingError."""
    try:
        return msgspec.json.decode(content(path, name), type=Comparison)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(
            "report-unreadable", f"{name} is not a comparison that this steptime can read: {error}."
        ) from error
