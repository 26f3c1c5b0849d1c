"""Dumps made by the documented format: what torch's flight recorder writes for each rank, as plain data."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

WORLD = 4
FRAMES = [
    {
        "filename": "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py",
        "line": 81,
        "name": "wrapper",
    },
    {"filename": "/home/someone/steptime/src/steptime/probe/patches.py", "line": 122, "name": "timed"},
    {"filename": "/home/someone/train.py", "line": 40, "name": "step"},
]


def entry(record: int, sequence: int, operation: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """One call that has ended; `more` replaces fields."""
    sizes = more.pop("sizes", [[1024]])
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": f"nccl:{operation}",
        "time_created_ns": 1_700_000_000_000_000_000 + record * 1_000_000,
        "input_sizes": sizes,
        "input_dtypes": ["BFloat16"] * len(sizes),
        "output_sizes": sizes,
        "output_dtypes": ["BFloat16"] * len(sizes),
        "state": "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        "frames": FRAMES,
    } | more


def open_entry(record: int, sequence: int, operation: str = "all_reduce", **more: Any) -> dict[str, Any]:
    """One call that waits."""
    return entry(record, sequence, operation, **{"state": "started", "retired": False} | more)


def healthy(count: int = 3) -> dict[int, list[dict[str, Any]]]:
    """Entries by rank: some collectives that all ranks have done."""
    return {rank: [entry(number, number + 1) for number in range(count)] for rank in range(WORLD)}


def write(
    folder: Path,
    entries: dict[int, list[dict[str, Any]]],
    groups: dict[str, list[int]] | None = None,
    *,
    as_json: bool = False,
) -> Path:
    """A file for each rank. groups: members by name, next to the default group of all."""
    folder.mkdir(exist_ok=True)
    members = {"0": list(range(WORLD)), **(groups or {})}
    configuration = {name: {"name": name, "desc": name, "ranks": str(ranks)} for name, ranks in members.items()}
    for rank, calls in entries.items():
        dump = {"version": "2.10", "pg_config": configuration, "pg_status": {}, "entries": calls}
        if as_json:
            (folder / f"rank_{rank}.json").write_text(json.dumps(dump))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder
