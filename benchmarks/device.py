"""All that needs a CUDA device, in one command and a bounded time.

    python -m benchmarks.device --into FOLDER [--programs CLONES] [--only tests,nanogpt] [--seconds 600]

Phases run one after another, the most telling first, each in a process group of its own that is ended at its limit. One
that would not fit into the rest of the time is left out. FOLDER gets `phases.jsonl` (a line a phase: its words, exit
status and seconds), each phase's output, a report of each recording (text and compact JSON), and small recordings as
`NAME.tar.gz`. The device's peaks are measured first, once for all phases. nanoGPT runs once more with its tracer
detached behind the profiler (TEARDOWN_CUPTI=1): `steptime diagnose` says of both what the tracer leaves behind.

CLONES: a folder with clones of karpathy's nanoGPT and minGPT and of pytorch's examples; their phases are left out
without it. nanoGPT reads `data/shakespeare_char/`, which its own prepare.py makes.
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

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "tests" / "gpu" / "scripts"
GPU_TESTS = ("tests/gpu", "tests/nan", "tests/machine", "tests/callables")
TIMED = "planted or float32_on or callables"
PEAKS = "STEPTIME_TEST_PEAKS"
"""See tests/machines.py."""
NANOGPT = ("train.py", "config/train_shakespeare_char.py", "--compile=False", "--max_iters=500", "--eval_interval=1000")
IMAGENET = ("main.py", "-a", "resnet50", "--dummy", "-b", "128", "--epochs", "1", "-p", "50")
LARGEST = 16 << 20
"""Bytes of a packed recording that is kept."""


@dataclass(frozen=True)
class Phase:
    """Words that are run in a folder, for so many seconds at most. recording: what they leave, to be kept. environment:
    variables beside ours."""

    name: str
    words: tuple[str, ...]
    folder: Path
    limit: int
    recording: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


def python(*words: str) -> tuple[str, ...]:
    return (sys.executable, *words)


def run(into: Path, name: str, folder: Path, limit: int, *job: str, **environment: str) -> Phase:
    """`steptime run` of a job."""
    recording = into / "runs" / name
    words = (*STEPTIME, "run", "--no-progress", "--force", "--recording", str(recording), "--", *python(*job))
    return Phase(name, words, folder, limit, recording, environment)


def tests(name: str, limit: int, chosen: str, *options: str) -> Phase:
    """The tests for a device whose names fit."""
    words = ("-m", "pytest", "-q", "-m", "gpu", "-k", chosen, "-p", "no:cacheprovider", "-p", "no:benchmark", *options)
    return Phase(name, python(*words, *GPU_TESTS), ROOT, limit)


def phases(into: Path, clones: Path | None) -> Iterator[Phase]:
    """All of them, the most telling first."""
    yield Phase("env", (*STEPTIME, "env", "--json"), into, 60)
    yield tests("tests", 90, f"not ({TIMED})", "-n", "6")
    yield tests("tests-alone", 150, TIMED)  # what others do on the device would be in their times
    turns = ("-m", "benchmarks.turns", "--shapes", "dense", "attention", "--rounds", "4", "--steps", "1200")
    yield Phase("turns", python(*turns), ROOT, 200)  # processes on a device that take turns, and one by one
    if clones is not None:
        nanogpt = clones / "nanoGPT"
        yield Phase("nanogpt-bare", python(*NANOGPT, f"--out_dir={into}/bare"), nanogpt, 40)
        yield run(into, "nanogpt", nanogpt, 60, *NANOGPT, f"--out_dir={into}/watched")
        yield Phase("nanogpt-bare-again", python(*NANOGPT, f"--out_dir={into}/bare"), nanogpt, 40)
        detached = (*NANOGPT, f"--out_dir={into}/watched")
        yield run(into, "nanogpt-detached", nanogpt, 60, *detached, TEARDOWN_CUPTI="1")
        tried = ("try", str(into / "runs" / "nanogpt"), "--budget", "4m")
        yield Phase("nanogpt-try", (*STEPTIME, *tried), nanogpt, 260)
        yield run(into, "imagenet", clones / "examples" / "imagenet", 90, *IMAGENET, "-j", "8")
        yield run(into, "imagenet-input", clones / "examples" / "imagenet", 90, *IMAGENET, "-j", "1")
        yield run(
            into, "chargpt", clones / "minGPT" / "projects" / "chargpt", 60, "chargpt.py", "--trainer.max_iters=400"
        )
    judge = (
        "judge",
        "--args=--tf32",
        "--low-precision",
        "--budget",
        "90s",
        "--",
        *python(str(SCRIPTS / "single_precision.py")),
    )
    yield Phase("judge", (*STEPTIME, *judge), into, 150)
    yield run(into, "pageable", into, 60, str(SCRIPTS / "pageable.py"))
    yield run(into, "convolutions", into, 60, str(SCRIPTS / "convolutions.py"))
    yield Phase("sweep", (*STEPTIME, "env", "--sweep"), into, 90)


def ended(phase: Phase, into: Path) -> tuple[int, float]:
    """(exit status, seconds): 124 where the limit ended it."""
    begin, variables = time.monotonic(), {**os.environ, **phase.environment}
    variables |= {"XDG_CACHE_HOME": str(into / "cache"), PEAKS: str(into / "cache" / "steptime")}
    with (into / f"{phase.name}.txt").open("wb") as output:
        process = subprocess.Popen(
            phase.words,
            cwd=phase.folder,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = process.wait(phase.limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = 124
    return status, time.monotonic() - begin


def keep(recording: Path, into: Path) -> None:
    """Its report as text and compact JSON, and itself where it is small."""
    for extension, option in (("report.txt", ()), ("report.json", ("--json",))):
        told = subprocess.run([*STEPTIME, "diagnose", str(recording), *option], capture_output=True, check=False)
        (into / f"{recording.name}.{extension}").write_bytes(told.stdout + told.stderr)
    packed = into / f"{recording.name}.tar.gz"
    with tarfile.open(packed, "w:gz") as archive:
        archive.add(recording, recording.name)
    if packed.stat().st_size > LARGEST:
        packed.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--only", help="names of phases, with commas")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all of it")
    options = parser.parse_args()
    into = options.into.resolve()
    into.mkdir(parents=True, exist_ok=True)
    chosen = set(options.only.split(",")) if options.only else None
    end, failed = time.monotonic() + options.seconds, 0
    clones = options.programs.resolve() if options.programs is not None else None
    for phase in phases(into, clones):
        if (chosen is not None and phase.name not in chosen) or not phase.folder.is_dir():
            continue
        left = end - time.monotonic()
        status, seconds = ended(phase, into) if left >= phase.limit else (None, 0.0)
        with (into / "phases.jsonl").open("a", encoding="utf-8") as file:
            file.write(
                json.dumps({"phase": phase.name, "status": status, "seconds": seconds, "words": phase.words}) + "\n"
            )
        print(
            f"{phase.name}: {'left out, no time' if status is None else f'status {status}, {seconds:.0f} s'}",
            flush=True,
        )
        failed += status not in (0, None)
        if phase.recording is not None and phase.recording.is_dir():
            keep(phase.recording, into)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
