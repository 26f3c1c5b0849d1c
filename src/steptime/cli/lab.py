"""Work of `steptime lab`, whose options are in verbs/lab.py."""

from __future__ import annotations

import shlex
from math import inf
from pathlib import Path
from typing import Any

from steptime.advice.loader_model import samples_per_step
from steptime.answer.printable import reachable
from steptime.cli.options import Delivery
from steptime.cli.trial import (
    TrialOptions,
    TrialOutput,
    case_and_findings,
    check_output,
    go_on_command,
    keeping,
    longer,
    new_trial,
    print_trial,
    proof_seconds,
    recording_of,
    trial_runner,
)
from steptime.errors import UsageError
from steptime.recording.load import load
from steptime.report.lab_answer import BY_PRECISION, answer_of
from steptime.trials.conduct import PROOF, TrialRunner
from steptime.trials.judge import usual_step
from steptime.trials.plan import NO_INPUT, batch_variant, groups, lab_variants, over, points_of
from steptime.trials.results import read_results
from steptime.trials.trial import Judgement

AUTO = "auto"


def _sizes(text: str) -> tuple[tuple[int, ...], bool]:
    """(sizes, True to continue by doubling); without sizes, doubling starts from the job's own."""
    if text.strip() == AUTO:
        return (), True
    words = [word.strip() for word in text.replace("…", "...").split(",") if word.strip()]
    go_on = words[-1:] == ["..."]
    try:
        sizes = tuple(int(word) for word in (words[:-1] if go_on else words))
    except ValueError:
        sizes = (0,)
    if any(size < 1 for size in sizes) or (go_on and not sizes):
        raise UsageError(
            "usage", f"--batch-sizes takes whole numbers above zero, as in 16,32 or 16,..., or auto, not {text[:40]!r}."
        )
    return sizes, go_on


def _start(recording: Path, options: TrialOptions, compile_modes: bool, *, from_own: bool) -> Path:
    case, _ = case_and_findings(recording)
    if from_own and not (case.loader and case.loader.batch_size):
        raise UsageError(
            "usage", "The batch size of this job is unknown. Name the first one, as in --batch-sizes 16,...."
        )
    variants = lab_variants(compile_modes, any(process.facts.device == "cuda" for process in load(recording).processes))
    return new_trial(recording, "lab", variants, case, options)


def _run_lab(folder: Path, options: TrialOptions, sizes: tuple[int, ...], go_on: bool) -> TrialOutput:
    """Runs the requested batch sizes, until larger ones make no difference; then the lab's variants."""
    plan = read_results(folder).plan
    recording, variants = Path(plan.recording), plan.variants
    case, _ = case_and_findings(recording)
    own_size = case.loader.batch_size if case.loader else None
    capacity = case.memory.capacity if case.memory else None
    sizes = sizes or ((own_size,) if go_on and own_size else ())
    with trial_runner(folder, options) as runner:

        def run() -> None:
            _try_sizes(runner, sizes, go_on, own_size)
            # For a budget that does not pay for all: the modes that were asked for, then what the guides read first.
            order = sorted(variants, key=lambda each: (not each.name.startswith("compile-"), each.name != NO_INPUT))
            runner.conduct(0, order)

        status = keeping(runner, run)
    results = read_results(folder)
    next_command = f"steptime try {shlex.quote(reachable(str(recording)) or str(recording))}"
    if not any(run.step_ns and not run.rehearsal for run in results.runs):
        next_command = go_on_command("lab", folder, options, longer(options.budget, proof_seconds(plan, results.runs)))
    rates = dict(case.machine.rates) if case.machine is not None else {}
    fast = rates.get("bfloat16", 0.0) >= BY_PRECISION * rates.get("float32", inf)
    samples = samples_per_step(case)
    answer = answer_of(results, own_size, next_command, capacity, samples, fast_bfloat16=fast)
    return TrialOutput(folder, answer, status)


def _try_sizes(runner: TrialRunner, sizes: tuple[int, ...], go_on: bool, own_size: int | None) -> None:
    judged: list[Judgement] = []
    for number, several in enumerate(groups(sizes, go_on)):
        step = usual_step(runner.runs)
        if judged and (step is None or runner.budget.left() <= 0):
            return
        if step is not None and over(points_of(judged, step.value, own_size), go_on):
            return
        variants = tuple(batch_variant(size) for size in several if size != own_size)
        judged += runner.conduct(1 + number, variants, later=PROOF, anyway=True) if variants else ()


def run(
    target: tuple[str, ...],
    compile_modes: bool,
    batch_sizes: str,
    resume: Path | None,
    delivery: Delivery,
    **given: Any,
) -> int:
    """Starts or continues a lab, and prints it. Returns the exit status. Raises SteptimeError."""
    if target and resume is not None:
        raise UsageError("usage", "Give a recording, or a command after --, or --resume with the folder of a lab.")
    sizes, go_on = _sizes(batch_sizes)
    check_output(delivery)
    options = TrialOptions(**given)
    folder = resume or _start(recording_of(target, options), options, compile_modes, from_own=go_on and not sizes)
    return print_trial(_run_lab(folder, options, sizes, go_on), delivery)
