"""The readers of everything that comes from outside, each with real files to damage."""

from __future__ import annotations

import gzip
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.started import STEPTIME
from steptime.hang.dump import read_dump
from steptime.memory.snapshot import read_snapshot
from steptime.nan.nonfinite import read_numerics
from steptime.recording.load import load, read_parity
from steptime.recording.packed import Life, decode
from steptime.report.json import read as read_report
from steptime.trace.reader import read as read_trace

JOB = Path(__file__).parent / "job.py"


@dataclass(frozen=True)
class Target:
    """A reader. seeds: sound files by name; read: what takes a damaged one of this name and its bytes."""

    name: str
    seeds: tuple[tuple[str, bytes], ...]
    read: Callable[[str, bytes], object]


@contextmanager
def replaced(path: Path, data: bytes) -> Iterator[Path]:
    """A file with other content for a moment."""
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try:
        yield path
    finally:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)


def targets(folder: Path) -> tuple[Target, ...]:
    """All of them, with files that a short job made in `folder` just now."""
    recording, report = measured(folder)
    process = next(recording.glob("process-*"))
    journal = (process / "journal.bin").read_bytes()
    traces = [gzip.decompress(path.read_bytes()) for path in process.glob("trace-*.json.gz")]
    small = min(traces, key=len)
    zipped = gzip.compress(small, 1)
    documents = [path for path in sorted(recording.rglob("*")) if path.suffix in (".json", ".jsonl", ".bin")]
    names = tuple((str(path.relative_to(recording)), path.read_bytes()) for path in documents)
    parity = (
        b'{"step":0,"loss":0.5,"backwards":1,"gradient_norm":1.5,"peak_bytes":9,"gradients":[["0.bias",1.0]]}\n' * 3
    )
    numerics = b'{"mode":"watch","steps":12,"notes":["seen"],"pid":7,"rank":0,"history":[[1,0.5,1.5]],"origins":[]}'

    def file(reader: Callable[[Path], object], suffix: str) -> Callable[[str, bytes], object]:
        def read(_: str, data: bytes) -> object:
            with replaced(folder / f"damaged{suffix}", data) as path:
                return reader(path)

        return read

    def whole(name: str, data: bytes) -> object:
        with replaced(recording / name, data):
            return load(recording)

    def numbers(_: str, data: bytes) -> object:
        with replaced(process / "numerics.json", data):
            return read_numerics(recording)

    return (
        Target("journal", (("journal.bin", journal),), lambda _, data: decode([data], Life(0, 1 << 62))),
        Target("recording", names, whole),
        Target("report", (("report.json", report),), lambda name, data: read_report(data, name)),
        Target("trace", (("trace.json", small),), file(read_trace, ".json")),
        Target("trace-gz", (("trace.json.gz", zipped),), file(read_trace, ".json.gz")),
        Target("parity", (("parity.jsonl", parity),), file(lambda path: read_parity(path, []), ".jsonl")),
        Target("numerics", (("numerics.json", numerics),), numbers),
        Target("snapshot", snapshots(), file(read_snapshot, ".pickle")),
        Target("flight", (("dump", pickle.dumps(recorder_dump())),), file(read_dump, "")),
    )


def measured(folder: Path) -> tuple[Path, bytes]:
    """A recording with its traces, and its report."""
    recording, report = folder / "recording", folder / "report.json"
    words = [
        "run",
        "--quiet",
        "--no-peaks",
        "--recording",
        recording,
        "-o",
        report,
        "--",
        sys.executable,
        JOB,
        "1000",  # long enough to be profiled
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*STEPTIME, *map(str, words)], env=environment, capture_output=True, check=True)
    return recording, report.read_bytes()


def snapshots() -> tuple[tuple[str, bytes], ...]:
    """A small allocator snapshot as torch.cuda.memory._snapshot has it, in two protocols of pickle."""
    frames = [{"filename": "train.py", "line": 12, "name": "step"}]
    block = {"size": 1024, "requested_size": 1000, "address": 4096, "state": "active_allocated", "frames": frames}
    segment = {
        "device": 0, "address": 4096, "total_size": 2097152, "allocated_size": 1024, "active_size": 1024, "stream": 0,
        "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False, "frames": frames,
        "blocks": [block, {**block, "address": 5120, "size": 2096128, "state": "inactive"}],
    }  # fmt: skip
    event = {"addr": 4096, "size": 1024, "stream": 0, "frames": frames}
    actions = ("segment_alloc", "alloc", "free_requested", "free_completed", "alloc")
    traces = [[{**event, "action": action, "time_us": 10 + number} for number, action in enumerate(actions)]]
    whole: dict[str, Any] = {"segments": [segment], "device_traces": traces, "allocator_settings": {"a": 1}}
    return tuple((f"snapshot-{protocol}.pickle", pickle.dumps(whole, protocol)) for protocol in (2, 4))


def recorder_dump() -> dict[str, Any]:
    """A flight recorder's dump as torch writes it for one rank."""
    entry = {
        "frames": [{"name": "step", "filename": "train.py", "line": 3}], "record_id": 0, "pg_id": 0,
        "process_group": ("0", "default_pg"), "collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1,
        "profiling_name": "nccl:all_reduce", "time_created_ns": 1, "input_sizes": [[4, 4]], "output_sizes": [[4, 4]],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"], "state": "completed", "is_p2p": False, "retired": True,
        "timeout_ms": 600000, "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
    }  # fmt: skip
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    return {"version": "2.10", "rank": 0, "pg_config": groups, "pg_status": {}, "entries": [entry, entry]}


def cleaned(folder: Path) -> None:
    """Takes the folder away again."""
    shutil.rmtree(folder, ignore_errors=True)
