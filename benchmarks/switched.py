"""What pays in one process: an unmodified job whose changes are switched on and off in blocks of its own steps.

    python -m benchmarks.switched --seconds 30 --into FOLDER --changes tf32,fused,bf16+compile -- python train.py

Prints a line of JSON a variant: its speed-up with an interval, pairs of blocks, ms of a step on the wall clock and on
the host, and the seconds that its first steps take longer. `control` is the job as it is once more. Nothing is recorded
or diagnosed beforehand; the job runs in the folder it is started in, and is ended. What is compiled comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from steptime.changes import Change, VariantOptions
from steptime.launcher.launch import probe_environment
from steptime.launcher.outcome import ProbeOptions
from steptime.recording.inventory import BLOCKS, GOING
from steptime.trials.blocks import BlockRecord, exercised, outruns_loader, ratios, read_blocks, speed_of

CHANGES = {
    "tf32": Change("matmul-precision", arguments=(("precision", "high"),)),
    "bf16": Change("autocast", arguments=(("dtype", "bfloat16"),)),
    "fused": Change("optimizer", arguments=(("fused", True),)),
    "foreach": Change("optimizer", arguments=(("foreach", True),)),
    "compile": Change("compile"),
    "channels-last": Change("channels-last"),
    "zero-grad": Change("zero-grad"),
}
FOR_EVER = 10**9
ROUNDS = 8


def run(command: list[str], folder: Path, variants: list[str], seconds: float) -> BlockRecord:
    """Runs the job for so many seconds behind its warm-up, and reads its blocks."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    switched = tuple(tuple(CHANGES[name] for name in each.split("+")) for each in variants)
    options = VariantOptions(FOR_EVER, limit_seconds=seconds, switched=switched)
    environment = probe_environment(folder, ProbeOptions(profile=False, variant=options))
    with (folder / "output.log").open("wb") as output:
        job = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        while job.poll() is None:
            time.sleep(0.2)
            _steer(folder, variants)
    return read_blocks(folder / BLOCKS)


def _steer(folder: Path, variants: list[str]) -> None:
    """What is compiled follows, by itself, when the others have run ROUNDS; without any, all go on to the end."""
    rounds = {each.round for each in read_blocks(folder / BLOCKS).blocks if each.control}
    if len(rounds) >= ROUNDS and not (folder / GOING).exists():
        partial = folder / f"{GOING}.partial"
        late = [f"{1 << at}\n" for at, name in enumerate(variants) if "compile" in name]
        partial.write_text("".join(late or [f"{1 << at}\n" for at in range(len(variants))]), encoding="ascii")
        partial.replace(folder / GOING)


def rows(record: BlockRecord, variants: list[str]) -> list[dict[str, object]]:
    """A line a variant, the job as it is first."""
    control = ratios(record.blocks, 0, control=True)
    found = []
    for name, mask in [("as it is", 0), ("control", 0), *((name, 1 << at) for at, name in enumerate(variants))]:
        mine = [each for each in record.blocks if each.block == mask and each.control == (name == "control")]
        own = control if name == "control" else ratios(record.blocks, mask)
        row: dict[str, object] = {"variant": name, "blocks": len(mine)}
        if mine:
            row["wall_ms"] = round(statistics.median(each.step_ns for each in mine) / 1e6, 3)
            row["host_ms"] = round(statistics.median(each.host_ns / each.steps for each in mine) / 1e6, 3)
        if len(own):
            speed = speed_of(own, control)
            row["speedup"] = round(speed.value, 4)
            row["interval"] = [round(speed.low, 4), round(min(speed.high, 1e6), 4)]
            row["quartiles"] = [round(float(each), 4) for each in _quartiles(own)]
        first = record.first_of(mask)
        if mask and first is not None:
            row["first_s"] = round(first.preparing_ns / 1e9, 2)
            row["acted"] = exercised(first)
            row["detail"] = [each.detail for each in first.changes]
            row["outruns_loader"] = outruns_loader(record.blocks, mask)
        found.append(row)
    return found


def _quartiles(values: object) -> list[float]:
    import numpy as np

    return [float(each) for each in np.exp(np.quantile(np.asarray(values), (0.25, 0.75)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--changes", default="tf32,bf16,fused,compile")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    command = [each for each in options.command if each != "--"]
    variants = options.changes.split(",")
    record = run(command, options.into.resolve(), variants, options.seconds)
    if record.refused or not record.blocks:
        print(json.dumps({"refused": record.refused or "no block was run", "begun": record.begun}))
        print((options.into / "output.log").read_text(encoding="utf-8", errors="replace")[-1500:], file=sys.stderr)
        return 1
    for row in rows(record, variants):
        print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
