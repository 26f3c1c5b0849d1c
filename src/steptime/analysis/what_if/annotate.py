"""Copy of a trace with tracks added: the breakdown of its steps, the causes of device idle time, and the critical path.

The original's text is copied block by block, with the tracks before its first event, so a trace of any size takes no
more memory than its columns. The tracks are start and end events ("B", "E"), where Kineto writes complete ones ("X"):
readers that look for kernels, operators or steps, steptime included, ignore them.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import IO, cast

import numpy as np
from isal import igzip

from steptime.analysis.breakdown import breakdown_of, claims_of, device_of
from steptime.analysis.categories import Category, Claims
from steptime.analysis.idle import IdleGaps, gaps_of
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import whole_steps
from steptime.analysis.what_if.critical_path import PathKind
from steptime.analysis.what_if.graph import NONE
from steptime.analysis.what_if.what_if import Replay, rerun
from steptime.arrays import Int64
from steptime.errors import NothingMeasuredError, OutputError
from steptime.intervals import EMPTY, Intervals, intersect, join, subtract, union
from steptime.machine.datasheet import look_up
from steptime.quantities import format_duration
from steptime.trace.cache import read_remembered
from steptime.trace.links import UNKNOWN
from steptime.trace.reader import BARE_ARRAY, DEFAULT_MAX_SIZE, EVENTS_START, LARGEST_BLOCK, SEPARATOR
from steptime.trace.source import TraceSource
from steptime.trace.table import Trace

CATEGORY = "steptime"
FIRST_PROCESS = 1_000_000_007
"""Process id of the added tracks, which no system gives to a process."""
BREAKDOWN, IDLE, PATH_HOST, PATH_DEVICE = 1, 2, 3, 4
ARROW = "critical path"
TITLES = {
    BREAKDOWN: "breakdown",
    IDLE: "why the device idles",
    PATH_HOST: "critical path, host",
    PATH_DEVICE: "critical path, device",
}


@dataclass(frozen=True, slots=True)
class Slice:
    """An interval of a track that is added to a trace. start, end: ns on the trace's clock. arrow: number of the arrow
    from here to the next slice of the critical path; arrived: number of the arrow that ends here; NONE for none."""

    track: int
    name: str
    start: int
    end: int
    about: dict[str, object] = field(default_factory=dict)
    arrow: int = NONE
    arrived: int = NONE


def intervals_of(windows: Int64, claims: Claims) -> tuple[Int64, Int64, Int64]:
    """(category, start, end) of intervals that cover the steps in time order and have one category each. Their sums by
    step and category equal the breakdown."""
    steps = union(windows[:, 0], windows[:, 1])
    claimed, parts = EMPTY, []
    for category, held in (*claims, (Category.UNEXPLAINED, steps)):
        mine = subtract(intersect(steps, held), claimed)
        claimed = join(claimed, mine)
        parts.append((category, *_cut(mine, windows)))
    categories = np.concatenate([np.full(len(start), category) for category, start, _ in parts])
    starts, ends = (np.concatenate([part[column] for part in parts]) for column in (1, 2))
    order = np.argsort(starts, kind="stable")
    return categories[order], starts[order], ends[order]


def _cut(intervals: Intervals, windows: Int64) -> tuple[Int64, Int64]:
    """(start, end) of the intervals, split at boundaries of steps."""
    boundaries = windows[:, 0]
    inside = np.searchsorted(intervals.start, boundaries, side="right") - 1
    cutting = (inside >= 0) & (len(intervals) > 0)
    cutting[cutting] &= boundaries[cutting] < intervals.end[inside[cutting]]
    cutting[cutting] &= boundaries[cutting] > intervals.start[inside[cutting]]
    at = boundaries[cutting]
    return np.sort(np.concatenate((intervals.start, at))), np.sort(np.concatenate((intervals.end, at)))


def _breakdown(windows: Int64, category: Int64, since: Int64, end: Int64) -> Iterator[Slice]:
    first = np.searchsorted(since, windows[:, 0], side="left").tolist()
    last = np.searchsorted(since, windows[:, 1], side="left").tolist()
    for step, (start, stop) in enumerate(windows.tolist()):
        inside = slice(first[step], last[step])
        spent = np.bincount(category[inside], (end - since)[inside], len(Category)).astype(np.int64).tolist()
        about = {each.name.lower(): spent[each] for each in Category if spent[each]}
        yield Slice(BREAKDOWN, f"step {step}: {format_duration(stop - start)}", start, stop, {"ns": about})
        rows = zip(category[inside].tolist(), since[inside].tolist(), end[inside].tolist(), strict=True)
        for each, start_, stop_ in rows:
            yield Slice(BREAKDOWN, Category(each).name.lower(), start_, stop_)


def _idle(trace: Trace, gaps: IdleGaps) -> Iterator[Slice]:
    """Intervals without device work, each with its category and what held the thread that ended it."""
    names = trace.events.name
    rows = zip(*(column.tolist() for column in (gaps.start, gaps.end, gaps.category, gaps.cause)), strict=True)
    for start, end, category, cause in rows:
        reason = Category(category).name.lower()
        held = trace.symbols[names[cause]] if cause != UNKNOWN else ""
        about: dict[str, object] = {"category": reason, "cause": held}
        yield Slice(IDLE, f"{reason}: {held}" if held else reason, start, end, about)


def _path(replay: Replay) -> Iterator[Slice]:
    """Pieces of the critical path on two tracks, with an arrow wherever the track changes."""
    path, symbols = replay.path, replay.symbols
    track = np.where(path.on_device > 0, PATH_DEVICE, PATH_HOST)
    changes = np.flatnonzero((track[1:] != track[:-1]) & (path.step[1:] == path.step[:-1]))
    leaving, arriving = np.full(len(path), NONE), np.full(len(path), NONE)
    leaving[changes], arriving[changes + 1] = np.arange(len(changes)), np.arange(len(changes))
    start, end = path.start + replay.origin, path.end + replay.origin
    for number in (PATH_HOST, PATH_DEVICE):
        for at in np.flatnonzero(track == number).tolist():
            kind = PathKind(int(path.kind[at])).title
            name = symbols[path.name[at]] if path.name[at] != NONE else ""
            about: dict[str, object] = {"kind": kind, "step": int(replay.steps[path.step[at]])}
            title = name if kind == "kernel" and name else f"{kind}: {name}" if name else kind
            yield Slice(number, title, int(start[at]), int(end[at]), about, int(leaving[at]), int(arriving[at]))


def _events_of(slices: Iterable[Slice], process: int, base_ns: int) -> Iterator[str]:
    """JSON of the events, one text each, the tracks' names first. base_ns: origin of the file's times."""
    for track, name in {0: "process", **dict.fromkeys(TITLES, "thread")}.items():
        about = {"cat": CATEGORY, "pid": process, "tid": track, "ph": "M"}
        title, place = (TITLES[track], track) if track else ("steptime", -1)
        yield json.dumps({**about, "name": f"{name}_name", "args": {"name": title}})
        yield json.dumps({**about, "name": f"{name}_sort_index", "args": {"sort_index": place}})
    event = partial(_event, process, base_ns)
    pending: list[Slice] = []
    for each in slices:
        while pending and (pending[-1].end <= each.start or pending[-1].track != each.track):
            ended = pending.pop()
            yield event("E", ended.track, ended.end)
        yield event("B", each.track, each.start, name=each.name, **({"args": each.about} if each.about else {}))
        if each.arrived != NONE:
            yield event("f", each.track, each.start, name=ARROW, bp="e", id=each.arrived)
        if each.arrow != NONE:
            yield event("s", each.track, max(each.start, each.end - 1), name=ARROW, id=each.arrow)
        pending.append(each)
    for ended in reversed(pending):
        yield event("E", ended.track, ended.end)


def _event(process: int, base_ns: int, phase: str, track: int, time: int, **more: object) -> str:
    """JSON of one event. time: ns, written in microseconds as an exact decimal; a float would lose the last digits."""
    written = json.dumps({"ph": phase, "cat": CATEGORY, "pid": process, "tid": track, **more})
    return f'{written[:-1]}, "ts": {(Decimal(time - base_ns) / 1000).normalize():f}}}'


BLOCK = 1 << 20
ENDINGS = (".json", ".json.gz")
MARK = f'"cat": "{CATEGORY}"'.encode()
GZIP_LEVEL = 1


def annotate(
    path: Path, destination: Path, *, force: bool = False, max_size: int = DEFAULT_MAX_SIZE, cache: bool = True
) -> None:
    """Writes the trace at `path` to `destination` (.json or .json.gz), whole or not at all. It adds tracks of the
    steps' breakdown, of the causes of idle time, and of the critical path.

    Raises TraceError, NothingMeasuredError (trace-without-steps) and OutputError (output-format, output-exists,
    output-folder, output-unwritable, annotate-onto-source, annotate-twice)."""
    check_destination(path, destination, force=force)
    trace = read_remembered(path, max_size=max_size, cache=cache)
    taken = {track.process for track in trace.tracks}
    process = next(number for number in count(FIRST_PROCESS) if number not in taken)
    events = _events_of(_slices(trace), process, trace.base_ns)
    with TraceSource(path, max_size) as source, _alongside(destination) as output:
        _splice(source, output, events, path, truncated=trace.damage.truncated)


def check_destination(path: Path, destination: Path, *, force: bool) -> None:
    """Raises OutputError, before the work, if the destination could not be written after it."""
    if not destination.name.endswith(ENDINGS):
        known = " or ".join(ENDINGS)
        raise OutputError(
            "output-format", f"{destination} is not a valid name for an annotated trace. Expected *{known}."
        )
    if destination.is_dir():
        raise OutputError("output-folder", f"{destination} is a folder. Give a file in it.")
    if destination.exists() and path.exists() and destination.samefile(path):
        raise OutputError("annotate-onto-source", f"{destination} is the trace itself. Give the copy another name.")
    if destination.exists() and not force:
        raise OutputError(
            "output-exists", f"{destination} already exists. Overwrite it with --force, or give another name."
        )


def _slices(trace: Trace) -> Iterator[Slice]:
    """All slices, track by track, in time order on each; enclosing slices come before those inside."""
    trace, found = whole_steps(trace)
    boundaries = found.boundaries
    if not len(boundaries):
        raise NothingMeasuredError(
            "trace-without-steps", f"{trace.path} has no event with a duration, so it has no step."
        )
    machine = look_up(device_of(trace))
    steps = step_context(trace, boundaries, machine=machine)
    replay = rerun(steps, breakdown_of(steps))
    return chain(
        _breakdown(steps.windows, *intervals_of(steps.windows, claims_of(steps))),
        _idle(trace, gaps_of(steps)) if steps.on_device else (),
        _path(replay) if replay is not None else (),
    )


def _splice(source: TraceSource, output: IO[bytes], events: Iterator[str], path: Path, *, truncated: bool) -> None:
    """Writes the original with the events before its first event."""
    head, start = _head(source)
    rest = head[start:]
    if MARK in rest[:BLOCK]:
        raise OutputError("annotate-twice", f"{path} already has tracks of steptime. Annotate the original.")
    output.write(head[:start])
    _write(output, events, followed=not rest.lstrip().startswith(b"]"))
    for block in _whole(source, rest, listed=head.lstrip(b"\xef\xbb\xbf \r\n\t").startswith(b"["), truncated=truncated):
        output.write(block)


def _head(source: TraceSource) -> tuple[bytes, int]:
    """(text up to some point after the list's "[", position at which the first event may start)."""
    text = b""
    while len(text) < LARGEST_BLOCK:
        block = _read(source)
        text += block
        found = BARE_ARRAY.match(text) or EVENTS_START.search(text)
        if found:
            return text + _read(source), found.end(1)
        if not block:
            break
    raise AssertionError("what was read as a trace has a list of events")


def _write(output: IO[bytes], events: Iterator[str], *, followed: bool) -> None:
    """Writes the events, one per line, with commas between them, and a comma at the end if the list goes on."""
    separator = "\n  "
    for event in events:
        output.write((separator + event).encode("ascii"))
        separator = ",\n  "
    if followed:
        output.write(b",")


def _whole(source: TraceSource, rest: bytes, *, listed: bool, truncated: bool) -> Iterator[bytes]:
    """Yields the rest of the text. A truncated trace ends after its last whole event and is closed."""
    held = rest
    while block := _read(source):
        if len(held) > BLOCK:
            yield held[:-BLOCK]
            held = held[-BLOCK:]
        held += block
    if truncated:
        ends = [match.start(1) for match in SEPARATOR.finditer(held)]
        held = (held[: ends[-1]] if ends else held) + (b"\n]" if listed else b"\n]}")
    yield held


def _read(source: TraceSource) -> bytes:
    buffer = bytearray(BLOCK)
    with memoryview(buffer) as view:
        count = source.fill(view)
    return bytes(buffer[:count])


@contextmanager
def _alongside(destination: Path) -> Iterator[IO[bytes]]:
    """Temporary file that replaces the destination at once when everything is written; gzipped if its name says so."""
    temporary = Path()
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=destination.parent, prefix=f".{destination.name}.")
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            if destination.name.endswith(".gz"):
                with igzip.IGzipFile(fileobj=file, mode="wb", compresslevel=GZIP_LEVEL, mtime=0) as packed:
                    yield cast("IO[bytes]", packed)
            else:
                yield file
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)  # as open() would have made it; mkstemp makes it private
        temporary.replace(destination)
    except OSError as error:
        reason = error.strerror or str(error)
        message = f"{destination} cannot be written ({reason}); make room or name another."
        raise OutputError("output-unwritable", message) from error
    finally:
        if temporary.name:
            temporary.unlink(missing_ok=True)  # there only if something failed
