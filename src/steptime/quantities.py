"""Numbers with their units and their uncertainty.

One law: time is integer nanoseconds; what was estimated carries its interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NewType

Nanoseconds = NewType("Nanoseconds", int)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with a 95 % interval, both in `unit` ("ns", "bytes", "1"). `samples` says from how many observations.

    Raises ValueError when low <= value <= high does not hold.
    """

    value: float
    low: float
    high: float
    samples: int
    unit: str = "ns"

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"an estimate must lie in its interval: {self.low} <= {self.value} <= {self.high}")


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of source as the job ran it. `text` is the stripped line, "" when it could not be read."""

    file: str
    line: int
    function: str = ""
    text: str = ""


def format_duration(nanoseconds: float) -> str:
    """A duration for a sentence, with three significant digits: "850 ns", "12.3 µs", "1.23 s", "2 min 05 s"."""
    if nanoseconds < 0:
        return f"-{format_duration(-nanoseconds)}"
    for size, unit in ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")):
        if float(f"{nanoseconds / size:.3g}") < (60 if unit == "s" else 1000):
            return f"{_three_digits(nanoseconds / size)} {unit}"
    minutes, seconds = divmod(round(nanoseconds / 1e9), 60)
    return f"{minutes} min {seconds:02d} s"


def format_share(fraction: float) -> str:
    """A fraction as percent for a sentence: "45 %", "4.5 %" below ten, "< 0.1 %" for what is too small to print."""
    percent = 100 * fraction
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f} %" if 0 < abs(percent) < 9.95 else f"{percent:.0f} %"


def format_bytes(count: float) -> str:
    """A number of bytes for a sentence, in binary units: "512 B", "1.50 KiB", "23.4 GiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 999.5:
            return f"{_three_digits(count)} {unit}"
        count /= 1024
    return f"{_three_digits(count)} TiB"


def format_source(source: SourceLine) -> str:
    """Where a line is, short: "train.py:12"; the file alone where the line is not known (0)."""
    file = source.file.replace(chr(92), "/").rsplit("/", 1)[-1]
    return f"{file}:{source.line}" if source.line else file


def _three_digits(value: float) -> str:
    """Three significant digits without an exponent; whole numbers below 100 stay whole."""
    if abs(value) < 99.95 and value == round(value):
        return f"{value:.0f}"
    decimals = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{decimals}f}"
