"""`steptime bench-loader FILE:LOADER`: a loader alone, with other workers and settings."""

from __future__ import annotations

import click

from steptime.cli.bench import PLACE, listed
from steptime.cli.exit_codes import say
from steptime.cli.options import force_option, numbers_of, outputs_option, seconds
from steptime.errors import UsageError

CONTEXTS = ("fork", "forkserver", "spawn")
MOST_WORKERS = 256
SHARING = ("file_descriptor", "file_system")


def duration_ns(context: click.Context, option: click.Parameter, value: str | None) -> float:
    """The callback of --step: ns, from "30ms", "1.5s" or a number of ms. Raises click.BadParameter."""
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
        raise click.BadParameter(f"{value[:40]} is no time of a step. Expected 30ms, or 1.5s.")
    return number * 1e6


@click.command("bench-loader", short_help="Time a data loader alone, with other workers and settings.")
@click.argument("loader", metavar="FILE:LOADER")
@click.option("--step", callback=duration_ns, metavar="TIME", help="What training takes between two batches: 30ms. "
              "Default: nothing, so that what is timed is the most that the loader can give.")  # fmt: skip
@click.option("--workers", default="", metavar="COUNTS", help="Default: 0,1,2,4 … up to twice the usable CPUs.")
@click.option("--batch-sizes", default="", metavar="SIZES", help="Tried with the best number of workers: 32,64.")
@click.option("--prefetch", default="", metavar="FACTORS", help="The same: 2,4,8.")
@click.option(
    "--contexts", default="", metavar="NAMES", help=f"How workers are started, some of {', '.join(CONTEXTS)}."
)
@click.option("--sharing", default="", metavar="NAMES", help=f"How batches come, some of {', '.join(SHARING)}.")
@click.option("--pin-memory", is_flag=True, help="Try pin_memory=True, too.")
@click.option("--seconds", "length", default="2s", show_default=True, callback=seconds, metavar="TIME",
              help="Timed for each setting.")  # fmt: skip
@click.option("--python", metavar="PATH", help="Interpreter whose torch is used. Default: the first that has torch.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output.")
@outputs_option("Write the result to FILE, in the format of its extension (.txt, .md, .json, .html).")
@force_option
def command(
    loader: str,
    step: float,
    workers: str,
    batch_sizes: str,
    prefetch: str,
    contexts: str,
    sharing: str,
    pin_memory: bool,
    length: float,
    python: str | None,
    as_json: bool,
    outputs: tuple[str, ...],
    force: bool,
) -> int:
    """Time a DataLoader alone: its items, its collating, and the batches that it gives with 0, 1, 2, 4 … workers, and
    say how many to set. LOADER: a DataLoader, a dataset, or a function without arguments that makes either, in a file
    or an importable module; what the file trains stands under if __name__ == "__main__".

    \b
    steptime bench-loader data.py:loader
    steptime bench-loader data.py:make_loader --step 30ms --prefetch 2,4 -o loader.html
    """
    from steptime.callables.loader_bench import PROCESSES, LoaderWishes, bench_loader
    from steptime.callables.loader_text import RENDERERS, render_text, to_json
    from steptime.cli.delivery import write_all
    from steptime.cli.exit_codes import tell
    from steptime.cli.screen import show
    from steptime.machine.environment import interpreter_with_torch
    from steptime.report.output import check

    if not PLACE.fullmatch(loader):
        raise UsageError(
            "bench-callable", f"{loader[:60]!r} names no loader: expected FILE:NAME, such as data.py:loader."
        )
    for output in outputs:
        check(output, force=force, renderers=RENDERERS)
    counts = numbers_of(workers, "--workers", 0)
    if counts and counts[-1] > MOST_WORKERS:
        raise UsageError("usage", f"--workers takes at most {MOST_WORKERS}: each is a process.")
    wishes = LoaderWishes(
        loader, step, counts, numbers_of(batch_sizes, "--batch-sizes"),
        numbers_of(prefetch, "--prefetch"), listed(contexts, CONTEXTS, "--contexts"),
        listed(sharing, SHARING, "--sharing"), pin_memory, length / PROCESSES,
    )  # fmt: skip
    found = bench_loader(wishes, interpreter_with_torch(python), say)
    if as_json:
        tell(to_json(found))
    else:
        show(render_text(found))
    write_all(RENDERERS, found, outputs, force=force)
    return 0
