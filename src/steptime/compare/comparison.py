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
    """Outcome of comparing one quantity between two runs."""

    MORE = "more"
    """The quantity grew, beyond noise."""
    LESS = "less"
    """The quantity shrank, beyond noise."""
    NONE = "no difference found"
    """The interval includes no difference, and is narrow enough to rule out one that matters."""
    UNDECIDED = "undecided"
    """The interval includes both no difference and large ones, or the measurement is uncertain."""


class Fate(Enum):
    """Change of an operator, a kernel, a line, a cause of idle time or a finding from the first run to the last."""

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
    """A quantity in both runs. kind: "step", "category", "phase", "memory" or "sample". before, after: its values, in
    its own unit; None if not measured. change: after - before, with the noise between runs in its interval; None if one
    side was not measured. reason: why the outcome is undecided, "" if the interval is the reason."""

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
    before, after: its ns per step, None if absent. calls_before, calls_after: number of its calls per step, None if
    absent or not counted."""

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
    """A finding that only one of the two runs has."""

    code: str
    name: str
    fate: Fate
    summary: str


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the compared runs. label: its short and unique name. against_first: difference of its step from the first
    run's, None for the first. steady: number of steady steps. samples_per_s: samples/s in a steady step, None if the
    batch size is unknown. kernels: number of kernels per step (on a CPU: of operators), None without a profile. growth:
    bytes by which memory grows per step, 0 if none is certain, None if not measured. caveat: why its times cannot be
    trusted, "" if they can. categories: (name, ns per step). other: work between the steps."""

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
        """Time per step of the whole run, including the work between the steps, ns."""
        return self.step.value / (1 - self.other.share)


@dataclass(frozen=True, slots=True)
class LikelyCause:
    """Likely cause of the step's change. category: the category that changed most with it; share: its fraction of the
    step's change, may exceed 1. setting: name of the setting that explains the change; piece: name of the part of the
    step that does; "" for none."""

    sentence: str
    category: str = ""
    share: float | None = None
    setting: str = ""
    piece: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A run at which the step's level changed. run: its number, from 0. before, after: median step of the runs before
    and after the change, ns. confirmed: True if later runs agree; False for a last run that differs alone."""

    run: int
    before: float
    after: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Trend:
    """Trend of the step over three or more runs, in the given order. slope: change of the step per run, relative to the
    first run (unit "1"); None for fewer than four runs. levels: runs at which the step's level changed."""

    slope: Estimate | None
    levels: tuple[Level, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Noise:
    """Difference that unchanged runs of one job show. noise_floor: that difference as a fraction of the step. measured:
    True if it is from repeated runs, False if assumed. sentence: explanation for a reader."""

    noise_floor: float
    measured: bool
    sentence: str


class Ruling(Enum):
    """Result of checking one bound of a gate."""

    PASSED = "passed"
    BREACHED = "breached"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One bound of a gate, checked. bound: its text as given. change: change of the quantity in the bound's unit ("1"
    for percent), None if not measured."""

    bound: str
    ruling: Ruling
    sentence: str
    change: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last run compared with the first, and all runs. by: kind of `parts`: "categories", or "phases" if both runs
    have only those. sentence: summary. pieces: changed parts of the step, the largest change first. caveats: limits of
    the comparison. next_command: command for the reader to paste."""

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
    """Comparison in a JSON file. name: the file as the user calls it, for errors. Raises RecordingError."""
    try:
        return msgspec.json.decode(content(path, name), type=Comparison)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(
            "report-unreadable", f"{name} is not a comparison that this steptime can read: {error}."
        ) from error
