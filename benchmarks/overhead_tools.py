"""What tools cost per step, next to each other: whole runs of one job in turns, bare and under each tool.

CPU time of the training process per step, all its threads together, after the first third of the steps. Each tool is
compared with the bare job in its own interpreter, in the same round. One process differs from the next by some percent
of a step, so that this shows what is larger; what is smaller is measured within one process by `overhead.py`. A run
takes a few seconds, over whose steps the profiled window of steptime, which comes once, is spread as well.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.started import STEPTIME

HERE = Path(__file__).parent
JOB = HERE / "overhead_tools_job.py"
PROFILED = """
import runpy, sys
from torch.profiler import ProfilerActivity, profile
with profile(activities=[ProfilerActivity.CPU]):
    sys.argv.pop(0)
    runpy.run_path(sys.argv[0], run_name="__main__")
"""
WATCHED = (*STEPTIME, "run", "--quiet", "--no-peaks")
SECONDS = 3
"""Of a run, without its start."""
FEWEST, MOST_PROFILED = 30, 1000
"""Steps of a run; and of one that is profiled from its start to its end, whose events fill the memory else."""


@dataclass(frozen=True)
class Tool:
    """python: what the job is started with, bare and under the tool; words: that start the tool with the job; further:
    behind the job's own arguments. "{folder}" is the place of the run."""

    python: str
    words: tuple[str, ...]
    further: tuple[str, ...] = ()
    most_steps: int | None = None


def tools(traceml: str | None) -> dict[str, Tool]:
    """By name. traceml: a Python that has it; without one it is left out."""
    here = sys.executable
    recorded = ("--recording", "{folder}/r", "--", here, str(JOB))
    found = {
        "steptime": Tool(here, (*WATCHED, *recorded)),
        "steptime --no-profile": Tool(here, (*WATCHED, "--no-profile", *recorded)),
        "torch.profiler around all": Tool(here, (here, "-c", PROFILED, str(JOB)), most_steps=MOST_PROFILED),
    }
    if traceml is not None:
        command = (str(Path(traceml).parent / "traceml"), "run", "--mode", "summary", "--logs-dir", "{folder}",
                   "--run-name", "cost", "--nproc-per-node", "1", str(JOB), "--args")  # fmt: skip
        found["traceml"] = Tool(traceml, command)
        found["traceml, instrumented"] = Tool(traceml, command, ("traceml",))
    return found


def per_tool(environment: Mapping[str, str], size_ms: float, rounds: int, traceml: str | None) -> dict[str, object]:
    """step_us: of the bare jobs; added_us: by tool, a figure per round. None for a tool that failed."""
    depth = _printed([sys.executable, str(JOB), "0", str(size_ms), "-"], environment).strip()
    steps = max(FEWEST, int(SECONDS * 1e3 / size_ms))
    known = tools(traceml)
    bare: dict[str, list[float]] = {tool.python: [] for tool in known.values()}
    added: dict[str, list[float] | None] = {name: [] for name in known}
    for number in range(rounds):
        for python, taken in bare.items():
            taken.append(_taken((python, str(JOB)), (depth, str(steps)), (), environment))
        for name, tool in list(known.items())[:: 1 if number % 2 else -1]:
            arguments = depth, str(min(steps, tool.most_steps or steps))
            figures = added[name]
            try:
                if figures is not None:
                    taken_us = _taken(tool.words, arguments, tool.further, environment) / 1e3
                    figures.append(taken_us - bare[tool.python][-1] / 1e3)
            except (OSError, subprocess.SubprocessError, ValueError):
                added[name] = None
    every = [taken for each in bare.values() for taken in each]
    return {"size_ms": size_ms, "step_us": statistics.median(every) / 1e3, "added_us": added}


def _taken(
    words: Sequence[str], arguments: Sequence[str], further: Sequence[str], environment: Mapping[str, str]
) -> float:
    """CPU ns per step of one run."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "step")
        start = [word.replace("{folder}", folder) for word in words]
        _printed([*start, *arguments, str(result), *further], environment, folder)
        return float(result.read_text(encoding="utf-8"))


def _printed(words: list[str], environment: Mapping[str, str], folder: str | None = None) -> str:
    path = os.pathsep.join([str(HERE), *filter(None, [environment.get("PYTHONPATH")])])
    done = subprocess.run(
        words,
        cwd=folder,
        env={**environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    return done.stdout
