"""`steptime hang DUMPS…`: which collective a hung job waits in, and for whom."""

from __future__ import annotations

import click

from steptime.cli.exit_codes import notify
from steptime.cli.options import files


@click.command("hang", short_help="Tell from flight-recorder dumps why a distributed job hangs.")
@click.argument("paths", nargs=-1, required=True, metavar="DUMP...", shell_complete=files)
@click.option(
    "--world-size", metavar="N", type=click.IntRange(1), help="Ranks of the job, where its dumps do not say it (gloo)."
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON on standard output.")
def command(paths: tuple[str, ...], world_size: int | None, as_json: bool) -> int:
    """Compare the dumps of torch's flight recorder, one of each rank, and say which collective does not end, which
    ranks have not called it or left no dump, and where types, sizes or the order of the calls differ. DUMP: files, a
    folder, or a quoted pattern; pickles as torch writes them when a collective times out, or JSON. Needs no torch, and
    runs nothing that a pickle may hold.

    Before the job: TORCH_FR_BUFFER_SIZE=2000 and TORCH_FR_DUMP_TEMP_FILE=/shared/dumps/rank_ (torch up to 2.8:
    TORCH_NCCL_TRACE_BUFFER_SIZE and TORCH_NCCL_DEBUG_INFO_TEMP_FILE), with TORCH_NCCL_DUMP_ON_TIMEOUT=1.

    \b
    steptime hang /shared/dumps
    steptime hang "/tmp/nccl_trace_rank_*" --json
    """
    from steptime.cli.screen import show
    from steptime.hang.dump import read_dumps
    from steptime.hang.triage import as_text, to_json, triage

    dumps, passed_over = read_dumps(paths)
    found = triage(dumps, world_size)
    if as_json:
        notify(to_json(found))
    else:
        show(as_text(found, passed_over))
    return 0
