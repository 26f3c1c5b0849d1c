"""Compression of a recording after its job has ended: of traces and long journals."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import psutil
from isal import igzip

from steptime.journal import append_to
from steptime.recording.inventory import files_of_processes
from steptime.recording.packed import MAGIC, SUFFIX, pack

LONGEST = 1 << 28
"""Most bytes of a journal to pack, as it must fit into memory several times; a longer one stays unpacked."""
LEVEL = 1
"""isal's levels are 0 to 3; 1 compresses Kineto's JSON at a third of a GB/s, to a tenth of its size."""
BLOCK = 1 << 20


def compress_traces(recording: Path) -> list[str]:
    """Turns every process-*/trace-*.json into .json.gz, atomically; the plain file is removed afterwards.

    Returns a sentence about those that stayed uncompressed (no room), or none: they remain readable."""
    traces = files_of_processes(recording, "trace-*.json")
    left = [(trace, problem) for trace in traces if (problem := _compress(trace))]
    if not left:
        return []
    more = f" and {len(left) - 1} more" if len(left) > 1 else ""
    trace, reason = left[0]
    return [f"{trace.parent.name}/{trace.name}{more} {'were' if more else 'was'} left uncompressed ({reason})."]


def _compress(trace: Path) -> str:
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
