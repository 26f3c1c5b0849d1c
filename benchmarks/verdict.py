"""How long `steptime judge` takes to a verdict, and where that time goes, of one or more steptimes in turns.

    python -m benchmarks.verdict --out benchmarks/results/verdict.md
    python -m benchmarks.verdict --steptime before=OLD/src --steptime now=src --out RESULTS
    python -m benchmarks.verdict --programs FOLDER --python ENVIRONMENT/bin/python --out RESULTS

Three programs of examples/, each with an honest change that pays: one batch of indices for a loader, a decoder in numpy
for one in Python, one operator for seven; besides, those of a folder of one's own. Each round runs every steptime once
on each program.

A folder of programs has for each NAME a folder NAME/job, its change as NAME/change.diff, and in NAME/command.txt the
words behind `python`.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.started import STEPTIME

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
LOADER = "DataLoader(TensorDataset(images, labels), batch_size=32, shuffle=True, drop_last=True)"
SAMPLER = (
    "DataLoader(images_and_labels := TensorDataset(images, labels), "
    "sampler=BatchSampler(RandomSampler(images_and_labels), 32, True), batch_size=None)"
)
ROWS = """    for line in range(height):
        start = line * (stride + 1) + 1
        row = bytes([(byte + above) & 255 for byte, above in zip(filtered[start : start + stride], row, strict=True)])
        rows.append(row)
    pixels = torch.frombuffer(bytearray(b"".join(rows)), dtype=torch.uint8)
"""
AT_ONCE = """    raw = numpy.frombuffer(filtered, numpy.uint8).reshape(height, stride + 1)[:, 1:]
    pixels = torch.from_numpy(numpy.cumsum(raw, axis=0, dtype=numpy.uint8))
"""
GELU = """        inner = 0.7978845608 * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + torch.tanh(inner))
"""
PROGRAMS = {
    "small_cnn": (
        ("--steps", "20000"),
        ((LOADER, SAMPLER), ("import DataLoader,", "import BatchSampler, DataLoader, RandomSampler,")),
    ),
    "slow_input": (("--epochs", "200"), ((ROWS, AT_ONCE), ("import zlib\n", "import zlib\n\nimport numpy\n"))),
    "tiny_kernels": (("--steps", "100000"), ((GELU, '        return nn.functional.gelu(x, approximate="tanh")\n'),)),
}
"""For each program its arguments, and the texts that its change replaces."""
PARTS = ("measured", "rehearsed", "timed", "besides")


@dataclass(frozen=True)
class Verdict:
    """One judgement. seconds, cpu: of all processes. parts: seconds by PARTS; of processes that take turns, each
    without its rests."""

    steptime: str
    program: str
    seconds: float
    cpu: float
    status: int
    sentence: str
    parts: tuple[float, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steptime", action="append", metavar="NAME=SRC", help="a steptime's src; by default this one")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--programs", type=Path, metavar="FOLDER", help="programs of your own, besides")
    parser.add_argument("--python", default=sys.executable, help="that runs the programs; by default this one")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    own = sorted(each.parent for each in given.programs.glob("*/command.txt")) if given.programs else []
    programs: list[str | Path] = [*PROGRAMS, *own]
    sources = dict(each.split("=", 1) for each in given.steptime or (f"this={EXAMPLES.parent / 'src'}",))
    found = [
        judged(name, source, program, given.budget, given.python)
        for _ in range(given.rounds)
        for program in programs
        for name, source in sources.items()
    ]
    text = table(found)
    given.out.write_text(text, encoding="utf-8")
    print(text)


def judged(name: str, source: str, program: str | Path, budget: str, python: str) -> Verdict:
    """Judges a program's change with a steptime, in a folder of its own. program: of PROGRAMS, or its folder."""
    with tempfile.TemporaryDirectory(prefix="verdict-") as folder:
        if isinstance(program, Path):
            shutil.copytree(program / "job", folder, dirs_exist_ok=True)
            shutil.copy(program / "change.diff", folder)
            words, program = shlex.split((program / "command.txt").read_text(encoding="utf-8")), program.name
        else:
            given, changes = PROGRAMS[program]
            write_job(Path(folder), program, changes)
            words = ["train.py", *given]
        job = (python, *words)
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        done = subprocess.run(
            [*STEPTIME, "judge", "--diff", "change.diff", "--budget", budget, "--json", "--", *job],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(Path(source).resolve())},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        sentence = sentence_of(done)
        print(f"{name} {program}: {seconds:.0f} s, {sentence}", file=sys.stderr, flush=True)
        return Verdict(name, program, seconds, cpu, done.returncode, sentence, parts_of(Path(folder), seconds))


def sentence_of(done: subprocess.CompletedProcess[str]) -> str:
    """The verdict and the speed-up; the last words of a judgement that failed."""
    try:
        (candidate,) = json.loads(done.stdout)["candidates"]
    except ValueError:
        return done.stderr[-200:].replace("\n", " ")
    speed = candidate["speed_up"]
    value, low, high = (float(speed[name] or "nan") for name in ("value", "low", "high")) if speed else (0.0,) * 3
    return str(candidate["verdict"]) + (f": {value:.2f}× ({low:.2f}–{high:.2f})" if speed else "")


def write_job(folder: Path, program: str, changes: tuple[tuple[str, str], ...]) -> None:
    """Writes the program as train.py, and change.diff."""
    before = after = (EXAMPLES / f"{program}.py").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in after, (program, old)
        after = after.replace(old, new)
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "a/train.py", "b/train.py")
    (folder / "train.py").write_text(before, encoding="utf-8")
    (folder / "change.diff").write_text("".join(diff), encoding="utf-8")


def parts_of(folder: Path, seconds: float) -> tuple[float, ...]:
    """Seconds of a judgement by PARTS."""
    ended = [json.loads(each.read_text())["ended_epoch_ns"] for each in folder.glob("runs/*/manifest.json")]
    started = [json.loads(each.read_text())["started_epoch_ns"] for each in folder.glob("runs/*/manifest.json")]
    measured = (max(ended) - min(started)) / 1e9 if ended else 0.0
    runs = [
        json.loads(line)["run"]
        for file in folder.glob("runs/*/results.jsonl")
        for line in file.read_text(encoding="utf-8").splitlines()
        if '"run"' in line and "run" in json.loads(line)
    ]
    rehearsed = sum(run["seconds"] for run in runs if run["rehearsal"])
    timed = sum(run["seconds"] for run in runs if not run["rehearsal"])
    return measured, rehearsed, timed, seconds - measured - rehearsed - timed


def table(found: list[Verdict]) -> str:
    """In Markdown: each judgement, and the medians."""
    lines = [
        "# Time to a verdict",
        "",
        (__doc__ or "").split("\n\n")[2].replace("\n", " ").strip(),
        "",
        f"{os.cpu_count()} CPUs; load at the end: {os.getloadavg()[0]:.1f}. Seconds; *besides*: starts of the fork "
        "server, containment, reading. Of processes that take turns, each counts without its rests.",
        "",
        f"| steptime | program | seconds | CPU | {' | '.join(PARTS)} | verdict |",
        "|---|---|---|---|" + "---|" * (len(PARTS) + 1),
    ]
    for each in found:
        cells = " | ".join(f"{part:.0f}" for part in each.parts)
        lines.append(
            f"| {each.steptime} | {each.program} | {each.seconds:.0f} | {each.cpu:.0f} | {cells} | {each.sentence} |"
        )
    for name in dict.fromkeys(each.steptime for each in found):
        own = [each for each in found if each.steptime == name]
        decided = sum(each.status == 0 for each in own)
        lines.append(
            f"\n{name}: {decided} of {len(own)} decided; median {median(each.seconds for each in own):.0f} s "
            f"({min(each.seconds for each in own):.0f} to {max(each.seconds for each in own):.0f}), "
            f"{median(each.cpu for each in own):.0f} s of CPU."
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
