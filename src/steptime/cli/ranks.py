"""A list of ranks on the command line: "0,7,auto"."""

from __future__ import annotations

import re

import click

WORDS = ("auto", "all")
NUMBER = re.compile(r"[0-9]{1,9}")


def ranks(context: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    """The callback of an option. Raises click.BadParameter for what is neither a number nor a word that is known."""
    given = tuple(word.strip() for word in value.split(",") if word.strip())
    wrong = next((word for word in given if word not in WORDS and not NUMBER.fullmatch(word)), None)
    if wrong is not None or not given:
        shown = wrong if wrong is not None else value
        raise click.BadParameter(f"{shown[:40]!r} is no rank: give numbers and commas, all, or auto, as in 0,7,auto.")
    return tuple(word if word in WORDS else str(int(word)) for word in given)
