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
"""Names of the categories in records. A closed set of words is a `Literal`: mypy refuses another one, where it is made,
compared and looked for (tests/test_words.py), and so does reading a document."""


class Category(IntEnum):
    """The categories, in the order in which they claim an instant (docs/how-it-works.md, "The breakdown")."""

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
        """Its name in records."""
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
    Category.SYNC: ("", "the device ran dry because the host had waited for it: item(), cpu(), synchronize()"),
    Category.COMPILE: ("torch.compile traces and compiles", "the device idles while torch.compile traces and compiles"),
    Category.OVERHEAD: (
        "PyTorch dispatches operators and keeps autograd's books",
        "the device idles because the host launches kernels more slowly than they run",
    ),
    Category.PYTHON: (
        "your own code outside torch runs (or sleeps)",
        "the device idles while your own code outside torch runs (or sleeps)",
    ),
    Category.UNEXPLAINED: ("nothing that was recorded is at work", "the device idles, and nothing recorded says why"),
}
"""When an instant of a step belongs to a category: on a CPU ("" where it has none such), and on an accelerator. The
first category in their order that can claim an instant has it."""


def definition(name: str, device: str) -> str:
    """The category of a name on a device ("cpu" or an accelerator's name); "" for a name that is none."""
    found = DEFINITIONS.get(Category[name.upper()]) if name.upper() in Category.__members__ else None
    return "" if found is None else found[device != "cpu"]


Claims: TypeAlias = tuple[tuple[Category, Intervals], ...]
"""The instants that categories claim, which may overlap: the first one has them."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """entries: (n steps, len(Category)) int64 ns; wall: (n,) int64 ns.

    device: "cpu" or an accelerator's name: which of the two definitions was used.
    Raises ImbalanceError unless every row of entries is non-negative and sums to its wall, to the nanosecond.
    """

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
        """Breakdown of some of the steps."""
        return Breakdown(self.device, self.wall[rows], self.entries[rows])
