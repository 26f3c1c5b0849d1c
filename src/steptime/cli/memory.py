"""`steptime memory PATH`: shows the owners of memory, leaks, and what would free it."""

from __future__ import annotations

from pathlib import Path

import click

from steptime.cli.options import Delivery, answer_options, files, named_or_newest, size, trace_options


@click.command("memory")
@click.argument("path", required=False, metavar="[PATH]", shell_complete=files)
@click.option(
    "--capacity",
    callback=size,
    metavar="SIZE",
    help="Memory of a device, such as 24GiB, to report how large a batch would fit.",
)
@answer_options(
    "Write everything to FILE, in the format of its extension (.txt, .md, .json, .html). Can be given often."
)
@trace_options
def command(path: str | None, capacity: int | None, delivery: Delivery, max_size: int, cache: bool) -> int:
    """Break down peak memory by owner and line, from a snapshot of PyTorch's allocator (the pickle of
    torch.cuda.memory._dump_snapshot, read without running it), a trace recorded with profile_memory, or a
    recording. Reports leaks, what blocked a failed request, and how much each fix would free. Needs no torch.
    Without PATH: the newest recording in runs/.

    \b
    steptime memory snapshot.pickle
    steptime memory snapshot.pickle --capacity 24GiB -o memory.md
    steptime memory runs/train-20260801-101500
    """
    from steptime.answer.output import FORMATS
    from steptime.cli.delivery import hand_over
    from steptime.memory.answer import answer_of
    from steptime.memory.report import triage_path

    delivery.check(FORMATS)
    report = triage_path(Path(path or named_or_newest(())[0]), capacity=capacity, max_size=max_size, cache=cache)
    hand_over(answer_of(report), delivery)
    return 0
