"""`steptime memory PATH`: shows the owners of memory, leaks, and what would free it."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.cli.options import files, force_option, named_or_newest, outputs_option, size, trace_options


@click.command("memory")
@click.argument("path", required=False, metavar="[PATH]", shell_complete=files)
@click.option(
    "--capacity",
    callback=size,
    metavar="SIZE",
    help="Memory of a device, such as 24GiB, to report how large a batch would fit.",
)
@outputs_option(
    "Write everything to FILE, in the format of its extension (.txt, .md, .json, .html). Can be given often."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON on standard output.")
@force_option
@trace_options
def command(
    path: str | None,
    capacity: int | None,
    outputs: tuple[str, ...],
    as_json: bool,
    force: bool,
    max_size: int,
    cache: bool,
) -> int:
    """Break down peak memory by owner and line, from a snapshot of PyTorch's allocator (the pickle of
    torch.cuda.memory._dump_snapshot, read without running it), a trace recorded with profile_memory, or a
    recording. Reports leaks, what blocked a failed request, and how much each fix would free. Needs no torch.
    Without PATH: the newest recording in runs/.

    \b
    steptime memory snapshot.pickle
    steptime memory snapshot.pickle --capacity 24GiB -o memory.md
    steptime memory runs/train-20260801-101500
    """
    from steptime.answer.output import check_all
    from steptime.cli.delivery import hand_over
    from steptime.memory.answer import answer_of
    from steptime.memory.report import triage_path

    check_all(outputs, force=force)
    report = triage_path(Path(path or named_or_newest(())[0]), capacity=capacity, max_size=max_size, cache=cache)
    hand_over(answer_of(report), outputs, as_json=as_json, force=force)
    return 0
