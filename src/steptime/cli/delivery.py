"""Delivery of reports on the command line: cached or new, to the screen, standard output or files.

This module is heavy, so it is not imported before the job of `run` has started. The analysis is imported only when
needed, because that takes as long as everything else of a cached answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from steptime.answer.answer import Answer
from steptime.answer.output import FORMATS, STANDARD_OUTPUT, rendered, write
from steptime.answer.screen import columns, notify, show
from steptime.answer.text import as_text
from steptime.cli.exit_codes import say
from steptime.cli.options import REPORT_FORMATS, Delivery
from steptime.report.answer import answer_of
from steptime.report.json import without_sources
from steptime.report.remembered import question_about, recall, remember
from steptime.report.report import Report


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
    """Report as by `diagnosis.diagnose_anywhere`; for a trace that was diagnosed before, from the cache."""
    plain = cache and len(paths) == 1 and compile_logs is None and ncu is None and engine is None and workers is None
    question = question_about(paths[0], pictures=pictures, max_size=max_size) if plain else None
    if question is not None and (report := recall(question)) is not None:
        return report
    from steptime.diagnosis import CompanionFiles, diagnose_anywhere

    ours = CompanionFiles(compile_logs, ncu)
    report = diagnose_anywhere(
        paths, max_size=max_size, cache=cache, engine=engine, workers=workers, pictures=pictures, companions=ours
    )
    if question is not None:
        remember(question, report)
    return report


def deliver(report: Report, delivery: Delivery, *, text_to_stderr: bool | None) -> None:
    """Writes the report to all destinations, and prints the name of each file. The text goes to standard error (True),
    standard output (False, or the output `-`) or nowhere (None); nowhere also if JSON goes to standard output."""
    if delivery.no_source:
        report = without_sources(report)
    if delivery.price is not None:
        report = replace(report, price=delivery.price)
    answer = answer_of(report, full=delivery.full)
    named = STANDARD_OUTPUT in delivery.outputs
    if delivery.as_json or named or text_to_stderr is not None:
        hand_over(answer, delivery, REPORT_FORMATS, error=bool(text_to_stderr) and not named)
    else:
        write_all(answer, delivery, REPORT_FORMATS)


ON_SCREEN = Delivery()
"""As text, and in no file."""


def hand_over(
    answer: Answer, delivery: Delivery = ON_SCREEN, formats: Sequence[str] = FORMATS, *, error: bool = False
) -> None:
    """Prints an answer as text or JSON, and writes its files. error: text on standard error. Raises OutputError."""
    if delivery.as_json:
        notify(str(rendered(answer, ".json")))
    else:
        show(as_text(answer, columns(error=error)), error=error)
    write_all(answer, delivery, formats)


def write_all(answer: Answer, delivery: Delivery, formats: Sequence[str]) -> None:
    """Writes the requested files of an answer, and prints the name of each. Raises OutputError."""
    for output in delivery.outputs:
        if output != STANDARD_OUTPUT:
            there = write(answer, output, formats, force=delivery.force)
            say(f"Wrote {output}{', replacing the old file' * there}")
