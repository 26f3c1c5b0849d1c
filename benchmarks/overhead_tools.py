"""What tools cost per step, beside each other: whole runs of one job in turns, bare and under each tool.

CPU time of the training process per step, all its threads together, after the first third of the steps. Each tool is
compared with the bare job in its own interpreter, in the same round. One process differs from the next by some percent
of a step, so that this shows what is larger; what is smaller is measured within one process by `overhead.py`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
JOB, PROFILED = HERE / "overhead_tools_job.py", HERE / "clinic/rivals/scripts/profiled.py"
STEPTIME = (sys.executable, "-c", "from steptime.cli.main import entry; entry()", "run", "--quiet", "--no-ceilings")
SECONDS = 4
"""Of a run, without its start."""
FEWEST = 60
"""Steps of a run."""


def tools(traceml: str | None) -> dict[str, tuple[str, list[str], list[str]]]:
    """By name: the interpreter, the words that start it with the job but for its arguments, what follows those.

    traceml: a Python that has it; without one it is left out. "{folder}" is the place of the run."""
    found: dict[str, tuple[str, list[str], list[str]]] = {
        "steptime": (sys.executable, [*STEPTIME, "--recording", "{folder}/r", "--", sys.executable, str(JOB)], []),
        "torch.profiler around all": (sys.executable, [sys.executable, str(PROFILED), str(JOB)], []),
    }
    if traceml is not None:
        command = [str(Path(traceml).parent / "traceml"), "run", "--mode", "summary", "--logs-dir", "{folder}"]
        command += ["--run-name", "cost", "--nproc-per-node", "1", str(JOB), "--args"]
        found["traceml"] = traceml, command, []
        found["traceml, instrumented"] = traceml, command, ["traceml"]
    return found


def per_tool(environment: Mapping[str, str], size_ms: float, rounds: int, traceml: str | None) -> dict[str, object]:
    """step_us: of the bare jobs; added_us: by tool, a figure per round. None for a tool that failed."""
    depth = int(_printed([sys.executable, str(JOB), "0", str(size_ms), "-"], environment))
    arguments = [str(depth), str(max(FEWEST, int(SECONDS * 1e3 / size_ms)))]
    known = tools(traceml)
    bare: dict[str, list[float]] = {python: [] for python, _, _ in known.values()}
    added: dict[str, list[float] | None] = {name: [] for name in known}
    for number in range(rounds):
        for python, taken in bare.items():
            taken.append(_taken([python, str(JOB)], arguments, [], environment))
        for name, (python, words, further) in list(known.items())[:: 1 if number % 2 else -1]:
            _add(added, name, words, arguments, further, environment, bare[python][-1])
    every = [taken for each in bare.values() for taken in each]
    return {"size_ms": size_ms, "step_us": sorted(every)[len(every) // 2] / 1e3, "added_us": added}


def _add(
    added: dict[str, list[float] | None],
    name: str,
    words: list[str],
    arguments: list[str],
    further: list[str],
    environment: Mapping[str, str],
    bare: float,
) -> None:
    figures = added[name]
    if figures is None:
        return
    try:
        figures.append((_taken(words, arguments, further, environment) - bare) / 1e3)
    except (OSError, subprocess.SubprocessError, ValueError):
        added[name] = None


def _taken(words: list[str], arguments: list[str], further: list[str], environment: Mapping[str, str]) -> float:
    """CPU ns per step of one run."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "step")
        begin = [word.replace("{folder}", folder) for word in words]
        _printed([*begin, *arguments, str(result), *further], environment, folder)
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
