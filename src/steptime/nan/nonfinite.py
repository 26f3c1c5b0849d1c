"""Non-finite values of a job: what each process recorded (`ProcessNumerics`), and the conclusions (`NonFinite`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from steptime.quantities import SourceLine
from steptime.recording.documents import LARGEST_DOCUMENT, read_bytes

MOST_LISTED = 6


def plain_number(value: float) -> str:
    """Number with three significant digits: "0", "1.5", "6.55e+04"."""
    return f"{value:.3g}"


def listed(values: Sequence[object], what: str = "") -> str:
    """Text of the first few values: "3, 5, 9 and 4 more"; with `what`, a noun, "rows 3, 5" or "row 3"."""
    displayed = ", ".join(map(str, values[:MOST_LISTED]))
    left = len(values) - MOST_LISTED
    head = f"{what}{'s' * (len(values) > 1)} " if what else ""
    return f"{head}{displayed} and {left} more" if left > 0 else f"{head}{displayed}"


Number = float | str | None
"""A number in JSON, which has no infinities: "inf", "-inf" and "nan" represent them."""
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Statistics of a tensor. low, high: bounds of its finite elements, None without any; nan, infinite,
    negative_infinite, zeros: number of such elements."""

    name: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    elements: int = 0
    nan: int = 0
    infinite: int = 0
    negative_infinite: int = 0
    low: float | None = None
    high: float | None = None
    zeros: int = 0

    @property
    def magnitude(self) -> float:
        """Largest absolute value of the finite elements."""
        return max(abs(self.low or 0.0), abs(self.high or 0.0))


@dataclass(frozen=True, slots=True)
class Where:
    """Place where an operator was called. phase: "forward", "backward", "optimizer" or "input". site: innermost line
    outside of torch and Python; caller: the user's line, if that differs. In backward, `module` is where the forward
    ran, node is autograd's name, and forward_* are the forward's operator and lines."""

    operator: str = ""
    phase: str = ""
    site: SourceLine | None = None
    caller: SourceLine | None = None
    module: str = ""
    node: str = ""
    forward_operator: str = ""
    forward_site: SourceLine | None = None
    forward_caller: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class NonFiniteOrigin(Where):
    """Origin of a non-finite value. kind: "operator" (made of finite inputs, or of infinities that the user wrote),
    "constant" (written by the user), "batch", "parameter" (not finite before the first checked step), "collective"
    (received from another rank), "outside" (made by no visible operator). rows: positions along the first dimension of
    its output; samples: the sampler's indices of these, if the rows are the batch's. became_nan: operator that turned
    its infinity into NaN. sources: infinities that it was made of."""

    kind: str = "operator"
    step: int = 0
    name: str = ""
    inputs: tuple[ValueRange, ...] = ()
    outputs: tuple[ValueRange, ...] = ()
    scalars: dict[str, Any] | None = None
    rows: tuple[int, ...] = ()
    samples: tuple[int | str, ...] = ()
    became_nan: Where | None = None
    sources: tuple[NonFiniteOrigin, ...] = ()


@dataclass(frozen=True, slots=True)
class Trigger:
    """First sign of a non-finite value. kind: "loss", "gradient", "skipped" (a scaler skips every step) or "read" (the
    job read a non-finite value and stopped). steps_before: steps before it in which the value may have appeared.
    first_module: first checked module with a non-finite output."""

    kind: str
    step: int
    value: Number = None
    name: str = ""
    first_module: str = ""
    modules_looked_at: int = 0
    steps_before: int = 1


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """Batch of the step with the first sign. indices: sample indices from the sampler. *_not_finite: rows and samples
    with a non-finite value; *_outlying: those a thousand times as large as the median."""

    size: int = 0
    indices: tuple[int | str | None, ...] = ()
    rows_not_finite: tuple[int, ...] = ()
    samples_not_finite: tuple[int | str, ...] = ()
    rows_outlying: tuple[int, ...] = ()
    samples_outlying: tuple[int | str, ...] = ()
    tensors: tuple[ValueRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessNumerics:
    """Content of numerics.json of one process in one run. mode: "watch" or "instrument". history: (step, loss, gradient
    norm) of the last steps before the trigger; spread: the same for some steps of the whole run. updates: (step,
    weight, size of its update relative to the weight), the largest of some weights; sizes: (module, root mean square of
    its output) in the first step."""

    mode: str
    steps: int = 0
    notes: tuple[str, ...] = ()
    pid: int = 0
    rank: int | None = None
    trigger: Trigger | None = None
    history: tuple[tuple[int, Number, Number], ...] = ()
    skipped_steps: int = 0
    origin: NonFiniteOrigin | None = None
    batch: BatchFacts | None = None
    bad_gradients: tuple[str, ...] = ()
    spread: tuple[tuple[int, Number, Number], ...] = ()
    updates: tuple[tuple[int, str, Number], ...] = ()
    sizes: tuple[tuple[str, Number], ...] = ()


@dataclass(frozen=True, slots=True)
class Cause:
    """Likely cause of a non-finite value. name: as in docs/nan.md. sentence: with numbers. advice: how to fix it."""

    name: str
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Non-finite values of one job. directory: folder in which it ran. trigger: None if all stayed finite. reproduced:
    True if the instrumented run found the value; otherwise origin and cause are None. growth: (step, gradient norm) of
    the last steps, or of the whole run if all stayed finite; diverging: growth over the run, 1 unless it is great.
    ranks: number of processes that trained. rank: rank of the origin, None if several saw it at once."""

    command: tuple[str, ...]
    steps: int
    trigger: Trigger | None
    skipped_steps: int = 0
    reproduced: bool = False
    rank: int | None = None
    ranks: int = 1
    origin: NonFiniteOrigin | None = None
    cause: Cause | None = None
    growth: tuple[tuple[int, Number], ...] = ()
    diverging: float = 1.0
    batch: BatchFacts | None = None
    bad_gradients: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    directory: str = ""
    format_version: int = FORMAT_VERSION


def value_of(number: Number) -> float:
    """Float of a number from JSON; nan for None."""
    return float("nan") if number is None else float(number)


NAME = "numerics.json"


def read_numerics(recording: Path, moved: tuple[Path, Path] | None = None) -> tuple[ProcessNumerics, ...]:
    """Results of the processes that trained, by rank; unreadable ones are skipped. moved: (folder that the job ran in,
    folder that it represents), whose paths are shown. Raises RecordingError if reading is forbidden."""
    found = []
    for path in sorted(recording.glob(f"process-*/{NAME}")):
        data = read_bytes(path, LARGEST_DOCUMENT, [])
        if moved is not None:
            copy, original = (json.dumps(str(folder))[1:-1].encode() for folder in moved)
            data = data.replace(copy, original)
        try:
            found.append(msgspec.json.decode(data, type=ProcessNumerics))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            continue  # of a process that was killed while it wrote its first
    return tuple(sorted(found, key=lambda process: (process.rank or 0, process.pid)))
