"""How often a trial is wrong about what changes nothing: live comparisons of jobs with themselves, on the machine as it
is.

    python -m benchmarks.false_wins --out benchmarks/results/false-wins-NAME [--command "python train.py"]

Every variant is the job with another comment (a job of your own: under a variable of the environment that nobody
reads); what is adopted all the same is a false win, what is called slower or another training a false loss. At most
5 % may be won. Each true speed-up is 1, and at least 95 % of the intervals must hold it: their *coverage*. Results that
are there already are added to.

Next to the live figure stands one from the same recorded processes: since all of them ran the same job, their names can
be exchanged within each round, and every exchange is another trial that changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from steptime.changes import Change
from steptime.trials import conduct
from steptime.trials.conduct import TrialRunner
from steptime.trials.containment import Workspace
from steptime.trials.executor import LocalExecutor
from steptime.trials.judge import LEAST_ROUNDS, judge
from steptime.trials.results import Plan, append_result
from steptime.trials.trial import BASELINE, CONTROL, Budget, Judgement, Run, TrialVerdict, Variant

JOB = Path(__file__).with_name("false_wins_job.py")
SHAPES = ("dense", "convolution", "attention", "loader")
MIN_GAIN = 0.03
EXCHANGES = 50
"""Of the names in a trial."""


def variants(count: int, source: str = "") -> tuple[Variant, ...]:
    """What changes nothing, so many times. source: of the job, "" for one of your own."""
    if source:
        sources = [((JOB.name, f"{source}\n# {number}\n"),) for number in range(count)]
        return tuple(Variant(f"nothing-{number}", sources=each) for number, each in enumerate(sources))
    return tuple(
        Variant(f"nothing-{number}", (Change("environment", arguments=(("STEPTIME_NOTHING", str(number)),)),))
        for number in range(count)
    )


def live(
    shape: str, count: int, folder: Path, budget: float, own: tuple[str, ...] = ()
) -> tuple[TrialRunner, tuple[Judgement, ...]]:
    """One trial of a job with itself. own: another job's command, run in the current folder."""
    job, tried = Path.cwd() if own else folder / "job", variants(count, "" if own else JOB.read_text(encoding="utf-8"))
    command = own or (sys.executable, JOB.name, shape)
    if not own:
        job.mkdir(parents=True)
        (job / JOB.name).write_text(JOB.read_text(encoding="utf-8"), encoding="utf-8")
    plan = Plan(command, str(job), "", tried, MIN_GAIN)
    append_result(folder / "trial", plan=plan)
    workspace = Workspace(command, folder / "trial", job)
    with contextlib.closing(LocalExecutor(alternating=True, forking=True)) as executor:
        trial = TrialRunner(workspace, plan, budget=Budget(budget), executor=executor)
        return trial, trial.conduct(0, tried)


def exchanged(runs: Sequence[Run], draw: random.Random) -> list[Run]:
    """The same processes in the same order, with the names of variants and control exchanged within each round."""
    result = list(runs)
    movable = [n for n, run in enumerate(runs) if run.variant != BASELINE and not run.rehearsal]
    for round_ in {runs[n].round for n in movable}:
        places = [n for n in movable if runs[n].round == round_]
        names = [(runs[n].variant, runs[n].changes) for n in places]
        draw.shuffle(names)
        for place, (name, changes) in zip(places, names, strict=True):
            result[place] = replace(runs[place], variant=name, changes=changes)
    return result


def shuffled_wins(trials: Sequence[tuple[TrialRunner, tuple[Judgement, ...]]]) -> Counter[str]:
    """Adopted, comparisons, and intervals that hold 1, over EXCHANGES of each trial."""
    draw, found = random.Random(0), Counter[str]()
    for bench, judgements in trials:
        for _ in range(EXCHANGES):
            runs = exchanged(bench.runs, draw)
            for judgement in judgements:
                again = judge(judgement.variant, runs, min_gain=MIN_GAIN)
                found["shuffled_comparisons"] += again.rounds >= LEAST_ROUNDS
                found["shuffled_adopted"] += again.verdict is TrialVerdict.ADOPT
                found["shuffled_intervals"] += again.speed is not None
                found["shuffled_covered"] += again.speed is not None and again.speed.low <= 1 <= again.speed.high
    return found


def covered(row: dict[str, Any]) -> int:
    """Intervals of a trial that hold the true speed-up."""
    return sum(low <= 1 <= high for _, low, high in row["speeds"])


def spread(runs: Sequence[Run]) -> float:
    """The slowest over the fastest process of a trial, by mean step."""
    means = [sum(run.step_ns) / len(run.step_ns) for run in runs if run.step_ns and not run.rehearsal]
    return max(means) / min(means)


def row(shape: str, bench: TrialRunner, judgements: Sequence[Judgement]) -> dict[str, Any]:
    """What is kept of a trial."""
    known = [each for each in judgements if each.speed is not None]
    loads = [run.load.other_cpu for run in bench.runs]
    return {
        "job": shape,
        "comparisons": len(known),
        "verdicts": dict(Counter(each.verdict.value for each in known)),
        "processes": len(bench.runs),
        "rounds": max((run.round + 1 for run in bench.runs if run.variant == CONTROL), default=0),
        "slowest_over_fastest": round(spread(bench.runs), 2),
        "other_cpu_mean": round(sum(loads) / len(loads), 2),
        "noise": round(known[0].noise, 3) if known and known[0].noise is not None else None,
        "speeds": [
            [round(each.speed.value, 3), round(each.speed.low, 3), round(each.speed.high, 3)]
            for each in known
            if each.speed
        ],
    }


COLUMNS = {
    "job": "job",
    "comparisons": "comparisons",
    "processes": "processes",
    "rounds": "rounds",
    "slowest_over_fastest": "slowest / fastest process",
    "other_cpu_mean": "others' load (CPUs)",
    "noise": "control's noise",
    "covered": "intervals that hold 1",
    "verdicts": "verdicts",
}
FALSE_LOSSES = (TrialVerdict.SLOWER, TrialVerdict.SUSPICIOUS, TrialVerdict.BROKE_PROMISE, TrialVerdict.FAILED)


def text_of(rows: Sequence[dict[str, Any]], total: dict[str, Any]) -> str:
    """The result for people."""
    lines = [
        "# Comparisons of jobs with themselves",
        "",
        f"{total['machine']}; {total['when']}; steps of {total['threads']} thread(s).",
        "",
        f"| {' | '.join(COLUMNS.values())} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for each in rows:
        reported = {**each, "verdicts": ", ".join(f"{count} {name}" for name, count in each["verdicts"].items())}
        reported["covered"] = f"{covered(each)} of {len(each['speeds'])}"
        lines.append(f"| {' | '.join(str(reported[name]) for name in COLUMNS)} |")
    lines += [
        "",
        f"**{total['adopted']} of {total['comparisons']} adopted** (live; allowed 5 %), {total['lost']} called worse.",
        f"**{total['covered']} of {total['intervals']} intervals hold 1** "
        f"({share(total['covered'], total['intervals'])}; promised 95 %).",
        "",
        "With the names of the same processes exchanged within each round: "
        f"{total['shuffled_adopted']} of {total['shuffled_comparisons']} adopted{exchanged_intervals(total)}.",
        "",
    ]
    return "\n".join(lines)


def exchanged_intervals(total: dict[str, Any]) -> str:
    """Results of an earlier day have none of them."""
    held, count = total.get("shuffled_covered", 0), total.get("shuffled_intervals", 0)
    return f", and {held} of {count} intervals hold 1 ({share(held, count)})" if count else ""


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=40)
    parser.add_argument("--variants", type=int, default=5, help="of one trial")
    parser.add_argument("--command", type=shlex.split, default=(), help="of a job of your own, in the current folder")
    parser.add_argument("--budget", type=float, default=600, help="seconds of one trial")
    parser.add_argument("--seconds", type=float, default=conduct.SECONDS, help="of steady steps in a process")
    parser.add_argument("--out", required=True, help="path without extension: .json and .md are written")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    conduct.SECONDS = given.seconds
    known: dict[str, Any] = {"trials": []}
    with contextlib.suppress(FileNotFoundError):
        known = json.loads(Path(given.out + ".json").read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = known["trials"]
    trials: list[tuple[TrialRunner, tuple[Judgement, ...]]] = []
    total = known
    with tempfile.TemporaryDirectory() as scratch:
        while sum(each["comparisons"] for each in rows) < given.comparisons and len(trials) < given.comparisons:
            shape = shlex.join(given.command) or SHAPES[len(rows) % len(SHAPES)]
            folder = Path(scratch) / str(len(trials))
            bench, judgements = live(shape, given.variants, folder, given.budget, tuple(given.command))
            trials.append((bench, judgements))
            rows.append(row(shape, bench, judgements))
            print(json.dumps(rows[-1]), flush=True)
            total = write(given.out, rows, shuffled_wins(trials), known)
    print(f"{total['adopted']} of {total['comparisons']} adopted; {total['covered']} of {total['intervals']} hold 1")
    return int(total["adopted"] > 0.05 * total["comparisons"])


def write(out: str, rows: Sequence[dict[str, Any]], shuffled: Counter[str], before: dict[str, Any]) -> dict[str, Any]:
    """Both files; returns the totals."""
    total = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}",
        "when": time.strftime("%Y-%m-%d"),
        "threads": os.environ["OMP_NUM_THREADS"],
        "adopted": sum(each["verdicts"].get(TrialVerdict.ADOPT.value, 0) for each in rows),
        "lost": sum(each["verdicts"].get(verdict.value, 0) for each in rows for verdict in FALSE_LOSSES),
        "comparisons": sum(each["comparisons"] for each in rows),
        "covered": sum(map(covered, rows)),
        "intervals": sum(len(each["speeds"]) for each in rows),
    }
    for name in ("adopted", "comparisons", "covered", "intervals"):
        total[f"shuffled_{name}"] = before.get(f"shuffled_{name}", 0) + shuffled[f"shuffled_{name}"]
    Path(out + ".json").write_text(json.dumps({**total, "trials": list(rows)}, indent=1) + "\n", encoding="utf-8")
    Path(out + ".md").write_text(text_of(rows, total), encoding="utf-8")
    return total


if __name__ == "__main__":
    sys.exit(main())
