"""Whole traces behind a report: their places, and the contents of small ones.

Contents are read here, where the figures are made: a page reads no path of a report, which may be a stranger's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from isal import igzip

from steptime.recording.recording import Process, TraceFacts
from steptime.trace.source import GZIP_MAGIC
from steptime.trace.table import Trace

MOST_CARRIED = 1_600_000
"""Most bytes of gzip of all files of a report: a page of 2.5 MB has no room for more."""
MOST_PACKED = 30_000_000
"""Most bytes of an uncompressed file: a larger one would not fit even when compressed (to about a fifteenth)."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """Trace file of torch's profiler. path: its original place. what: its content, in words. size: bytes of the
    original. content: the file as gzip, None if too large to embed; a report saved as JSON has none."""

    path: str
    what: str
    size: int
    content: bytes | None = field(default=None, compare=False)


def traces_of_process(process: Process) -> tuple[TraceFile, ...]:
    """Traces of a recording: those of plain steps first, because the timeline shows one of them; slow ones last."""
    found = (
        (path_of(process, facts), _words(facts))
        for facts in sorted(process.traces, key=lambda each: (each.caught, each.stacks))
    )
    return tuple(TraceFile(str(path), words, path.stat().st_size) for path, words in found if path.exists())


def path_of(process: Process, facts: TraceFacts) -> Path:
    """Path of a trace file: the compressed one, or (of a job that was killed) the uncompressed one."""
    path = process.folder / facts.path
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.exists() else path


def traces_of(trace: Trace) -> tuple[TraceFile, ...]:
    """Trace files of a trace that another tool recorded."""
    parts = trace.parts or ((trace.path, len(trace.events)),)
    return tuple(
        TraceFile(str(path), f"{count:,} events", path.stat().st_size) for path, count in parts if path.exists()
    )


def carried(files: Sequence[TraceFile]) -> tuple[TraceFile, ...]:
    """Files with their contents, as many of the first ones as there is room for."""
    left = MOST_CARRIED
    loaded = []
    for file in files:
        content = _packed(Path(file.path), left)
        left -= len(content or b"")
        loaded.append(replace(file, content=content))
    return tuple(loaded)


def _packed(path: Path, room: int) -> bytes | None:
    """File as gzip; None if that is larger than the room, or the file cannot be read any more."""
    try:
        if path.stat().st_size > max(room, MOST_PACKED):
            return None
        content = path.read_bytes()
    except OSError:
        return None
    if not content.startswith(GZIP_MAGIC):
        content = igzip.compress(content, mtime=0)
    return content if len(content) <= room else None


def _words(facts: TraceFacts) -> str:
    steps = "1 profiled step" if facts.steps == 1 else f"{facts.steps} profiled steps"
    if facts.caught:
        return f"{steps}, predicted to be slow (--catch)"
    more = [*(["call stacks"] if facts.stacks else []), *(["every allocation"] if facts.memory else [])]
    return f"{steps} with {' and '.join(more)}" if more else steps
