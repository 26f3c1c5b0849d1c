"""Work of `steptime bench-loader`, whose options are in verbs/bench_loader.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.answer.output import FORMATS
from steptime.callables.loader_answer import answer_of
from steptime.callables.loader_bench import (
    PROCESSES,
    Ask,
    LoaderBenchOptions,
    LoaderJob,
    bench_loader,
    of_job,
    of_place,
)
from steptime.cli.bench import PLACE
from steptime.cli.delivery import hand_over
from steptime.cli.exit_codes import say
from steptime.cli.options import Delivery, numbers_of
from steptime.cli.trial import case_and_findings
from steptime.errors import UsageError
from steptime.launcher.command import is_recording, resolve
from steptime.machine.environment import interpreter_with_torch
from steptime.recording.load import load
from steptime.trials.containment import Workspace, refuse_uncontained
from steptime.trials.plan import workspace_for

MOST_WORKERS = 256


INTERPRETER = re.compile(r"python[\d.]*(\.exe)?")
WITH_VALUE = ("-X", "-W")
"""Options of an interpreter that take a separate value."""


def asked(
    target: Sequence[str], options: LoaderBenchOptions, python: str | None, *, uncontained: bool
) -> tuple[Ask, LoaderBenchOptions]:
    """(`Ask` for the loader of a place, a recording or a command; options completed from that target). Raises
    UsageError."""
    only = target[0] if len(target) == 1 else ""
    folder = Path("workspace").absolute()  # each process gets its own
    if only and is_recording(Path(only)):
        recording = Path(only)
        workspace = workspace_for(load(recording).manifest, recording, folder, uncontained=uncontained)
        case, _ = case_and_findings(recording)
        use = case.loader
        if use is None:
            raise UsageError("bench-callable", f"{only} recorded no DataLoader. Name the loader, as in data.py:loader.")
        away = max(0.0, (case.step.duration.value - use.wait.value) / max(use.demand, 1.0))
        options = replace(options, step=options.step or away)
        dataset = use.dataset.partition("(")[0]  # a Subset is reported with what it is of
    elif only and PLACE.fullmatch(only):
        return of_place(interpreter_with_torch(python)), options
    elif only and not only.endswith(".py"):
        raise UsageError(
            "bench-callable",
            f"{only[:60]!r} is not a loader. Expected FILE:NAME (data.py:loader), a recording, or -- and a command.",
        )
    else:
        workspace, dataset = Workspace(tuple(target), folder, Path.cwd(), uncontained=uncontained), ""
    refuse_uncontained(workspace)
    words = resolve(workspace.command, workspace.directory)
    return of_job(LoaderJob(python or words[0], script_of(words), workspace, dataset)), options


def script_of(words: Sequence[str]) -> tuple[str, ...]:
    """Words after the interpreter and its options: a script or "-m" and a module, arguments. Raises UsageError."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        del rest[: 2 if rest[0] in WITH_VALUE else 1]
    if not INTERPRETER.fullmatch(Path(words[0]).name) or not rest or rest == ["-m"]:
        raise UsageError(
            "bench-callable",
            f"steptime cannot reach the loader of {words[0][:60]}. Expected python and a script, or -m and a "
            "module. Or name the loader itself, as in data.py:loader.",
        )
    return tuple(rest)


def run(
    target: tuple[str, ...],
    workers: str,
    batch_sizes: str,
    prefetch: str,
    length: float,
    python: str | None,
    uncontained: bool,
    delivery: Delivery,
    **given: Any,
) -> int:
    """Times and prints the loader; returns the exit status. given: of `LoaderBenchOptions`. Raises SteptimeError."""
    delivery.check(FORMATS)
    counts = numbers_of(workers, "--workers", 0)
    if counts and counts[-1] > MOST_WORKERS:
        raise UsageError("usage", f"--workers takes numbers up to {MOST_WORKERS}: each worker is a process.")
    options = LoaderBenchOptions(
        " ".join(target),
        workers=counts,
        batch_sizes=numbers_of(batch_sizes, "--batch-sizes"),
        prefetch=numbers_of(prefetch, "--prefetch"),
        seconds=length / PROCESSES,
        **given,
    )
    ask, options = asked(target, options, python, uncontained=uncontained)
    hand_over(answer_of(bench_loader(options, ask, say)), delivery)
    return 0
