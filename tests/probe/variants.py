"""Runs jobs as variants of a trial, and reads what they leave and what they print."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preloading import python

from steptime.changes import Change, VariantOptions
from steptime.launcher.launch import ProbeOptions, probe_environment
from steptime.recording.load import load
from steptime.recording.recording import ChangeFacts, Process, Recording

JOBS = Path(__file__).parent / "changes" / "jobs"
ZOO = Path(__file__).parent / "zoo"
STEPS = VariantOptions(steps=6, warm_up=2, fingerprint_steps=2)


@dataclass(frozen=True)
class Variant:
    """A variant that has run."""

    status: int
    output: str
    recording: Recording

    @property
    def process(self) -> Process:
        (process,) = self.recording.processes
        return process

    @property
    def seen(self) -> list[dict[str, Any]]:
        """What the job saw, step by step."""
        return [json.loads(line[5:]) for line in self.output.splitlines() if line.startswith("SEEN ")]

    @property
    def losses(self) -> list[float]:
        parity = self.process.parity
        assert parity is not None
        found: list[float] = parity.loss.tolist()
        return found

    def change(self, kind: str) -> ChangeFacts:
        (found,) = (each for each in self.process.changes if each.kind == kind)
        return found


def run(
    folder: Path,
    script: Path,
    *changes: Change,
    variant: VariantOptions | None = STEPS,
    words: Any = (),
    given: tuple[str, ...] = (),
) -> Variant:
    """Runs `python script` with the changes, as a variant unless `variant` is None. words: before the script; given:
    behind it."""
    recording = folder / f"arm-{len(list(folder.iterdir()))}"
    recording.mkdir()
    options = ProbeOptions(profile=False, changes=changes, variant=variant)
    (recording / "manifest.json").write_text(json.dumps(MANIFEST))
    environment = {**probe_environment(recording, options), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [python(), *words, str(script), *given],
        env=environment,
        cwd=script.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    return Variant(ended.returncode, ended.stdout, load(recording))


def change(kind: str, target: str = "", **arguments: Any) -> Change:
    return Change(kind, target, tuple(arguments.items()))


MANIFEST = {
    "format_version": 1,
    "steptime": "",
    "command": ["python"],
    "directory": "",
    "host": "",
    "started_epoch_ns": 0,
}
