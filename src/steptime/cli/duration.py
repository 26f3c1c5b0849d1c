"""Times on the command line: 90s, 10m, 1.5h, 30d, 2w, or seconds."""

from __future__ import annotations

import re

import click

DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)?\s*", re.IGNORECASE)
LONGEST = 100 * 365.0 * 86400.0
"""Seconds of a hundred years."""
UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(context: click.Context, option: click.Parameter, value: str) -> float:
    """An option's callback: seconds, from a number with a unit or without any. Raises click.BadParameter."""
    found = DURATION.fullmatch(value)
    length = float(found[1]) * UNITS[(found[2] or "").lower()] if found is not None else 0.0
    if not 0 < length <= LONGEST:
        raise click.BadParameter(
            f"{value[:40]} is no time. Expected a number with a unit, such as 90s, 10m, 2h or 30d."
        )
    return length
