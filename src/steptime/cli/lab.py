"""`steptime lab RECORDING` or `steptime lab -- CMD…`: precision, compilation, no input, batch sizes, as one table."""

from __future__ import annotations

import click

from steptime.cli.options import RecordingOrCommand, seconds, variant_options
from steptime.errors import UsageError


@click.command(
    "lab",
    short_help="Run a job in bfloat16, compiled, without input: what would pay, as one table.",
    cls=RecordingOrCommand,
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "--budget", callback=seconds, metavar="TIME", default="15m", show_default=True, help="Time for all: 90s, 10m, 2h."
)
@click.option("--compile-modes", is_flag=True, help="Also every mode of torch.compile, in the job's own precision.")
@click.option(
    "--batch-sizes",
    metavar="N,N[,...]",
    default="",
    help="Also these batch sizes: items per second of each. With ... behind them (16,...) they are doubled until that "
    "brings no more, or memory runs out.",
)
@click.option(
    "-o", "--output", metavar="FILE", help="Also write FILE: what is printed (.txt), or all results (.jsonl)."
)
@variant_options
def command(
    budget: float,
    compile_modes: bool,
    batch_sizes: str,
    uncontained: bool,
    output: str | None,
    force: bool,
    as_json: bool,
    executor: str,
    quiet: bool,
    target: tuple[str, ...],
) -> int:
    """Run a job as it is, in bfloat16, in bfloat16 and compiled, and with no input (one batch over and over), in turns,
    and show what each would bring. Options come before RECORDING or the command.

    \b
    steptime lab runs/train-20260801-101500
    steptime lab --compile-modes -- python train.py
    steptime lab --batch-sizes 16,32,... -- python train.py
    """
    if not target:
        raise UsageError("usage", "Give a recording, or a command behind --, as in: steptime lab -- python train.py")
    sizes = _sizes(batch_sizes)
    from steptime.cli.trial import Sizes, TrialOptions, check_output, recording_of, run_lab, tell_trial
    from steptime.trials.judge import MIN_GAIN
    from steptime.trials.trial import Budget

    check_output(output, force=force)
    wishes = TrialOptions(Budget(budget), 0, MIN_GAIN, uncontained, False, False, quiet, executor)
    told = run_lab(recording_of(target, wishes), wishes, compile_modes, Sizes(*sizes))
    return tell_trial(told, output, as_json=as_json)


def _sizes(text: str) -> tuple[tuple[int, ...], bool]:
    """(the sizes, whether they go on)."""
    words = [word.strip() for word in text.replace("…", "...").split(",") if word.strip()]
    go_on = words[-1:] == ["..."]
    try:
        sizes = tuple(int(word) for word in (words[:-1] if go_on else words))
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes) or (go_on and not sizes):
        raise UsageError(
            "usage", f"--batch-sizes takes whole numbers above zero, as in 16,32 or 16,..., not {text[:40]!r}."
        )
    return sizes, go_on
