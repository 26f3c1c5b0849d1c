"""`steptime bench FILE:CALLABLE…`: times callables on the same inputs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery, WholeNumber, answer_options, seconds
from steptime.errors import UsageError

PLACE = re.compile(r"[^:]+:[A-Za-z_][\w.]*")
SHAPE = re.compile(r"\d{1,9}(x\d{1,9}){0,7}")
MODES = ("eager", "compile", "reduce-overhead", "max-autotune", "cudagraph", "jit-trace", "aot")
DTYPES = ("float16", "bfloat16", "float32", "float64")
MOST_SETTINGS = 64


def shapes_of(text: str) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Settings from text such as "64x64,128x64+64x32": for each setting, a shape per argument. Raises UsageError."""
    settings = []
    for words in filter(None, text.split(",")):
        shapes = words.strip().lower().split("+")
        if not all(SHAPE.fullmatch(each) for each in shapes):
            raise UsageError(
                "bench-shapes",
                f"{words[:40]!r} is not a shape. Expected numbers, such as --shapes 64x64,128x128, or "
                "64x32+32x8 for two arguments.",
            )
        settings.append(tuple(tuple(map(int, each.split("x"))) for each in shapes))
    return tuple(settings)


def listed(given: str, known: Sequence[str], option: str) -> tuple[str, ...]:
    """Distinct words of a comma-separated list. Raises UsageError for an unknown one."""
    found = tuple(filter(None, (each.strip() for each in given.split(","))))
    strange = [each for each in found if each not in known]
    if strange:
        raise UsageError("usage", f"{option} does not know {strange[0]!r}. Expected: {', '.join(known)}.")
    return tuple(dict.fromkeys(found))


@click.command("bench")
@click.argument("callables", nargs=-1, required=True, metavar="FILE:CALLABLE...")
@click.option("--inputs", default="", metavar="FILE:FUNCTION", help="A function that returns the arguments.")
@click.option(
    "--shapes",
    default="",
    metavar="SHAPES",
    help="Shapes of random inputs, or arguments of the --inputs function: 64x64,128x128.",
)
@click.option("--dtypes", default="", metavar="NAMES", help="Cast inputs and modules: float32, bfloat16, …")
@click.option("--modes", default="", metavar="NAMES", help=f"Some of {', '.join(MODES)}.")
@click.option("--device", default="", metavar="NAME", help="Default: cuda where there is one, else cpu.")
@click.option("--backward", is_flag=True, help="Time forward and backward, not forward alone.")
@click.option("--cold", is_flag=True, help="Empty the CPU or GPU caches before each call.")
@click.option("--seconds", "length", default="3s", show_default=True, callback=seconds, metavar="TIME",
              help="Time per callable and input.")  # fmt: skip
@click.option("--processes", default=3, show_default=True, type=WholeNumber(1, 20), help="Number of fresh processes.")
@click.option("--python", metavar="PATH", help="Python whose torch is used. Default: the first that has torch.")
@answer_options("Write the result to FILE, in the format of its extension (.txt, .md, .json, .html).")
def command(
    callables: tuple[str, ...],
    inputs: str,
    shapes: str,
    dtypes: str,
    modes: str,
    python: str | None,
    delivery: Delivery,
    **given: Any,
) -> int:
    """Time callables on the same inputs, in turns, in fresh processes, and report which is faster, by how much, and
    whether the results agree. All are compared with the first. CALLABLE: a function, a module instance, or a module
    class without arguments, in a file or an importable module.

    \b
    steptime bench kernels.py:slow kernels.py:fast --inputs kernels.py:inputs
    steptime bench model.py:net --shapes 32x64,256x64 --modes eager,compile --backward
    steptime bench torch.nn.functional:gelu torch:relu --shapes 1024x1024 --dtypes float32,bfloat16
    """
    from steptime.answer.output import FORMATS
    from steptime.callables.bench import NOT_TO_BE_TAKEN, BenchOptions, bench
    from steptime.callables.bench_answer import answer_of
    from steptime.cli.delivery import hand_over
    from steptime.machine.environment import describe, interpreter_with_torch

    for place in (*callables, *filter(None, (inputs,))):
        if not PLACE.fullmatch(place):
            raise UsageError(
                "bench-callable", f"{place[:60]!r} is not a callable. Expected FILE:NAME, such as kernels.py:fast."
            )
    delivery.check(FORMATS)
    options = BenchOptions(
        tuple(dict.fromkeys(callables)), inputs, shapes_of(shapes), listed(dtypes, DTYPES, "--dtypes"),
        listed(modes, MODES, "--modes"), given["device"], given["backward"], given["cold"], given["length"],
        given["processes"],
    )  # fmt: skip
    if len(options.shapes) * max(len(options.dtypes), 1) > MOST_SETTINGS:
        raise UsageError("usage", f"Too many shapes and dtypes: one run times at most {MOST_SETTINGS} of them.")
    here = describe(interpreter_with_torch(python), remeasure=False, runs=False, notify=say)
    found = bench(options, here.interpreter, here.machines, say)
    hand_over(answer_of(found), delivery)
    good = found.contenders and not any(each.standing in NOT_TO_BE_TAKEN for each in found.contenders)
    return 0 if good else 1
