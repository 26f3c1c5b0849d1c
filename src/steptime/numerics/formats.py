"""Numbers and lists in the sentences of this room."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LISTED = 6


def plain_number(value: float) -> str:
    """Three significant digits: "0", "1.5", "6.55e+04"."""
    return f"{value:.3g}"


def count(number: int, what: str) -> str:
    """As in: 1 element, 3 elements."""
    return f"{number} {what}{'s' * (number != 1)}"


def listed(values: Sequence[object]) -> str:
    """The first few: "3, 5, 9 and 4 more"."""
    told = ", ".join(map(str, values[:MOST_LISTED]))
    left = len(values) - MOST_LISTED
    return f"{told} and {left} more" if left > 0 else told
