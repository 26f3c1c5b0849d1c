"""Where a report goes: screen, standard output, files. Not imported before the job of `run` has begun: it is heavy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from steptime.cli.exit_codes import say, tell
from steptime.cli.options import STANDARD_OUTPUT
from steptime.cli.screen import columns, screen, show
from steptime.report import json, text
from steptime.report.json import without_sources
from steptime.report.output import Renderer, renderers_of, write_as
from steptime.report.report import Report

Told = TypeVar("Told")


def deliver(
    report: Report,
    outputs: Sequence[str],
    *,
    as_json: bool,
    force: bool,
    text_to_stderr: bool | None,
    no_source: bool = False,
    full: bool = False,
) -> None:
    """Writes the report wherever it was asked for, and says so. The text goes to standard error, standard output
    (False) or nowhere (None); not at all where standard output gets the report in another way."""
    if no_source:
        report = without_sources(report)
    if as_json:
        from steptime.report import compact

        tell(json.render(report) if full else compact.render(report))
    elif STANDARD_OUTPUT in outputs or text_to_stderr is not None:
        error = bool(text_to_stderr) and STANDARD_OUTPUT not in outputs
        show(text.render(report, columns(error=error), screen(error=error)), error=error)
    write_all(renderers_of(full=full), report, outputs, force=force)


def write_all(renderers: Sequence[Renderer[Told]], told: Told, outputs: Sequence[str], *, force: bool) -> None:
    """Writes the files that were asked for, and says so. Raises OutputError."""
    for output in outputs:
        if output != STANDARD_OUTPUT:
            write_as(renderers, told, output, force=force)
            say(f"Wrote {output}")
