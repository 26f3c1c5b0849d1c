"""How far each kind of prediction was off, where the change was really made: the error that is printed beside it.

Measured by `python -m benchmarks.memory_predictions`, whose results are in benchmarks/results/memory-predictions.md:
pairs of runs of the same job on the CPU's allocator, and public pairs of snapshots of CUDA's.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import format_share

LEAST = 0.001
"""Of a peak: no error is told as none."""


@dataclass(frozen=True, slots=True)
class Checked:
    """worst: the largest error of any pair, as a share of the peak that was measured with the change."""

    worst: float
    pairs: int

    def __str__(self) -> str:
        return f"±{format_share(max(LEAST, self.worst))}, {self.pairs} pairs" if self.pairs else "unchecked"


UNCHECKED = Checked(0.0, 0)
CHECKED = {
    "autocast": Checked(0.23, 13),
    "checkpointing": Checked(0.281, 8),
    "batch": Checked(0.0, 16),
    "8-bit": Checked(0.12, 8),
    "in-place": Checked(0.0, 8),
    "gradients": Checked(0.006, 8),
    "steady": Checked(0.15, 16),
}
"""Of pairs on the CPU's allocator; of autocast five are public pairs of CUDA's, with 6.3 % at most."""


def checked(kind: str) -> Checked:
    """Of a kind of prediction; UNCHECKED where no pair was run."""
    return CHECKED.get(kind, UNCHECKED)
