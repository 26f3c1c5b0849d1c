"""`steptime bench-loader FILE:LOADER`, or of a job: times a loader alone, with other workers and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from steptime.answer.output import check_all
from steptime.callables.loader_answer import answer_of
from steptime.callables.loader_bench import (
    PROCESSES,
    Ask,
    LoaderBenchOptions,
    LoaderJob,
    bench_loader,
    of_job,
    of_place,
)
from steptime.cli.bench import PLACE, listed
from steptime.cli.delivery import hand_over
from steptime.cli.exit_codes import say
from steptime.cli.options import force_option, numbers_of, outputs_option, seconds
from steptime.cli.trial import case_and_findings
from steptime.errors import UsageError
from steptime.launcher.command import is_recording, resolve
from steptime.machine.environment import interpreter_with_torch
from steptime.recording.load import load
from steptime.trials.containment import Workspace, refuse_uncontained
from steptime.trials.plan import workspace_for

CONTEXTS = ("fork", "forkserver", "spawn")
MOST_WORKERS = 256
SHARING = ("file_descriptor", "file_system")


def duration_ns(context: click.Context, option: click.Parameter, value: str | None) -> float:
    """Callback of --step: ns, from "30ms", "1.5s" or a number of ms. Raises click.BadParameter."""
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
@click.option("--contexts", default="", metavar="NAMES", help=f"Start methods to try: some of {', '.join(CONTEXTS)}.")
@click.option(
    "--sharing", default="", metavar="NAMES", help=f"Sharing strategies to try: some of {', '.join(SHARING)}."
)
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
@outputs_option("Write the result to FILE, in the format of its extension (.txt, .md, .json, .html).")
@force_option
def command(
    target: tuple[str, ...],
    step: float,
    workers: str,
    batch_sizes: str,
    prefetch: str,
    contexts: str,
    sharing: str,
    pin_memory: bool,
    kept: bool,
    cold: bool,
    formats: bool,
    length: float,
    python: str | None,
    uncontained: bool,
    as_json: bool,
    outputs: tuple[str, ...],
    force: bool,
) -> int:
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
    check_all(outputs, force=force)
    counts = numbers_of(workers, "--workers", 0)
    if counts and counts[-1] > MOST_WORKERS:
        raise UsageError("usage", f"--workers takes numbers up to {MOST_WORKERS}: each worker is a process.")
    options = LoaderBenchOptions(
        " ".join(target), step, counts, numbers_of(batch_sizes, "--batch-sizes"),
        numbers_of(prefetch, "--prefetch"), listed(contexts, CONTEXTS, "--contexts"),
        listed(sharing, SHARING, "--sharing"), pin_memory, kept, cold, formats,
        length / PROCESSES,
    )  # fmt: skip
    ask, options = asked(target, options, python, uncontained=uncontained)
    found = bench_loader(options, ask, say)
    hand_over(answer_of(found), outputs, as_json=as_json, force=force)
    return 0


INTERPRETER = re.compile(r"python[\d.]*(\.exe)?")
WITH_VALUE = ("-X", "-W")
"""Options of an interpreter that take a separate value."""


def asked(
    target: Sequence[str], options: LoaderBenchOptions, python: str | None, *, uncontained: bool
) -> tuple[Ask, LoaderBenchOptions]:
    """(function that runs requests about the loader, options completed from the recording) for a place, a recording or
    a command. Raises UsageError."""
    only = target[0] if len(target) == 1 else ""
    folder = Path("workspace").absolute()  # each process gets its own
    if only and is_recording(Path(only)):
        recording = Path(only)
        workspace = workspace_for(load(recording).manifest, recording, folder, uncontained=uncontained)
        case, _ = case_and_findings(recording)
        use = case.loader
        if use is None:
            raise UsageError("bench-callable", f"{only} recorded no DataLoader. Name the loader, as in data.py:loader.")
        away = max(0.0, (case.step.duration.value - use.wait.value) / max(use.demand, 1.0))
        options = replace(options, step=options.step or away)
        dataset = use.dataset.partition("(")[0]  # a Subset is reported with what it is of
    elif only and PLACE.fullmatch(only):
        return of_place(interpreter_with_torch(python)), options
    elif only and not only.endswith(".py"):
        raise UsageError(
            "bench-callable",
            f"{only[:60]!r} is not a loader. Expected FILE:NAME (data.py:loader), a recording, or -- and a command.",
        )
    else:
        workspace, dataset = Workspace(tuple(target), folder, Path.cwd(), uncontained=uncontained), ""
    refuse_uncontained(workspace)
    words = resolve(workspace.command, workspace.directory)
    return of_job(LoaderJob(python or words[0], script_of(words), workspace, dataset)), options


def script_of(words: Sequence[str]) -> tuple[str, ...]:
    """Words after the interpreter and its options: a script or "-m" and a module, then arguments. Raises UsageError for
    any other command."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        del rest[: 2 if rest[0] in WITH_VALUE else 1]
    if not INTERPRETER.fullmatch(Path(words[0]).name) or not rest or rest == ["-m"]:
        raise UsageError(
            "bench-callable",
            f"steptime cannot reach the loader of {words[0][:60]}. Expected python and a script, or -m and a "
            "module. Or name the loader itself, as in data.py:loader.",
        )
    return tuple(rest)
