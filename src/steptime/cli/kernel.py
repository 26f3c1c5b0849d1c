"""`steptime kernel RECORDING | FILE:CALLABLE`: what Inductor makes of the hottest chain of operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from steptime.cli.bench import PLACE, shapes_of
from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery, answer_options, seconds
from steptime.errors import UsageError

FORMATS = (".txt", ".md", ".json", ".html", ".py")


@click.command("kernel")
@click.argument("target", metavar="RECORDING | FILE:CALLABLE")
@click.option("--inputs", default="", metavar="FILE:FUNCTION", help="A function that returns the arguments.")
@click.option("--shapes", default="", metavar="SHAPES", help="Shapes of random inputs: 64x64,128x128.")
@click.option("--device", default="", metavar="NAME", help="Default: cuda where there is one, else cpu.")
@click.option("--seconds", "length", default="3s", show_default=True, callback=seconds, metavar="TIME",
              help="Time for each of eager and compiled.")  # fmt: skip
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1, 20), help="Fresh processes.")
@click.option("--python", metavar="PATH", help="Python whose torch is used. Default: the first that has torch.")
@answer_options("Write the result to FILE (.txt, .md, .json, .html), or the chain as a function (.py).")
def command(target: str, inputs: str, shapes: str, python: str | None, delivery: Delivery, **given: Any) -> int:
    """Rebuild the hottest chain of pointwise operators and reductions of a recording as one function, compile it, and
    report how Inductor fuses it. The report has the generated code (C++ or Triton, with PTX on a GPU) with your lines,
    its bytes, the bound, and the share of the bandwidth that it reaches, before and after. Only torch's operators run,
    none of the job's code. A function of your own is compiled as it is.

    \b
    steptime kernel runs/train-20260801-101500 -o kernel.md
    steptime kernel runs/train-20260801-101500 -o chain.py
    steptime kernel model.py:activation --shapes 1024x4096
    """
    from steptime.callables.bench import BenchOptions
    from steptime.callables.kernel import hottest, study
    from steptime.callables.kernel_answer import answer_of
    from steptime.cli.delivery import hand_over
    from steptime.cli.trial import case_and_findings
    from steptime.launcher.command import is_recording
    from steptime.machine.environment import describe, interpreter_with_torch

    recorded = is_recording(Path(target))
    if not recorded and not PLACE.fullmatch(target):
        raise UsageError(
            "bench-callable", f"{target[:60]!r} is neither a recording nor a callable. Expected a folder of steptime "
            "run, or FILE:NAME, such as kernels.py:fast."
        )  # fmt: skip
    delivery.check(FORMATS if recorded else FORMATS[:-1])
    chain = hottest(target, case_and_findings(Path(target))[0]) if recorded else None
    options = BenchOptions((target,), inputs, shapes_of(shapes), device=given["device"], seconds=given["length"],
                           processes=given["processes"])  # fmt: skip
    here = describe(interpreter_with_torch(python), remeasure=False, runs=False, notify=say)
    found = study(target, options, chain, here.interpreter, here.machines, say)
    hand_over(answer_of(found), delivery, FORMATS)
    return 0
