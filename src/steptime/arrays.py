"""Types of numpy arrays, by what their elements are. Times are Int64, in nanoseconds."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]

Scalar = TypeVar("Scalar", bound=np.generic)


def unique(values: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """The values, each once, in order; numpy's own hashes them first, and imports masked arrays to ask for them."""
    ordered = np.sort(values, axis=None)
    first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]
