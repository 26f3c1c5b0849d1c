"""`steptime report PATH -o FILE`: the full report of a recording or a trace, in a file."""

from __future__ import annotations

import click

from steptime.cli.options import check_outputs, no_source_option, trace_options


@click.command("report", short_help="Write the full report of a recording to a file.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    required=True,
    metavar="FILE",
    help="The file, in the format of its extension (.txt, .md, .json, .html, .svg, .png); - is standard output. "
    "Can be given several times.",
)
@click.option("--force", is_flag=True, help="Overwrite what exists.")
@no_source_option
@trace_options
def command(
    paths: tuple[str, ...], outputs: tuple[str, ...], force: bool, max_size: int, cache: bool, no_source: bool
) -> int:
    """Write the full report of a recording, a trace, or a report that was saved as JSON.

    \b
    steptime report runs/train-20260801-101500 -o report.html -o report.md
    """
    check_outputs(outputs, force=force)
    from steptime.cli.delivery import deliver
    from steptime.diagnosis import diagnose_paths
    from steptime.remote import fetched
    from steptime.report.compose import of_copies

    with fetched(paths) as local:
        report = diagnose_paths(local, max_size=max_size, cache=cache)
    if local != paths:
        report = of_copies(report, " ".join(paths))
    deliver(report, outputs, as_json=False, force=force, text_to_stderr=None, no_source=no_source)
    return 0
