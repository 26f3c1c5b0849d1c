"""A trace that is larger than memory could hold as objects."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest

LEAST_SIZE = 300_000_000
LAUNCHES = 500
"""Of a step: operators, each with a launch, a kernel and the arrow between them."""
MOST_MEMORY = 1_000_000_000
"""Bytes of address space of the verb and of each process that it starts."""


def launched(number: int, time: float) -> list[dict[str, Any]]:
    """Events of one operator that launches one kernel, in microseconds."""
    host, device = {"pid": 1, "tid": 1}, {"pid": 0, "tid": 7}
    joined = {"External id": number, "correlation": number}
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", **host, "ts": time, "dur": 9.0,
         "args": {"External id": number, "Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host, "ts": time + 2, "dur": 5.0,
         "args": joined},
        {"ph": "X", "cat": "kernel", "name": f"gemm_{number % 7}", **device, "ts": time + 12, "dur": 7.5,
         "args": {**joined, "device": 0, "stream": 7, "grid": [8, 8, 1], "block": [128, 1, 1]}},
        {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": number, **host, "ts": time + 2},
        {"ph": "f", "cat": "ac2g", "name": "ac2g", "id": number, **device, "ts": time + 12, "bp": "e"},
    ]  # fmt: skip


def written(file: TextIO) -> int:
    """Writes steps until the file is large enough, and gives how many."""
    file.write('{"deviceProperties": [{"id": 0, "name": "NVIDIA H100"}], "traceEvents": [\n')
    step = 0
    while file.tell() < LEAST_SIZE:
        start = 10.0 * LAUNCHES * step
        events = [
            event for each in range(LAUNCHES) for event in launched(step * LAUNCHES + each + 1, start + 10 * each)
        ]
        name = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1}
        events.append({**name, "ts": start, "dur": 10.0 * LAUNCHES - 1})
        file.write("".join(json.dumps(event) + ",\n" for event in events))
        step += 1
    file.write('{"ph": "i", "name": "end", "pid": 1, "tid": 1, "ts": 0, "s": "t"}]}')
    return step


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))


@pytest.mark.slow
def test_a_trace_of_300_mb_is_diagnosed_in_a_gigabyte(tmp_path: Path) -> None:
    with (tmp_path / "large.json").open("w") as file:
        steps = written(file)
    entry = "import sys; from steptime.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", entry, "diagnose", str(tmp_path / "large.json")]
    ended = subprocess.run(words, capture_output=True, text=True, check=False, preexec_fn=limited)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"mean of {steps} steps" in ended.stdout
    assert "GPU busy in 75 %" in ended.stdout
