"""Recording that still grows, read meanwhile in bounded memory: the last minute of each process, and its number of
steps.

Only files are read: job and launcher do not notice.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool
from steptime.errors import RecordingError
from steptime.journal import RECORD, Kind
from steptime.recording import documents
from steptime.recording.documents import decode_document, decode_fact, decode_lines
from steptime.recording.load import assemble_process, life_of, process_folders, read_facts, read_manifest
from steptime.recording.packed import ASIDE, LAYOUT, SUFFIX, VALUE_KINDS, Records, decode, unpack
from steptime.recording.recording import Manifest, Process, ProcessFacts, TelemetrySample

SECOND = 1_000_000_000
WINDOW = 60 * SECOND
"""Records of each process that are kept, ns."""
MOST_RECORDS = 1 << 17
"""Most records of one process that are kept: 3 MB. Steps of a millisecond fill them in a dozen seconds, which shortens
the window."""
BLOCK = RECORD.size << 16
LARGEST_PACKED = 1 << 30
"""Most bytes of records in a packed journal that are counted."""
MOST_PROCESSES = 64
"""Most processes that are read: the first ones by name."""
MOST_SAMPLES = 600
"""Newest telemetry samples that are kept."""
MOST_FACTS = 1 << 16
"""Newest facts of a process that are kept: more than any job has written."""


class StepCount:
    """Number of steps in a journal, added block by block. Only for display: the breakdown counts steps itself."""

    def __init__(self) -> None:
        self._optimizers: Counter[int] = Counter()
        self._kinds: Counter[int] = Counter()
        self._left_out = 0

    def add(self, data: bytes) -> int:
        """Counts the whole records in `data`; returns their bytes: a torn record must be read again."""
        whole = len(data) - len(data) % RECORD.size
        records = np.frombuffer(data[:whole], dtype=LAYOUT)
        self._kinds.update(_counted(records["kind"]))
        self._optimizers.update(_counted(records["identity"][records["kind"] == Kind.OPTIMIZER_STEP]))
        self._left_out += int(records["identity"][records["kind"] == Kind.THINNED].sum())
        return whole

    @property
    def steps(self) -> int:
        """Number of steps: updates of the busiest optimizer, else backwards, else forwards; plus step boundaries
        without timers, and thinned steps."""
        trained = max(self._optimizers.values(), default=0) or self._kinds[Kind.BACKWARD]
        return (trained or self._kinds[Kind.FORWARD]) + self._kinds[Kind.BOUNDARY] + self._left_out


def _counted(values: npt.NDArray[np.unsignedinteger]) -> dict[int, int]:
    found, counts = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


class Following:
    """Reader of a file that grows, does not exist yet, or is replaced by a new one of its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def blocks(self) -> Iterator[bytes]:
        """Yields content that is new since the last call; after a replacement, first the rest of the old file."""
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
        """Steps back over the last `count` bytes, which were no whole record or line."""
        if self._file is not None and count:
            self._file.seek(-count, os.SEEK_CUR)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


class Lines(Following):
    """Reader of a growing file of lines."""

    def read(self) -> Iterator[bytes]:
        """Yields blocks of new whole lines."""
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
        """Reads new content; True if the journal has grown."""
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
        with contextlib.suppress(OSError):
            if (time := (self.folder / "process.json").stat().st_mtime_ns) != self._known_at:
                self.known, self._known_at = read_facts(self.folder, []), time
        return grown

    def _count_packed(self) -> Records:
        """Counts the records that the launcher has packed, or renamed before that; returns the renamed ones."""
        packed = documents.read_bytes(self.folder / f"journal{SUFFIX}", LARGEST_PACKED, [])
        with contextlib.suppress(ValueError):  # a damaged one is counted as far as it can be read
            for block in unpack(packed, LARGEST_PACKED) if packed else ():
                self.count.add(block)
        aside = documents.read_bytes(self.folder / f"journal{ASIDE}", LARGEST_PACKED, [])
        return np.frombuffer(aside[: self.count.add(aside)], LAYOUT)

    def last_minute(self) -> Process:
        """Returns the process with its records of the last minute and all facts."""
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
    """Recording that still grows, in its folder. Raises RecordingError if there is none of a known format."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path, bool(process_folders(path)), [])
        self.processes: dict[Path, GrowingProcess] = {}
        self.left_out = 0
        self._telemetry = Lines(path / "telemetry.jsonl")
        self.samples: deque[TelemetrySample] = deque(maxlen=MOST_SAMPLES)

    def read(self) -> frozenset[Path]:
        """Reads new content; returns the processes whose journals grew. Raises RecordingError if the folder is gone."""
        folders = process_folders(self.path)
        with contextlib.suppress(RecordingError):  # it is being written
            self.manifest = read_manifest(self.path, bool(folders), [])
        self.left_out = max(0, len(folders) - MOST_PROCESSES)
        for folder in folders[:MOST_PROCESSES]:
            if folder not in self.processes:
                self.processes[folder] = GrowingProcess(folder, self.manifest)
        decode = partial(decode_document, kind=TelemetrySample)
        for lines in self._telemetry.read():
            self.samples.extend(decode_lines(self.path / "telemetry.jsonl", lines, decode, []))
        return frozenset(folder for folder, process in self.processes.items() if process.read())

    def close(self) -> None:
        self._telemetry.close()
        for process in self.processes.values():
            process.close()
