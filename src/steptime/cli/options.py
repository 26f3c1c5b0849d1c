"""Options that several verbs share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from steptime.cli.border import say, tell
from steptime.cli.size import size
from steptime.report.report import Report

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


def deliver(
    report: Report,
    outputs: Sequence[str],
    *,
    as_json: bool,
    force: bool,
    text_to_stderr: bool | None,
    no_source: bool = False,
) -> None:
    """Writes the report wherever it was asked for, and says so. The text goes to standard error, standard output
    (False) or nowhere (None); not at all where standard output gets the report in another way."""
    from steptime.report import json, text
    from steptime.report.output import write
    from steptime.report.redact import without_sources

    if no_source:
        report = without_sources(report)

    on_standard_output = as_json or STANDARD_OUTPUT in outputs
    if as_json:
        tell(json.render(report))
    elif STANDARD_OUTPUT in outputs:
        tell(text.render(report))
    if not on_standard_output and text_to_stderr is not None:
        tell(text.render(report), error=text_to_stderr)
    for output in outputs:
        if output != STANDARD_OUTPUT:
            write(report, output, force=force)
            say(f"Wrote {output}")
