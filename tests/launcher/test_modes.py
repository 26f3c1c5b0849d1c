"""Nothing of ours is heard by the job's own modes: they see the functions and operators that they would see without us,
and its dataset is asked what it would be asked."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

pytest.importorskip("torch")

from steptime.changes import VariantOptions
from steptime.launcher.launch import ProbeOptions, probe_environment
from steptime.launcher.outcome import NumericsOptions

JOB = Path(__file__).parent / "observed" / "modes_job.py"
STEPS = 240
WHOLE = VariantOptions(2 * STEPS, limit_seconds=PATIENCE)
WATCHES = {
    "run": ProbeOptions(),
    "nan, cheap": ProbeOptions(profile=False, numerics=NumericsOptions("watch", 0)),
    "nan, operators": ProbeOptions(profile=False, numerics=NumericsOptions("instrument", 0, False, 20, STEPS + 1)),
    "trial, timed": ProbeOptions(profile=False, variant=WHOLE),
    "trial, rehearsed": ProbeOptions(profile=False, variant=replace(WHOLE, fingerprint_steps=8)),
}


def seen(environment: dict[str, str], folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [python(), str(JOB)],
        env={**environment, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return seen(dict(os.environ), tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("watch", WATCHES)
def test_the_jobs_modes_and_its_dataset_hear_nothing_of_us(tmp_path: Path, alone: dict[str, Any], watch: str) -> None:
    watched = seen(probe_environment(tmp_path, WATCHES[watch]), tmp_path)
    differing = {
        what: {name: (counts.get(name, 0), watched[what].get(name, 0)) for name in {*counts, *watched[what]}
               if counts.get(name, 0) != watched[what].get(name, 0)}
        for what, counts in alone.items() if what != "loss"
    }  # fmt: skip
    assert differing == {"functions": {}, "operators": {}, "asked": {}}
    assert watched["loss"] == alone["loss"]
    assert list(tmp_path.glob("process-*/facts.jsonl")) + list(tmp_path.glob("process-*/numerics.json"))
