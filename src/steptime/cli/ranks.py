"""A list of ranks on the command line: "0,7,auto"."""

from __future__ import annotations

import click

WORDS = ("auto", "all")


def ranks(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """The callback of an option. Raises click.BadParameter for what is neither a number nor a word that is known."""
    given = tuple(word.strip() for word in value.split(",") if word.strip())
    wrong = next((word for word in given if word not in WORDS and not word.isdigit()), None)
    if wrong is not None or not given:
        shown = wrong if wrong is not None else value
        raise click.BadParameter(f"{shown!r} is no rank: give numbers and commas, all, or auto, as in 0,7,auto.")
    return tuple(str(int(word)) if word.isdigit() else word for word in given)
