"""`steptime env`: this machine, installed versions, and the peaks that a training step is compared with."""

from __future__ import annotations

from typing import Any

import click

from steptime.cli.options import answer_options


@click.command("env")
@click.option("--remeasure", is_flag=True, help="Measure the peaks again, even if they are known.")
@click.option(
    "--between-runs", "runs", is_flag=True, help="Also measure the noise between runs of one job here (half a minute)."
)
@click.option(
    "--sweep",
    "sweeps",
    is_flag=True,
    help="Measure work of rising size: where overhead ends, and where bandwidth and arithmetic become the limit (a "
    "minute or two).",
)
@click.option(
    "--place", "recording", metavar="RECORDING", help="With --sweep: place the operators of a recording on the curve."
)
@click.option("--python", metavar="PATH", help="Python whose torch measures. Default: the first that has torch.")
@answer_options("With --sweep: write it to FILE, in the format of its extension (.txt, .md, .json, .html).")
def command(**given: Any) -> int:
    """Show this machine, the versions in use, and its peaks: matmuls by dtype, copy bandwidth, cost of an
    operator. Your torch measures them once (some seconds); they are cached.

    \b
    steptime env
    steptime env --remeasure --json
    steptime env --sweep -o peaks.html
    steptime env --sweep --place runs/train-20260801-101500 -o peaks.html
    """
    from steptime.cli.env import run

    return run(**given)
