"""Other tools on generated jobs, each used as its documentation teaches.

    python -m benchmarks.clinic.generate … --tool profiler="python -m benchmarks.clinic.rivals.on_fresh profiler python"

Started with the name of a tool, the Python that has it, and a job's command line. What a tool blames without a line is
taken for the part of the step that it means.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.clinic.rivals.profiler import HEALTHY, ROWS
from benchmarks.clinic.rivals.rival import SCRIPTS

STEPS = 10
"""Profiled, after as many of warm-up."""
ROW_WORDS = {
    "DataLoader": "part: input", "Optimizer.": "part: optimizer", "aten::isnan": "detect-anomaly", "gloo": "straggler",
}  # fmt: skip
"""What is in a row's name, and what the textbook reads in it."""
TRACEML_WORDS = {
    "INPUT_BOUND": "part: input", "RESIDUAL_HEAVY": "part: loop", "COMPUTE_BOUND": "part: model",
    "STRAGGLER": "straggler", "INPUT_STRAGGLER": "straggler", "COMPUTE_STRAGGLER": "straggler",
}  # fmt: skip
SLOWAI_WORDS = {"overhead": "part: loop", "memory": "part: model", "compute": "part: model"}
"""Its bottlenecks; it names no other part of a step."""
WORKLOAD = """import os, runpy, sys


def main():
    sys.path.insert(0, os.path.dirname({script!r}))
    sys.argv = [{script!r}]
    runpy.run_path({script!r}, run_name="__main__")
"""
Answer = list[tuple[str, float]]
"""Causes with shares of the step, the largest first; 0 where a tool names none. None at all: it will not say."""


def main() -> None:
    name, python, *command, script = sys.argv[1:]
    ranks = next((int(word.partition("=")[2]) for word in command if word.startswith("--nproc-per-node=")), 1)
    with tempfile.TemporaryDirectory() as folder:
        found = TOOLS[name](python, Path(script), ranks, Path(folder))
    findings = [{"cause": cause, "share": share} for cause, share in found]
    print(json.dumps({"findings": findings, "withheld": not findings}))


def profiler(python: str, script: Path, ranks: int, _: Path) -> Answer:
    """torch.profiler around STEPS steps: the rows of key_averages() with the largest own time."""
    printed = _of_one(ranks, [python, str(SCRIPTS / "profiled.py"), "--steps", str(STEPS), str(script)], script)
    return [(row_word(row), share) for row, _, share in json.loads(printed.splitlines()[-1])[:ROWS]]


def row_word(row: str) -> str:
    """Products of matrices are what a model is made of; any other operator stands for itself."""
    if row in HEALTHY:
        return "part: model"
    return next((message for part, message in ROW_WORDS.items() if part in row), "dominant-operator")


def traceml(python: str, script: Path, ranks: int, folder: Path) -> Answer:
    """TraceML: `traceml run` of the unmodified script; its primary diagnosis, then the issues of its sections."""
    options = ["--mode", "summary", "--logs-dir", str(folder), "--run-name", "job", "--nproc-per-node", str(ranks)]
    _message([str(Path(python).parent / "traceml"), "run", *options, str(script)], script)
    summary: dict[str, Any] = json.loads((folder / "job" / "final_summary.json").read_text(encoding="utf-8"))
    issues = [issue["kind"] for part in ("step_time", "system", "process") for issue in summary[part].get("issues", ())]
    kinds = dict.fromkeys([summary["primary_diagnosis"]["kind"], *issues])
    return [(TRACEML_WORDS[kind], 0.0) for kind in kinds if kind in TRACEML_WORDS]


def slowai(python: str, script: Path, ranks: int, folder: Path) -> Answer:
    """slowai: `slowai diagnose --json` of a file whose main() is the whole job."""
    workload = folder / "workload.py"
    workload.write_text(WORKLOAD.format(script=str(script)), encoding="utf-8")
    printed = _of_one(ranks, [python, "-m", "slowai", "diagnose", "--json", str(workload)], script)
    bottleneck = json.loads(printed[printed.index("{\n") :])["regime"]
    return [(SLOWAI_WORDS[bottleneck], 0.0)] if bottleneck in SLOWAI_WORDS else []


def _of_one(ranks: int, words: Sequence[str], script: Path) -> str:
    if ranks > 1:
        raise SystemExit("one process only")
    return _message(words, script)


def _message(words: Sequence[str], script: Path) -> str:
    """Standard output of a tool, started in the job's folder; its last words are ours where it fails."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(words, cwd=script.parent, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300])
    return done.stdout


TOOLS: dict[str, Callable[[str, Path, int, Path], Answer]] = {
    "profiler": profiler, "slowai": slowai, "traceml": traceml,
}  # fmt: skip


if __name__ == "__main__":
    main()
