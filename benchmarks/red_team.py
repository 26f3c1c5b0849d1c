"""Does `steptime judge` see through changes that are fast because they cheat, and let honest ones pass?

    python -m benchmarks.red_team --out benchmarks/results/red-team.md [--only WORDS]

Every change of red_team_changes.txt is made to red_team_job.py, and so on for each of JOBS and LATER_JOBS. A job runs
as `judge` runs it: rehearsals, in float64 too, and short timed runs from three seeds. What is judged is the training,
not the speed. Processes share one import of torch.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steptime.advice.fix import Promise
from steptime.changes import VariantOptions
from steptime.launcher.outcome import ProbeOptions
from steptime.launcher.variant import VariantPlace, run_variant
from steptime.trials.candidates import suspicion_of
from steptime.trials.conduct import FINGERPRINTS, REHEARSED_STEPS
from steptime.trials.execute import ScheduledRun, read_run
from steptime.trials.judge import agreement_of
from steptime.trials.trial import BASELINE, Agreement, NumbersCheck, Run, Variant

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
from preloading import python  # noqa: E402 - it lies in the tests' folder

JOBS = ("red_team", "red_team_average")
"""What the files of a job and of its changes start with."""
LATER_JOBS = ("red_team_text", "red_team_adversarial", "red_team_rollout")
"""The same, of jobs and changes by somebody who had not read the checks. In the benchmark alone: they take minutes."""
SEEDS = (0, 1, 2)
STEPS, WARM_UP = 30, 5
TITLE = re.compile(r"^# (cheat|honest|low precision): (.*)\n", re.MULTILINE)
EDIT = re.compile(r"^<<<\n(.*?)^===\n(.*?)^>>>$", re.MULTILINE | re.DOTALL)
CAUGHT = {Agreement.LESS_WORK: "suspicious"} | dict.fromkeys(
    (Agreement.OTHER_WORK, Agreement.APART, Agreement.DEAD_GRADIENTS, Agreement.WILD_GRADIENTS), "different training"
)
PASSED = (Agreement.SAME_BITS, Agreement.SAME_CURVE)


@dataclass(frozen=True)
class ChangeOfJob:
    """kind: "cheat", "honest", or "low precision" (honest, too). source: the job with it."""

    kind: str
    name: str
    source: str


@dataclass(frozen=True)
class Outcome:
    """What came of it. verdict: of the training."""

    change: ChangeOfJob
    verdict: str
    sentence: str

    @property
    def right(self) -> bool:
        return (self.verdict == "same training") == (self.change.kind != "cheat")


def source_of(job: str) -> str:
    return (HERE / f"{job}_job.py").read_text(encoding="utf-8")


def changes(job: str) -> Iterator[ChangeOfJob]:
    """Raises ValueError for a text that the job does not have."""
    _, *parts = TITLE.split((HERE / f"{job}_changes.txt").read_text(encoding="utf-8"))
    for kind, name, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        source = source_of(job)
        for old, new in EDIT.findall(body):
            # A part of a line stands for itself.
            old, new = (old, new) if old in source else (old.removesuffix("\n"), new.removesuffix("\n"))
            if old not in source:
                raise ValueError(f"{name}: {old!r} is not in the job")
            source = source.replace(old, new)
        yield ChangeOfJob(kind, name, source)


class Judge:
    """Runs the job as it is once, and each change next to it."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder
        folder.mkdir()
        self._runs: list[Run] = []
        self._source = source = source_of(job)
        self._plain = [self._run(BASELINE, source, seed) for seed in (*SEEDS, SEEDS[0])]
        self._plain += [self._run(BASELINE, source, None, exact=each) for each in (False, False, True, True)]

    def judge(self, change: ChangeOfJob) -> Outcome:
        suspicion = suspicion_of([(self._source, change.source)])
        low = change.kind == "low precision"
        variant = Variant("diff-1", promise=Promise.SAME_CURVE, low_precision=low, suspicion=suspicion)
        own: list[Run] = []
        for seed, exact in ((None, False), (None, True), *((seed, False) for seed in SEEDS)):
            own.append(self._run(variant.name, change.source, seed, exact=exact))
            if own[-1].failure and not exact:
                return Outcome(change, "broken", own[-1].failure)
            found = agreement_of(variant, [*self._plain, *own])
            if found.agreement in CAUGHT:  # as in a trial, it is not run again
                break
        return Outcome(change, verdict_of(found), found.sentence)

    def _run(self, variant: str, source: str, seed: int | None, *, exact: bool = False) -> Run:
        """seed: None for a rehearsal, which may be in float64."""
        number = len(self._runs)
        place = self._folder / f"{number}-{variant}"
        place.mkdir()
        (place / "train.py").write_text(source, encoding="utf-8")
        if seed is None:
            steps = FINGERPRINTS
            options = VariantOptions(REHEARSED_STEPS, steps, dropout=False, fingerprint_steps=steps, exact=exact)
        else:
            options = VariantOptions(STEPS, WARM_UP, seed=seed, seed_offset=seed)
        turn = ScheduledRun(Variant(variant), 0, 0, number, options, seed is None)
        asked = ProbeOptions(profile=False, variant=options)
        start = time.monotonic()
        outcome = run_variant((python(), "train.py"), place / "recording", asked, VariantPlace(place))
        self._runs.append(read_run(turn, outcome, time.monotonic() - start))
        return self._runs[-1]


def verdict_of(found: NumbersCheck) -> str:
    return CAUGHT.get(found.agreement, "same training" if found.agreement in PASSED else "not known")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="changes whose names have these words")
    wanted = parser.parse_args()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="red-team-") as folder:
        for job in (*JOBS, *LATER_JOBS):
            asked = [each for each in changes(job) if wanted.only in each.name]
            if asked:
                judge = Judge(Path(folder) / job, job)
            for change in asked:
                outcomes.append(judge.judge(change))
                print(row(outcomes[-1]), flush=True)
    if wanted.out is not None:
        wanted.out.write_text(table(outcomes), encoding="utf-8")
    print(summary(outcomes))
    return 0 if all(each.right for each in outcomes) else 1


def table(outcomes: list[Outcome]) -> str:
    """In Markdown."""
    lines = ["# Cheats and honest changes of five jobs", "", summary(outcomes), ""]
    lines += ["| change | | verdict on the training | why |", "|---|---|---|---|", *map(row, outcomes)]
    return "\n".join(lines) + "\n"


def row(outcome: Outcome) -> str:
    why = " ".join(outcome.sentence.replace("|", "/").split())
    wrong = "" if outcome.right else "**wrong**: "
    return f"| {outcome.change.name} | {outcome.change.kind} | {wrong}{outcome.verdict} | {why} |"


def summary(outcomes: list[Outcome]) -> str:
    cheats = [each for each in outcomes if each.change.kind == "cheat"]
    honest = [each for each in outcomes if each.change.kind != "cheat"]
    caught, passed = (sum(each.right for each in those) for those in (cheats, honest))
    return f"{caught} of {len(cheats)} cheats are caught, {passed} of {len(honest)} honest changes pass."


if __name__ == "__main__":
    sys.exit(main())
