"""Work of `steptime judge`, whose options are in verbs/judge.py."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steptime.cli.options import Delivery, named_or_newest
from steptime.cli.trial import (
    TrialOptions,
    TrialOutput,
    case_and_findings,
    check_output,
    go_on_command,
    keeping,
    new_trial,
    print_trial,
    recording_of,
    trial_runner,
)
from steptime.errors import UsageError
from steptime.launcher.command import default_recording, job_name, resolve
from steptime.launcher.forks import ForkServer
from steptime.recording.load import load
from steptime.report.judge_answer import answer_of
from steptime.report.verdict_words import NOT_FASTER, may_go_on, word_of
from steptime.trials import candidates
from steptime.trials.containment import refuse_uncontained
from steptime.trials.judge import NEVER
from steptime.trials.plan import plain_workspace
from steptime.trials.results import Metric, Plan, append_result, read_results
from steptime.trials.trial import BASELINE, TrialVerdict, Variant
from steptime.trials.until_loss import LossTarget

WORSE = NEVER | {TrialVerdict.SLOWER}
STEP_SECONDS = 1.0
"""Seconds after the profile in which the unchanged job is measured: its rounds measure it again."""
NOT_SURE = 3
"""Exit status if no candidate is known to be worse, but one may be."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates to judge, from the command line: diffs, revisions, variables, arguments (`words`) and commands.
    any_training, low_precision: True if their training may differ, wholly or by rounding."""

    diffs: tuple[Path, ...]
    revisions: tuple[str, ...]
    variables: tuple[str, ...]
    words: tuple[str, ...]
    commands: tuple[str, ...]
    any_training: bool
    low_precision: bool

    def variants(self, command: Sequence[str], directory: Path) -> tuple[Variant, tuple[Variant, ...]]:
        """Variants to run, as (baseline, candidates). Raises UsageError."""
        baseline = Variant(BASELINE)
        found = [candidates.from_diff(path, directory, f"diff-{n}") for n, path in enumerate(self.diffs, 1)]
        for number, revisions in enumerate(self.revisions, 1):
            first, variant = candidates.from_range(revisions, directory, f"ref-{number}")
            if first is not None and (
                len(self.revisions) > 1 or found or self.variables or self.words or self.commands
            ):
                raise UsageError(
                    "usage",
                    "--ref A..B brings its own baseline. Drop the other candidates, or judge them in a second run.",
                )
            baseline = first or baseline
            found.append(variant)
        if self.variables:
            found.append(candidates.from_variables(self.variables))
        found += [candidates.from_words(each, command, f"args-{n}") for n, each in enumerate(self.words, 1)]
        found += [candidates.from_command(each, f"against-{n}") for n, each in enumerate(self.commands, 1)]
        if not found:
            raise UsageError("usage", "Nothing to judge: give --diff, --ref, --env, --args or --against.")
        alone, low = self.any_training, self.low_precision
        return baseline, tuple(replace(each, speed_alone=alone, low_precision=low) for each in found)


def _start(
    target: Sequence[str],
    asked: Candidates,
    options: TrialOptions,
    until_loss: LossTarget | None,
    forks: ForkServer,
) -> tuple[Path, Variant]:
    """Folder of a new judgement. What cannot be tried is refused before the measurement, while the server starts."""
    target = target or named_or_newest(())
    recorded = len(target) == 1 and Path(target[0]).is_dir()
    sources = () if recorded else asked.variants(target, Path.cwd())[0].sources  # the baseline that is measured
    recording = recording_of(target, options, sources, STEP_SECONDS, forks)
    manifest = load(recording).manifest
    baseline, variants = asked.variants(manifest.command, Path(manifest.directory))
    case, _ = case_and_findings(recording)
    return new_trial(recording, "judge", variants, case, options, baseline, until_loss), baseline


def _start_plain(
    target: Sequence[str], asked: Candidates, options: TrialOptions, metric: Metric
) -> tuple[Path, Variant]:
    """Folder of a new judgement by a number that the command prints; the job is not measured before."""
    command, directory = tuple(target), Path.cwd()
    if len(target) == 1 and Path(target[0]).is_dir():
        manifest = load(Path(target[0])).manifest
        command, directory = tuple(manifest.command), Path(manifest.directory)
    baseline, variants = asked.variants(command, directory)
    resolve(command, directory)
    folder = default_recording((f"{job_name(command)}-judge",))
    plan = Plan(command, str(directory), "", variants, options.min_gain, baseline=baseline, metric=metric)
    refuse_uncontained(plain_workspace(plan, folder, uncontained=options.uncontained))
    folder.mkdir(parents=True)
    append_result(folder, plan=plan)
    return folder, baseline


def _conducted(folder: Path, baseline: Variant, options: TrialOptions, forks: ForkServer) -> TrialOutput:
    with trial_runner(folder, options, forks) as runner:

        def run() -> None:
            runner.conduct(0, runner.plan.variants, baseline)

        status = keeping(runner, run)
    results = read_results(folder)
    judgements = [judgement for _, judgement in results.judgements]
    verdicts = {each.verdict for each in judgements}
    words = {word_of(each, results.plan.min_gain) for each in judgements}
    unsure = TrialVerdict.UNDECIDED in verdicts or NOT_FASTER in words
    worse = 1 if verdicts & WORSE else NOT_SURE if unsure else 0
    again = go_on_command("judge", folder, options) if any(map(may_go_on, judgements)) else ""
    by_steps = results.plan.metric is None and results.plan.until_loss is None
    return TrialOutput(folder, answer_of(results, str(folder), again), status or worse, by_steps)


def run(
    target: tuple[str, ...],
    resume: Path | None,
    delivery: Delivery,
    any_training: bool,
    metric: str | None,
    until_loss: LossTarget | None,
    lower_is_better: bool,
    **given: Any,
) -> int:
    """Starts or continues a judgement, and prints it. Returns the exit status. Raises SteptimeError."""
    if target and resume is not None:
        raise UsageError(
            "usage", "Nothing to run. Give a recording, a command after --, or --resume with the folder of a judgement."
        )
    plan = read_results(resume).plan if resume is not None else None
    check_output(delivery)
    alone = any_training or metric is not None or until_loss is not None
    named = {name: given.pop(name) for name in Candidates.__slots__ if name in given}
    asked, options = Candidates(**named, any_training=alone), TrialOptions(**given)
    if lower_is_better and metric is None:
        raise UsageError("usage", "--lower-is-better needs --metric.")
    if metric is not None and until_loss is not None:
        raise UsageError("usage", "--metric and --until-loss exclude each other. Give one of them.")
    with closing(ForkServer()) as forks:
        if resume is not None and plan is not None:
            folder, baseline = resume, plan.baseline
        elif metric is not None:
            folder, baseline = _start_plain(target, asked, options, Metric(metric, lower_is_better))
        else:
            folder, baseline = _start(target, asked, options, until_loss, forks)
        reported = _conducted(folder, baseline, options, forks)
    return print_trial(reported, delivery, ".json")
