"""A breakdown: every nanosecond of the steps in exactly one category. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias, get_args

import numpy as np

from steptime.arrays import Int64
from steptime.errors import ImbalanceError
from steptime.intervals import Intervals

CategoryName: TypeAlias = Literal[
    "compute", "communication", "copy", "unrecorded", "input", "sync", "compile", "overhead", "python", "unexplained"
]  # fmt: skip
"""Names of the categories in records. A `Literal` lets mypy and the reader of documents reject any other name
(tests/test_words.py checks the rest)."""


class Category(IntEnum):
    """Categories of a step's time, in the order in which they claim an instant (docs/how-it-works.md)."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2
    UNRECORDED = 3
    INPUT = 4
    SYNC = 5
    COMPILE = 6
    OVERHEAD = 7
    PYTHON = 8
    UNEXPLAINED = 9

    @property
    def title(self) -> CategoryName:
        """Name of the category in records and documents."""
        return _CATEGORY_NAMES[self]


_CATEGORY_NAMES: tuple[CategoryName, ...] = get_args(CategoryName)


DEFINITIONS = {
    Category.COMPUTE: ("an operator works", "a compute kernel runs"),
    Category.COMMUNICATION: ("a collective blocks the training thread", "only communication kernels run"),
    Category.COPY: ("the batch is moved to the device", "only copies between memories run"),
    Category.UNRECORDED: (
        "",
        "the device was given its next kernel long ago: it works at what the trace does not hold",
    ),
    Category.INPUT: (
        "the training thread is in the loader's next(), or prepares the batch before the first forward",
        "the device idles because the training thread is in the loader's next(), or prepares the batch",
    ),
    Category.SYNC: ("", "the device ran dry because the CPU had waited for it: item(), cpu(), synchronize()"),
    Category.COMPILE: ("torch.compile traces and compiles", "the device idles while torch.compile traces and compiles"),
    Category.OVERHEAD: (
        "PyTorch dispatches operators and keeps autograd's books",
        "the device idles because the CPU launches kernels more slowly than they run",
    ),
    Category.PYTHON: (
        "your own code outside torch runs (or sleeps)",
        "the device idles while your own code outside torch runs (or sleeps)",
    ),
    Category.UNEXPLAINED: ("nothing that was recorded is at work", "the device idles, and nothing recorded says why"),
}
"""Condition under which an instant belongs to a category: (on a CPU, on an accelerator), "" where the category does not
exist. The first category in order that claims an instant gets it."""


def definition(name: str, device: str) -> str:
    """Definition of a category: which time belongs to it. device: "cpu" or an accelerator's name. "" if unknown."""
    found = DEFINITIONS.get(Category[name.upper()]) if name.upper() in Category.__members__ else None
    return "" if found is None else found[device != "cpu"]


Claims: TypeAlias = tuple[tuple[Category, Intervals], ...]
"""Instants that categories claim. They may overlap; the first category that holds an instant gets it."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Time of each step by category. entries: (n steps, len(Category)) int64, ns; wall: duration of each step, (n,)
    int64, ns.

    device: "cpu" or an accelerator's name, which selects one of the two definitions of the categories. Raises
    ImbalanceError unless every row of entries is non-negative and sums to its wall, to the nanosecond."""

    device: str
    wall: Int64
    entries: Int64

    def __post_init__(self) -> None:
        if self.entries.shape != (len(self.wall), len(Category)):
            sentence = f"A breakdown of {len(self.wall)} steps has entries of shape {self.entries.shape}."
            raise ImbalanceError("breakdown-imbalance", sentence)
        if np.any(self.entries < 0) or np.any(self.entries.sum(axis=1) != self.wall):
            worst = int(np.abs(self.entries.sum(axis=1) - self.wall).max(initial=0))
            raise ImbalanceError("breakdown-imbalance", f"A step's categories miss its wall clock by up to {worst} ns.")

    def only(self, rows: Int64) -> Breakdown:
        """The breakdown with only the steps at these rows."""
        return Breakdown(self.device, self.wall[rows], self.entries[rows])
