"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from steptime.cli.size import size

Function = TypeVar("Function", bound=Callable[..., object])

STANDARD_OUTPUT = "-"


def output_options(function: Function) -> Function:
    """-o, --json, --no-source and --force."""
    function = no_source_option(function)
    function = click.option("--force", is_flag=True, help="Overwrite what exists.")(function)
    function = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON on standard output.")(
        function
    )
    return click.option(
        "-o",
        "--output",
        "outputs",
        multiple=True,
        metavar="FILE",
        help="Write the report to FILE, in the format of its extension (.txt, .md, .json, .html, .svg, .png); - is "
        "standard output. Can be given several times.",
    )(function)


def no_source_option(function: Function) -> Function:
    """--no-source: no_source."""
    return click.option("--no-source", is_flag=True, help="Leave source lines and paths out of the report.")(function)


def trace_options(function: Function) -> Function:
    """--max-size and --no-cache: max_size and cache."""
    function = click.option(
        "--no-cache",
        "cache",
        is_flag=True,
        default=True,
        flag_value=False,
        help="Read traces anew, and remember nothing of them.",
    )(function)
    return click.option(
        "--max-size",
        callback=size,
        metavar="SIZE",
        default="8GB",
        show_default=True,
        help="JSON that is read of one rank's traces at most, after decompression: 500MB, 20GB, 4GiB.",
    )(function)


def check_outputs(outputs: Sequence[str], *, force: bool) -> None:
    """Refuses before the work what could not be written after it. Raises OutputError."""
    from steptime.report.output import check

    for output in outputs:
        check(output, force=force)
