"""Results of a trial on disk: one JSON document per line, appended after every run and never rewritten.

Lines: one "plan", then "run" lines in the order of their ends, "judgement" lines of each stage, and at most one
"patch". A crash can truncate only the last line, which is then skipped."""

from __future__ import annotations

import errno
import os
import re
import shlex
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from steptime.advice.fix import Goal
from steptime.advice.whole_run import NO_OTHER_WORK, OtherWork
from steptime.errors import RecordingError, UsageError, no_such_file
from steptime.trials.trial import AS_IT_IS, Judgement, Run, Variant
from steptime.trials.until_loss import LossTarget
from steptime.written import is_ours, remember

LAST_BYTES = 4 << 20
"""Last bytes of an output that are searched: the last match counts."""


def end_of(path: Path, most: int) -> str:
    """Text of the last `most` bytes of a file. Raises OSError."""
    with path.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - most))
        return file.read().decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Metric:
    """Number that the job prints. pattern: regular expression whose first group is the number. The last match
    counts."""

    pattern: str
    lower_is_better: bool = False

    def read(self, output: Path) -> tuple[float | None, str]:
        """(number in a file, ""), or (None, reason why there is none)."""
        try:
            text = end_of(output, LAST_BYTES)
        except OSError as error:
            return None, f"Its output cannot be read: {error}"
        found = [each[1] for each in re.finditer(self.pattern, text, re.MULTILINE) if each[1]]
        if not found:
            return None, f"--metric {self.pattern!r} matches nothing in its standard output"
        try:
            value = float(found[-1])
        except ValueError:
            return None, f"--metric {self.pattern!r} matches no number in its output: {found[-1]!r}"
        if not isfinite(value) or value <= 0:
            return None, f"It printed {found[-1].strip()}, and --metric compares only numbers above zero"
        return value, ""

    def cost(self, run: Run) -> tuple[float, ...]:
        """Cost of a run (smaller is better) as a tuple of one number; () if the metric is unknown."""
        if run.metric is None:
            return ()
        return (run.metric if self.lower_is_better else 1 / run.metric,)


NAME = "results.jsonl"
FORMAT = 1
WARM_UP = 5
"""Least number of untimed first steps of a process."""
NOT_A_NUMBER = float("nan")
SKETCHES = ("batches", "weights", "updates", "directions", "samples", "ways", "carried", "buffers")
"""Fields of `StepWork` that hold lists of numbers."""
MOST_FOLDERS = 2000
"""Most folders next to a recording that are searched: `runs` of a long project."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Plan of a trial: variants to try, and the goal. recording: path of the recording behind the proposals.
    step_seconds, start_seconds: step time of that recording, and time to the end of its first step, 0 if unknown.
    importing_seconds: part of start_seconds until torch is imported, 0 if unknown. warm_up: number of untimed first
    steps of each process. baseline: variant to compare with, if not the unchanged job. metric: number that is compared
    in place of step times; recording is "" then. until_loss: the loss to reach, whose time is compared. least_step_ns:
    time of a step's matmuls at the machine's largest rate, 0 if unknown. measured_on: machine, versions and commit, a
    line each. other: work between the steps."""

    command: tuple[str, ...]
    directory: str
    recording: str
    variants: tuple[Variant, ...]
    min_gain: float
    format: int = FORMAT
    step_seconds: float = 0.0
    start_seconds: float = 0.0
    importing_seconds: float = 0.0
    goal: Goal = Goal.SPEED
    warm_up: int = WARM_UP
    baseline: Variant = AS_IT_IS
    metric: Metric | None = None
    until_loss: LossTarget | None = None
    least_step_ns: float = 0.0
    measured_on: tuple[str, ...] = ()
    other: OtherWork = NO_OTHER_WORK

    @property
    def compared(self) -> Metric | LossTarget | None:
        """Quantity that is compared instead of step times."""
        return self.until_loss or self.metric


@dataclass(frozen=True, slots=True)
class PatchResult:
    """Patch with the result of running it. diff: unified diff. environment: variables to set with it. snippets,
    replaced: as in `patch.Patch`. apply: the command that applies the diff from any folder."""

    diff: str
    environment: tuple[tuple[str, str], ...]
    snippets: tuple[str, ...]
    judgement: Judgement | None
    replaced: tuple[str, ...] = ()
    apply: str = ""

    def __post_init__(self) -> None:
        words = shlex.split(self.apply)
        if words and (len(words) != 5 or (words[:2], words[3]) != (["git", "-C"], "apply")):
            raise ValueError(f"{self.apply[:60]!r} is not a command that applies a patch")  # somebody may run it


@dataclass(frozen=True, slots=True)
class Results:
    """Content of a results file. judgements: (stage, judgement), the newest of each variant and stage."""

    plan: Plan
    runs: tuple[Run, ...]
    judgements: tuple[tuple[int, Judgement], ...]
    patch: PatchResult | None


def append_result(folder: Path, **line: Plan | Run | Judgement | PatchResult | int) -> None:
    """Appends a line to the results in a trial's folder: the plan first, then each run, each judgement with its stage,
    and the patch. Raises OSError for a full disk, and UsageError for names that are not UTF-8."""
    try:
        encoded = msgspec.json.encode(line) + b"\n"
    except UnicodeEncodeError:
        raise UsageError(
            "not-unicode",
            "The name of the job's command or folder is not valid UTF-8, so results cannot store it. Rename "
            "it, or run the job from another folder.",
        ) from None
    folder.mkdir(parents=True, exist_ok=True)
    if "plan" in line:
        remember(encoded)
    file = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    end = os.fstat(file).st_size
    try:
        if end and os.pread(file, 1, end - 1) != b"\n":  # we were killed in the middle of a line
            encoded = b"\n" + encoded
        if os.write(file, encoded) < len(encoded):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder / NAME))
        os.fsync(file)
    except OSError:
        os.ftruncate(file, end)  # a line whole or not at all: the next one follows when there is room again
        raise
    finally:
        os.close(file)


def read_results(folder: Path) -> Results:
    """Results in a trial's folder. Raises RecordingError if there are none, or they cannot be read."""
    path = folder / NAME
    if not folder.exists():
        raise no_such_file(folder, "a folder written by steptime try")
    try:
        own = path.is_file() and not path.is_symlink()  # a pipe would hold us for ever
        lines = path.read_bytes().split(b"\n") if own else []
    except OSError:
        lines = []
    if not lines:
        raise RecordingError(
            "no-results", f"{folder} contains no trial results. Expected a folder written by steptime try."
        )
    found = [_decode(line) for line in lines]
    plans = [each["plan"] for each in found if "plan" in each]
    if not plans:
        raise RecordingError("no-results", f"{path} contains no trial plan. Start the trial again.")
    try:
        judged = [
            (msgspec.convert(each.get("stage"), int), msgspec.convert(each["judgement"], Judgement))
            for each in found
            if "judgement" in each
        ]
        patches = [each["patch"] for each in found if "patch" in each]
        return Results(
            plan=msgspec.convert(plans[0], Plan),
            runs=tuple(msgspec.convert(_with_nan(each["run"]), Run) for each in found if "run" in each),
            judgements=tuple({(stage, each.variant.name): (stage, each) for stage, each in judged}.values()),
            patch=msgspec.convert(patches[-1], PatchResult) if patches else None,
        )
    except msgspec.ValidationError as error:
        raise RecordingError(
            "results-damaged",
            f"{path} is damaged, or from another version of steptime ({error}). Start the trial again.",
        ) from None


def is_our_trial(folder: Path) -> bool:
    """True if this account planned the trial in a folder. Commands of anybody else's trial are not run."""
    try:
        with (folder / NAME).open("rb") as file:
            return is_ours(file.readline())
    except OSError:
        return False


def _with_nan(run: object) -> object:
    """Decoded run with NaN restored in its sketches, because JSON has null for a non-finite number."""
    work = run.get("work") if isinstance(run, dict) else None
    for step in work if isinstance(work, list) else ():
        if isinstance(step, dict):
            step.update({name: _numbers(step[name]) for name in SKETCHES if name in step})
    return run


def _numbers(value: object) -> object:
    """Nested lists with NaN for each null."""
    if isinstance(value, list):
        return [_numbers(each) for each in value]
    return NOT_A_NUMBER if value is None else value


def _decode(line: bytes) -> dict[str, Any]:
    """Parsed line; {} for one that was cut short."""
    try:
        document = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def is_trial(folder: Path) -> bool:
    """True if a folder holds the results of a trial."""
    return (folder / NAME).is_file()


def newest_trial(recording: Path) -> Path | None:
    """Folder of the newest trial of a recording that tried fixes, else of its newest lab; None if there is none. Trials
    without timed steps do not count, because they say nothing about the job."""
    place = recording.resolve()
    try:
        companions = sorted(each for each in place.parent.iterdir() if is_trial(each))[-MOST_FOLDERS:]
    except OSError:
        return None
    found = [(plan, folder / NAME) for folder in companions if (plan := _plan(folder)) is not None]
    own = [(plan, file) for plan, file in found if Path(plan.recording).resolve() == place and plan.until_loss is None]
    ranked = sorted(
        own, key=lambda each: (any(variant.proposal for variant in each[0].variants), each[1].stat().st_mtime_ns)
    )
    return next((file.parent for _, file in reversed(ranked) if _has_timed(file.parent)), None)


def _has_timed(folder: Path) -> bool:
    try:
        return any(run.step_ns and not run.rehearsal for run in read_results(folder).runs)
    except RecordingError:
        return False


def _plan(folder: Path) -> Plan | None:
    """Plan on the first line of the results; None if it cannot be read."""
    try:
        with (folder / NAME).open("rb") as file:
            return msgspec.convert(_decode(file.readline()).get("plan"), Plan)
    except (OSError, msgspec.ValidationError):
        return None
