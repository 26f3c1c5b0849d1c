"""Builds recordings by hand: a clock that only moves when told to, and the files that a probe would have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steptime.journal import FORMAT_VERSION, RECORD, Flag, Kind
from steptime.recording.load import load
from steptime.recording.recording import Process, Recording

START = 5_000_000_000_000
"""Monotonic ns at which the built jobs start."""
EPOCH = 1_700_000_000_000_000_000
US, MS = 1_000, 1_000_000


class JournalBuilder:
    """Appends records as the job's clock runs. Durations: ns. Methods return the builder, so that steps chain."""

    def __init__(self) -> None:
        self.now = START
        self.thread = 0
        self.records: list[bytes] = []
        self.worker_records: list[bytes] = []
        self.facts: list[dict[str, Any]] = []
        self.samples: list[dict[str, Any]] = []
        self.process_facts: dict[str, Any] = {}

    def wait(self, duration: int) -> JournalBuilder:
        """Lets time pass outside of any interval."""
        self.now += duration
        return self

    @contextmanager
    def within(self, kind: Kind, identity: int = 0, flags: int = 0) -> Iterator[JournalBuilder]:
        """Everything inside the block is a child of this interval."""
        start = self.now
        yield self
        self.record(kind, start, self.now, identity, flags)

    def record(self, kind: Kind, start: int, end: int, identity: int = 0, flags: int = 0) -> JournalBuilder:
        """One record with times of its own."""
        self.records.append(RECORD.pack(kind, flags, self.thread, identity, start, end))
        return self

    def span(self, kind: Kind, duration: int, identity: int = 0, flags: int = 0) -> JournalBuilder:
        """An interval without children."""
        with self.within(kind, identity, flags):
            self.wait(duration)
        return self

    def start(self, duration: int, iterator: int = 1) -> JournalBuilder:
        """A loader's iterator is made."""
        return self.span(Kind.LOADER_START, duration, iterator)

    def next(self, duration: int, iterator: int = 1, exhausted: bool = False) -> JournalBuilder:
        """The loader's next()."""
        return self.span(Kind.LOADER_NEXT, duration, iterator, Flag.EXHAUSTED if exhausted else 0)

    def forward(self, duration: int, root: int = 1, gradient: bool = True, training: bool = True) -> JournalBuilder:
        """A top module's call."""
        return self.span(Kind.FORWARD, duration, root, _forward_flags(gradient, training))

    def evaluate(self, duration: int, root: int = 1, training: bool = False) -> JournalBuilder:
        """A top module's call without gradients."""
        return self.forward(duration, root, gradient=False, training=training)

    def backward(self, duration: int, flags: int = 0) -> JournalBuilder:
        """A backward pass."""
        return self.span(Kind.BACKWARD, duration, 0, flags)

    def step(self, duration: int, optimizer: int = 1) -> JournalBuilder:
        """An optimizer's step."""
        return self.span(Kind.OPTIMIZER_STEP, duration, optimizer)

    def worker(self, kind: Kind, start: int, end: int, iterator: int = 1, worker: int = 0) -> JournalBuilder:
        """A record that a loader's worker wrote."""
        self.worker_records.append(RECORD.pack(kind, 0, worker, iterator, start, end))
        return self

    def fact(self, kind: str, /, **fields: Any) -> JournalBuilder:
        """A line of facts.jsonl."""
        self.facts.append({"fact": kind, **fields})
        return self

    def write(self, folder: Path) -> Path:
        """Writes the recording into `folder` and returns its path."""
        process = folder / "process-17"
        process.mkdir(parents=True)
        _dump(folder / "manifest.json", _manifest())
        _dump(process / "process.json", {**_process(), **self.process_facts})
        (process / "journal.bin").write_bytes(b"".join(self.records))
        (process / "loader.bin").write_bytes(b"".join(self.worker_records))
        _lines(process / "facts.jsonl", self.facts)
        _lines(folder / "telemetry.jsonl", self.samples)
        return folder

    def recording(self, folder: Path) -> Recording:
        """Written and loaded again; nothing of it may be damaged."""
        recording = load(self.write(folder))
        assert recording.problems == ()
        return recording

    def process(self, folder: Path) -> Process:
        """The only process."""
        return self.recording(folder).processes[0]


def _forward_flags(gradient: bool, training: bool) -> int:
    return (Flag.GRADIENT if gradient else 0) | (Flag.TRAINING if training else 0)


def _manifest() -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "steptime": "0",
        "command": ["python", "train.py"],
        "directory": "/home/someone",
        "host": "box",
        "started_epoch_ns": EPOCH - 1_000_000_000,
    }


def _process() -> dict[str, Any]:
    return {
        "pid": 17,
        "argv": ["python", "train.py"],
        "executable": "/usr/bin/python",
        "python": "3.11.0",
        "torch": "2.13.0",
        "host": "box",
        "epoch_ns": EPOCH,
        "monotonic_ns": START,
        "process_started_epoch_ns": EPOCH - 1_000_000_000,
    }


def _dump(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document), encoding="utf-8")


def _lines(path: Path, documents: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in documents), encoding="utf-8")
