"""`steptime diagnose PATH…`: the account of recordings and traces that exist already."""

from __future__ import annotations

import click

from steptime.cli.options import check_outputs, deliver, output_options, trace_options


@click.command("diagnose", short_help="Diagnose a recording, or a trace of torch's profiler.")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@trace_options
@output_options
def command(
    paths: tuple[str, ...], outputs: tuple[str, ...], as_json: bool, force: bool, max_size: int, cache: bool
) -> int:
    """Diagnose a recording (a folder written by steptime run), traces of torch's profiler of one job (.json, .json.gz;
    files, a folder, or a quoted pattern), or a report that was saved as JSON. Needs no torch.

    \b
    steptime diagnose runs/train-20260801-101500
    steptime diagnose trace.json.gz -o report.md
    steptime diagnose "traces/rank*.json.gz" --max-size 20GB
    """
    check_outputs(outputs, force=force)
    from steptime.diagnosis import diagnose_paths

    report = diagnose_paths(paths, max_size=max_size, cache=cache)
    deliver(report, outputs, as_json=as_json, force=force, text_to_stderr=False)
    return 0
