"""How near predicted speed-ups come to measured ones: every fix with a prediction, in a given number of rounds.

`steptime try` ends a variant as soon as it is decided, after two or three rounds, which leaves its gain open by a
quarter; here nothing is decided before all rounds are run, and a job is recorded more than once.

    python -m benchmarks.fixes.predicted FOLDER [--only NAME,…] [--recordings 2] [--rounds 5]
    python -m benchmarks.fixes.predicted FOLDER --report benchmarks/results/predictions-<machine>

Recordings, trials and a line of results for each recording go into FOLDER; what is in it already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.fixes.planted import PLANTED, Planted
from benchmarks.fixes.run import ONE_THREAD, environment_of, peaks_of, record, row, steadiness
from benchmarks.started import JobFailed
from steptime.advice.propose import propose
from steptime.advice.run_uses import StepSummary
from steptime.diagnosis import diagnose_paths
from steptime.errors import SteptimeError
from steptime.recording.load import load
from steptime.trials.conduct import TrialRunner
from steptime.trials.containment import Workspace
from steptime.trials.plan import plan_for, plan_variants, workspace_for
from steptime.trials.results import Plan, append_result, read_results
from steptime.trials.trial import BASELINE, Run, TrialVerdict, Variant

LINES = "predicted.jsonl"
ALL = 50
"""Proposals that are looked at for predictions, more than there are."""
MIN_GAIN = 0.03
BROKEN = frozenset({TrialVerdict.FAILED, TrialVerdict.NOT_EXERCISED})


class Exact(TrialRunner):
    """A trial in which nothing is decided before so many rounds."""

    def __init__(self, workspace: Workspace, plan: Plan, runs: tuple[Run, ...], rounds: int) -> None:
        super().__init__(workspace, plan, runs)
        self.rounds = rounds

    def _settled(self, stage: int, variant: Variant) -> bool:
        judgement = self._proved(stage, variant)
        return judgement.verdict in BROKEN or judgement.rounds >= self.rounds


def measure(job: Planted, folder: Path, rounds: int) -> dict[str, Any]:
    """One recording of a job: what it predicts, and what is measured."""
    began = time.monotonic()
    recording = record(job, folder)
    (process, *_) = diagnose_paths((str(recording),)).processes
    step = process.case.step
    manifest, proposals = load(recording).manifest, propose(process.case, process.findings)
    place = Path(manifest.directory), manifest.command
    variants = predicted_of(plan_variants(proposals, ALL, step.duration.value, *place))
    result = {"job": job.name, "date": time.strftime("%Y-%m-%d"), "step_ns": step.duration.value, "variants": []}
    if variants:
        bench = bench_of(folder / job.name / "trial", recording, variants, step, rounds)
        judgements = bench.conduct(0, variants)
        runs = [run for run in bench.runs if not run.rehearsal]
        peaks = peaks_of(recording)
        result |= steadiness(read_results(bench.workspace.folder), recording)
        result |= {
            "baselines": means_of(BASELINE, runs),
            "other_cpu": max((run.load.other_cpu for run in runs), default=0.0),
            "variants": [row(each, peaks) | {"steps": means_of(each.variant.name, runs)} for each in judgements],
        }
    return result | {"seconds": round(time.monotonic() - began, 1)}


def means_of(variant: str, runs: list[Run]) -> list[float]:
    """Mean steps of its processes, ns."""
    return [statistics.fmean(run.step_ns) for run in runs if run.variant == variant and run.step_ns]


def predicted_of(variants: tuple[Variant, ...]) -> tuple[Variant, ...]:
    """The first variant with a prediction of each fix."""
    first: dict[str, Variant] = {}
    for variant in variants:
        if variant.predicted is not None:
            first.setdefault(variant.proposal, variant)
    return tuple(first.values())


def bench_of(folder: Path, recording: Path, variants: tuple[Variant, ...], step: StepSummary, rounds: int) -> Exact:
    """A trial of these variants; what is in its folder already is gone on with."""
    known = load(recording)
    plan = plan_for(known, recording, variants, step, MIN_GAIN)
    if not folder.exists():
        folder.mkdir(parents=True)
        append_result(folder, plan=plan)
    workspace = workspace_for(known.manifest, recording, folder, uncontained=False)
    return Exact(workspace, plan, read_results(folder).runs, rounds)


# -- the report -------------------------------------------------------------------------------------------------------


def error(variant: dict[str, Any]) -> float:
    """Of the predicted step time; above zero where the job was faster than predicted."""
    return float(variant["speed"][0] / variant["predicted"][0] - 1)


def measured(results: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    return [(result, variant) for result in results for variant in result["variants"] if variant["speed"]]


def report(results: list[dict[str, Any]], environment: dict[str, str]) -> str:
    """Markdown."""
    rows = measured(results)
    lines = [
        "# Predicted against measured",
        "",
        f"{environment['machine']}, {environment['cpus']} CPUs, Python {environment['python']}, torch "
        f"{environment['torch']}, {environment['date']}; `python -m benchmarks.fixes.predicted FOLDER`, "
        "OMP_NUM_THREADS=1. One row for each recording and each fix that it predicts a gain of; error: of the "
        "predicted step time, positive where the job was faster than predicted.",
        "",
        "| job | step as recorded, in the trial | fix | predicted ≤ upper bound | measured (rounds) | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for result, variant in rows:
        speed = "{:.2f}× ({:.2f}–{:.2f})".format(*variant["speed"])
        upper_bound = f" ≤ {variant['upper_bound']:.2f}" if variant["upper_bound"] else ""
        lines.append(
            f"| {result['job']} | {result['step_ns'] / 1e6:.1f}, {statistics.fmean(result['baselines']) / 1e6:.1f} ms "
            f"| {variant['code']} {variant['label']} | {variant['predicted'][0]:.2f}×{upper_bound} "
            f"| {speed}, {variant['rounds']} | {error(variant):+.0%} |"
        )
    return "\n".join([*lines, "", *summary(results)]) + "\n"


def summary(results: list[dict[str, Any]]) -> list[str]:
    rows = measured(results)
    if not rows:
        return ["- Nothing was measured."]
    inside = sum(variant["speed"][1] <= variant["predicted"][0] <= variant["speed"][2] for _, variant in rows)
    above = sum(
        variant["predicted"][0] > 1.0001 * variant["upper_bound"] for _, variant in rows if variant["upper_bound"]
    )
    controls = [abs(result["control"][0] - 1) for result in results if result.get("control")]
    typical = statistics.median(abs(error(variant)) for _, variant in rows)
    return [
        f"- Error of the predicted step time: median {typical:.1%} "
        f"over {len(rows)} predictions for {len({result['job'] for result, _ in rows})} jobs.",
        f"- Predictions within the 95 % interval of what was measured: {inside} of {len(rows)}.",
        f"- Predictions above Amdahl's upper bound: {above}.",
        f"- The control, which changes nothing, seemed faster or slower by {statistics.median(controls):.1%} (median "
        f"of {len(controls)} trials; up to {max(controls):.0%}).",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="jobs, with commas between")
    parser.add_argument("--recordings", type=int, default=2, help="of each job")
    parser.add_argument("--rounds", type=int, default=5, help="in which each fix is measured")
    parser.add_argument("--report", type=Path, help="write the tables of what FOLDER holds, and measure nothing")
    wanted = parser.parse_args()
    wanted.folder.mkdir(parents=True, exist_ok=True)
    path = wanted.folder / LINES
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if wanted.report is not None:
        if not done:
            parser.error(f"{wanted.folder} holds no results: measure first, without --report")
        environment = environment_of("")
        wanted.report.with_suffix(".md").write_text(report(done, environment), encoding="utf-8")
        kept = {"environment": environment, "jobs": done}
        wanted.report.with_suffix(".json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return
    os.environ.update(ONE_THREAD)
    names = [job.name for job in PLANTED]
    only = wanted.only.split(",") if wanted.only else names
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"no such job: {', '.join(unknown)}; expected some of {', '.join(names)}")
    for number in range(wanted.recordings):
        for job in (each for each in PLANTED if each.name in only):
            if any((each["job"], each["recording"]) == (job.name, number) for each in done):
                continue
            try:
                result = {"recording": number, **measure(job, wanted.folder / str(number), wanted.rounds)}
            except (JobFailed, SteptimeError) as failed:
                print(f"{job.name}: {failed}", file=sys.stderr, flush=True)
                continue
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            reported = (
                ", ".join(f"{variant['code']} {error(variant):+.0%}" for _, variant in measured([result])) or "nothing"
            )
            print(f"{job.name} {number}: {reported}, {result['seconds']:.0f} s", flush=True)


if __name__ == "__main__":
    main()
