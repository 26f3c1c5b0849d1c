"""The same fixes by processes and in one process, on jobs of this file: verdicts, the time that they take, and
what a job differs by from itself.

    OMP_NUM_THREADS=1 python -m benchmarks.one_process --budget 4m > benchmarks/results/one-process.md

`control`: quartiles of its ratios to the job as it is, which is the same, and how many: of processes (which take turns,
where they can), and of blocks in one process. `decided in`: seconds until the speed of all fixes was known: of one
process its own, as what follows proves the patch.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.started import STEPTIME
from steptime.trials.blocks import ratios
from steptime.trials.judge import comparisons_of
from steptime.trials.results import Results, read_results
from steptime.trials.trial import CONTROL

SHARED = """
import torch
from torch import nn

torch.manual_seed(0)
{model}
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, foreach=False)
for step in range(10**7):
    inputs, wanted = torch.randn({shape}), torch.randint(10, ({rows},))
    loss = nn.functional.cross_entropy(model(inputs), wanted)
    optimizer.zero_grad(set_to_none=False)
    loss.backward()
    optimizer.step()
"""
JOBS = {
    "deep": SHARED.format(
        model="layers = [each for _ in range(24) for each in (nn.Linear(64, 64), nn.ReLU())]\n"
        "model = nn.Sequential(*layers, nn.Linear(64, 10))",
        shape="16, 64",
        rows=16,
    ),
    "images": SHARED.format(
        model="model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),"
        " nn.ReLU(), nn.Flatten(), nn.Linear(16 * 256, 10))",
        shape="16, 3, 16, 16",
        rows=16,
    ),
}
"""Whose updates go parameter by parameter: one pass is faster in the first, and hardly in the second."""
FIXES = ("RM201", "RM203", "RM304", "RM301")


def tried(folder: Path, recording: str, budget: str, *, separate: bool) -> tuple[Results, float]:
    """What a trial comes to, and its seconds."""
    before, start = set(folder.glob("runs/*-try-*")), time.monotonic()
    words = [*STEPTIME, "try", "-q", "--budget", budget, *(["--separate"] if separate else []), recording]
    fixes = list(FIXES)
    while True:
        done = subprocess.run(
            [*words, *(f"--fix={each}" for each in fixes)],
            cwd=folder,
            check=False,
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
        )
        unfit = re.search(r"(RM\d+) \([\w-]+\) does not fit", done.stderr)
        if unfit is None:
            break
        fixes.remove(unfit[1])  # before anything ran
    print(done.stderr, file=sys.stderr)
    done.check_returncode()
    (made,) = set(folder.glob("runs/*-try-*")) - before
    return read_results(made), time.monotonic() - start


def apart(found: Results) -> str:
    """Quartiles of the control's ratios."""
    values = [ratios(run.switched.blocks, 0, control=True) for run in found.runs if run.switched.blocks]
    own = np.concatenate(values) if values else np.array([e.log_ratio() for e in comparisons_of(CONTROL, found.runs)])
    if len(own) < 2:
        return f"– ({len(own)})"
    low, high = np.exp(np.quantile(own, (0.25, 0.75)))
    return f"{low:.3f} to {high:.3f} ({len(own)})"


def rows(name: str, how: str, found: Results, seconds: float) -> list[str]:
    """Of a table: each fix, then the control."""
    one = sum(run.seconds for run in found.runs if run.switched_names)
    lines = []
    for stage, each in found.judgements:
        if stage == 0:
            speed = f"{each.speed.value:.2f} ({each.speed.low:.2f} to {each.speed.high:.2f})" if each.speed else "–"
            lines.append(f"| {name} | {how} | {each.variant.label} | {speed} | {each.verdict.value} |")
    return [
        *lines,
        f"| {name} | {how} | control: {apart(found)} | decided in {one or seconds:.0f} s | {seconds:.0f} s in all |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--jobs", default=",".join(JOBS))
    options = parser.parse_args()
    print("| job | by | what | speed-up | verdict |\n| --- | --- | --- | --- | --- |")
    for name in options.jobs.split(","):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "train.py").write_text(JOBS[name], encoding="utf-8")
            words = ("run", "--no-progress", "--until-measured", "--no-peaks", "--recording", "runs/a", "--")
            job = (sys.executable, "train.py")
            subprocess.run([*STEPTIME, *words, *job], cwd=folder, check=True, stdout=subprocess.DEVNULL)
            for how in ("one process", "processes"):
                found, seconds = tried(folder, "runs/a", options.budget, separate=how == "processes")
                print("\n".join(rows(name, how, found, seconds)), flush=True)


if __name__ == "__main__":
    main()
