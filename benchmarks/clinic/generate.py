"""Jobs that nobody has seen: composed from a seed, measured bare, diagnosed by steptime, and scored.

    python -m benchmarks.clinic.generate --seed 5000 --count 20 [--into FOLDER]      # only writes the jobs
    python -m benchmarks.clinic.generate --seed 5000 --count 20 --score FILE.jsonl   # measures and scores them, too
    python -m benchmarks.clinic.generate --table FILE.jsonl [--of NAME]              # the scores of what was measured

`--tool NAME=COMMAND` asks another tool, too: COMMAND is started with the job's command line behind it, and prints what
it says as JSON (`adapter.py` is an example; docs/clinic.md says which fields).

Each job is a folder with `job/` and `twin/`, and `truth.json`: cause, culprit lines, share of the step. The share comes
from interleaved bare runs of job and twin, timed from outside (`timed.py`). A seed that a change was made after looking
at is not fresh any more: score on seeds that were never run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.clinic.compose import Design, Written, design, written
from benchmarks.clinic.diagnosed import Reported, reported_of
from benchmarks.clinic.score import SEVERE, Count
from benchmarks.kept import machine
from benchmarks.started import JobFailed, last_words, steptime
from steptime.launcher.turns import LOOK, Turn, Turns
from steptime.launcher.variant import VariantPlace, end_job, start_kept
from steptime.recording.inventory import WARM

OURS = "steptime"
ROOT = str(Path(__file__).resolve().parents[2])
Tool = Callable[[Design, Path], Reported]
SECONDS = 3.0
"""Of steps in a bare run: of short steps hundreds, of long ones thirty."""
PAIRS = 2
"""Bare runs of job and twin, which take turns."""
SLICE, SETTLING = 0.5, 0.01
"""Seconds of a turn, and after it until steps count."""
TIMEOUT = 240
LONGEST, FEWEST = 60.0, 20
"""Seconds of a job, and its steps at the least: a fault in thousands of steps that were short would take many minutes,
of which a tool learns nothing more."""
FIRST_AMOUNT = 8
SEEN = 0.5
"""Of the twin's step: less could be chance, so the amount is raised before the dose is told from it. Two runs of a job
differ by a fifth on a machine in use."""
STEADY = 1 / 3
ALARM = 0.05
"""Of a twin's step: a smaller finding is no alarm."""
FIRST = 3


@dataclass(frozen=True)
class Share:
    """Of a step that a fault takes: of the means, and over all pairs of runs."""

    value: float
    low: float
    high: float


def main() -> None:
    options = arguments()
    if options.table:
        lines = options.table.read_text(encoding="utf-8").splitlines()
        print(table([json.loads(line) for line in lines], options.of))
        return
    tools: dict[str, Tool] = {OURS: heard}
    tools |= {name: partial(asked, shlex.split(words)) for name, words in options.tool}
    done = _seeds_in(options.score)
    for seed in range(options.seed, options.seed + options.count):
        job = design(seed)
        if job.missing or seed in done:
            print(f"seed {seed}: {'done' if seed in done else 'needs ' + ', '.join(job.missing)}")
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                row = examined(job, (options.into or Path(scratch)) / str(seed), tools if options.score else {})
            except JobFailed as error:
                row = {"seed": seed, "failed": str(error)}
        _print(row)
        if options.score:
            with options.score.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0, help="of the first job")
    parser.add_argument("--count", type=int, default=10, help="of jobs")
    parser.add_argument("--into", type=Path, help="folder that the jobs are written to and kept in")
    parser.add_argument("--score", type=Path, help="run steptime on each, and append a row to this file")
    parser.add_argument("--tool", action="append", default=[], type=_tool, metavar="NAME=COMMAND", help="asked, too")
    parser.add_argument("--of", default=OURS, metavar="NAME", help="the tool whose scores --table prints")
    parser.add_argument("--table", type=Path, help="print the scores of the rows in this file")
    return parser.parse_args()


def _tool(words: str) -> tuple[str, str]:
    name, _, command = words.partition("=")
    if not name or not command:
        raise argparse.ArgumentTypeError(f"{words}: expected NAME=COMMAND")
    return name, command


def _seeds_in(file: Path | None) -> set[int]:
    if file is None or not file.exists():
        return set()
    return {json.loads(line)["seed"] for line in file.read_text(encoding="utf-8").splitlines()}


def examined(job: Design, folder: Path, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """Writes a job and its twin, measures what each fault takes, and asks the tools about both."""
    amounts = [dosed(job, number, folder) for number in range(len(job.planted))]
    most = int(LONGEST / step_time(job, written(job, amounts), folder / "bare"))
    job = replace(job, steps=min(job.steps, max(most, FEWEST)))
    faulty, twin = written(job, amounts), written(job, [0] * len(amounts))
    shares = [measured(job, amounts, number, folder) for number in range(len(amounts))]
    script, healthy = faulty.write(folder / "job"), twin.write(folder / "twin")
    truth = _truth(job, amounts, faulty, shares)
    (folder / "truth.json").write_text(json.dumps(truth, indent=1), encoding="utf-8")
    if not tools:
        return truth
    return {
        **truth,
        "said": {name: asdict(tool(job, script)) for name, tool in tools.items()} if amounts else {},
        "said_of_twin": {name: asdict(tool(job, healthy)) for name, tool in tools.items()},
        "about": machine(),
    }


def _truth(job: Design, amounts: Sequence[int], faulty: Written, shares: Sequence[Share]) -> dict[str, Any]:
    return {
        "seed": job.seed,
        "loop": job.loop.name,
        "model": job.model.name,
        "steps": job.steps,
        "ranks": job.loop.ranks,
        "faults": [
            {
                "name": planted.fault.name,
                "cause": planted.fault.cause,
                "known": planted.fault.known,
                "place": planted.place,
                "part": planted.part,
                "amount": amount,
                "share": asdict(share),
                "rules": planted.rules,
                "lines": sorted(lines),
            }
            for planted, amount, share, lines in zip(job.planted, amounts, shares, faulty.culprits, strict=True)
        ],
    }


def dosed(job: Design, number: int, folder: Path) -> int:
    """The amount of a fault that takes about the wanted share of a step; 1 for one that is there or not."""
    planted = job.planted[number]
    if not planted.fault.dosed:
        return 1
    healthy, amount = step_time(job, written(job, _only(job, number, 0)), folder / "bare"), FIRST_AMOUNT
    extra, reported = 0.0, 0
    while True:
        amount = min(amount, planted.fault.most)
        try:
            extra = step_time(job, written(job, _only(job, number, amount)), folder / "bare") - healthy
        except JobFailed:  # so much is too much for any job: what less of it took must do
            if not reported:
                raise
            amount = reported
            break
        reported = amount
        if extra > SEEN * healthy or amount == planted.fault.most:
            break
        amount *= 8
    wanted = healthy * planted.wanted / (1 - planted.wanted)
    return max(1, min(planted.fault.most, round(amount * wanted / max(extra, 1e-9))))


def _only(job: Design, number: int, amount: int) -> list[int]:
    return [amount if each == number else 0 for each in range(len(job.planted))]


def measured(job: Design, amounts: Sequence[int], number: int, folder: Path) -> Share:
    """What a fault takes of the job's step: bare runs with and without it, which take turns."""
    without = [0 if each == number else amount for each, amount in enumerate(amounts)]
    laps: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        order = (False, True) if pair % 2 == 0 else (True, False)
        versions = [written(job, amounts if ill else without) for ill in order]
        for ill, each in zip(order, in_turns(job, versions, folder), strict=True):
            laps[ill].append(each)
    shares = [1 - healthy / faulty for healthy, faulty in zip(laps[False], laps[True], strict=True)]
    value = 1 - statistics.fmean(laps[False]) / statistics.fmean(laps[True])
    return Share(value, min(shares), max(shares))


def in_turns(job: Design, versions: Sequence[Written], folder: Path) -> list[float]:
    """Mean seconds of a steady step of each version, whose bare runs take turns, so that all meet the same machine.
    Raises JobFailed."""
    turns = Turns(SLICE)

    def run(turn: Turn, files: Written, own: Path) -> float:
        try:
            turn.start()
            return step_time(job, files, own, turn)
        finally:
            turn.leave()

    with ThreadPoolExecutor(len(versions)) as pool:
        folders = [folder / f"bare-{number}" for number in range(len(versions))]
        places = [turns.turn() for _ in versions]
        try:
            return list(pool.map(run, places, versions, folders))
        finally:
            turns.end()


def step_time(job: Design, files: Written, folder: Path, turn: Turn | None = None) -> float:
    """Mean seconds of a steady step of a bare run. turn: its place among others, which it has. Raises JobFailed."""
    script, times = files.write(folder), folder / "times.json"
    for old in (times, folder / WARM):
        old.unlink(missing_ok=True)
    seconds = SECONDS if turn is None else 2 * SECONDS  # half of them at rest
    timed = ["-m", "benchmarks.clinic.timed", str(times), str(seconds), str(script)]
    variables = {**_variables(), "PYTHONPATH": ROOT, "TIMED_IN": str(folder)}
    words, errors = (*_python(job), *timed), folder / "errors"
    with errors.open("wb") as message:
        run = start_kept(VariantPlace(Path.cwd()), words, variables, subprocess.DEVNULL, message)
    start = time.monotonic()
    if turn is not None:
        turn.starts(run.pid, folder)
    try:
        while turn is not None and run.poll() is None and time.monotonic() - start < TIMEOUT:
            if turn.over(folder):
                turn.rest()
            time.sleep(LOOK)
        run.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        raise JobFailed(f"took more than {TIMEOUT} s") from None
    finally:
        end_job(run)
    if not times.exists():
        raise JobFailed(last_words(errors.read_text(errors="replace")) or "no steps")
    ends = json.loads(times.read_text())
    steps = list(itertools.pairwise(ends))[int((len(ends) - 1) * STEADY) :]
    rests = [(before / 1e9, after / 1e9 + SETTLING) for before, after in turn.rests] if turn is not None else []
    calm = [end - start for start, end in steps if not any(start < after and before < end for before, after in rests)]
    if not calm:
        raise JobFailed("no step was taken whole")
    return statistics.fmean(calm)


def _python(job: Design) -> list[str]:
    if job.loop.ranks == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.loop.ranks}"]


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}


def heard(job: Design, script: Path) -> Reported:
    """What steptime says of a job, unmodified, which has run bare; where it fails, that is a verdict that it
    withholds."""
    message = script.parent / "said.json"
    words = [
        "run",
        "-o",
        str(message),
        "--full",
        "--no-progress",
        "--recording",
        str(script.parent / "recording"),
        "--",
    ]
    try:
        steptime(*words, *_python(job), str(script), folder=script.parent, environment=_variables(), seconds=TIMEOUT)
    except JobFailed as error:
        return Reported("undecided", problems=(str(error),))
    return reported_of(json.loads(message.read_text(encoding="utf-8")))


def asked(command: Sequence[str], job: Design, script: Path) -> Reported:
    """What another tool says of a job; where it fails, that is a verdict that it withholds."""
    words = [*command, *_python(job), str(script)]
    try:
        variables = {**_variables(), "PYTHONPATH": ROOT}
        done = subprocess.run(words, cwd=script.parent, env=variables, capture_output=True, text=True,
                              timeout=TIMEOUT, check=True)  # fmt: skip
        answer = json.loads(done.stdout)
        findings = [(each["cause"], each.get("share", 0.0), each.get("line")) for each in answer["findings"]]
    except subprocess.CalledProcessError as error:
        return Reported("undecided", problems=(last_words(error.stderr) or f"exit status {error.returncode}",))
    except (subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
        return Reported("undecided", problems=(f"{type(error).__name__}: {error}",))
    return Reported(
        bottleneck="undecided" if answer.get("withheld") else answer.get("bottleneck", ""),
        causes=tuple(cause for cause, _, _ in findings),
        shares=tuple(
            (share, share, share) if isinstance(share, float | int) else tuple(share) for _, share, _ in findings
        ),
        lines=tuple((Path(line[0]).name, line[1]) if line else None for _, _, line in findings),
    )


def is_right(fault: dict[str, Any], message: dict[str, Any], place: int) -> bool:
    """Whether a finding says the fault: by its name, by its line, or, of a tool that knows neither, by the part of the
    step that it is in."""
    cause = message["causes"][place]
    return cause in fault["rules"] or cause == f"part: {fault.get('part')}" or is_on_line(fault, message, place)


def is_on_line(fault: dict[str, Any], message: dict[str, Any], place: int) -> bool:
    """Whether a finding is on a line of the fault."""
    line = message["lines"][place]
    return line is not None and list(line) in [list(each) for each in fault["lines"]]


def place_of(fault: dict[str, Any], message: dict[str, Any]) -> int:
    """Of the fault among the findings, -1 where none says it."""
    return next((place for place in range(len(message["causes"])) if is_right(fault, message, place)), -1)


def counts(rows: Sequence[dict[str, Any]], tool: str = OURS) -> dict[str, Count]:
    """The scores of a tool. Verdicts withheld count as not right. A fault counts where it takes much of the step, in
    all pairs of bare runs: what may as well take nothing is no truth."""
    heard = [row for row in rows if "failed" not in row and tool in row["said_of_twin"]]
    reported = [
        (fault, row["said"][tool], place_of(fault, row["said"][tool])) for row in heard for fault in _severe(row)
    ]
    decided = [(fault, message, place) for fault, message, place in reported if message["bottleneck"] != "undecided"]
    named = [(fault, message, place) for fault, message, place in decided if place >= 0]
    twins = [row["said_of_twin"][tool] for row in heard]
    return {
        "right cause first, of all": _count(reported, lambda each: each[2] == 0 and each in decided),
        "the same, without what its twin is told, too": _count(
            [(row, fault) for row in heard for fault in _severe(row)],
            lambda each: _apart_right(each[0], each[1], tool),
        ),
        "within three, of all": _count(reported, lambda each: 0 <= each[2] < FIRST and each in decided),
        "line, where the right cause is first": _count(
            [each for each in decided if each[2] == 0], lambda each: is_on_line(*each)
        ),
        "line, of all": _count(reported, lambda each: each[2] == 0 and each in decided and is_on_line(*each)),
        "planted share within the interval": _count(named, _is_covered),
        "verdicts withheld": _count(reported, lambda each: each not in decided),
        f"twins with a finding of {ALARM:.0%} or more": _count(twins, lambda message: bool(alarms(message))),
    }


def table(rows: Sequence[dict[str, Any]], tool: str = OURS) -> str:
    """The scores of a tool, as Markdown."""
    lines = ["| | good | of | share | 95 % interval |", "|---|---|---|---|---|"]
    scores = counts(rows, tool)
    for name, found in scores.items():
        low, high = found.interval()
        share = f"{found.share:.0%} | {low:.0%} to {high:.0%}" if found.all else "– | –"
        lines.append(f"| {name} | {found.good} | {found.all} | {share} |")
    failed = [f"seed {row['seed']}: {row['failed']}" for row in rows if "failed" in row]
    ill = scores["right cause first, of all"].all
    return "\n".join([f"{len(rows)} jobs, {ill} with a fault of {SEVERE:.0%} or more.", "", *lines, *failed])


def _severe(row: dict[str, Any]) -> list[dict[str, Any]]:
    """The largest fault of a job, where it takes much of the step in all pairs of bare runs."""
    largest = sorted(row["faults"], key=lambda fault: fault["share"]["value"])[-1:]
    return [fault for fault in largest if fault["share"]["value"] >= SEVERE and fault["share"]["low"] > 0]


def _apart_right(row: dict[str, Any], fault: dict[str, Any], tool: str) -> bool:
    """Whether the first finding is right of those whose cause the twin, which has no fault, is not told as well: what
    is true of both may be larger than what was planted."""
    message, twin = row["said"][tool], row["said_of_twin"][tool]
    both = {cause for cause, share in zip(twin["causes"], twin["shares"], strict=True) if share[0] >= ALARM}
    own = [
        place for place, cause in enumerate(message["causes"]) if cause not in both or is_right(fault, message, place)
    ]
    return message["bottleneck"] != "undecided" and bool(own) and is_right(fault, message, own[0])


def listing(rows: Sequence[dict[str, Any]]) -> str:
    """Every job that was scored, a row each, as Markdown."""
    lines = ["| seed | loop, model | planted | share | said first | right | twin |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['seed']} | | | | {row['failed']} | | |")
            continue
        planted = "; ".join(f"{fault['name']} in {fault['place']}" for fault in row["faults"]) or "nothing"
        shares = "; ".join(f"{fault['share']['value']:.0%}" for fault in row["faults"])
        message = row["said"].get(OURS)
        lines.append(
            f"| {row['seed']} | {row['loop']}, {row['model']} | {planted} | {shares} | {_first(message)} | "
            f"{_verdict(row['faults'], message)} | {'; '.join(alarms(row['said_of_twin'][OURS])) or '–'} |"
        )
    return "\n".join(lines)


def _first(message: dict[str, Any] | None) -> str:
    if message is None or not message["causes"]:
        return "nothing" if message else ""
    line = message["lines"][0]
    return f"{message['causes'][0]} {message['shares'][0][0]:.0%}" + (f" at {line[0]}:{line[1]}" if line else "")


def _verdict(faults: Sequence[dict[str, Any]], message: dict[str, Any] | None) -> str:
    if message is None or not faults:
        return "–"
    largest = max(faults, key=lambda fault: fault["share"]["value"])
    if largest["share"]["value"] < SEVERE:
        return f"(below {SEVERE:.0%})"
    if message["bottleneck"] == "undecided":
        return "withheld"
    place = place_of(largest, message)
    if place != 0:
        return "no" if place < 0 else f"place {place + 1}"
    return "cause and line" if is_on_line(largest, message, 0) else "cause"


def alarms(message: dict[str, Any]) -> list[str]:
    """Findings of a twin that are worth a reader's look."""
    return [f"{cause} {share[0]:.0%}" for cause, share in zip(message["causes"], message["shares"], strict=True)
            if share[0] >= ALARM]  # fmt: skip


def _count(rows: Iterable[Any], test: Callable[[Any], bool]) -> Count:
    passed = [test(row) for row in rows]
    return Count(sum(passed), len(passed))


def _is_covered(each: tuple[dict[str, Any], dict[str, Any], int]) -> bool:
    fault, message, place = each
    _, low, high = message["shares"][place]
    return bool(low <= fault["share"]["high"] and high >= fault["share"]["low"])


def _print(row: dict[str, Any]) -> None:
    if "failed" in row:
        print(f"seed {row['seed']}: {row['failed']}", flush=True)
        return
    print(f"seed {row['seed']}: {row['loop']}, {row['model']}, {row['steps']} steps", flush=True)
    for fault in row["faults"]:
        share, lines = fault["share"], " ".join(f"{file}:{line}" for file, line in fault["lines"])
        print(f"  planted  {fault['name']} in {fault['place']}: {share['value']:.0%} "
              f"({share['low']:.0%} to {share['high']:.0%}) {lines}")  # fmt: skip
    for name in ("said", "said_of_twin"):
        for tool, message in row.get(name, {}).items():
            findings = [
                f"{cause} {share[0]:.0%} ({share[1]:.0%} to {share[2]:.0%})" + (f" {line[0]}:{line[1]}" if line else "")
                for cause, share, line in zip(message["causes"], message["shares"], message["lines"], strict=True)
            ]
            print(f"  {tool} {name.replace('_', ' ')} {message['bottleneck']}: {'; '.join(findings[:4]) or 'nothing'}")


if __name__ == "__main__":
    main()
