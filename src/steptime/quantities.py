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
