"""All built-in fixes, by family, in the order of their codes."""

from __future__ import annotations

from steptime.advice.fix import Fix
from steptime.advice.fixes import caching, compiling, input, machine, optimizer, precision, ranks, switches

_FAMILIES = (caching, compiling, input, machine, optimizer, precision, ranks, switches)
_MADE = {made for family in _FAMILIES for made in vars(family).values() if isinstance(made, Fix)}
CATALOGUE: tuple[Fix, ...] = tuple(sorted(_MADE, key=lambda made: made.code))
