"""`steptime new FILE`: a training script with the usual knobs, to start from."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from steptime.answer.screen import notify
from steptime.cli.exit_codes import say
from steptime.cli.options import force_option
from steptime.errors import OutputError

SCRIPT = Path(__file__).with_name("train.py.txt")


@click.command("new")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path, allow_dash=True))
@force_option
def command(file: Path, force: bool) -> int:
    """Write a training script that runs at once, on a CPU too, with the usual knobs as options. Options: dtype, compile
    mode, fused optimizer, workers and prefetching, accumulation, clipping, checkpointing, attention, a profiler of one
    window, a loss every n steps. - is standard output.

    \b
    steptime new train.py
    steptime run -- python train.py
    """
    text = SCRIPT.read_text(encoding="utf-8")
    if file == Path("-"):
        notify(text)
        return 0
    try:
        with file.open("w" if force else "x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise OutputError("output-exists", f"{file} exists: name another file, or overwrite it with --force.") from None
    except OSError as error:
        raise OutputError("output-unwritable", f"{file} cannot be written ({error.strerror}).") from error
    say(f"Wrote {file}. Next: steptime run -- python {shlex.quote(str(file))}")
    return 0
