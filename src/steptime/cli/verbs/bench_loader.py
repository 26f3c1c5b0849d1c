"""`steptime bench-loader FILE:LOADER`, or of a job: times a loader alone, with other workers and settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from steptime.cli.bench import listed
from steptime.cli.options import Function, answer_options, seconds

CONTEXTS = ("fork", "forkserver", "spawn")
SHARING = ("file_descriptor", "file_system")


def duration_ns(context: click.Context, option: click.Parameter, value: str | None) -> float:
    """Value of --step in ns, from "30ms", "1.5s" or a number of ms (a callback of click). Raises click.BadParameter."""
    if value is None:
        return 0.0
    text = value.strip().lower()
    try:
        number = (
            float(text.removesuffix("ms")) if text.endswith("ms") or not text.endswith("s") else 1e3 * float(text[:-1])
        )
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e7:
        raise click.BadParameter(
            f"{value[:40]} is not a step time. Expected a number with a unit, such as 30ms or 1.5s."
        )
    return number * 1e6


def _some_of(known: tuple[str, ...], option: str, what: str) -> Callable[[Function], Function]:
    words = f"{what} to try: some of {', '.join(known)}."
    return click.option(
        option, default="", metavar="NAMES", callback=lambda _, __, names: listed(names, known, option), help=words
    )


@click.command("bench-loader")
@click.argument("target", metavar="FILE:LOADER | RECORDING | -- COMMAND", nargs=-1, required=True)
@click.option("--step", callback=duration_ns, metavar="TIME", help=(
    "Training time between two batches, such as 30ms. Default: the recording's; without one 0, which measures the "
    "loader's maximum rate."
))  # fmt: skip
@click.option("--workers", default="", metavar="COUNTS", help="Default: 0,1,2,4 … up to twice the usable CPUs.")
@click.option(
    "--batch-sizes", default="", metavar="SIZES", help="Batch sizes to try with the best number of workers: 32,64."
)
@click.option("--prefetch", default="", metavar="FACTORS", help="Prefetch factors to try with it: 2,4,8.")
@_some_of(CONTEXTS, "--contexts", "Start methods")
@_some_of(SHARING, "--sharing", "Sharing strategies")
@click.option("--pin-memory", is_flag=True, help="Also try pin_memory=True.")
@click.option("--kept", is_flag=True, help="Also try with the items cached in memory.")
@click.option("--cold", is_flag=True, help="Also read items with their files out of the page cache.")
@click.option("--formats", is_flag=True, help=(
    "Store some samples as files, tar, Parquet, Arrow, LMDB and memory-mapped arrays (as far as the packages are "
    "installed) and time reading them back."
))  # fmt: skip
@click.option("--seconds", "length", default="2s", show_default=True, callback=seconds, metavar="TIME",
              help="Time per setting.")  # fmt: skip
@click.option("--python", metavar="PATH", help=(
    "Python whose torch is used. Default: the job's, or the first that has torch."
))  # fmt: skip
@click.option("--uncontained", is_flag=True, help="Run a job even if this system cannot protect your files from it.")
@answer_options("Write the result to FILE, in the format of its extension (.txt, .md, .json, .html).")
def command(**given: Any) -> int:
    """Time a DataLoader alone: its items, its collate function, and its batches with 0, 1, 2, 4 … workers, and
    report how many workers to set. LOADER: a DataLoader, a dataset, or a function without arguments that returns
    either, in a file or an importable module; the file's training code must be under if __name__ == "__main__". Of a
    job, the loader that trains is taken when it is asked for its first batch: the job runs until then, contained as
    a trial is, and trains nothing.

    \b
    steptime bench-loader data.py:loader
    steptime bench-loader data.py:make_loader --step 30ms --prefetch 2,4 -o loader.html
    steptime bench-loader runs/train-20260801-101500
    steptime bench-loader --formats -- python train.py
    """
    from steptime.cli.bench_loader import run

    return run(**given)
