"""Traces made by hand, for the tests of this room."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def event(number: int = 0, **changed: Any) -> dict[str, Any]:
    """An operator's event, 10 µs after the one before."""
    made = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 77, "tid": 77, "ts": 1000 + 10 * number, "dur": 5,
            "args": {"External id": number}}  # fmt: skip
    return made | changed


def trace_file(path: Path, events: list[dict[str, Any]], **around: Any) -> Path:
    """A file of these events, with what else it says of itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"schemaVersion": 1, **around, "traceEvents": events}))
    return path
