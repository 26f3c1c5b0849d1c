"""`steptime watch`: shows a running job live, in the terminal, as lines, or as a page."""

from __future__ import annotations

from typing import Any

import click

from steptime.cli.options import WholeNumber, files, seconds

FORMATS = ("jsonl", "prometheus", "otlp")


@click.command("watch")
@click.argument("target", required=False, metavar="[RECORDING | PID]", shell_complete=files)
@click.option(
    "--every",
    metavar="TIME",
    callback=seconds,
    default="10s",
    show_default=True,
    help="Time between two lines, for --export and without a terminal.",
)
@click.option("--serve", is_flag=True, help="Serve it as a page, to this machine only, at the printed address.")
@click.option(
    "--port",
    metavar="N",
    type=WholeNumber(0, 65535),
    default=0,
    help="Port of the page or the metrics. Default: a free one.",
)
@click.option(
    "--export",
    type=click.Choice(FORMATS),
    help="Export the numbers instead of showing them: a line of JSON per --every on standard output, /metrics for "
    "Prometheus to scrape, or OTLP to OTEL_EXPORTER_OTLP_ENDPOINT. The latter two need an extra: pip install "
    "'steptime[prometheus]' or 'steptime[otlp]'.",
)
@click.option(
    "--address",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address of this machine for --export prometheus to listen on.",
)
def command(**given: Any) -> int:
    """Watch a job that steptime run records: step time, samples per second, where the last minute went, the loader's
    queue, the GPU, every rank, stragglers, and the diagnosis so far. It reads the recording only, so it does not
    disturb the job and runs on any machine that sees the folder. It ends with the job.

    Without RECORDING or PID: the newest recording in runs/ that is still growing. PID: the job's, or that of its
    steptime run.

    In a terminal, p profiles the next steps, d diagnoses the recording so far, and q quits.

    \b
    steptime watch
    steptime watch /shared/runs/train-77.0
    steptime watch --serve --port 8700
    steptime watch --export prometheus --port 9400
    """
    from steptime.cli.watch import run

    return run(**given)
