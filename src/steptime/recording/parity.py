"""parity.jsonl, which a variant of a trial writes: losses, gradient norms, peak memory. Untrusted, as all files are."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from steptime.recording import documents
from steptime.recording.documents import decode_lines, read_bytes
from steptime.recording.recording import Parity, StepWork

NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
"""JSON has no such numbers."""
LARGEST_STEP = 1 << 62
"""A larger step or size would not fit the columns."""


Numbers = tuple[float | Literal["nan"], ...]


class _ParityLine(msgspec.Struct):
    step: int
    loss: float | str | None = None
    backwards: int = 0
    gradient_norm: float | str | None = None
    peak_bytes: int = 0
    began_ns: int = 0
    end_ns: int = 0
    gradients: tuple[tuple[str, float | str | None], ...] = ()
    inputs: tuple[str, ...] = ()
    batches: tuple[tuple[Numbers, ...], ...] = ()
    evaluated: tuple[tuple[str, int], ...] = ()
    dropped: float = 0.0
    still: tuple[str, ...] = ()
    weights: tuple[tuple[str, int, Numbers], ...] = ()
    updates: tuple[tuple[str, Numbers], ...] = ()
    directions: tuple[tuple[str, Numbers], ...] = ()
    iterators: int = 0
    without: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(_ParityLine)


def read_parity(path: Path, problems: list[str]) -> Parity | None:
    """None where the process belongs to no trial, or took no step."""
    lines = decode_lines(path, read_bytes(path, documents.LARGEST_LINES, problems), _decode, problems)
    rows = sorted({line.step: line for line in lines}.values(), key=lambda line: line.step)
    if not rows:
        return None
    return Parity(
        step=_column([row.step for row in rows], np.int64),
        loss=_column([_number(row.loss) for row in rows], np.float64),
        norm=_column([_number(row.gradient_norm) for row in rows], np.float64),
        normed=_column([row.gradient_norm is not None for row in rows], np.bool_),
        backwards=_column([row.backwards for row in rows], np.int64),
        peak_bytes=_column([row.peak_bytes for row in rows], np.int64),
        end=_column([row.end_ns for row in rows], np.int64),
        began_ns=rows[0].began_ns,
        gradients=tuple(
            tuple((name, None if norm is None else _number(norm)) for name, norm in row.gradients)
            for row in rows
            if row.gradients
        ),
        work=tuple(_work(row) for row in rows),
    )


def _work(row: _ParityLine) -> StepWork:
    return StepWork(
        row.inputs,
        tuple(tuple(map(_numbers, batch)) for batch in row.batches),
        row.evaluated,
        row.dropped,
        row.still,
        tuple((name, count, _numbers(values)) for name, count, values in row.weights),
        _named(row.updates),
        _named(row.directions),
        row.iterators,
        row.without,
    )


def _named(written: tuple[tuple[str, Numbers], ...]) -> tuple[tuple[str, tuple[float, ...]], ...]:
    return tuple((name, _numbers(values)) for name, values in written)


def _numbers(written: Numbers) -> tuple[float, ...]:
    return tuple(map(_number, written))


def _decode(data: bytes) -> _ParityLine:
    """Raises ValueError."""
    try:
        line = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    texts = [line.loss, line.gradient_norm, *(norm for _, norm in line.gradients)]
    if any(isinstance(text, str) and text not in NOT_FINITE for text in texts):
        raise ValueError("a number is neither finite nor one of inf, -inf, nan")
    counts = (line.step, line.backwards, line.peak_bytes, line.began_ns, line.end_ns)
    if not all(0 <= number < LARGEST_STEP for number in counts):
        raise ValueError("a number is out of range")
    return line


def _number(written: float | str | None) -> float:
    return NOT_FINITE[written] if isinstance(written, str) else math.nan if written is None else written


def _column(values: list[Any], kind: type[Any]) -> Any:
    column = np.array(values, kind)
    column.flags.writeable = False
    return column
