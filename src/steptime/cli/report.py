"""`steptime report [PATH] [-o FILE]`: writes the full report of a recording or a trace to a file."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from steptime.cli.options import (
    OF_A_REPORT,
    Delivery,
    companion_options,
    files,
    force_option,
    full_option,
    gathered,
    named_or_newest,
    no_source_option,
    outputs_option,
    price_option,
    trace_options,
)

PAGE = "report.html"


@click.command("report")
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=files)
@gathered(
    outputs_option(f"File to write, {OF_A_REPORT} Default: report.html."),
    full_option,
    force_option,
    no_source_option,
    price_option,
)
@companion_options
@trace_options
def command(paths: tuple[str, ...], delivery: Delivery, **given: Any) -> int:
    """Write the full report of a recording, a trace, or a report that was saved as JSON. Without PATH: of the newest
    recording in runs/.

    \b
    steptime report
    steptime report runs/train-20260801-101500 -o report.html -o report.md
    """
    delivery = replace(delivery, outputs=delivery.outputs or (PAGE,))
    delivery.check()
    paths = named_or_newest(paths)
    from steptime.cli.delivery import deliver, diagnosed
    from steptime.report.answer import show_pictures

    pictures = show_pictures(delivery.outputs, full=delivery.full)
    report = diagnosed(paths, pictures=pictures, **given)
    deliver(report, delivery, text_to_stderr=None)
    return 0
