"""A comparison: what differs between reports, beyond noise, as plain versioned data. The room's central type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from steptime.errors import RecordingError
from steptime.quantities import Estimate
from steptime.report.json import content

SCHEMA_VERSION = 3
_START = re.compile(rb'\s*\{\s*"schema_version":\s*\d+,\s*"steptime":')


class DifferenceOutcome(Enum):
    """Outcome of comparing a quantity."""

    MORE = "more"
    """It grew, beyond noise."""
    LESS = "less"
    """It shrank, beyond noise."""
    NONE = "no difference found"
    """The interval holds no difference, and is narrow enough to rule out one that matters."""
    UNDECIDED = "undecided"
    """The interval holds no difference and large ones, too; or the measurement is in doubt."""


class Fate(Enum):
    """Fate of an operator, a kernel, a line, a cause of idle time or a finding."""

    APPEARED = "appeared"
    VANISHED = "vanished"
    GREW = "grew"
    SHRANK = "shrank"


@dataclass(frozen=True, slots=True)
class Setting:
    """Something about the job or the machine that differs. kind: "machine", "software", "code", "loader", "batch",
    "model" or "flag"; before, after: for a reader."""

    kind: str
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Difference:
    """A quantity on both sides. kind: "step", "category", "phase", "memory" or "sample".

    before, after: None where it was not measured; the unit is theirs. change: after - before, its interval with the
    noise between runs in it; None where one side was not measured. reason: why it is undecided, "" for its interval."""

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
    before, after: ns per step, None where it was not there. calls likewise, None where they are not counted."""

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
        """ns per step."""
        return (self.after or 0.0) - (self.before or 0.0)


@dataclass(frozen=True, slots=True)
class OneSidedFinding:
    """A finding that one side has and the other has not."""

    code: str
    name: str
    fate: Fate
    summary: str


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One of the things compared. label: short and unique among them. against_first: of its step, None for the first.
    samples_per_s: in a steady step, None where the size of a batch is not known. caveat: why its times cannot be
    trusted, "" where they can. categories: (name, ns per step)."""

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
    against_first: Difference | None = None
    caveat: str = ""


@dataclass(frozen=True, slots=True)
class LikelyCause:
    """The likely cause of the step's change. account: the one that moved most with it; share: of the step's change,
    may be above one. setting: the name of the setting that explains it, piece: of the piece; "" for none."""

    sentence: str
    category: str = ""
    share: float | None = None
    setting: str = ""
    piece: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """A run from which on the step has another level than before. run: its number, from 0. before, after: ns, medians
    of the runs of each level. confirmed: the runs after it agree; False for a last one that stands alone."""

    run: int
    before: float
    after: float
    confirmed: bool


@dataclass(frozen=True, slots=True)
class Trend:
    """Trend of three runs or more, in the order given. slope: of the step's time, per run, relative to the first run
    (unit "1"); None for fewer than four. levels: where its level changed."""

    slope: Estimate | None
    levels: tuple[Level, ...]
    sentence: str


@dataclass(frozen=True, slots=True)
class Noise:
    """Difference between two runs of one job though nothing changed. noise_floor: of the step. measured: from repeated
    runs, not assumed. sentence: what that means, for a reader."""

    noise_floor: float
    measured: bool
    sentence: str


class Ruling(Enum):
    """Ruling of a gate on a bound."""

    PASSED = "passed"
    BREACHED = "breached"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Check:
    """One bound of a gate. bound: as it was given. change: of the quantity in the bound's unit ("1" for percent), None
    where it was not measured."""

    bound: str
    ruling: Ruling
    sentence: str
    change: Estimate | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The last of the runs against the first, and all of them next to each other. by: "categories", or "phases" where
    only those are known of both. sentence: the whole in one sentence. pieces: the largest change first. caveats: what
    limits the comparison. next_command: ready to paste."""

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
    """True if a file starts as the JSON of a comparison does. False where it cannot be read."""
    if path.is_fifo():
        return False
    try:
        with path.open("rb") as file:
            return _START.match(file.read(256)) is not None
    except OSError:
        return False


def read_file(path: Path, name: str) -> Comparison:
    """The comparison that was written as JSON, in a file that the user calls `name`. Raises RecordingError."""
    try:
        return msgspec.json.decode(content(path, name), type=Comparison)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError("report-unreadable", f"{name} is no comparison of this steptime: {error}.") from error
