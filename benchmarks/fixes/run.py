"""Planted jobs through `steptime run` and `steptime try`: is the right fix adopted, a harmful one never, and how far
are predicted speed-ups from measured ones?

    python -m benchmarks.fixes.run FOLDER [--only NAME,…] [--budget 2m] [--most 2]
    python -m benchmarks.fixes.run FOLDER --report benchmarks/results/fixes-<machine>

Recordings, trials and a line of results for each job go into FOLDER; jobs that are in it already are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.fixes.planted import PLANTED, Planted
from benchmarks.kept import speed_of
from benchmarks.started import JobFailed, steptime
from steptime.advice.propose import propose
from steptime.diagnosis import diagnose_paths
from steptime.trials.judge import comparisons_of, speed_up
from steptime.trials.results import NAME, Results, read_results
from steptime.trials.trial import BASELINE, CONTROL, Judgement, TrialVerdict

LINES = "jobs.jsonl"
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
"""What the jobs are started with: more threads than are free would make every step another."""


def measure(job: Planted, folder: Path, budget: str, most: int) -> dict[str, Any]:
    """One job: recorded, tried, judged."""
    began = time.monotonic()
    recording = record(job, folder)
    recorded = time.monotonic()
    words = ["--quiet", "--json", "--max-trials", str(most), "--budget", budget, str(recording)]
    reported = steptime("try", *words, environment=ONE_THREAD)
    result = {
        "job": job.name,
        "right": job.right,
        "harmful": job.harmful,
        "findings": findings_of(recording),
        "date": time.strftime("%Y-%m-%d"),
        "record_seconds": round(recorded - began, 1),
        "try_seconds": round(time.monotonic() - recorded, 1),
        "variants": [],
    }
    if reported.lstrip().startswith("{"):
        result |= judged(read(reported), recording)
    return result


def record(job: Planted, folder: Path) -> Path:
    """The recording of a job; one that is there is used again."""
    recording = folder / job.name / "recording"
    recording.parent.mkdir(parents=True, exist_ok=True)
    if not (recording / "manifest.json").exists():
        command = [sys.executable, str(job.script), *job.arguments]
        steptime("run", "--quiet", "--recording", str(recording), "--", *command, environment=ONE_THREAD)
    return recording


def record_all(folder: Path) -> None:
    """Recordings of all jobs, and what would be tried."""
    for job in PLANTED:
        recording = record(job, folder)
        (process, *_) = diagnose_paths((str(recording),)).processes
        step = process.case.step.duration.value
        print(f"{job.name}: step {step / 1e6:.1f} ms, {findings_of(recording)}", flush=True)
        for each in propose(process.case, process.findings):
            saving = each.option.saving
            speed = f"{step / (step - saving.value):.2f}x" if saving is not None and saving.value < step else "-"
            print(f"    {each.fix.code} {each.option.label} {each.finding} {speed} {each.option.advice}", flush=True)


def findings_of(recording: Path) -> list[str]:
    (process, *_) = diagnose_paths((str(recording),)).processes
    return [finding.name for finding in process.findings if finding.weight.value == "finding"]


def peaks_of(recording: Path) -> dict[tuple[str, str], float]:
    """The largest speed-up by Amdahl's law, by fix and option."""
    (process, *_) = diagnose_paths((str(recording),)).processes
    step = process.case.step.duration.value
    return {
        (each.fix.code, each.option.label): step / (step - each.upper_bound)
        for each in propose(process.case, process.findings)
        if each.upper_bound is not None and each.upper_bound < step
    }


def read(lines: str) -> Results:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / NAME).write_text(lines, encoding="utf-8")
        return read_results(Path(folder))


def judged(results: Results, recording: Path) -> dict[str, Any]:
    """The fixes one by one, the control, and the patch."""
    patch = results.patch
    peaks = peaks_of(recording)
    proved = patch.judgement if patch is not None else None
    return {
        "variants": [row(judgement, peaks) for stage, judgement in results.judgements if stage == 0],
        **steadiness(results, recording),
        "processes": len(results.runs),
        "other_cpu": max((run.load.other_cpu for run in results.runs), default=0.0),
        "patch_lines": patch.diff.count("\n") if patch is not None else 0,
        "patch_environment": list(patch.environment) if patch is not None else [],
        "patch_speed": speed_of(proved) if proved is not None else None,
        "patch_verdict": proved.verdict.value if proved is not None else "",
    }


def steadiness(results: Results, recording: Path) -> dict[str, Any]:
    """How far two measurements of one job differ here. control: the speed-up of the control, which changes nothing;
    as_recorded: mean step of the job as it is in the trial, over the one of its recording."""
    runs = [run for run in results.runs if run.stage == 0 and not run.rehearsal]
    rounds = comparisons_of(CONTROL, runs)
    (process, *_) = diagnose_paths((str(recording),)).processes
    means = [statistics.fmean(run.step_ns) for run in runs if run.variant == BASELINE and run.step_ns]
    control = speed_up(rounds) if rounds else None
    return {
        "control": [control.value, control.low, control.high] if control is not None else None,
        "as_recorded": statistics.geometric_mean(means) / process.case.step.duration.value if means else None,
    }


def row(judgement: Judgement, peaks: dict[tuple[str, str], float]) -> dict[str, Any]:
    variant = judgement.variant
    predicted = variant.predicted
    return {
        "code": variant.proposal,
        "label": variant.label,
        "verdict": judgement.verdict.value,
        "agreement": judgement.agreement.value,
        "sentence": judgement.sentence,
        "rounds": judgement.rounds,
        "speed": speed_of(judgement),
        "predicted": [predicted.value, predicted.low, predicted.high] if predicted is not None else None,
        "upper_bound": peaks.get((variant.proposal, variant.label)),
    }


# -- the report -------------------------------------------------------------------------------------------------------


def outcome(result: dict[str, Any]) -> str:
    """In a word: what the trial made of the planted fault."""
    adopted = {variant["code"] for variant in result["variants"] if variant["verdict"] == TrialVerdict.ADOPT.value}
    if adopted & set(result["harmful"]):
        return "HARMFUL ADOPTED"
    if not result["right"]:
        return "nothing harmful" if not adopted else "another one adopted: " + " ".join(sorted(adopted))
    if adopted & set(result["right"]):
        return "right"
    tried = {
        variant["code"]: variant["verdict"] for variant in result["variants"] if variant["code"] in result["right"]
    }
    return next(iter(tried.values()), "not proposed")


def errors(results: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any], float]]:
    """(job, variant, error of the predicted step time) of variants with a prediction and a measured speed-up."""
    variants = [
        (result["job"], variant)
        for result in results
        for variant in result["variants"]
        if variant["predicted"] and variant["speed"]
    ]
    return [(job, variant, variant["speed"][0] / variant["predicted"][0] - 1) for job, variant in variants]


def repeated(results: list[dict[str, Any]]) -> list[float]:
    """By how much two measurements of a fix of one job differ, as `errors` tells it of a prediction."""
    first: dict[tuple[str, str, str], float] = {}
    differences = []
    for result in results:
        for variant in result["variants"]:
            key = (result["job"], variant["code"], variant["label"])
            if not variant["speed"]:
                continue
            if key in first:
                differences.append(abs(variant["speed"][0] / first[key] - 1))
            else:
                first[key] = variant["speed"][0]
    return differences


def report(results: list[dict[str, Any]], environment: dict[str, str]) -> str:
    """Markdown."""
    lines = [
        "# Fixes on planted jobs",
        "",
        f"{environment['machine']}, {environment['cpus']} CPUs (shared), Python {environment['python']}, torch "
        f"{environment['torch']}, {environment['date']}; `python -m benchmarks.fixes.run`, a budget of "
        f"{environment['budget']} a job, at most two fixes each, OMP_NUM_THREADS=1.",
        "",
        "| job | found first | tried | predicted | measured | verdict | the planted fault |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    reported: set[str] = set()
    for result in results:
        name = f"{result['job']}, again" if result["job"] in reported else result["job"]
        reported.add(result["job"])
        first = result["findings"][0] if result["findings"] else "–"
        variants = result["variants"] or [None]
        for number, variant in enumerate(variants):
            head = f"| {name} | {first} |" if number == 0 else "| | |"
            cells = cells_of(variant)
            lines.append(f"{head} {cells} | {outcome(result) if number == 0 else ''} |")
    return "\n".join([*lines, "", *summary(results)]) + "\n"


def cells_of(variant: dict[str, Any] | None) -> str:
    if variant is None:
        return "nothing | | | "
    predicted = f"{variant['predicted'][0]:.2f}× ≤ {variant['predicted'][2]:.2f}" if variant["predicted"] else "–"
    speed = "{:.2f}× ({:.2f}–{:.2f})".format(*variant["speed"]) if variant["speed"] else "–"
    return f"{variant['code']} {variant['label']} | {predicted} | {speed} | {variant['verdict']}"


def summary(results: list[dict[str, Any]]) -> list[str]:
    outcomes = [(result, outcome(result)) for result in results]
    planted = [reported for result, reported in outcomes if result["right"]]
    right = planted.count("right")
    harmful = sum(reported == "HARMFUL ADOPTED" for _, reported in outcomes)
    found = errors(results)
    above = [
        variant for result in results for variant in result["variants"]
        if variant["predicted"] and variant["upper_bound"] and variant["predicted"][2] > 1.0001 * variant["upper_bound"]
    ]  # fmt: skip
    patches = [result for result in results if result.get("patch_speed")]
    lines = [
        f"- Right fix adopted: {right} of {len(planted)}; others: "
        + (", ".join(sorted(reported for reported in planted if reported != "right")) or "none")
        + ".",
        f"- Harmful fixes adopted: {harmful}.",
        f"- Other programs used up to {max((each.get('other_cpu', 0.0) for each in results), default=0.0):.1f} CPUs "
        "meanwhile.",
        f"- Predictions above Amdahl's upper bound: {len(above)}.",
    ]
    if found:
        lines.append(
            f"- Error of the predicted step time: median {statistics.median(abs(each) for *_, each in found):.1%} over "
            f"{len(found)} variants; "
            + ", ".join(f"{job} {variant['code']} {each:+.0%}" for job, variant, each in found)
            + " (positive: faster than predicted)."
        )
        met = [
            variant for _, variant, _ in found if variant["speed"][1] <= variant["predicted"][0] <= variant["speed"][2]
        ]
        lines.append(f"- Predictions within the interval of what was measured: {len(met)} of {len(found)}.")
    if twice := repeated(results):
        lines.append(
            f"- Gains that were measured twice: the second measurement was {statistics.median(twice):.1%} off the "
            f"first (median of {len(twice)}), which is as near as a prediction could be shown to be."
        )
    if steady := [result for result in results if result.get("control")]:
        lines.append(steadiness_reported(steady))
    if patches:
        reported = ", ".join(
            f"{each['job']} {each['patch_speed'][0]:.2f}× ({each['patch_verdict']})" for each in patches
        )
        lines.append(f"- Patches that were run by themselves: {reported}.")
    return lines


def steadiness_reported(results: list[dict[str, Any]]) -> str:
    """What no prediction can be nearer than."""
    controls = [abs(result["control"][0] - 1) for result in results]
    against = sorted(result["as_recorded"] for result in results)
    return (
        f"- How far measurements of the same differ, in {len(results)} of these trials: the control, which changes "
        f"nothing, seemed faster or slower by {statistics.median(controls):.1%} (median; up to {max(controls):.0%}); "
        f"the job as it is took {statistics.median(against):.2f} times as long as in its recording (median; "
        f"{against[0]:.2f} to {against[-1]:.2f})."
    )


def environment_of(budget: str) -> dict[str, str]:
    import torch

    known = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.split(":")[1].strip() for line in known if line.startswith("model name")), "")
    return {
        "machine": model or platform.processor(),
        "cpus": str(os.cpu_count()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "budget": budget,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", default="2m")
    parser.add_argument("--most", type=int, default=2, help="fixes tried of a job")
    parser.add_argument("--record", action="store_true", help="recordings and proposals only")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / LINES
    done = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if arguments.report is not None:
        environment = environment_of(arguments.budget)
        text = report(done, environment)
        arguments.report.with_suffix(".md").write_text(text, encoding="utf-8")
        arguments.report.with_suffix(".json").write_text(
            json.dumps({"environment": environment, "jobs": done}, indent=1) + "\n", encoding="utf-8"
        )
        print(text)
        return
    if arguments.record:
        record_all(arguments.folder)
        return
    names = [job.name for job in PLANTED]
    wanted = arguments.only.split(",") if arguments.only else names
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no such job: {', '.join(unknown)}; expected some of {', '.join(names)}")
    known = {result["job"] for result in done}
    for job in PLANTED:
        if job.name in wanted and job.name not in known:
            try:
                result = measure(job, arguments.folder, arguments.budget, arguments.most)
            except JobFailed as error:
                print(f"{job.name}: {error}", file=sys.stderr, flush=True)
                continue
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{job.name}: {outcome(result)}", flush=True)


if __name__ == "__main__":
    main()
