"""All that needs a CUDA device, in two commands of at most 330 seconds each.

    python -m benchmarks.device.slot measure --into FOLDER
    python -m benchmarks.device.slot try --into FOLDER --programs CLONES
    python -m benchmarks.device.slot measure --into FOLDER --rehearse        # on a CPU, seconds for minutes

`measure`: the machine, its peaks, what the profiler leaves behind, variants of four programs in one process each, and a
recording of each program. `try`: `steptime try` of nanoGPT, changes of chargpt in one process each, as it is and as an
expert has it, the tests marked `gpu`, processes that take turns.

Phases run one after another, each in a process group of its own that is ended at its limit; one that would not fit into
the rest of the time is left out. FOLDER gets `phases.jsonl` (a line a phase), each phase's output, and `NAME.tar.gz` of
each recording. Nothing is diagnosed here: that needs no device.

CLONES: a folder with clones of karpathy's nanoGPT, whose data was prepared, and minGPT, with an input.txt in
projects/chargpt.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.started import STEPTIME

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
PROGRAMS = ("gpt", "dense", "resnet", "gptbig")
GPU_TESTS = ("tests/gpu", "tests/nan", "tests/machine", "tests/callables")
TIMED = "planted or float32_on or callables"
PEAKS = "STEPTIME_TEST_PEAKS"
"""See tests/machines.py."""
NANOGPT = (
    "train.py", "config/train_shakespeare_char.py", "--compile=False", "--eval_interval=100000", "--eval_iters=5",
)  # fmt: skip
NANOGPT_SMALL = (
    "--device=cpu", "--dtype=float32", "--n_layer=2", "--n_head=2", "--n_embd=64", "--batch_size=4", "--eval_iters=1",
)  # fmt: skip
CHARGPT_SMALL = ("--model.model_type=gpt-nano", "--trainer.batch_size=8", "--data.block_size=32")
LARGEST = 16 << 20
"""Bytes of a packed recording that is kept."""
SECONDS = 330.0
"""Of a command."""


@dataclass(frozen=True)
class Phase:
    """Words that are run in a folder, for so many seconds at most; those with `companions` run at the same time.
    recording: what they leave, to be kept. environment: variables next to ours."""

    name: str
    words: tuple[str, ...]
    limit: float
    folder: Path = ROOT
    recording: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    companions: bool = False


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, *words)


def script(name: str, *words: str) -> tuple[str, ...]:
    return python(str(HERE / f"{name}.py"), *words)


def recorded(into: Path, name: str, limit: float, *job: str, folder: Path = ROOT) -> Phase:
    """`steptime run` of a job."""
    recording = into / "runs" / name
    words = (*STEPTIME, "run", "--no-progress", "--force", "--recording", str(recording), "--", *job)
    return Phase(f"{name}-recorded", words, limit, folder, recording)


def measure(into: Path, rehearsed: bool) -> Iterator[Phase]:
    """The first command, the most telling first."""
    programs: tuple[str, ...] = ("tiny",) if rehearsed else PROGRAMS
    seconds = {"gptbig": 25.0, "resnet": 20.0, "tiny": 1.0}
    yield Phase("nvidia-smi", ("nvidia-smi", "-q"), 20)
    yield Phase("env", (*STEPTIME, "env", "--json"), 60)
    arms = ("two-kept-then-down", "history") if rehearsed else ()
    launches = {"LAUNCHES": "100"} if rehearsed else {}
    yield Phase("left-behind", script("left_behind", *arms), 90, environment=launches)
    if not rehearsed:
        for name in ("gpt", "dense", "gptbig"):
            yield Phase(f"{name}-compiled", script("variants", name, "--compile-only"), 100, companions=True)
    for name in programs:
        taken = str(seconds.get(name, 15.0))
        yield Phase(f"{name}-variants", script("variants", name, "--seconds", taken), 90)
        yield recorded(into, name, 60, *script("programs", name, "--seconds", "3" if rehearsed else "14"))
    if not rehearsed:
        yield Phase("left-behind-again", script("left_behind"), 90)


def tried(into: Path, clones: Path | None, rehearsed: bool) -> Iterator[Phase]:
    """The second command, the most telling first: `steptime try` of nanoGPT; chargpt in one process, as it is and as an
    expert has it; and what time is left for."""
    if clones is not None:
        nanogpt, small = clones / "nanoGPT", NANOGPT_SMALL if rehearsed else ()
        job = python(*NANOGPT, f"--out_dir={into}/nanogpt", "--max_iters=1000000", *small)
        words = (
            *STEPTIME,
            "run",
            "--no-progress",
            "--force",
            "--until-measured",
            "--uncontained",
            "--no-peaks",
            "--recording",
        )
        recording = into / "runs" / "nanogpt"
        yield Phase("nanogpt-recorded", (*words, str(recording), "--", *job), 60, nanogpt, recording)
        trial = (*STEPTIME, "try", str(recording), "--uncontained", "--budget", "190s")
        yield Phase("nanogpt-try", trial, 205, nanogpt)
        yield from (chargpt(into, clones, expert, rehearsed) for expert in (False, True))
    chosen = ("-m", "pytest", "-q", "-m", "gpu", "-k", f"not ({TIMED})", "-p", "no:cacheprovider", "-p", "no:benchmark")
    yield Phase("tests", python(*chosen, "-n", "6", *GPU_TESTS), 90)
    turns = ("-m", "benchmarks.turns", "--shapes", "dense", "--rounds", "3", "--steps", "1200")
    yield Phase("turns", python(*turns), 90)


def chargpt(into: Path, clones: Path, expert: bool, rehearsed: bool) -> Phase:
    """Its changes in blocks, in one process."""
    clone, name = clones / "minGPT", "chargpt-expert" if expert else "chargpt"
    options = CHARGPT_SMALL if rehearsed else ()
    folder = clone / "projects" / "chargpt"
    job = python(str(HERE / "chargpt_expert.py"), str(clone)) if expert else python("chargpt.py")
    changes = "tf32,bf16,fused" if rehearsed else "tf32,bf16,fused,compile"
    seconds = "15" if rehearsed else "42"
    words = (
        "-m",
        "benchmarks.switched",
        "--seconds",
        seconds,
        "--into",
        str(into / "runs" / name),
        "--changes",
        changes,
    )
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{clone}"}
    return Phase(
        name, python(*words, "--", *job, *options, f"--system.work_dir='{into}/{name}'"), 75, folder, None, paths
    )


def begun(phase: Phase, into: Path) -> subprocess.Popen[bytes]:
    variables = {**os.environ, **phase.environment}
    variables |= {"XDG_CACHE_HOME": str(into / "cache"), PEAKS: str(into / "cache" / "steptime")}
    with (into / f"{phase.name}.txt").open("wb") as output:
        return subprocess.Popen(
            phase.words,
            cwd=phase.folder,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def ended(process: subprocess.Popen[bytes], limit: float) -> int:
    """Its exit status; 124 where the limit ended it."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return 124


def keep(recording: Path, into: Path) -> None:
    """As an archive, where it is small."""
    packed = into / f"{recording.name}.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(recording, recording.name)
    if packed.stat().st_size > LARGEST:
        packed.unlink()


def groups(phases: Iterator[Phase]) -> Iterator[list[Phase]]:
    """Neighbours that run at the same time, together."""
    group: list[Phase] = []
    for phase in phases:
        if group and not (phase.companions and group[-1].companions):
            yield group
            group = []
        group.append(phase)
    yield group


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "try"))
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--programs", type=Path, metavar="CLONES")
    parser.add_argument("--only", help="names of phases, with commas")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all of it")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, in seconds")
    options = parser.parse_args()
    into = options.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    chosen = set(options.only.split(",")) if options.only else None
    clones = options.programs.resolve() if options.programs is not None else None
    phases = measure(into, options.rehearse) if options.command == "measure" else tried(into, clones, options.rehearse)
    return played(into, (each for each in phases if chosen is None or each.name in chosen), options.seconds)


def played(into: Path, phases: Iterator[Phase], seconds: float) -> int:
    """Runs the phases; 1 where one failed."""
    end, failed = time.monotonic() + seconds, False
    for group in groups(phases):
        start = time.monotonic()
        if end - start < min(phase.limit for phase in group) / 2:
            notify(into, group, [None] * len(group), 0.0)
            continue
        limit = min(max(phase.limit for phase in group), end - start)
        try:
            processes = [begun(phase, into) for phase in group]
        except FileNotFoundError:  # no nvidia-smi on a CPU
            notify(into, group, [127] * len(group), 0.0)
            continue
        statuses = [ended(each, max(0.1, start + limit - time.monotonic())) for each in processes]
        notify(into, group, list(statuses), time.monotonic() - start)
        failed |= any(statuses)
        for phase in group:
            if phase.recording is not None and phase.recording.is_dir():
                keep(phase.recording, into)
    return int(failed)


def notify(into: Path, group: list[Phase], statuses: list[int | None], seconds: float) -> None:
    with (into / "phases.jsonl").open("a", encoding="utf-8") as file:
        for phase, status in zip(group, statuses, strict=True):
            row = {"phase": phase.name, "status": status, "seconds": round(seconds, 1), "words": phase.words}
            file.write(json.dumps(row) + "\n")
            reported = "left out, no time" if status is None else f"status {status}, {seconds:.0f} s"
            print(f"{phase.name}: {reported}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
