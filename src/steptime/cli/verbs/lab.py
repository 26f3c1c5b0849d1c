"""`steptime lab RECORDING` or `steptime lab -- CMD…`: precision, compilation, no input and batch sizes in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.options import RecordingOrCommand, outputs_option, variant_options
from steptime.cli.verbs.trial import budget_option


@click.command("lab", cls=RecordingOrCommand, context_settings={"allow_interspersed_args": False})
@budget_option("15m")
@click.option("--compile-modes", is_flag=True, help="Also run every mode of torch.compile, in the job's own precision.")
@click.option(
    "--batch-sizes",
    metavar="N,N[,...]",
    default="",
    help="Also run these batch sizes and report samples per second. A trailing ... (16,...) doubles the size until "
    "throughput stops rising or memory runs out; auto starts from the job's own size.",
)
@click.option("--resume", metavar="DIR", type=click.Path(path_type=Path), help="Continue an interrupted lab.")
@outputs_option(
    "Also write FILE: the printed answer (.txt, .md), the verdicts (.json), the page (.html), or all results "
    "(.jsonl). Can be given several times."
)
@variant_options
def command(**given: Any) -> int:
    """Run a job as it is, in bfloat16, in bfloat16 and compiled, and without input (one batch repeated), in turns,
    and compare them. Options come before RECORDING or the command. Without either: the newest recording in runs/.

    \b
    steptime lab
    steptime lab runs/train-20260801-101500
    steptime lab --compile-modes -- python train.py
    steptime lab --batch-sizes auto -- python train.py
    steptime lab --resume runs/train-lab-20260801-102000
    """
    from steptime.cli.lab import run

    return run(**given)
