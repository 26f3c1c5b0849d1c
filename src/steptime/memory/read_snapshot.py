"""From a file to a snapshot. The room's function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from steptime.errors import SnapshotError
from steptime.memory.pickle_machine import SEGMENT, Builder, OpenList, PickleBytes, PickleMachine, TruncatedError
from steptime.memory.snapshot import Snapshot

LARGEST_JSON = 1 << 28
"""Bytes: JSON is read at once, and takes ten times its size; a pickle of any size is read by stretches."""
JSON_HEAD = 4096
TRACES = "device_traces"


def is_snapshot(path: Path) -> bool:
    """Whether a file begins like a pickle of protocol 2 to 5, is named like one, or is JSON that names its parts."""
    if path.is_fifo():
        return False
    try:
        with path.open("rb") as file:
            start = file.read(JSON_HEAD)
    except OSError:
        return False
    if start[:1] == b"\x80" and start[1:2] <= b"\x05":
        return True
    in_json = start[:1] == b"{" and (b'"segments"' in start or b'"device_traces"' in start)
    return in_json or path.name.endswith((".pickle", ".pkl", ".pickle.gz"))


def read_snapshot(path: Path) -> Snapshot:
    """Reads a snapshot: a pickle of `torch.cuda.memory._dump_snapshot` (torch 2.1 to 2.13; also compressed by gzip), or
    the same as JSON. What is cut off is read as far as it goes, and said.

    Raises SnapshotError for a file that is none, or that asks for anything but data.
    """
    if path.is_fifo():  # it would hold us until somebody writes into it, and can be read once only
        raise SnapshotError("snapshot-unreadable", f"{path} cannot be read (it is a pipe): name a file that can.")
    try:
        with path.open("rb") as file:
            if file.read(1) in b"{[":
                return _read_json(path)
            file.seek(0)
            return _run(path, PickleBytes(file))
    except OSError as error:
        raise SnapshotError(
            "snapshot-unreadable", f"{path} cannot be read ({error.strerror or error}): name a file that can."
        ) from None


def _run(path: Path, source: PickleBytes) -> Snapshot:
    builder = Builder()
    machine = PickleMachine(source, builder)
    try:
        top, truncated = machine.run(), False
    except TruncatedError:
        top, truncated = _so_far(machine.stack), True
    size = source.position
    if isinstance(top, list) and all(each is SEGMENT for each in top):  # of torch.cuda.memory_snapshot()
        top = {"segments": top}
    if not isinstance(top, dict) or not ("segments" in top or TRACES in top):
        raise SnapshotError(
            "snapshot-foreign",
            f"{path} is a pickle, but no snapshot of an allocator: expected what torch.cuda.memory._dump_snapshot "
            "writes."
            if not truncated
            else f"{path} ends before any of its segments was whole: nothing can be told.",
        )
    lengths = _lengths(top.get(TRACES), builder.events)
    return builder.finish(path, size, top, lengths, truncated=truncated, problems=_problems(path, builder, truncated))


def _problems(path: Path, builder: Builder, truncated: bool) -> list[str]:
    problems = []
    if truncated:
        problems.append(
            f"{path.name} ends in the middle, as of a job killed while writing it: its history is known up to event "
            f"{builder.events}, and what came after is missing."
        )
    if builder.lost_stacks:
        problems.append(f"{builder.lost_stacks} allocations have call stacks beyond those that are kept.")
    return problems


def _so_far(stack: Sequence[Any]) -> dict[Any, Any]:
    """The outer dictionary of a pickle that ended early: its entries lie on the machine's stack in pairs."""
    top: dict[Any, Any] = dict(stack[0]) if stack and isinstance(stack[0], dict) else {}
    for place, (key, value) in enumerate(zip(stack[1::2], stack[2::2], strict=False)):
        if not isinstance(key, str):
            break
        top[key] = value
        if key == TRACES and isinstance(value, OpenList):
            top[key] = [*value, *(each for each in stack[2 * place + 3 :] if isinstance(each, OpenList))]
            break
    return top


def _lengths(traces: object, events: int) -> list[int]:
    """Events of each device. Those that no list took yet belong to the last that was open."""
    if not isinstance(traces, list):
        return []
    lengths = [each.rows for each in traces if isinstance(each, OpenList)]
    rest = events - sum(lengths)
    if rest > 0:
        lengths = [*lengths[:-1], lengths[-1] + rest] if lengths else [rest]
    return lengths


def _read_json(path: Path) -> Snapshot:
    size = path.stat().st_size
    if size > LARGEST_JSON:
        raise SnapshotError(
            "snapshot-too-large",
            f"{path} is JSON of {size} bytes, and at most {LARGEST_JSON} are read at once: give the pickle of "
            "torch.cuda.memory._dump_snapshot, which may have any size.",
        )
    try:
        top = msgspec.json.decode(path.read_bytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        top = None
    if isinstance(top, list):
        top = {"segments": top}
    if not isinstance(top, dict) or not ("segments" in top or TRACES in top):
        raise SnapshotError(
            "snapshot-foreign",
            f"{path} is no snapshot of an allocator: expected what torch.cuda.memory._dump_snapshot writes.",
        )
    return _from_values(path, size, top)


def _from_values(path: Path, size: int, top: Mapping[Any, Any]) -> Snapshot:
    builder = Builder()
    for segment in _dictionaries(top.get("segments")):
        for block in _dictionaries(segment.get("blocks")):
            builder.close(_with_stack(builder, block))
        builder.close({"total_size": 0, "blocks": [], **segment})
    lengths = []
    traces = top.get(TRACES)
    for trace in traces if isinstance(traces, list) else []:
        before = builder.events
        for event in _dictionaries(trace):
            builder.close(_with_stack(builder, event))
        lengths.append(builder.events - before)
    return builder.finish(path, size, top, lengths, truncated=False, problems=[])


def _dictionaries(values: object) -> list[dict[Any, Any]]:
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def _with_stack(builder: Builder, entries: dict[Any, Any]) -> dict[Any, Any]:
    frames = [builder.close({"filename": "", "line": 0, **frame}) for frame in _dictionaries(entries.get("frames"))]
    return (
        {"action": "", **entries, "frames": builder.stack(frames)}
        if "action" in entries
        else {**entries, "frames": builder.stack(frames)}
    )
