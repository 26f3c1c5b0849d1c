"""All built-in rules, by family, in the order of their codes."""

from __future__ import annotations

from steptime.advice.rule import Rule
from steptime.advice.rules import (
    input,
    items,
    kernels,
    machine,
    memory,
    optimizer,
    overhead,
    precision,
    python,
    ranks,
    repeats,
    run,
    shaped,
    shapes,
    switches,
    ways,
)

_FAMILIES = (
    input, items, kernels, machine, memory, optimizer, overhead, precision, python, ranks, repeats, run, shaped,
    shapes, switches, ways,
)  # fmt: skip
_MADE = {made for family in _FAMILIES for made in vars(family).values() if isinstance(made, Rule)}
CATALOGUE: tuple[Rule, ...] = tuple(sorted(_MADE, key=lambda made: made.code))
