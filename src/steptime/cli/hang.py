"""`steptime hang DUMPS…`: finds the collective in which a hung job waits, and the ranks that it waits for."""

from __future__ import annotations

import shlex

import click

from steptime.cli.options import Delivery, WholeNumber, answer_options, files


@click.command("hang")
@click.argument("paths", nargs=-1, required=True, metavar="DUMP...", shell_complete=files)
@click.option(
    "--world-size", metavar="N", type=WholeNumber(1), help="Number of ranks, if the dumps do not have it (gloo)."
)
@answer_options("Write it to FILE, in the format of its extension (.txt, .md, .json, .html). Can be given often.")
def command(paths: tuple[str, ...], world_size: int | None, delivery: Delivery) -> int:
    """Compare the dumps of torch's flight recorder, one per rank. Report which collective does not end, which ranks
    have not called it or left no dump, and where types, sizes or the order of calls differ. DUMP: files, a folder, or a
    quoted pattern; pickles as torch writes them when a collective times out, or JSON. Needs no torch, and runs no code
    from a pickle.

    Before the job: TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/rank_ (torch up to 2.8:
    TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE), with TORCH_NCCL_DUMP_ON_TIMEOUT=1.

    \b
    steptime hang /shared/dumps
    steptime hang "/tmp/nccl_trace_rank_*" --json
    """
    from steptime.answer.output import FORMATS
    from steptime.cli.delivery import hand_over
    from steptime.hang.answer import answer_of
    from steptime.hang.dump import read_dumps
    from steptime.hang.triage import triage

    delivery.check(FORMATS)
    dumps, passed_over = read_dumps(paths)
    more = shlex.join(["steptime", "hang", *paths, "-o", "hang.md"])
    hand_over(answer_of(triage(dumps, world_size), passed_over, more), delivery)
    return 0
