"""`steptime diagnose PATH…`: diagnoses existing recordings and traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.exit_codes import say
from steptime.cli.options import (
    Delivery,
    FiniteNumber,
    WholeNumber,
    companion_options,
    files,
    named_or_newest,
    output_options,
    trace_options,
)
from steptime.errors import TraceError, UsageError


@click.command("diagnose")
@click.argument("paths", nargs=-1, metavar="[PATH]...", shell_complete=files)
@click.option(
    "--annotate",
    metavar="FILE",
    help="Write the trace to FILE (.json, .json.gz) with added tracks for the breakdown, the causes of idle time and "
    "the critical path, to open in Perfetto. For one trace only.",
)
@click.option(
    "--on",
    "devices",
    multiple=True,
    metavar="DEVICE",
    help="Predict the step on another device by its datasheet: H100, B200, MI300X; may be given several times. Of a "
    "recording or one trace.",
)
@click.option(
    "--link",
    type=FiniteNumber(0.01, 100),
    default=1.0,
    metavar="FACTOR",
    help="Predict the step with a link between ranks that is this many times as fast, such as 2. Of a recording or one "
    "trace. More ranks cannot be predicted.",
)
@companion_options
@click.option(
    "--engine",
    type=click.Choice(("local", "ray")),
    help="Where traces of many ranks are read: in processes of this machine, or on a Ray cluster whose machines see "
    "the files (pip install 'steptime[ray]'). Default: this machine, in processes from 33 ranks on.",
)
@click.option(
    "--workers", metavar="N", type=WholeNumber(1, 4096), help="Ranks to read in parallel. Default: one per CPU."
)
@trace_options
@output_options
def command(
    paths: tuple[str, ...],
    annotate: str | None,
    devices: tuple[str, ...],
    link: float,
    delivery: Delivery,
    max_size: int,
    cache: bool,
    **given: Any,
) -> int:
    """Diagnose a recording (a folder written by steptime run), traces of torch's profiler of one job (.json, .json.gz;
    files, a folder, or a quoted pattern), a database of nsys export -t sqlite, rocprofv3 or rocmProfileData, or a
    report that was saved as JSON. Without PATH: the newest recording in runs/. Needs no torch.

    \b
    steptime diagnose
    steptime diagnose runs/train-20260801-101500
    steptime diagnose trace.json.gz -o report.md
    steptime diagnose "traces/rank*.json.gz" --max-size 20GB
    steptime diagnose /shared/traces --engine ray
    steptime diagnose trace.json.gz --annotate annotated.json.gz
    steptime diagnose trace.json.gz --on B200 --on MI300X
    steptime diagnose runs/train-20260801-101500 --on B200
    """
    delivery.check()
    paths = named_or_newest(paths)
    if annotate is not None:
        _check_annotation(paths, annotate, force=delivery.force)
    if (devices or link != 1) and not (len(paths) == 1 and (Path(paths[0]) / "manifest.json").is_file()):
        _check_one_trace(paths, "--on and --link predict from a recording or one trace")
    from steptime.cli.delivery import deliver, diagnosed, hand_over
    from steptime.report.answer import show_pictures

    try:
        pictures = show_pictures(delivery.outputs, full=delivery.full)
        report = diagnosed(paths, max_size=max_size, cache=cache, pictures=pictures, **given)
    except TraceError as error:
        from steptime.diagnosis import read_sweep
        from steptime.report.sweep import answer_of

        points = read_sweep(paths, max_size=max_size, cache=cache) if error.slug == "mixed-traces" else ()
        if not points:
            raise
        hand_over(answer_of(points), delivery)
        return 0
    if devices or link != 1:
        from steptime.diagnosis import with_elsewhere

        report = with_elsewhere(report, Path(paths[0]), devices, link, max_size=max_size, cache=cache)
    deliver(report, delivery, text_to_stderr=False)
    if annotate is not None:
        from steptime.analysis.what_if.annotate import annotate as write_annotated

        write_annotated(Path(paths[0]), Path(annotate), force=delivery.force, max_size=max_size, cache=cache)
        say(f"Wrote {annotate}")
    return 0


def _check_annotation(paths: tuple[str, ...], destination: str, *, force: bool) -> None:
    """Checks the destination of --annotate before the work. Raises UsageError and OutputError."""
    from steptime.analysis.what_if.annotate import check_destination

    _check_one_trace(paths, "--annotate needs exactly one trace")
    check_destination(Path(paths[0]), Path(destination), force=force)


def _check_one_trace(paths: tuple[str, ...], purpose: str) -> None:
    if len(paths) != 1 or not Path(paths[0]).is_file():
        raise UsageError(
            "annotate-one-trace",
            f"{purpose}. Give one trace file of torch's profiler; a recording has them as trace-*.json.gz.",
        )
