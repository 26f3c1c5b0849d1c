"""What benchmarks found on one machine, in benchmarks/results/<name>.json: section by section, piece by piece.

A long run can be taken in parts and continued.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from steptime.trials.trial import Judgement

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
USUAL_NAME = f"{platform.system().lower()}-{platform.machine()}-{os.cpu_count()}cpu"
"""Of a machine whose name was not given."""


def machine() -> dict[str, Any]:
    """Where and with what something was measured, and what else the machine did then."""
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return {
        "date": date.today().isoformat(), "cpu": _processor(), "cpus": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.machine()}", "python": platform.python_version(),
        "torch": version("torch"), "steptime": version("steptime"), "commit": head.stdout.strip(),
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())


def speed_of(judgement: Judgement) -> list[float] | None:
    """The speed-up of a variant of a trial with its interval; None where none was measured."""
    speed = judgement.speed
    return [speed.value, speed.low, speed.high] if speed is not None else None


def path_of(name: str) -> Path:
    """The file of a machine."""
    return RESULTS / f"{name}.json"


def read(name: str) -> dict[str, Any]:
    """Everything that is kept of a machine; nothing when there is no file yet."""
    path = path_of(name)
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def keep(name: str, section: str, piece: str, value: Any) -> None:
    """Replaces one piece of one section, whole: a run that is killed leaves the file as it was."""
    found = read(name)
    found.setdefault(section, {})[piece] = value
    path = path_of(name)
    draft = path.with_suffix(".part")
    draft.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    draft.replace(path)
