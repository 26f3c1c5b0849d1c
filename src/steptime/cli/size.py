"""Sizes on the command line: 8GB, 500 MB, 2GiB, or bytes."""

from __future__ import annotations

import re

import click

LARGEST = 2.0**62
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def size(context: click.Context, option: click.Parameter, value: str) -> int:
    """An option's callback: bytes, from a number with a unit of powers of 1000 (GB) or 1024 (GiB), or without any.

    Raises click.BadParameter.
    """
    found = SIZE.fullmatch(value)
    if found is None or (found[3] and not found[2]):
        raise click.BadParameter(f"{value} is no size. Expected bytes with a unit, such as 8GB, 500MB or 2GiB.")
    scale = (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ")
    amount = float(found[1]) * scale
    if not 1 <= amount < LARGEST:
        raise click.BadParameter(f"{value[:40]} is no size of a file or of memory.")
    return int(amount)
