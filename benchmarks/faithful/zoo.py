"""What people do with models in mid-training, bare and under steptime: is anything not the same?

The jobs of operations/ do their operations behind each of 61 steps. Each runs twice bare, once under `steptime run`,
once with `--catch`, and once in standby until `steptime attach` comes. What differs between the two bare runs cannot be
compared; everything else must be equal: each part of each operation at each step, the exit status, the streams. In
which state of the watch an operation was done is read from the recordings.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.started import STEPTIME
from steptime.journal import Kind
from steptime.recording.load import load
from steptime.recording.recording import Process

OPERATIONS = Path(__file__).parent / "operations"
LONGEST, COMING = 600, 90
"""Seconds for one run, and until a job has come to the step behind which it waits for `attach`."""
BARE, WATCHED, CAUGHT, ATTACHED = "bare", "watched", "caught", "attached"
WAYS = (WATCHED, CAUGHT, ATTACHED)
OPTIONS = {WATCHED: (), CAUGHT: ("--no-profile", "--catch", "every 3")}
STATES = ("start", "discovery", "lines", "profiled", "stacks", "off", "plain", "caught", "standby", "attached")
"""Of the watch while an operation was done: before discovery; each instrument; the watch off; nothing but the watch; a
step that --catch looked into; a job in standby before anybody attached; all that was done under `attach`."""
NOT_RUN: dict[str, Any] = {"rows": {}}
"""Of a job that the table is to name all the same."""
PYTHON = sys.executable
"""Runs the jobs."""
STREAMS, RAISED = "exit status and streams", "raised"


@dataclass(frozen=True, slots=True)
class Job:
    """script: in operations/. about: for the table. ranks: of torchrun. needs: packages without which it is skipped."""

    script: str
    about: str
    ranks: int = 1
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return Path(self.script).stem.removesuffix("_job")


JOBS = (
    Job("copies.py", "copies and files"),
    Job("averages.py", "averages, targets, checkpoints"),
    Job("functional.py", "functional calls, modes, hooks"),
    Job("observed.py", "a job that looks at its own Python"),
    Job("profiled.py", "a job that profiles itself"),
    Job("wrapping.py", "layers, classes and calls that change"),
    Job("scripted.py", "TorchScript and fx"),
    Job("compiled.py", "torch.compile"),
    Job("exported.py", "export and quantisation"),
    Job("made.py", "threads and pools"),
    Job("parallel.py", "parallel training, 2 ranks of gloo", ranks=2),
    Job("remote.py", "RPC, 2 ranks", ranks=2),
    Job("named/own_name_job.py", "a job's own module `steptime`"),
    Job("lightning_job.py", "Lightning", needs=("lightning",)),
    Job("trainer_job.py", "Transformers", needs=("transformers", "accelerate")),
    Job("accelerate_job.py", "Accelerate", needs=("accelerate",)),
    Job("notebook_job.py", "a notebook", needs=("nbclient", "nbformat", "ipykernel")),
)
QUICK = ("copies", "functional", "wrapping")
PARTLY = {"cloudpickle": "copies", "joblib": "copies", "peft": "wrapping", "torchao": "exported", "onnx": "exported",
          "onnxscript": "exported"}  # fmt: skip
"""Packages without which some operations of a job are left out."""


@dataclass(frozen=True, slots=True)
class Run:
    """reported: digest by operation, step and part. streams: what else can be seen. states: how often each operation
    was done in which state. trouble: why the run could not be had as it was meant."""

    reported: Mapping[tuple[str, int, str], str]
    streams: Mapping[str, str]
    states: Mapping[str, Counter[str]]
    trouble: str = ""


def missing(packages: Sequence[str]) -> list[str]:
    """Those that this Python does not have."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


def chosen(quick: bool, names: Sequence[str] = ()) -> Iterator[Job]:
    """Jobs of the zoo, or of its quick part, or those that are named."""
    wanted = names or (QUICK if quick else [job.name for job in JOBS])
    yield from (job for job in JOBS if job.name in wanted)


def compared(job: Job, ways: Sequence[str] = WAYS, operations: Sequence[str] = ()) -> dict[str, Any]:
    """One job's rows: for each operation the steps in each state, and the steps at which something differed."""
    if lacking := missing(job.needs):
        return {"skipped": lacking}
    one, other = (seen(job, BARE, operations) for _ in range(2))
    rows = rows_of(one, other, {way: seen(job, way, operations) for way in ways})
    left = [name for name, of in PARTLY.items() if of == job.name]
    return {"rows": rows, "left out without": missing(left), "ways": list(ways)}


def rows_of(one: Run, other: Run, runs: Mapping[str, Run]) -> dict[str, dict[str, Any]]:
    """A row for each operation, and one for the streams. one, other: bare; runs: watched, by the way of it."""
    rows = {name: _row(name, one, other) for name in dict.fromkeys(name for name, _, _ in one.reported)}
    unstable = _differing(one.streams, other.streams)
    rows[STREAMS] = {"steps": 0, "states": Counter(), "unstable": unstable, "fails bare": []}
    for way, run in runs.items():
        _add(rows, way, one, other, run)
    return rows


def _row(name: str, one: Run, other: Run) -> dict[str, Any]:
    """An operation, as far as two bare runs tell: what of it cannot be compared, and what fails without us."""
    keys = {key for key in one.reported.keys() | other.reported.keys() if key[0] == name}
    return {
        "steps": len({step for _, step, _ in keys}),
        "states": Counter(),
        "unstable": sorted({key[2] for key in keys if one.reported.get(key) != other.reported.get(key)}),
        "fails bare": sorted({one.reported[key] for key in keys & one.reported.keys() if key[2].startswith(RAISED)}),
    }


def _differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    return sorted(name for name in one if one[name] != other.get(name))


def _add(rows: dict[str, Any], way: str, one: Run, other: Run, run: Run) -> None:
    """Adds what one way of watching came to."""
    stable = {key for key in one.reported if one.reported[key] == other.reported.get(key)}
    unknown = run.reported.keys() - one.reported.keys() - other.reported.keys()
    wrong: dict[str, dict[int, str]] = {}
    for key in sorted(stable | unknown, key=lambda key: (not key[2].startswith(RAISED), str(key))):
        if run.reported.get(key) != one.reported.get(key):
            name, step, part = key
            wrong.setdefault(name, {}).setdefault(
                step, run.reported.get(key, "missing") if part.startswith("raised") else part
            )
    for name, row in rows.items():
        row["states"].update(run.states.get(name, {}))
        if found := wrong.get(name):
            first = min(found)
            row.setdefault("differs", {})[way] = {"steps": len(found), "first": first, "how": found[first][:160]}
    streams = [each for each in _differing(one.streams, run.streams) if each not in rows[STREAMS]["unstable"]]
    if streams or run.trouble:
        how = "; ".join([*(_line(each, one, run) for each in streams), *([run.trouble] if run.trouble else [])])
        rows[STREAMS].setdefault("differs", {})[way] = {"steps": len(streams), "first": 0, "how": how}


def _line(stream: str, one: Run, run: Run) -> str:
    """A stream with the first line that one of the two runs alone has."""
    lines, others = one.streams[stream].splitlines(), run.streams[stream].splitlines()
    more = [line for line in others if line not in lines] or [line for line in lines if line not in others]
    return f"{stream}: {more[0][:160]}" if more else f"{stream}: {len(others)} lines for {len(lines)}"


# -- one run ---------------------------------------------------------------------------------------------------------


def seen(job: Job, way: str, operations: Sequence[str] = ()) -> Run:
    """One run of a job in a copy of its folder, which has the same name in all runs of a process: files name it."""
    with _place() as place:
        work, clock, recording = Path(place, "job"), Path(place, "clock"), Path(place, "recording")
        shutil.copytree(OPERATIONS, work, ignore=shutil.ignore_patterns("__pycache__"))
        (Path(place) / "cache").mkdir()
        environment = _environment(place)
        words = _words(job, way, recording, operations)
        with Path(place, "out").open("ab") as out, Path(place, "err").open("ab") as err:
            process = subprocess.Popen(words, cwd=work, env=environment, stdout=out, stderr=err, start_new_session=True)
            trouble = _attached(job, process, Path(place), recording) if way == ATTACHED else ""
            status = _ended(process)
        reported, rest = _parsed(Path(place, "out").read_text(errors="replace"))
        errors = _plain(Path(place, "err").read_text(errors="replace"), place)
        streams = {"exit status": str(status), "stdout": _plain(rest, place), "stderr": errors}
        if way != BARE and job.ranks == 1 and not any(recording.glob("process-*")):
            trouble = trouble or "nothing was recorded"
        return Run(reported, streams, _states(clock, recording, way), trouble)


@contextlib.contextmanager
def _place() -> Iterator[str]:
    """A folder that no other run is in just now."""
    with tempfile.TemporaryDirectory() as around:
        place = Path(tempfile.gettempdir(), f"steptime-zoo-{os.getpid()}")
        try:
            place.mkdir(mode=0o700)
        except FileExistsError:  # another thread's
            place = Path(around)
        try:
            yield str(place)
        finally:
            shutil.rmtree(place, ignore_errors=True)
            Path(around).mkdir(exist_ok=True)


def _environment(place: str) -> dict[str, str]:
    """The same for all ways, but for what the way itself needs."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("STEPTIME", "PYTHONPATH"))}
    return variables | {
        "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "ZOO_CLOCK": f"{place}/clock",
        "TORCHINDUCTOR_CACHE_DIR": f"{place}/cache", "TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TMPDIR": f"{place}/cache",
    }  # fmt: skip


def _words(job: Job, way: str, recording: Path, operations: Sequence[str]) -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={job.ranks}"] if job.ranks > 1 else []
    words = [PYTHON, *launcher, job.script, *operations]
    if way in OPTIONS:
        ours = [sys.executable, "-I", *STEPTIME[1:], "run", "--quiet", "--no-peaks", *OPTIONS[way]]
        return [*ours, "--recording", str(recording), "--", *words]
    if way == ATTACHED:
        return ["env", "STEPTIME_STANDBY=1", f"ZOO_ATTACH={recording}.come", *words]
    return words


def _attached(job: Job, process: subprocess.Popen[bytes], place: Path, recording: Path) -> str:
    """Attaches to a job that has come to its step, and lets it go on once the probe is there; says why it could not."""
    come = Path(f"{recording}.come")
    until = time.monotonic() + COMING
    while len(ready := list(place.glob(f"{come.name}-*"))) < job.ranks:
        if process.poll() is not None or time.monotonic() > until:
            come.touch()
            return f"only {len(ready)} of {job.ranks} processes came to the step behind which they wait"
        time.sleep(0.05)
    pid = process.pid if job.ranks > 1 else int(ready[0].name.rpartition("-")[2])
    words = [
        sys.executable,
        "-I",
        *STEPTIME[1:],
        "attach",
        "--quiet",
        "--stay",
        "--recording",
        str(recording),
        str(pid),
    ]
    with (place / "attach").open("wb") as out:
        companions = subprocess.Popen(words, stdout=out, stderr=out)
        until = time.monotonic() + COMING
        while (
            len(list(recording.glob("process-*"))) < job.ranks
            and companions.poll() is None
            and time.monotonic() < until
        ):
            time.sleep(0.05)
    come.touch()
    if len(list(recording.glob("process-*"))) >= job.ranks:
        _ended(process)
        companions.wait(COMING)
        return ""
    companions.terminate()
    return "attach: " + (place / "attach").read_text(errors="replace").strip()[-200:]


def _ended(process: subprocess.Popen[bytes]) -> int | str:
    """The exit status; a job that takes too long is killed with all of its session."""
    try:
        return process.wait(LONGEST)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return "took too long"


def _parsed(text: str) -> tuple[dict[tuple[str, int, str], str], str]:
    """What was told of the operations, and the other lines, sorted, as ranks write in any order."""
    reported, rest = {}, []
    for line in text.splitlines():
        pieces = line[2:].split("|", 3)
        if line[:2] in ("= ", "! ") and len(pieces) == 4:
            reported[pieces[0], int(pieces[1]), pieces[2]] = pieces[3]
        else:
            rest.append(line)
    return reported, "\n".join(sorted(rest))


def _plain(text: str, place: str) -> str:
    """Without the run's own folder, and with every number masked: clocks and processes."""
    return re.sub(r"\d+", "#", re.sub(r"0x[0-9a-f]+", "#", text.replace(place, "")))


# -- states of the watch -----------------------------------------------------------------------------------------------


def _states(clock: Path, recording: Path, way: str) -> dict[str, Counter[str]]:
    """How often each operation was done in which state, over all processes of a run."""
    found: dict[str, Counter[str]] = {}
    if way == BARE or not (recording / "manifest.json").exists():
        return found
    processes = {process.facts.pid: process for process in load(recording).processes}
    for path in clock.parent.glob(f"{clock.name}-*"):
        process = processes.get(int(path.name.rpartition("-")[2]))
        if process is None:
            continue
        for line in path.read_text().splitlines():
            name, _, start, end = line.split("|")
            found.setdefault(name, Counter()).update(_state(process, int(start), int(end), way))
    return found


def _state(process: Process, start: int, end: int, way: str) -> list[str]:
    """The state in which something was done, and under `attach` that, too."""
    table = process.intervals
    during = (table.start < end) & (table.end > start)
    kinds = set(table.kind[during].tolist())
    if way == ATTACHED and (not len(table.start) or end < int(table.start.min())):
        return ["standby"]
    if any(each.stacks and each.start < end and each.end > start for each in process.traces):
        state = "stacks"
    elif Kind.PROFILED in kinds:
        state = "profiled"
    elif Kind.DISCOVERY in kinds:
        state = "discovery"
    elif Kind.LINES in kinds:
        state = "lines"
    elif Kind.UNTIMED in kinds:
        state = "off"
    elif any(each.start < end and each.end > start for each in process.caught):
        state = "caught"
    else:
        discovered = table.start[table.kind == Kind.DISCOVERY]
        state = "plain" if len(discovered) and start > int(np.min(discovered)) else "start"
    return [state, "attached"] if way == ATTACHED else [state]


# -- the table -----------------------------------------------------------------------------------------------------


def differences_in(found: Mapping[str, Any]) -> int:
    """Rows in which something differed."""
    return sum("differs" in row for piece in found.values() for row in piece.get("rows", {}).values())


def tables(found: Mapping[str, Any]) -> list[str]:
    """In Markdown: a row for each operation, with how often it was done in each state."""
    lines = ["| operation | " + " | ".join(STATES) + " | differences |", "|---" * (len(STATES) + 2) + "|"]
    for job in JOBS:
        piece = found.get(job.name, {})
        if "skipped" in piece:
            lines.append(
                f"| *{job.about}* |" + " |" * len(STATES) + f" skipped: no {', '.join(piece['skipped'])} here |"
            )
        elif piece == NOT_RUN:
            lines.append(f"| *{job.about}* |" + " |" * len(STATES) + " not run yet |")
        elif piece:
            rows = sorted(piece["rows"].items(), key=lambda each: (each[0] == STREAMS, each[0]))
            left = piece["left out without"]
            note = f" {', '.join(piece['ways'])}" + (f"; left out: operations of {', '.join(left)}" if left else "")
            lines.append(f"| **{job.about}** |" + " |" * len(STATES) + f"{note} |")
            lines += [f"| {name} | " + " | ".join(_cells(row)) + " |" for name, row in rows]
    rows = [row for piece in found.values() for row in piece.get("rows", {}).values()]
    return [*lines, f"\nOperations: {len(rows)}. With a difference: {differences_in(found)}."]


def _cells(row: Mapping[str, Any]) -> Iterator[str]:
    for state in STATES:
        yield str(row["states"].get(state, "")) if row["steps"] else ""
    if row["fails bare"]:
        yield "fails bare, too: " + _escaped(row["fails bare"][0][:80])
        return
    differs = row.get("differs", {})
    unstable = f" ({', '.join(row['unstable'])}: –)" if row["unstable"] else ""
    if not differs:
        yield "none" + unstable
        return
    steps = ", ".join(f"{way} {each['steps']}" for way, each in differs.items())
    how = next(iter(differs.values()))["how"]
    yield (
        f"**{steps} of {row['steps']}: {_escaped(how)}**{unstable}"
        if row["steps"]
        else f"**{_escaped(how)}**{unstable}"
    )


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
