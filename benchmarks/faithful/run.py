"""The same job bare and under steptime: what is not the same?

    python -m benchmarks.faithful.run [--quick] [--scripts FOLDER_OR_FILE ...] [--zoo [JOB ...]] [--name MACHINE]

Every job runs twice bare and once watched, each time in a copy of its folder. What differs between the two bare runs (a
time that is printed) cannot be compared and is a dash; everything else must be equal to the bit. The jobs that look at
themselves and the ways to end are those of looking.py; the zoo of operations is zoo.py, whose
table goes into benchmarks/results/operations.md. Writes into benchmarks/results/<name>.json, job by job, and ends with
1 where there was a difference; --continue takes only the jobs that are not there yet. Run it with a Python that has the
frameworks of the zoo (lightning, transformers, accelerate, peft, cloudpickle, joblib, onnx, onnxscript, torchao,
nbclient, ipykernel): without one its operations are skipped, and the table says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.clinic.cases import CASES
from benchmarks.faithful import looking, zoo
from benchmarks.kept import USUAL_NAME, keep, machine, read
from benchmarks.started import STEPTIME

ROOT = Path(__file__).parents[2]
SECTION, LOOKING, ZOO_SECTION = "faithful", "looking at themselves", "zoo"
TABLE = ROOT / "benchmarks" / "results" / "operations.md"
START, END = "<!-- made by `python -m benchmarks.faithful.run --zoo`: start -->", "<!-- end of what was made -->"
ZOO, FAULTS, CLINIC = ROOT / "tests/probe/zoo", ROOT / "tests/jobs/faults/scripts", ROOT / "benchmarks/clinic/jobs"
FULL = (ZOO, FAULTS, CLINIC, ROOT / "examples")
QUICK = tuple(ZOO / f"{name}.py" for name in ("gan", "lbfgs", "numpy_batches", "spawned", "loader_schedule_eval"))
LONGEST = 600
"""Seconds for one run."""
RANKS = {case.job: case.ranks for case in CASES}
"""Of the jobs that a launcher starts."""
NO_JOBS = ("stopwatch", "finger")
"""Modules that lie next to the jobs."""
STATES = ("weights", "gradients", "torch random state", "numpy random state", "random state", "peak memory")
PROPERTIES = ("exit status", "stdout", "stderr", "files", *STATES)


def main() -> None:
    options = arguments()
    operations = of_the_zoo(options)
    if options.zoo is not None:
        sys.exit(1 if zoo.differences_in(operations) else 0)
    found = read(options.name).get(SECTION, {}) if options.go_on else {}
    for script in scripts(options.scripts or (QUICK if options.quick else FULL)):
        if script.stem not in found:
            found[script.stem] = {"about": machine(), "job": compared(script)}
            keep(options.name, SECTION, script.stem, found[script.stem])
            print(script.stem, found[script.stem]["job"], flush=True)
    if LOOKING not in found:
        found[LOOKING] = {"about": machine(), "looking": differences_seen(options.quick)}
        keep(options.name, SECTION, LOOKING, found[LOOKING])
    print("\n".join(tables(found)))
    sys.exit(1 if differences_in(found) + zoo.differences_in(operations) else 0)


def of_the_zoo(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the jobs of the zoo, none where other scripts are asked for. Behind each the table is made anew, but not
    where only the quick part is asked for."""
    kept = read(options.name).get(ZOO_SECTION, {})
    wanted = () if options.scripts else list(zoo.chosen(options.quick, options.zoo or ()))
    for job in wanted:
        if job.name not in kept or not options.go_on:
            kept[job.name] = {"about": machine(), **zoo.compared(job)}
            keep(options.name, ZOO_SECTION, job.name, kept[job.name])
            print("\n".join(zoo.tables({job.name: kept[job.name]})), flush=True)
            if not options.quick:
                write_table(kept)
    return {job.name: kept[job.name] for job in wanted}


def write_table(kept: Mapping[str, Any]) -> None:
    """Puts the zoo's table between its two marks in benchmarks/results/operations.md."""
    abouts = [piece["about"] for piece in kept.values()]
    taken = {name: sorted({str(about[name]) for about in abouts}) for name in ("python", "torch", "commit", "date")}
    head = "; ".join(f"{name} {', '.join(values)}" for name, values in taken.items())
    text = TABLE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    lines = [
        START,
        "",
        f"Taken with {head}.",
        "",
        *zoo.tables({job.name: kept.get(job.name, zoo.NOT_RUN) for job in zoo.JOBS}),
        "",
        END,
    ]
    TABLE.write_text(before + "\n".join(lines) + rest.partition(END)[2], encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="five jobs and a few endings")
    parser.add_argument("--scripts", nargs="+", type=Path, help="files, or folders of them, instead of ours")
    parser.add_argument("--zoo", nargs="*", metavar="JOB", help="the zoo of operations alone, or jobs of it")
    parser.add_argument("--continue", dest="go_on", action="store_true", help="leave out what the file has already")
    parser.add_argument("--name", default=USUAL_NAME, help="of the machine, for the file of results")
    return parser.parse_args()


def scripts(places: Sequence[Path]) -> Iterator[Path]:
    """All jobs in the places."""
    for place in places:
        found = sorted(place.glob("*.py")) if place.is_dir() else [place]
        yield from (script for script in found if script.stem not in NO_JOBS)


def compared(script: Path) -> dict[str, int | None]:
    """Differences by property; None where two bare runs differ, too."""
    one, other, watched = (seen(script, steptime) for steptime in (False, False, True))
    if watched is None or one is None or other is None:
        return {"ended in time": 0 if watched is one is None else 1}
    return {
        name: None if one.get(name) != other.get(name) else int(one.get(name) != watched.get(name))
        for name in PROPERTIES
        if name in one or name in watched
    }


def seen(script: Path, steptime: bool) -> dict[str, Any] | None:
    """One run of a job: what can be seen of it from outside, and its state at its end; None when it takes too long."""
    with tempfile.TemporaryDirectory() as place:
        work, state = Path(place, "job"), Path(place, "state")
        shutil.copytree(script.parent, work, ignore=shutil.ignore_patterns("__pycache__"))
        state.mkdir()
        before = files(work)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
            "PYTHONHASHSEED": "0",
        }
        environment |= {"FAITHFUL_STATE": str(state), "PYTHONDONTWRITEBYTECODE": "1"}
        ranks = RANKS.get(script.stem, 1)
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks > 1 else []
        job = [sys.executable, *launcher, script.name]
        ours = (
            [
                sys.executable,
                "-I",
                *STEPTIME[1:],
                "run",
                "--quiet",
                "--no-peaks",
                "--recording",
                f"{place}/recording",
                "--",
            ]
            if steptime
            else []
        )
        try:
            run = subprocess.run(
                [*ours, *job], cwd=work, env=environment, capture_output=True, check=False, timeout=LONGEST
            )
        except subprocess.TimeoutExpired:
            return None
        found = {
            "exit status": run.returncode,
            "stdout": reported(run.stdout, place),
            "stderr": reported(run.stderr, place),
        }
        return {**found, "files": sorted(files(work).items() ^ before.items()), **states(state)}


def reported(text: bytes, place: str) -> str:
    """What a job has printed, without the name of the folder that this run had to itself."""
    return text.decode(errors="replace").replace(place, "")


def files(folder: Path) -> dict[str, str]:
    """Digests of all files."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def states(folder: Path) -> dict[str, Any]:
    """What sitecustomize.py has written, of all ranks."""
    read = [json.loads(path.read_text()) for path in sorted(folder.iterdir())]
    return {name: [each[name] for each in read] for name in STATES if any(name in each for each in read)}


def differences_seen(quick: bool) -> dict[str, int]:
    """Differences of jobs that look at themselves, and of ways to end: 29 properties and more of each."""
    found = {}
    cases = [("a script", ["observed_job.py", "torch"]), ("a module", ["-m", "observed_job", "torch"])]
    for name, words in cases[: 1 if quick else None]:
        different = looking.differences(*(looking.properties(run) for run in _both(words)))
        found[name] = len(different)
        print(name, different, flush=True)
    for how in looking.TORCH_ENDINGS[: 3 if quick else None]:
        alone, together = _both(["endings.py", how, "torch"])
        pairs = (alone.returncode, together.returncode), (alone.stdout, together.stdout)
        errors = alone.stderr, together.stderr
        found[f"ends by {how}"] = sum(one != other for one, other in (*pairs, errors))
    return found


def _both(words: list[str]) -> list[subprocess.CompletedProcess[bytes]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "job")
        shutil.copytree(looking.OBSERVED, folder, ignore=shutil.ignore_patterns("__pycache__"))
        Path(place, "users").mkdir()
        return [run([sys.executable, *words], folder) for run in (looking.bare, looking.watched)]


def differences_in(section: Mapping[str, Any]) -> int:
    """How many there are."""
    jobs, looked = _apart(section)
    return sum(count or 0 for properties in jobs.values() for count in properties.values()) + sum(looked.values())


def _apart(section: Mapping[str, Any]) -> tuple[dict[str, dict[str, int | None]], dict[str, int]]:
    """Properties by job, and differences of jobs that look at themselves."""
    jobs = {name: piece["job"] for name, piece in sorted(section.items()) if "job" in piece}
    return jobs, section.get(LOOKING, {}).get("looking", {})


def tables(section: Mapping[str, Any]) -> list[str]:
    """In Markdown."""
    jobs, looked = _apart(section)
    columns = [name for name in (*PROPERTIES, "ended in time") if any(name in job for job in jobs.values())]
    lines = [
        "Differences between the bare and the watched run; – where two bare runs differ, too.\n",
        "| job | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for job, properties in jobs.items():
        cells = ["–" if properties.get(name, 0) is None else str(properties.get(name, "")) for name in columns]
        lines.append(f"| {job} | " + " | ".join(cells) + " |")
    lines += ["\n| job that looks at itself, or ends | differences |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in looked.items()]
    return [*lines, f"\nDifferences: {differences_in(section)}."]


if __name__ == "__main__":
    main()
