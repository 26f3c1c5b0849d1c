"""`steptime compare A B`: differences between runs, beyond noise; with --fail-on a gate for CI."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery, answer_options, files, no_source_option, noise_option, trace_options
from steptime.errors import OutputError, UsageError
from steptime.recording.newest import newest_two

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Variable with the file to which a step of GitHub Actions appends its summary."""


@click.command("compare")
@click.argument("paths", nargs=-1, metavar="[A B [C...]]", shell_complete=files)
@click.option(
    "--fail-on",
    "bounds",
    metavar="BOUNDS",
    help='End with 1 where a bound is exceeded for certain: "step>5%, memory>10%, input>2ms". Quantities: step, '
    "memory, and every category or phase.",
)
@click.option("--strict", is_flag=True, help="With --fail-on: undecided bounds fail, too.")
@click.option(
    "--repeat",
    "repeats",
    multiple=True,
    metavar="PATH",
    help="Another run of A's unchanged job, to measure the noise between runs. Can be given several times.",
)
@noise_option
@answer_options(
    "Write the comparison to FILE, in the format of its extension (.txt, .md, .json, .html, .xml for JUnit); - is "
    "standard output. Can be given several times."
)
@no_source_option
@trace_options
def command(
    paths: tuple[str, ...],
    bounds: str | None,
    strict: bool,
    repeats: tuple[str, ...],
    noise: float | None,
    delivery: Delivery,
    max_size: int,
    cache: bool,
) -> int:
    """Compare two runs or more: recordings, traces of torch's profiler, or reports that were saved as JSON. Reports
    how the last differs from the first: settings, the step and every category with intervals, what appeared and
    vanished, and the likely cause. With more than two, also their steps and the trend. Without paths: the two
    newest recordings of one command in runs/.

    \b
    steptime compare
    steptime compare runs/before runs/after
    steptime compare runs/before runs/after --fail-on "step>5%, memory>10%" -o gate.xml
    steptime compare monday.json tuesday.json wednesday.json -o week.html
    """
    from steptime.answer.markdown import as_markdown
    from steptime.answer.output import FORMATS
    from steptime.cli.delivery import hand_over
    from steptime.compare.answer import answer_of
    from steptime.compare.compare import compare
    from steptime.compare.comparison import Ruling
    from steptime.compare.gate import bounds_of, check_line, fails, judged, labels_of
    from steptime.diagnosis import diagnose_paths
    from steptime.report.json import without_sources

    if not paths:
        paths = tuple(map(str, newest_two()))
        say(f"{paths[0]} and {paths[1]}, the two newest recordings of one command")
    if len(paths) < 2:
        raise UsageError("compare-two", "A comparison needs two paths, and one was given: steptime compare A B")
    limits = bounds_of(bounds) if bounds is not None else ()
    formats = (*FORMATS, ".xml")
    delivery.check(formats)
    reports = [diagnose_paths((path,), max_size=max_size, cache=cache) for path in (*paths, *repeats)]
    reports = [without_sources(each) for each in reports] if delivery.no_source else reports
    comparison = compare(
        reports[: len(paths)],
        labels_of(paths),
        noise_floor=None if noise is None else noise / 100,
        repeats=reports[len(paths) :],
        next_command=_next(paths, delivery.outputs, limited=bool(limits)),
    )
    if limits:
        comparison = judged(comparison, limits)
    answer = answer_of(comparison)
    hand_over(answer, delivery, formats)
    _summarize(as_markdown(answer))
    if delivery.as_json or not _on_one_screen():
        for check in comparison.checks:
            if check.ruling is not Ruling.PASSED:
                say(check_line(check))
    return int(fails(comparison, strict=strict))


def _on_one_screen() -> bool:
    """True if standard error goes to the same place as standard output, where the text already is."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (OSError, ValueError):
        return False


def _next(paths: Sequence[str], outputs: Sequence[str], *, limited: bool) -> str:
    """Next command: the page if it was not written; else the diagnosis of the last run."""
    if limited or any(output.endswith(".html") for output in outputs):
        return f"steptime diagnose {shlex.quote(paths[-1])}"
    return f"steptime compare {' '.join(map(shlex.quote, paths))} -o compare.html"


def _summarize(text: str) -> None:
    """Appends the text to the step summary of GitHub Actions, if this runs there. Raises OutputError."""
    path = os.environ.get(SUMMARY)
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise OutputError(
            "output-unwritable", f"${SUMMARY} names {path}, which cannot be written ({error.strerror})."
        ) from None
