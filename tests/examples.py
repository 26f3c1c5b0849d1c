"""How many examples a property test looks at: a quarter of them, or all in the profile `nightly` (conftest.py)."""

from __future__ import annotations

from hypothesis import settings

ALL = 100
"""Examples of a test that names no number, in the profile `nightly`."""


def examples(most: int) -> int:
    """The test's share of `most`, which `nightly` looks at."""
    return max(1, most * settings().max_examples // ALL)
