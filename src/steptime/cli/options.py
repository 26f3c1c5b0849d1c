"""Options that several verbs share, and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from steptime.cli.exit_codes import say
from steptime.errors import UsageError, no_such_file
from steptime.recording.newest import newest

DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d|w)?\s*", re.IGNORECASE)
LONGEST = 100 * 365.0 * 86400.0
"""Seconds of a hundred years."""
UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def seconds(context: click.Context, option: click.Parameter, value: str, *, zero: bool = False) -> float:
    """Callback: seconds, from a number with a unit or none. zero: 0 is allowed. Raises click.BadParameter."""
    found = DURATION.fullmatch(value)
    length = float(found[1]) * UNITS[(found[2] or "").lower()] if found is not None else -1.0
    if not 0 <= length <= LONGEST or (length == 0 and not zero):
        raise click.BadParameter(
            f"{value[:40]} is not a time. Expected a number with a unit, such as 90s, 10m, 2h or 30d."
        )
    return length


class FiniteNumber(click.FloatRange):
    """Finite number within bounds, which click's own types let nan pass."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is not a valid number.", param, ctx)
        return number


class WholeNumber(click.IntRange):
    """Whole number within bounds."""

    name = "whole number"


LARGEST = 2.0**62
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def size(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """Callback: bytes, from a number with a unit (of 1000: GB, of 1024: GiB) or none. Raises click.BadParameter."""
    if value is None:
        return None
    found = SIZE.fullmatch(value)
    if found is None or (found[3] and not found[2]):
        raise click.BadParameter(f"{value} is not a size. Expected bytes with a unit, such as 8GB, 500MB or 2GiB.")
    scale = (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " ")
    amount = float(found[1]) * scale
    if not 1 <= amount < LARGEST:
        raise click.BadParameter(f"{value[:40]} is not a valid size of a file or of memory.")
    return int(amount)


def numbers_of(text: str, option: str, least: int = 1) -> tuple[int, ...]:
    """Distinct integers of a comma-separated list, ascending. Raises UsageError."""
    try:
        found = sorted({int(word) for word in text.split(",") if word.strip()})
    except ValueError:
        found = [least - 1]
    if any(each < least for each in found):
        raise UsageError("usage", f"{option} takes whole numbers of at least {least}, as in 1,2,4, not {text[:40]!r}.")
    return tuple(found)


def files(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Shell completions for a path or a command: file names."""
    return [CompletionItem(incomplete, type="file")]


def named_or_newest(paths: Sequence[str]) -> tuple[str, ...]:
    """Paths that the user named; without any, the newest recording, whose name is printed. Raises RecordingError."""
    if paths:
        return tuple(paths)
    path = str(newest())
    say(f"{path}, the newest recording")
    return (path,)


Function = TypeVar("Function", bound=Callable[..., object])
Verb = Callable[..., int]

STANDARD_OUTPUT = "-"


def outputs_option(help: str) -> Callable[[Function], Function]:
    """Option -o of a verb, which sets `outputs`."""
    return click.option("-o", "--output", "outputs", multiple=True, metavar="FILE", shell_complete=files, help=help)


def json_option(what: str) -> Callable[[Function], Function]:
    """Option --json of a verb, which sets `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {what} on standard output.")


no_source_option = click.option("--no-source", is_flag=True, help="Leave source lines and paths out of the report.")
full_option = click.option(
    "--full", is_flag=True, help="With .json or --json: write the full report, which steptime can read back."
)
force_option = click.option("--force", is_flag=True, help="Overwrite existing files.")
price_option = click.option(
    "--price",
    type=FiniteNumber(0, 1e6, min_open=True),
    metavar="DOLLARS",
    help="Price of one GPU (or process) per hour, such as 2.5. The report then shows the cost of 1,000 steps and "
    "how much of it the first finding could save.",
)
noise_option = click.option(
    "--noise",
    type=FiniteNumber(0, 100),
    metavar="PERCENT",
    help="Assumed difference between runs of an unchanged job. Default: 3; in compare, the value that env measured.",
)
REPORT_FORMATS = (".txt", ".md", ".speedscope.json", ".json", ".sarif", ".html", ".svg", ".png", "card.png")
OF_A_REPORT = (
    "in the format of its extension (.txt, .md, .json, .speedscope.json, .sarif, .html, .svg, .png); card.png is a "
    "picture to share; - is standard output. Can be given several times."
)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Destinations and contents of a report. full: True if the JSON holds everything. price: $ per hour of a GPU."""

    outputs: tuple[str, ...] = ()
    as_json: bool = False
    full: bool = False
    force: bool = False
    no_source: bool = False
    price: float | None = None

    def check(self, formats: Sequence[str] = REPORT_FORMATS) -> None:
        """Checks the destinations before the work. Raises OutputError."""
        if self.outputs:
            from steptime.answer.output import check  # brings numpy, for which no job should wait unasked

            for output in self.outputs:
                check(output, formats, force=self.force)


def gathered(*options: Callable[[Verb], Verb]) -> Callable[[Verb], Verb]:
    """Decorator with options of a verb. Those that are fields of `Delivery` are passed together, as `delivery`."""

    def add(function: Verb) -> Verb:
        @wraps(function)
        def together(**given: Any) -> int:
            fields = {name: given.pop(name) for name in Delivery.__slots__ if name in given}
            return function(delivery=Delivery(**fields), **given)

        verb: Verb = together
        for option in reversed(options):
            verb = option(verb)
        return verb

    return add


output_options = gathered(
    outputs_option(f"Write the report to FILE, {OF_A_REPORT}"),
    json_option("the report as JSON"),
    full_option,
    force_option,
    no_source_option,
    price_option,
)


def answer_options(help: str) -> Callable[[Verb], Verb]:
    """Options --json, -o (with its help) and --force of a verb with one answer."""
    return gathered(json_option("the answer as JSON"), outputs_option(help), force_option)


def trace_options(function: Function) -> Function:
    """Options --max-size and --no-cache of a verb, which set `max_size` and `cache`."""
    function = click.option(
        "--no-cache", "cache", is_flag=True, default=True, flag_value=False, help="Do not use or write the trace cache."
    )(function)
    return click.option(
        "--max-size",
        callback=size,
        metavar="SIZE",
        default="8GB",
        show_default=True,
        help="Most JSON to read per rank, after decompression: 500MB, 20GB, 4GiB.",
    )(function)


def companion_options(function: Function) -> Function:
    """Options --compile-logs (folder of torch.compile's logs) and --ncu, which set `compile_logs` and `ncu`."""
    function = click.option(
        "--ncu",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Nsight Compute's counters: a CSV of ncu --csv, or a folder of them. Adds occupancy, throughput and warp "
        "stalls to the kernels of the same name and grid. Default: those next to the trace.",
    )(function)
    return click.option(
        "--compile-logs",
        metavar="FOLDER",
        callback=lambda context, parameter, value: _compile_logs_in(value),
        help="Logs of torch.compile: the folder of TORCH_TRACE, or torch_compile_debug. They name the source lines of "
        "generated kernels, graph breaks and failed guards. Default: those next to the trace.",
    )(function)


def _compile_logs_in(folder: str | None) -> Path | None:
    """Folder of torch.compile's logs. Raises UsageError if it has none."""
    if folder is None:
        return None
    from steptime.trace.compile_logs import DEBUG, find_logs

    given = Path(folder)
    if not given.is_dir():
        raise no_such_file(folder, "the folder of TORCH_TRACE, or torch_compile_debug", UsageError)
    found = given if given.name == DEBUG else find_logs(given)
    if found is None:
        raise UsageError(
            "no-compile-logs",
            f"{folder} contains no logs of torch.compile. Run the job with TORCH_TRACE={folder}, or with "
            "TORCH_COMPILE_DEBUG=1 and give its folder torch_compile_debug.",
        )
    return found


variant_options = gathered(
    click.option(
        "--uncontained",
        is_flag=True,
        help="Run the job even if this system cannot protect your files from it. By default that is refused.",
    ),
    click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where variants run: on this machine, one at a time, or on a Ray cluster, one per device.",
    ),
    force_option,
    json_option("the results as JSON lines"),
    click.option("-q", "--quiet", is_flag=True, help="Print no progress while the variants run."),
    click.argument(
        "target",
        nargs=-1,
        type=click.UNPROCESSED,
        metavar="[RECORDING | [--] COMMAND [ARGUMENT]...]",
        shell_complete=files,
    ),
)
"""Options of verbs that run variants of a job, and its target."""


class RecordingOrCommand(click.Command):
    """Command whose options may follow a recording; those after a program's name are the program's."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parses like click, with options on both sides of a recording."""
        from steptime.launcher.command import is_recording

        target = self.make_parser(context).parse_args(list(args))[0].get("target")
        first = target[0] if isinstance(target, tuple) and target else None  # click has an own value for "not given"
        context.allow_interspersed_args = first is not None and is_recording(Path(first))
        return super().parse_args(context, args)
