"""How far a running job has come, read from the outside: new bytes of its journals, twice a second."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from steptime.journal import RECORD, Kind

LAYOUT = np.dtype(
    [("kind", "u1"), ("flags", "u1"), ("thread", "<u2"), ("identity", "<u4"), ("begin", "<i8"), ("end", "<i8")]
)
WAITING, WATCHING, PROFILED = "waiting for the first training step", "watching", "watching, profile taken"


@dataclass(slots=True)
class _Count:
    offset: int = 0
    optimizers: dict[int, int] = field(default_factory=dict)
    kinds: dict[int, int] = field(default_factory=dict)

    def add(self, data: bytes) -> None:
        """Counts whole records; a torn one at the end is read again the next time."""
        whole = len(data) - len(data) % RECORD.size
        self.offset += whole
        records = np.frombuffer(data[:whole], dtype=LAYOUT)
        for kind, count in zip(*np.unique(records["kind"], return_counts=True), strict=True):
            self.kinds[int(kind)] = self.kinds.get(int(kind), 0) + int(count)
        steps = records["identity"][records["kind"] == Kind.OPTIMIZER_STEP]
        for identity, count in zip(*np.unique(steps, return_counts=True), strict=True):
            self.optimizers[int(identity)] = self.optimizers.get(int(identity), 0) + int(count)

    @property
    def steps(self) -> int:
        """Updates of the busiest optimiser, else backward passes, else forwards; and the borders while the watch was
        off."""
        trained = max(self.optimizers.values(), default=0) or self.kinds.get(Kind.BACKWARD, 0)
        return (trained or self.kinds.get(Kind.FORWARD, 0)) + self.kinds.get(Kind.BORDER, 0)


class Journals:
    """The journals of all processes of a recording, read as they grow. A hint for people: the account counts steps by
    itself."""

    def __init__(self, recording: Path) -> None:
        self._recording = recording
        self._counts: dict[Path, _Count] = {}

    def look(self) -> tuple[int, int, str]:
        """(steps of the process that has most, processes that train, stage)."""
        folders = sorted(self._recording.glob("process-*"))
        for folder in folders:
            self._read(folder / "journal.bin")
        profiled = any(True for folder in folders for _ in folder.glob("trace-*.json*"))
        stage = PROFILED if profiled else WATCHING if folders else WAITING
        return max((count.steps for count in self._counts.values()), default=0), len(folders), stage

    def _read(self, path: Path) -> None:
        count = self._counts.setdefault(path, _Count())
        try:
            with path.open("rb") as file:
                file.seek(count.offset)
                count.add(file.read())
        except OSError:
            return  # not there yet, or gone again
