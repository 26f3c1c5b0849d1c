"""The same job bare and under steptime: what is not the same?

    python -m benchmarks.faithful.run [--quick] [--scripts FOLDER_OR_FILE ...] [--name MACHINE]

Every job runs twice bare and once watched, each time in a copy of its folder. What differs between the two bare runs (a
time that is printed) cannot be compared and is a dash; everything else must be equal to the bit. The jobs that look at
themselves and the ways to end are those of tests/capture/test_faithfulness.py. Writes
benchmarks/results/faithful-<name>.json and .md, and ends with 1 where there was a difference.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.faults.run import machine
from benchmarks.faults.targets import STEPTIME

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ZOO, FAULTS, CLINIC = ROOT / "tests/capture/zoo", ROOT / "tests/jobs/faults/scripts", ROOT / "benchmarks/clinic/jobs"
FULL = (ZOO, FAULTS, CLINIC, ROOT / "examples")
QUICK = tuple(ZOO / f"{name}.py" for name in ("gan", "lbfgs", "numpy_batches", "spawned", "loader_schedule_eval"))
LONGEST = 600
"""Seconds for one run."""
NO_JOBS = ("stopwatch", "finger")
"""Modules that lie beside the jobs."""
STATES = ("weights", "gradients", "torch random state", "numpy random state", "random state", "peak memory")
PROPERTIES = ("exit status", "stdout", "stderr", "files", *STATES)


def main() -> None:
    options = arguments()
    results: dict[str, Any] = {"machine": machine(), "jobs": {}}
    target = RESULTS / f"faithful-{options.name}"
    for script in scripts(options.scripts or (QUICK if options.quick else FULL)):
        results["jobs"][script.stem] = compared(script)
        print(script.stem, results["jobs"][script.stem], flush=True)
        target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    results["looking at themselves"] = looking(options.quick)
    target.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    target.with_suffix(".md").write_text(page(results))
    print(page(results))
    sys.exit(1 if differences_in(results) else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="five jobs and a few endings")
    parser.add_argument("--scripts", nargs="+", type=Path, help="files, or folders of them, instead of ours")
    parser.add_argument("--name", default=platform.node(), help="of the machine, for the files of results")
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
        job = [sys.executable, script.name]
        ours = (
            [
                sys.executable,
                "-I",
                *STEPTIME[1:],
                "run",
                "--quiet",
                "--no-ceilings",
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
        found = {"exit status": run.returncode, "stdout": told(run.stdout, place), "stderr": told(run.stderr, place)}
        return {**found, "files": sorted(files(work).items() ^ before.items()), **states(state)}


def told(text: bytes, place: str) -> str:
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


def looking(quick: bool) -> dict[str, int]:
    """Differences of jobs that look at themselves, and of ways to end: 29 properties and more of each."""
    tests = _tests()
    found = {}
    cases = [("a script", ["observed_job.py", "torch"]), ("a module", ["-m", "observed_job", "torch"])]
    for name, words in cases[: 1 if quick else None]:
        found[name] = len(tests.differences(*(tests.properties(run) for run in _both(tests, words))))
    for how in tests.TORCH_ENDINGS[: 3 if quick else None]:
        alone, together = _both(tests, ["endings.py", how, "torch"])
        pairs = (alone.returncode, together.returncode), (alone.stdout, together.stdout)
        errors = (tests.without_slot(run.stderr.decode()) for run in (alone, together))
        found[f"ends by {how}"] = sum(one != other for one, other in (*pairs, tuple(errors)))
    return found


def _both(tests: ModuleType, words: list[str]) -> list[subprocess.CompletedProcess[bytes]]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "job")
        shutil.copytree(tests.OBSERVED, folder, ignore=shutil.ignore_patterns("__pycache__"))
        Path(place, "users").mkdir()
        return [run([sys.executable, *words], folder) for run in (tests.bare, tests.watched)]


def _tests() -> ModuleType:
    path = ROOT / "tests/capture/test_faithfulness.py"
    spec = importlib.util.spec_from_file_location("test_faithfulness", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differences_in(results: dict[str, Any]) -> int:
    """How many there are."""
    jobs = sum(count or 0 for properties in results["jobs"].values() for count in properties.values())
    return jobs + sum(results.get("looking at themselves", {}).values())


def page(results: dict[str, Any]) -> str:
    """The Markdown beside the JSON."""
    about = results["machine"]
    columns = [name for name in (*PROPERTIES, "ended in time") if any(name in job for job in results["jobs"].values())]
    lines = [
        "# Is a watched job the same job?\n",
        f"{about['cpus']} CPUs, {about['system']}, Python {about['python']}, torch {about['torch']}, "
        f"commit {about['commit']}, {about['date']}; made by `python -m benchmarks.faithful.run`.\n",
        "Differences between the bare and the watched run; – where two bare runs differ, too.\n",
        "| job | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for job, properties in results["jobs"].items():
        cells = ["–" if properties.get(name, 0) is None else str(properties.get(name, "")) for name in columns]
        lines.append(f"| {job} | " + " | ".join(cells) + " |")
    lines += ["\n| job that looks at itself, or ends | differences |", "|---|---|"]
    lines += [f"| {name} | {count} |" for name, count in results.get("looking at themselves", {}).items()]
    lines.append(f"\nDifferences: {differences_in(results)}.")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
