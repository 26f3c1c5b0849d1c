"""Reports on the command line: remembered or made now, then on the screen, on standard output or in files.

Not imported before the job of `run` has begun: it is heavy. The analysis is imported only where it is needed, which
takes as long as all the rest of a second look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from steptime.cli.exit_codes import notify, say
from steptime.cli.options import STANDARD_OUTPUT, Delivery
from steptime.cli.screen import columns, screen, show
from steptime.report import json, text
from steptime.report.json import without_sources
from steptime.report.output import Renderer, check, renderers_of, write_as
from steptime.report.remembered import question_about, recall, remember
from steptime.report.report import Report

Reported = TypeVar("Reported")


def diagnosed(
    paths: tuple[str, ...],
    *,
    max_size: int,
    cache: bool,
    pictures: bool,
    compile_logs: Path | None,
    ncu: Path | None,
    engine: str | None = None,
    workers: int | None = None,
) -> Report:
    """As `diagnosis.diagnose_anywhere`, of one trace from the cache where it was asked the same before."""
    plain = cache and len(paths) == 1 and compile_logs is None and ncu is None and engine is None and workers is None
    question = question_about(paths[0], pictures=pictures, max_size=max_size) if plain else None
    if question is not None and (report := recall(question)) is not None:
        return report
    from steptime.diagnosis import CompanionFiles, diagnose_anywhere

    report = diagnose_anywhere(
        paths,
        max_size=max_size,
        cache=cache,
        engine=engine,
        workers=workers,
        pictures=pictures,
        companions=CompanionFiles(compile_logs, ncu),
    )
    if question is not None:
        remember(question, report)
    return report


def deliver(report: Report, delivery: Delivery, *, text_to_stderr: bool | None) -> None:
    """Writes the report wherever it was asked for, and says so. The text goes to standard error, standard output
    (False) or nowhere (None); not at all where standard output gets the report in another way."""
    if delivery.no_source:
        report = without_sources(report)
    if delivery.price is not None:
        report = replace(report, price=delivery.price)
    if delivery.as_json:
        from steptime.report import compact

        notify(json.render(report) if delivery.full else compact.render(report))
    elif STANDARD_OUTPUT in delivery.outputs or text_to_stderr is not None:
        error = bool(text_to_stderr) and STANDARD_OUTPUT not in delivery.outputs
        show(text.render(report, columns(error=error), screen(error=error)), error=error)
    write_all(renderers_of(full=delivery.full), report, delivery.outputs, force=delivery.force)


def check_all(renderers: Sequence[Renderer[Any]], outputs: Sequence[str], *, force: bool) -> None:
    """Refuses before the work what `write_all` could not write after it. Raises OutputError."""
    for output in outputs:
        check(output, force=force, renderers=renderers)


def hand_over(
    renderers: Sequence[Renderer[Reported]],
    reported: Reported,
    outputs: Sequence[str],
    *,
    as_json: bool,
    force: bool,
    error: bool = False,
) -> None:
    """Prints what a verb has found, as its .txt or its .json, and writes the files that were asked for. error: the text
    goes to standard error. Raises OutputError."""
    wanted = ".json" if as_json else ".txt"
    text = str(next(each for each in renderers if each.file_extension == wanted).render(reported))
    if as_json:
        notify(text)
    else:
        show(text, error=error)
    write_all(renderers, reported, outputs, force=force)


def write_all(
    renderers: Sequence[Renderer[Reported]], reported: Reported, outputs: Sequence[str], *, force: bool
) -> None:
    """Writes the files that were asked for, and says so. Raises OutputError."""
    for output in outputs:
        if output != STANDARD_OUTPUT:
            there = write_as(renderers, reported, output, force=force)
            say(f"Wrote {output}{', in the place of what was there' * there}")
