"""The exercises of the field's guides, one command line each or a few, in a clone of this repository.

python -m examples.exercises            # all of them, some twenty minutes
python -m examples.exercises d --quick  # one, in its short form
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

EXERCISES = {
    "a": (
        "Six transformer layers: median and IQR of both passes, by mode of torch.compile",
        "bench examples/block.py:model --shapes 8x64x128 --backward --modes eager,reduce-overhead,max-autotune",
    ),
    "b": (
        "A slow data set: the gap, its line, the fix and its proof",
        "run --recording runs/slow-input -- {python} examples/slow_input.py",
        "try --budget 5m runs/slow-input",
    ),
    "c": (
        "The three-run lab on a small CNN with its reading; a NaN and a leak, each with its line",
        "lab -- {python} examples/small_cnn.py",
        "nan -- {python} examples/small_cnn.py --nan",
        "run -- {python} examples/small_cnn.py --leak",
    ),
    "d": (
        "Compute, bandwidth, overhead: FLOP/byte of each (table Operators of bounds.md: relu 0.125, mm 1,024)",
        "run --recording runs/bounds -- {python} examples/three_bounds.py",
        "report runs/bounds -o runs/bounds/bounds.md --force",
    ),
    "e": (
        "Throughput over the batch size, to its plateau: the picture is in throughput.html",
        "lab --batch-sizes auto -o runs/throughput.html --force -- {python} examples/small_cnn.py",
    ),
    "f": (
        "Tiny kernels, compiled, in CUDA graphs: kernels (on a CPU, operators) and time per step, before and after",
        "run -- {python} examples/tiny_kernels.py",
        'judge --args "--compile default" --args "--compile reduce-overhead" -- {python} examples/tiny_kernels.py',
    ),
}
"""What each is about, and its command lines."""
QUICK = {
    "bench": "--seconds 0.2s --processes 1",
    "run": "--no-peaks",
    "try": "--budget 1m",
    "lab": "--budget 1m",
    "judge": "--budget 1m",
}
"""Options of the short form, by verb."""
UNDECIDED = 3
"""Exit status of a verb whose budget was too short for an answer: as it may be in a short form."""
"""Least exit status of a command that did not come to a result: 1 is a finding's, as of a NaN."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("exercises", nargs="*", metavar="a-f", help="which; without one, all")
    parser.add_argument("--quick", action="store_true", help="short forms, whose figures are rough")
    options = parser.parse_args()
    if unknown := set(options.exercises) - set(EXERCISES):
        parser.error(f"no exercise {', '.join(sorted(unknown))}: choose from {', '.join(EXERCISES)}")
    return options


def command_lines(exercise: str, *, quick: bool) -> list[list[str]]:
    """Words of each command of an exercise, behind `steptime`. Short jobs take a few steps, and small matrices."""
    lines = []
    for line in EXERCISES[exercise][1:]:
        verb, *words = shlex.split(line.format(python=shlex.quote(sys.executable)))
        if quick and exercise == "a":
            words = [word.replace("eager,reduce-overhead,max-autotune", "eager,compile") for word in words]
        if quick and words[0] == "--budget":  # the last one counts
            del words[:2]
        lines.append([verb, *(shlex.split(QUICK.get(verb, "")) if quick else ()), *words])
        if quick and words[-1].endswith("three_bounds.py"):
            lines[-1] += ["--side", "384", "--steps", "60"]
    return lines


def main() -> int:
    options = arguments()
    own = shutil.which("steptime")
    steptime = [own] if own else [sys.executable, "-m", "steptime"]
    Path("runs").mkdir(exist_ok=True)
    status = 0
    for exercise in options.exercises or EXERCISES:
        print(f"\n({exercise}) {EXERCISES[exercise][0]}", flush=True)
        for words in command_lines(exercise, quick=options.quick):
            print(f"$ steptime {shlex.join(words)}", flush=True)
            ended = subprocess.run([*steptime, *words], check=False).returncode
            status = max(status, ended if ended > 1 and ended != UNDECIDED else 0)
    return status


if __name__ == "__main__":
    sys.exit(main())
