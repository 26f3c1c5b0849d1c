"""What a model of an operator is: a function from its arguments to its work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from steptime.work.arguments import Call


@dataclass(frozen=True, slots=True)
class Work:
    """flops, bytes: of one call; flops is None for code whose arithmetic nobody can see (a Triton template).

    number_format: as in `Machine.matrix_rate`, of the matrix product. dimensions: of a matrix product, by name ("m",
    "n", "k"; of a convolution "channels in" and "channels out", of one group).
    """

    flops: float | None
    bytes: float
    number_format: str = "float32"
    dimensions: tuple[tuple[str, int], ...] = ()


Model = Callable[[Call], Work]


def named(model: Model, names: str) -> dict[str, Model]:
    """One model for several operators, written as one text."""
    return dict.fromkeys(names.split(), model)
