"""Values that are not finite, where they came from, and what is likely to blame: what a process wrote
(`ProcessNumerics`), and what is concluded from it (`NonFinite`)."""

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
    """Three significant digits: "0", "1.5", "6.55e+04"."""
    return f"{value:.3g}"


def listed(values: Sequence[object], what: str = "") -> str:
    """The first few: "3, 5, 9 and 4 more"; with what: "rows 3, 5", "row 3"."""
    displayed = ", ".join(map(str, values[:MOST_LISTED]))
    left = len(values) - MOST_LISTED
    head = f"{what}{'s' * (len(values) > 1)} " if what else ""
    return f"{head}{displayed} and {left} more" if left > 0 else f"{head}{displayed}"


Number = float | str | None
"""JSON has no infinities: "inf", "-inf" and "nan" stand for them."""
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class ValueRange:
    """Statistics of a tensor. low, high: of finite elements, None without; nan, infinite, negative_infinite, zeros:
    counts."""

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
        """The largest of its finite elements, without sign."""
        return max(abs(self.low or 0.0), abs(self.high or 0.0))


@dataclass(frozen=True, slots=True)
class Where:
    """Place where an operator was called. phase: "forward", "backward", "optimizer" or "input". site: the innermost
    line that is neither torch's nor the language's; caller: the user's own, where that is another. For one of the
    backward `module` is where its forward ran, node autograd's name of it, and the forward_* its operator and lines."""

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
    """How something that is not finite came to be. kind: "operator" (made of finite inputs, or of infinities that the
    user wrote), "constant" (written by the user), "batch", "parameter" (not finite before the first step that was
    looked at), "collective" (received from another rank), "outside" (made where no operator is seen).

    rows: positions along the first dimension of its output; samples: the sampler's indices of these, where the rows are
    the batch's. became_nan: the operator that made NaN of its infinity. sources: the infinities it was made of."""

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
    """The first sign. kind: "loss", "gradient", "skipped" (a scaler skips every step) or "read" (the job has read a
    value that is not finite, and left). steps_before: so many steps before it may be the first. first_module: the first
    module, of those that were looked at, with an output that is not finite."""

    kind: str
    step: int
    value: Number = None
    name: str = ""
    first_module: str = ""
    modules_looked_at: int = 0
    steps_before: int = 1


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """The batch of the step. indices: the sampler's. *_outlying: samples a thousand times as large as the median."""

    size: int = 0
    indices: tuple[int | str | None, ...] = ()
    rows_not_finite: tuple[int, ...] = ()
    samples_not_finite: tuple[int | str, ...] = ()
    rows_outlying: tuple[int, ...] = ()
    samples_outlying: tuple[int | str, ...] = ()
    tensors: tuple[ValueRange, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessNumerics:
    """numerics.json of one process of one run. mode: "watch" or "instrument". history: (step, loss, gradient norm) of
    the last steps before the trigger; spread: of some steps of the whole run."""

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


@dataclass(frozen=True, slots=True)
class Cause:
    """Likely cause. name: of docs/nan.md. sentence: with its numbers. advice: what helps."""

    name: str
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Non-finite values of one job. directory: that it ran in. trigger: None where all stayed finite. reproduced:
    whether the instrumented run came to it; origin and cause are None where not. growth: (step, gradient norm) of the
    last steps, where all stayed finite of the whole run; diverging: how many times it has grown over that, 1 where not
    greatly. ranks: processes that trained. rank: the one that it was born on, None where several have seen it at
    once."""

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
    """The number; nan for None."""
    return float("nan") if number is None else float(number)


NAME = "numerics.json"


def read_numerics(recording: Path, moved: tuple[Path, Path] | None = None) -> tuple[ProcessNumerics, ...]:
    """The processes that trained, in the order of their ranks; what cannot be read is left out. moved: a folder that
    the job ran in, and the one that it stood for, whose paths are shown.

    Raises RecordingError where reading is forbidden."""
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
