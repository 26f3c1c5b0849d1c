"""What no fault may do: kills at random moments, no room, closed streams and descriptors, trials of jobs that write,
trials that are killed, damaged files.

    python -m benchmarks.faults.run [--quick] [--only kills,descriptors,room,statuses,trials,orphans,fuzz] [--seed 0]
        [--name MACHINE]

Writes into benchmarks/results/<name>.json, a piece for every range of numbers, so that a long run can be taken in
parts; ends with 1 where there was a fault. Every case follows from the seed and its number: `--only kills --first 17
--kills 1` or `--only fuzz --target trace --first 4711 --inputs 1` again.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.faults import statuses
from benchmarks.faults.descriptors import close_descriptors, descriptors_row
from benchmarks.faults.fuzz import Fuzzed, fuzz
from benchmarks.faults.kills import Kill, kill_jobs
from benchmarks.faults.orphans import KilledTrial, kill_trials, orphans_table
from benchmarks.faults.targets import targets
from benchmarks.faults.trials import TrialRun, run_trials, trials_table
from benchmarks.kept import USUAL_NAME, keep, machine

ROOT = Path(__file__).parents[2]
SECTION = "faults"
IN_MEMORY = Path("/dev/shm")
"""Damaged files are written here where it exists: a million of them is too much for a disk."""


def main() -> None:
    options = arguments()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=IN_MEMORY if IN_MEMORY.is_dir() else None) as folder:
        if "kills" in options.only:
            kills = displayed(kill_jobs(Path(folder), options.seed, options.kills, options.first))
            found[f"kills from {options.first}"] = {"kills": [asdict(kill) for kill in kills]}
        if "descriptors" in options.only:
            jobs = close_descriptors(Path(folder), options.seed, options.descriptors, options.first)
            found[f"descriptors from {options.first}"] = {"descriptors": [asdict(job) for job in jobs]}
        if "room" in options.only:
            found["room"] = {"room": room(options.quick)}
        if "statuses" in options.only:
            endings = statuses.endings(Path(folder), quick=options.quick)
            found["statuses"] = {"statuses": [asdict(each) for each in endings]}
        if "trials" in options.only:
            trials = reported(run_trials(options.seed, options.trials, options.first))
            found[f"trials from {options.first}"] = {"trials": [asdict(trial) for trial in trials]}
        if "orphans" in options.only:
            with tempfile.TemporaryDirectory() as place:  # on a disk, as jobs are
                killed = reported(kill_trials(Path(place), options.seed, options.orphans, options.first))
            found[f"orphans from {options.first}"] = {"orphans": [asdict(trial) for trial in killed]}
        if "fuzz" in options.only:
            found |= {
                f"{each.target} from {options.first}": {"fuzz": [asdict(each)]}
                for each in fuzzed(Path(folder), options)
            }
    for piece, value in found.items():
        keep(options.name, SECTION, piece, {"about": machine(), "seed": options.seed, **value})
    print("\n".join(tables(found)))
    sys.exit(1 if faults_of(merged(found)) else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick",
        action="store_true",
        help="ten kills, six trials, the usual tests without room, endings without training, at most 20 000 inputs",
    )
    parser.add_argument(
        "--only", default="kills,descriptors,room,statuses,trials,orphans,fuzz", help="with commas between"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first kill or input")
    parser.add_argument("--kills", type=int, help="how many jobs are killed")
    parser.add_argument("--descriptors", type=int, help="how many jobs close descriptors")
    parser.add_argument("--trials", type=int, help="how many jobs are tried")
    parser.add_argument("--orphans", type=int, help="how many trials are killed")
    parser.add_argument("--inputs", type=int, help="damaged files, of all targets together")
    parser.add_argument("--seconds", type=float, help="longest time for one target")
    parser.add_argument("--target", help="only this reader")
    parser.add_argument("--name", default=USUAL_NAME, help="of the machine, for the file of results")
    options = parser.parse_args()
    usual = {"kills": 10, "descriptors": 3, "trials": 6, "orphans": 6, "inputs": 20_000, "seconds": 8.0}
    if not options.quick:
        usual = {"kills": 200, "descriptors": 30, "trials": 50, "orphans": 30, "inputs": 1_000_000, "seconds": 3600.0}
    for name, value in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def displayed(kills: Any) -> Sequence[Kill]:
    """All of them; a line for each fault at once."""
    found = []
    for kill in kills:
        found.append(kill)
        if kill.faults:
            print(f"kill {kill.number} ({kill.way} after {kill.after:.2f} s): {'; '.join(kill.faults)}", flush=True)
    return found


Tried = TypeVar("Tried", TrialRun, KilledTrial)


def reported(trials: Iterator[Tried]) -> Sequence[Tried]:
    """All of them; a line for each with faults at once."""
    found = []
    for trial in trials:
        found.append(trial)
        if trial.faults:
            kind = trial.layer if isinstance(trial, TrialRun) else trial.verb
            print(f"trial {trial.number} ({kind}): {'; '.join(trial.faults)}", flush=True)
    return found


def room(quick: bool) -> dict[str, Any]:
    """The tests of full disks, read-only file systems and removed recordings."""
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "tests/launcher/test_no_room.py",
        *(["-m", "not slow"] if quick else []),
    ]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", run.stdout)}
    return {**counts, "status": run.returncode, "failures": re.findall(r"^FAILED .*", run.stdout, re.MULTILINE)}


def fuzzed(folder: Path, options: argparse.Namespace) -> list[Fuzzed]:
    """Every reader, with an equal share of the inputs."""
    chosen = [each for each in targets(folder) if options.target in (None, each.name)]
    found = []
    for target in chosen:
        found.append(fuzz(target, options.seed, options.seconds, options.inputs // len(chosen), options.first))
        print(f"{target.name}: {found[-1].inputs} inputs, {len(found[-1].faults)} faults", flush=True)
    return found


def faults_of(found: dict[str, Any]) -> list[str]:
    """Everything that should not have been."""
    kills = [
        f"kill {kill['number']} ({kill['way']}): {fault}" for kill in found.get("kills", ()) for fault in kill["faults"]
    ]
    trials = [
        f"trial {trial['number']} ({trial['layer']}): {fault}"
        for trial in found.get("trials", ())
        for fault in trial["faults"]
    ]
    return [
        *kills,
        *(f"descriptors {job['number']}: {fault}" for job in found.get("descriptors", ()) for fault in job["faults"]),
        *trials,
        *(
            f"killed {each['verb']} {each['number']}: {fault}"
            for each in found.get("orphans", ())
            for fault in each["faults"]
        ),
        *(found.get("room") or {}).get("failures", ()),
        *statuses.faults(found.get("statuses", ())),
        *(fault for each in found.get("fuzz", ()) for fault in each["faults"]),
    ]


def merged(section: Mapping[str, Any]) -> dict[str, Any]:
    """All pieces together: kills, descriptors, room, statuses, trials, orphans, and fuzz by target."""
    found: dict[str, Any] = {"kills": [], "descriptors": [], "statuses": [], "trials": [], "orphans": [], "fuzz": []}
    for piece in section.values():
        found["kills"] += piece.get("kills", ())
        found["descriptors"] += piece.get("descriptors", ())
        found["trials"] += piece.get("trials", ())
        found["orphans"] += piece.get("orphans", ())
        found["room"] = piece.get("room", found.get("room"))
        found["statuses"] += piece.get("statuses", ())
        found["fuzz"] += piece.get("fuzz", ())
    return {name: value for name, value in found.items() if value}


def tables(section: Mapping[str, Any]) -> list[str]:
    """Kills by signal, tests without room, damaged files by reader, and the faults."""
    found = merged(section)
    lines = []
    if "kills" in found:
        lines += kills_table(found["kills"])
    if "descriptors" in found:
        lines.append(descriptors_row(found["descriptors"]))
    if "room" in found:
        counts = found["room"]
        lines.append(
            f"\nFull disks, read-only file systems and removed recordings (tests/launcher/test_no_room.py): "
            f"{counts.get('passed', 0)} passed, {counts.get('failed', 0)} failed, {counts.get('skipped', 0)} skipped."
        )
    if "statuses" in found:
        lines += statuses.table(found["statuses"])
    if "trials" in found:
        lines += trials_table(found["trials"])
    if "orphans" in found:
        lines += orphans_table(found["orphans"])
    if "fuzz" in found:
        lines += [
            "\n| reader | damaged files | read | refused in one sentence | slowest, CPU s | faults |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            _fuzz_row(target, found["fuzz"]) for target in dict.fromkeys(each["target"] for each in found["fuzz"])
        ]
    faults = faults_of(found)
    return [*lines, f"\nFaults: {len(faults)}.", *(f"- {fault}" for fault in faults)]


def _fuzz_row(target: str, fuzz: Sequence[Mapping[str, Any]]) -> str:
    mine = [each for each in fuzz if each["target"] == target]
    inputs, read = (sum(each[name] for each in mine) for name in ("inputs", "read"))
    refused, faults = sum(sum(each["refused"].values()) for each in mine), sum(len(each["faults"]) for each in mine)
    return f"| {target} | {inputs} | {read} | {refused} | {max(each['slowest'] for each in mine):.2f} | {faults} |"


def kills_table(kills: list[dict[str, Any]]) -> list[str]:
    """A row for each way of dying."""
    lines = ["| signal | jobs | before the first step | most training lost, s | faults |", "|---|---|---|---|---|"]
    for way in sorted({kill["way"] for kill in kills}):
        mine = [kill for kill in kills if kill["way"] == way]
        lost = [kill["lost_ns"] for kill in mine if kill["lost_ns"] is not None]
        most = f"{max(lost) / 1e9:.2f}" if lost else "-"
        early = sum(not kill["steps"] for kill in mine)
        lines.append(f"| {way} | {len(mine)} | {early} | {most} | {sum(bool(kill['faults']) for kill in mine)} |")
    return lines


if __name__ == "__main__":
    main()
