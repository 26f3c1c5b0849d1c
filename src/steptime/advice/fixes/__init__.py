"""All built-in fixes, by family, in the order of their codes."""

from __future__ import annotations

from steptime.advice.fix import Fix
from steptime.advice.fixes import (
    compiling,
    input,
    machine,
    optimizer,
    precision,
    ranks,
    switches,
)

_FAMILIES = (input, optimizer, precision, compiling, machine, switches, ranks)
CATALOGUE: tuple[Fix, ...] = tuple(
    sorted(
        {made for family in _FAMILIES for made in vars(family).values() if isinstance(made, Fix)},
        key=lambda made: made.code,
    )
)
