"""The lines that a trace's frames can tell: where a function starts, and nothing of where it stood."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from documents import text_of

from steptime.memory.answer import answer_of
from steptime.memory.report import triage_path
from steptime.quantities import SourceLine


def event(name: str, start: float, end: float, event_kind: str = "python_function") -> dict[str, Any]:
    return {"ph": "X", "cat": event_kind, "name": name, "pid": 7, "tid": 7, "ts": start, "dur": end - start}


def memory(time: float, address: int, size: int, total: int) -> dict[str, Any]:
    arguments = {"Addr": address, "Bytes": size, "Total Allocated": total, "Total Reserved": 0,
                 "Device Type": 0, "Device Id": -1}  # fmt: skip
    return {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 7, "tid": 7, "ts": time,
            "args": arguments}  # fmt: skip


def test_what_ran_when_the_recording_began_has_no_line(tmp_path: Path) -> None:
    """It starts in the hook of `optimizer.step()`, line 24: what another line of the loop allocates is not of that."""
    path = tmp_path / "trace.json"
    running = [
        event("job.py(24): <module>", 0, 1000),
        event("torch/optim/optimizer.py(514): wrapper", 1, 50),
        event("torch/profiler/profiler.py(200): start", 2, 49),
    ]
    called = [event("job.py(10): forward", 200, 300), event("job.py(10): forward", 400, 500)]
    work = [event("aten::randn", 100, 120, "cpu_op"), event("aten::linear", 210, 290, "cpu_op")]
    allocated = [memory(110, 64, 5 << 20, 5 << 20), memory(250, 1 << 30, 3 << 20, 8 << 20)]
    trace = {"schemaVersion": 1, "traceEvents": [*running, *called, *work, *allocated]}
    path.write_text(json.dumps(trace), encoding="utf-8")
    report = triage_path(path, cache=False)
    (device,) = report.devices
    sources = {line.bytes >> 20: line.source for line in device.breakdown.lines}
    assert sources == {5: SourceLine("job.py", 0, "<module>"), 3: SourceLine("job.py", 10, "def forward")}
    reported = text_of(report, answer_of)
    assert "job.py <module>" in reported
    assert "job.py:10 def forward" in reported
    assert ":24" not in reported
    assert ":0" not in reported
