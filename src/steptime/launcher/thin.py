"""Keeps a recording small: in a long run while the job runs, packs the written records, and thins them beyond a rank's
daily limit (`recording.thinning`); after its job has ended, compresses its traces and packs long journals.

The probe opens its files for each write. So a journal is renamed first, and packed one look later, when no writer has
it open any more. If we are killed at any time, readers can handle the remains: a renamed file, or one that is packed
but not removed yet.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import psutil

from steptime.journal import RECORD, Kind, append_to
from steptime.launcher.outcome import THINNING_PERIOD
from steptime.recording.inventory import files_of_processes
from steptime.recording.packed import ASIDE, LAYOUT, MAGIC, SUFFIX, Records, pack
from steptime.recording.thinning import BYTES_PER_SECOND, thin

LARGE = 2 << 20
"""Bytes of a process's newest records that stay unpacked: more than an hour at eight steps per second."""
FIRST = float(1 << 40)
"""Limit of the first part, bytes per second: in effect none, for warm-up, first profiles and the steps around them."""
NAMES = ("journal", "loader")


def family(pid: int) -> tuple[int, ...]:
    """Returns a process and all its descendants."""
    with contextlib.suppress(psutil.Error):
        return pid, *(each.pid for each in psutil.Process(pid).children(recursive=True))
    return ()


class JournalThinner:
    """Timer that packs the journals of the processes from `pids`, which this launcher has started."""

    def __init__(self, folder: Path, pids: Callable[[], Iterable[int]]) -> None:
        self._folder, self._pids = folder, pids
        self._signs: dict[Path, Kind] = {}
        self.due = time.monotonic() + THINNING_PERIOD
        self.failed = False

    def look(self) -> None:
        """Packs the journals renamed at the last look, and renames those that have become large since."""
        for pid in self._pids():
            for process in self._folder.glob(f"process-{pid}*"):
                with contextlib.suppress(OSError):  # no room, or removed: it stays as it is
                    if self._pack(process):
                        continue
                    plain = [path for name in NAMES if (path := process / f"{name}.bin").exists()]
                    if sum(path.stat().st_size for path in plain) >= LARGE:
                        for path in plain:
                            path.rename(path.with_suffix(ASIDE))
        self.due = time.monotonic() + THINNING_PERIOD

    def _pack(self, process: Path) -> bool:
        """Packs the renamed files; False without any. Raises OSError."""
        aside = [process / f"{name}{ASIDE}" for name in NAMES]
        if not any(path.exists() for path in aside):
            return False
        journal, loader = map(_records, aside)
        rate = BYTES_PER_SECOND if (process / f"journal{SUFFIX}").exists() else FIRST  # how it began stays whole
        thinned = thin(journal, loader, self._signs.get(process), rate)
        self._signs[process] = thinned.sign
        for path, blocks in zip(aside, (thinned.journal, thinned.loader), strict=True):
            packed = path.with_suffix(SUFFIX)
            if len(blocks) > len(MAGIC):
                append_to(str(packed), blocks[len(MAGIC) if packed.exists() else 0 :])
            path.unlink(missing_ok=True)
        return True


def _records(path: Path) -> Records:
    data = path.read_bytes() if path.exists() else b""
    return np.frombuffer(data, LAYOUT, count=len(data) // RECORD.size)


LONGEST = 1 << 28
"""Most bytes of a journal to pack, as it must fit into memory several times; a longer one stays unpacked."""
LEVEL = 1
"""isal's levels are 0 to 3; 1 compresses Kineto's JSON at a third of a GB/s, to a tenth of its size."""
BLOCK = 1 << 20


def compress_traces(recording: Path) -> list[str]:
    """Turns every process-*/trace-*.json into .json.gz, atomically; the plain file is removed afterwards.

    Returns, in a list, a sentence on those that stayed uncompressed (no room) but readable; [] if there are none."""
    traces = files_of_processes(recording, "trace-*.json")
    left = [(trace, problem) for trace in traces if (problem := _compress(trace))]
    if not left:
        return []
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    trace, reason = left[0]
    return [f"{trace.parent.name}/{trace.name}{more} {'were' if more else 'was'} left uncompressed ({reason})."]


def _compress(trace: Path) -> str:
    from isal import igzip  # most runs have nothing to compress when this file is imported

    partial = trace.with_name(trace.name + ".gz.partial")
    try:
        partial.unlink(missing_ok=True)
        with (
            trace.open("rb") as plain,
            partial.open("xb") as file,  # through no link of a job's
            igzip.open(file, "wb", compresslevel=LEVEL) as packed,
        ):
            shutil.copyfileobj(plain, packed, BLOCK)
        partial.replace(trace.with_name(trace.name + ".gz"))
        trace.unlink()
    except OSError as error:
        partial.unlink(missing_ok=True)
        return os.strerror(error.errno or 0)
    return ""


def pack_journals(journals: Iterable[Path]) -> None:
    """Packs journals, each atomically, after the part that was packed while the job ran, and removes the plain ones. A
    journal stays if it cannot be packed, or its process may still write: it runs on, or ran on another machine."""
    for journal in journals:
        partial = journal.with_name(f"{journal.stem}{SUFFIX}.partial")
        packed = journal.with_suffix(SUFFIX)
        try:
            if _ended(journal.parent) and journal.stat().st_size <= LONGEST:
                if packed.exists():
                    append_to(str(packed), pack(journal.read_bytes())[len(MAGIC) :])
                else:
                    partial.unlink(missing_ok=True)
                    with partial.open("xb") as file:
                        file.write(pack(journal.read_bytes()))
                    partial.replace(packed)
                journal.unlink()
        except (OSError, ValueError, KeyError):
            partial.unlink(missing_ok=True)


def _ended(process: Path) -> bool:
    """True if the folder's process has ended. Raises OSError, ValueError, KeyError if that is unknown."""
    facts = json.loads((process / "process.json").read_bytes())
    return facts["host"] == os.uname().nodename and not psutil.pid_exists(int(facts["pid"]))
