"""Writing a trace again with our tracks beside its own events.

The original's text is passed through as it is, block by block, and the tracks are put in front of its first event: a
trace of any size takes no more memory than its columns.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from isal import igzip

from steptime.errors import NothingMeasuredError, OutputError
from steptime.hardware.datasheet import look_up
from steptime.kineto.cache import read_remembered
from steptime.kineto.reader import BARE_ARRAY, DEFAULT_MAX_SIZE, EVENTS_BEGIN, LARGEST_BLOCK
from steptime.kineto.salvage import SEPARATOR
from steptime.kineto.source import Source
from steptime.kineto.table import Trace
from steptime.ledger.account import account_for, claims_of, device_of, has_kernels
from steptime.ledger.gaps import gaps_of
from steptime.ledger.trace_steps import reach, steps_of
from steptime.links.link import link
from steptime.replay.rerun import rerun
from steptime.replay.tracks import CATEGORY, Slice, events_of, process_beside, slices_of

BLOCK = 1 << 20
ENDINGS = (".json", ".json.gz")
MARK = f'"cat": "{CATEGORY}"'.encode()
GZIP_LEVEL = 1


def annotate(
    path: Path, destination: Path, *, force: bool = False, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True
) -> None:
    """Writes the trace at `path` to `destination` (.json or .json.gz), whole or not at all, with tracks of the ledger
    of its steps, of why the device idled, and of the critical path.

    Raises TraceError, NothingMeasuredError (trace-without-steps) and OutputError (output-format, output-exists,
    output-folder, output-unwritable, annotate-onto-source, annotate-twice).
    """
    check_destination(path, destination, force=force)
    trace = read_remembered(path, max_size=max_size, cache=cache)
    events = events_of(_slices(trace), process_beside(trace), trace.base_ns)
    with Source(path, max_size) as source, _beside(destination) as output:
        _splice(source, output, events, path, truncated=trace.damage.truncated)


def check_destination(path: Path, destination: Path, *, force: bool) -> None:
    """Refuses before the work what could not be written after it. Raises OutputError."""
    if not destination.name.endswith(ENDINGS):
        known = " or ".join(ENDINGS)
        raise OutputError("output-format", f"An annotated trace must be named *{known}, and {destination} is not.")
    if destination.is_dir():
        raise OutputError("output-folder", f"{destination} is a folder; name a file in it.")
    if destination.exists() and path.exists() and destination.samefile(path):
        raise OutputError("annotate-onto-source", f"{destination} is the trace itself; give the copy another name.")
    if destination.exists() and not force:
        raise OutputError("output-exists", f"{destination} exists and is not overwritten; add --force or name another.")


def _slices(trace: Trace) -> Iterator[Slice]:
    borders = steps_of(trace)
    if not len(borders):
        raise NothingMeasuredError("trace-without-steps", f"{trace.path} holds no event that took time: no step.")
    machine = look_up(device_of(trace))
    links, ledger = link(trace, borders), account_for(trace, borders, machine=machine)
    windows = reach(trace, borders) if has_kernels(trace) else borders
    gaps = gaps_of(trace, links, windows) if has_kernels(trace) else None
    replay = rerun(trace, borders, links, ledger)
    return slices_of(trace, windows, claims_of(trace, machine=machine), gaps, replay)


def _splice(source: Source, output: IO[bytes], events: Iterator[str], path: Path, *, truncated: bool) -> None:
    """The original with the events in front of its first."""
    head, begin = _head(source)
    rest = head[begin:]
    if MARK in rest[:BLOCK]:
        raise OutputError("annotate-twice", f"{path} already has tracks of steptime; annotate the original.")
    output.write(head[:begin])
    _write(output, events, followed=not rest.lstrip().startswith(b"]"))
    for block in _whole(source, rest, listed=head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"["), truncated=truncated):
        output.write(block)


def _head(source: Source) -> tuple[bytes, int]:
    """The text up to somewhere behind the list's "[", and where the first event may begin."""
    text = b""
    while len(text) < LARGEST_BLOCK:
        block = _read(source)
        text += block
        found = BARE_ARRAY.match(text) or EVENTS_BEGIN.search(text)
        if found:
            return text + _read(source), found.end(1)
        if not block:
            break
    raise AssertionError("what was read as a trace has a list of events")


def _write(output: IO[bytes], events: Iterator[str], *, followed: bool) -> None:
    """The events, one a line, with commas between them, and behind them if the list goes on."""
    separator = "\n  "
    for event in events:
        output.write((separator + event).encode("ascii"))
        separator = ",\n  "
    if followed:
        output.write(b",")


def _whole(source: Source, rest: bytes, *, listed: bool, truncated: bool) -> Iterator[bytes]:
    """The rest of the text; of a trace that ends in the middle, up to its last whole event, and closed."""
    held = rest
    while block := _read(source):
        if len(held) > BLOCK:
            yield held[:-BLOCK]
            held = held[-BLOCK:]
        held += block
    yield _closed(held, listed=listed) if truncated else held


def _closed(text: bytes, *, listed: bool) -> bytes:
    ends = [match.start(1) for match in SEPARATOR.finditer(text)]
    return (text[: ends[-1]] if ends else text) + (b"\n]" if listed else b"\n]}")


def _read(source: Source) -> bytes:
    buffer = bytearray(BLOCK)
    with memoryview(buffer) as view:
        count = source.fill(view)
    return bytes(buffer[:count])


@contextmanager
def _beside(destination: Path) -> Iterator[IO[bytes]]:
    """A file that takes its place in one instant when everything is written; gzipped by its name."""
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
    except OSError as error:
        raise _unwritable(destination, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield from _stream(file, destination)
        Path(temporary).chmod(0o666 & ~_umask())  # as open() would have made it; mkstemp makes it private
        Path(temporary).replace(destination)
    except OSError as error:
        raise _unwritable(destination, error) from error
    finally:
        Path(temporary).unlink(missing_ok=True)  # there only if something failed


def _stream(file: io.BufferedWriter, destination: Path) -> Iterator[IO[bytes]]:
    if not destination.name.endswith(".gz"):
        yield file
        return
    with igzip.IGzipFile(fileobj=file, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as packed:
        yield cast("IO[bytes]", packed)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(destination: Path, error: OSError) -> OutputError:
    reason = error.strerror or str(error)
    return OutputError("output-unwritable", f"{destination} cannot be written ({reason}); make room or name another.")
