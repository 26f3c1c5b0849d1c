"""A recording that still grows, read as it does: of each process its last minute, in bounded memory, and how many steps
it has taken.

One law: only files are read. The job and its launcher know nothing of it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool
from steptime.errors import RecordingError
from steptime.journal import RECORD, Kind
from steptime.recording import documents
from steptime.recording.documents import decode_fact, decode_lines, decode_sample
from steptime.recording.load import assemble_process, life_of, process_folders, read_facts, read_manifest
from steptime.recording.packed import ASIDE, LAYOUT, SUFFIX, VALUE_KINDS, Records, decode, unpack
from steptime.recording.recording import Manifest, Process, ProcessFacts, TelemetrySample

T = TypeVar("T")

SECOND = 1_000_000_000
WINDOW = 60 * SECOND
"""ns of each process that are kept."""
MOST_RECORDS = 1 << 17
"""Records of one process that are kept: 3 MB. Steps of a millisecond fill them in a dozen seconds: the window is
shorter."""
BLOCK = RECORD.size << 16
LARGEST_PACKED = 1 << 30
"""Bytes of records that are counted of a packed journal."""
MOST_PROCESSES = 64
"""Most ranks that are read: of more, the first ones."""
MOST_SAMPLES = 600
"""Samples of the machine, the newest."""
MOST_FACTS = 1 << 16
"""Lines: more than any job has written."""


class StepCount:
    """How many steps a journal holds, told block by block. A hint for people: the breakdown counts steps by itself."""

    def __init__(self) -> None:
        self.offset = 0
        self._optimizers: Counter[int] = Counter()
        self._kinds: Counter[int] = Counter()
        self._left_out = 0

    def add(self, data: bytes) -> int:
        """Counts whole records; returns the bytes that those are: a torn one is to be read again."""
        whole = len(data) - len(data) % RECORD.size
        records = np.frombuffer(data[:whole], dtype=LAYOUT)
        self._kinds.update(_counted(records["kind"]))
        self._optimizers.update(_counted(records["identity"][records["kind"] == Kind.OPTIMIZER_STEP]))
        self._left_out += int(records["identity"][records["kind"] == Kind.THINNED].sum())
        return whole

    @property
    def steps(self) -> int:
        """Updates of the busiest optimizer, else backward passes, else forwards; and boundaries with the watch off."""
        trained = max(self._optimizers.values(), default=0) or self._kinds[Kind.BACKWARD]
        return (trained or self._kinds[Kind.FORWARD]) + self._kinds[Kind.BOUNDARY] + self._left_out


def _counted(values: npt.NDArray[np.unsignedinteger]) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


class Following:
    """Data appended to a file, which may not be there yet, or be replaced by a new one of its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def blocks(self) -> Iterator[bytes]:
        """New content since the last time, the old file's, too, where a new one has its name."""
        yield from self._rest()
        if self._replaced():
            self.close()
            with contextlib.suppress(OSError):
                if stat.S_ISREG(self._path.stat().st_mode):  # a pipe by that name would hold us for ever
                    self._file = self._path.open("rb")
            yield from self._rest()

    def _rest(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            while self._file is not None and (data := self._file.read(BLOCK)):
                yield data

    def _replaced(self) -> bool:
        if self._file is None:
            return True
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._path.stat())
        except OSError:
            return False  # packed or removed: there is no new one yet

    def back(self, count: int) -> None:
        """The last bytes are to come again: they were no whole record or line."""
        if self._file is not None and count:
            self._file.seek(-count, os.SEEK_CUR)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class Lines(Following):
    """The same of a file of lines. Lines that cannot be read are left out."""

    def read(self) -> Iterator[bytes]:
        """The whole lines that have come."""
        for data in self.blocks():
            lines, _, torn = data.rpartition(b"\n")
            if len(torn) < BLOCK:
                self.back(len(torn))
            if not lines:
                return
            yield lines + b"\n"


class GrowingProcess:
    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self._manifest = folder, manifest
        self.count = StepCount()
        self.known: ProcessFacts | None = None
        self._known_at = 0
        self._journal = Following(folder / "journal.bin")
        self._lines = Lines(folder / "facts.jsonl")
        self._facts: list[object] = []
        self._tail = np.empty(0, LAYOUT)
        self._packed = False

    def read(self) -> bool:
        """New content; whether there was any."""
        kept, grown = [self._tail], False
        if not self._packed:
            self._packed = True
            kept.append(self._count_packed())
            grown = self.count.steps > 0
        for data in self._journal.blocks():
            whole = self.count.add(data)
            self._journal.back(len(data) - whole)
            kept.append(np.frombuffer(data[:whole], LAYOUT)[-MOST_RECORDS:])
            grown = grown or whole > 0
            if len(kept) > 4:
                kept = [np.concatenate(kept)[-MOST_RECORDS:]]
            if not whole:
                break
        self._tail = _last_minute(np.concatenate(kept)[-MOST_RECORDS:])
        for lines in self._lines.read():
            found = decode_lines(self.folder / "facts.jsonl", lines, decode_fact, [])
            self._facts = (self._facts + found)[-MOST_FACTS:]
        self._read_process()
        return grown

    def _count_packed(self) -> Records:
        """The records that a long job has packed already, or set aside for that."""
        packed = documents.read_bytes(self.folder / f"journal{SUFFIX}", LARGEST_PACKED, [])
        with contextlib.suppress(ValueError):  # a damaged one is counted as far as it can be read
            for block in unpack(packed, LARGEST_PACKED) if packed else ():
                self.count.add(block)
        aside = documents.read_bytes(self.folder / f"journal{ASIDE}", LARGEST_PACKED, [])
        return np.frombuffer(aside[: self.count.add(aside)], LAYOUT)

    def _read_process(self) -> None:
        """process.json, again where it was written again."""
        with contextlib.suppress(OSError):
            if (time := (self.folder / "process.json").stat().st_mtime_ns) != self._known_at:
                self.known, self._known_at = read_facts(self.folder, []), time

    def last_minute(self) -> Process:
        """Its records of the last minute, and all facts."""
        problems: list[str] = []
        table = decode([self._tail.tobytes()], life_of(self.known, self._manifest)).table
        nothing = decode([], None).table
        return assemble_process(self.folder, self.known, self._facts, table, nothing, problems)

    def close(self) -> None:
        self._journal.close()
        self._lines.close()


def _last_minute(records: Records) -> Records:
    if not len(records):
        return records
    start, end = records["start"], records["end"]
    first = np.percentile(start[-1000:], 99) - WINDOW  # one garbled time is none
    kept: Bool = (start >= first) | ((end >= first) & ~np.isin(records["kind"], VALUE_KINDS))
    last: Records = records[kept]
    return last


class GrowingRecording:
    """The recording in a folder. Raises RecordingError where there is none, of a format that we know."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path, bool(process_folders(path)), [])
        self.processes: dict[Path, GrowingProcess] = {}
        self.left_out = 0
        self._telemetry = Lines(path / "telemetry.jsonl")
        self.samples: deque[TelemetrySample] = deque(maxlen=MOST_SAMPLES)

    def read(self) -> frozenset[Path]:
        """Reads what has come; the processes of which something has. Raises RecordingError where it was removed."""
        folders = process_folders(self.path)
        with contextlib.suppress(RecordingError):  # it is being written
            self.manifest = read_manifest(self.path, bool(folders), [])
        self.left_out = max(0, len(folders) - MOST_PROCESSES)
        for folder in folders[:MOST_PROCESSES]:
            if folder not in self.processes:
                self.processes[folder] = GrowingProcess(folder, self.manifest)
        for lines in self._telemetry.read():
            self.samples.extend(decode_lines(self.path / "telemetry.jsonl", lines, decode_sample, []))
        return frozenset(folder for folder, process in self.processes.items() if process.read())

    def close(self) -> None:
        self._telemetry.close()
        for process in self.processes.values():
            process.close()
