"""Rows of a snapshot as they close: dictionaries come in, columns grow, the dictionaries go."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from steptime.quantities import SourceLine
from steptime.snapshots.snapshot import (
    ACTIONS,
    NO_STACK,
    STATES,
    Action,
    Annotation,
    Blocks,
    Events,
    Segments,
    Snapshot,
    Stacks,
    State,
)

MOST_STACKS = 1 << 22
"""Different call stacks that are kept: real jobs have thousands; beyond, allocations count as without frames."""
MOST_TEXT = 4096
"""Characters kept of a name: mangled C++ names run to hundreds."""
MOST_SETTINGS = 256
MOST_ANNOTATIONS = 1 << 20
LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame that has closed."""

    number: int


class Row:
    """A dictionary that has become a row."""

    __slots__ = ()


EVENT, BLOCK, SEGMENT = Row(), Row(), Row()


class Builder:
    """Takes closed dictionaries and keeps columns. Wrong types count as absent: nothing here raises for what a file
    holds."""

    def __init__(self) -> None:
        self._frames: list[SourceLine] = []
        self._frame_numbers: dict[tuple[str, int, str], Frame] = {}
        self._texts: dict[str, str] = {}
        self._stacks: dict[bytes, int] = {}
        self._stack_begin = array("q", [0])
        self._members = array("i")
        self._events = {name: array(code) for name, code in _EVENT_COLUMNS}
        self._blocks = {name: array(code) for name, code in _BLOCK_COLUMNS}
        self._segments = {name: array(code) for name, code in _SEGMENT_COLUMNS}
        self._blocks_closed = 0
        self.unknown_actions = 0
        self.lost_stacks = 0

    # -- what closes -----------------------------------------------------------------------------------------------

    def close(self, entries: Mapping[Any, Any]) -> Frame | Row | None:
        """What a dictionary has become; None where it is none of ours."""
        if "filename" in entries and "line" in entries:
            return self._frame(entries)
        if "action" in entries:
            return self._event(entries)
        if "total_size" in entries and "blocks" in entries:
            return self._segment(entries)
        if "state" in entries and "size" in entries:
            return self._block(entries)
        return None

    def _frame(self, entries: Mapping[Any, Any]) -> Frame:
        key = (_text(entries["filename"]), _number(entries["line"], 1 << 31), _text(entries.get("name")))
        known = self._frame_numbers.get(key)
        if known is None:
            known = self._frame_numbers[key] = Frame(len(self._frames))
            file, line, function = key
            self._frames.append(SourceLine(self._once(file), line, self._once(function)))
        return known

    def _once(self, text: str) -> str:
        """One object for equal texts: files repeat in thousands of frames."""
        return self._texts.setdefault(text, text)

    def _event(self, entries: Mapping[Any, Any]) -> Row:
        name = entries["action"]
        action = ACTIONS.get(name, Action.OTHER) if isinstance(name, str) else Action.OTHER
        self.unknown_actions += action is Action.OTHER
        address = entries.get("device_free") if action is Action.OUT_OF_MEMORY else entries.get("addr")
        columns = self._events
        columns["action"].append(action)
        columns["address"].append(_number(address))
        columns["size"].append(_number(entries.get("size")))
        columns["stream"].append(_number(entries.get("stream")))
        columns["time"].append(_number(entries.get("time_us"), LARGEST // 1000) * 1000)
        columns["stack"].append(self.stack(entries.get("frames")))
        return EVENT

    def _block(self, entries: Mapping[Any, Any]) -> Row:
        size = _number(entries["size"])
        history = entries.get("history")
        frames = entries.get("frames")
        if frames is None and isinstance(history, list) and history and isinstance(history[0], dict):
            frames = history[0].get("frames")  # torch 2.0 and 2.1 kept them one level deeper
        columns = self._blocks
        columns["address"].append(_number(entries.get("address")))
        columns["size"].append(size)
        columns["requested"].append(min(size, _number(entries.get("requested_size", size))))
        state = entries["state"]
        columns["state"].append(STATES.get(state, State.INACTIVE) if isinstance(state, str) else State.INACTIVE)
        columns["stack"].append(self.stack(frames))
        return BLOCK

    def _segment(self, entries: Mapping[Any, Any]) -> Row:
        """A segment closes behind its blocks: those that no segment has yet are its own."""
        columns = self._segments
        columns["device"].append(_number(entries.get("device"), 1 << 20))
        columns["address"].append(_number(entries.get("address")))
        columns["size"].append(_number(entries["total_size"]))
        columns["stream"].append(_number(entries.get("stream")))
        columns["large"].append(entries.get("segment_type") != "small")
        columns["expandable"].append(entries.get("is_expandable") is True)
        count = len(self._blocks["size"])
        self._blocks["segment"].extend([len(columns["size"]) - 1] * (count - self._blocks_closed))
        if any(not address for address in self._blocks["address"][self._blocks_closed : count]):
            self._place_blocks(count)
        self._blocks_closed = count
        return SEGMENT

    def _place_blocks(self, count: int) -> None:
        """Blocks without addresses (torch 2.1 has none) lie one behind the other in their segment."""
        address = self._segments["address"][-1]
        for row in range(self._blocks_closed, count):
            self._blocks["address"][row] = address
            address = min(LARGEST, address + self._blocks["size"][row])

    def stack(self, frames: object) -> int:
        """The number of a stack; NO_STACK for none, or an empty one."""
        if isinstance(frames, int):  # a list of frames that was numbered before, or what a file has in its place
            return frames if 0 <= frames < len(self._stacks) else NO_STACK
        if not isinstance(frames, list) or not frames:
            return NO_STACK
        members = array("i", [frame.number for frame in frames if isinstance(frame, Frame)])
        key = members.tobytes()
        known = self._stacks.get(key)
        if known is None:
            if len(self._stacks) >= MOST_STACKS:
                self.lost_stacks += 1
                return NO_STACK
            known = self._stacks[key] = len(self._stacks)
            self._members.extend(members)
            self._stack_begin.append(len(self._members))
        return known

    # -- the end ---------------------------------------------------------------------------------------------------

    @property
    def events(self) -> int:
        """Events so far."""
        return len(self._events["action"])

    def finish(
        self, path: Path, size: int, top: Mapping[Any, Any], lengths: list[int], *, truncated: bool, problems: list[str]
    ) -> Snapshot:
        """The snapshot. top: its outer dictionary as far as it was read; lengths: events of each device, in order."""
        device = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        rest = np.full(self.events - len(device), max(0, len(lengths)), np.int32)
        orphans = len(self._blocks["size"]) - self._blocks_closed
        self._blocks["segment"].extend([-1] * orphans)  # of a segment that the end of the file cut off
        self._stacks.clear()
        return Snapshot(
            path=path,
            size=size,
            segments=Segments(**_columns(self._segments)),
            blocks=Blocks(**_columns(self._blocks)),
            events=Events(device=_sealed(np.concatenate([device, rest])), **_columns(self._events)),
            stacks=Stacks(tuple(self._frames), _column(self._stack_begin), _column(self._members)),
            settings=_settings(top.get("allocator_settings")),
            annotations=_annotations(top.get("external_annotations")),
            truncated=truncated,
            problems=tuple(problems),
        )


_EVENT_COLUMNS = (("action", "b"), ("address", "q"), ("size", "q"), ("stream", "q"), ("time", "q"), ("stack", "i"))
_BLOCK_COLUMNS = (
    ("segment", "i"), ("address", "q"), ("size", "q"), ("requested", "q"), ("state", "b"), ("stack", "i"),
)  # fmt: skip
_SEGMENT_COLUMNS = (
    ("device", "i"), ("address", "q"), ("size", "q"), ("stream", "q"), ("large", "b"), ("expandable", "b"),
)  # fmt: skip


def _number(value: object, most: int = LARGEST) -> int:
    """A whole number from 0 to `most`; 0 for anything else. Sizes below zero exist nowhere; handles of streams may be
    above the limit in theory, and only their being equal matters."""
    if not isinstance(value, int):
        return 0
    return min(value, most) if value >= 0 else 0


def _text(value: object) -> str:
    """A text, of at most MOST_TEXT characters; "" for anything else. Nothing else is spelt out: lists that hold one
    another twice, forty levels deep, are a hundred bytes of pickle and 10^12 characters."""
    return value[:MOST_TEXT] if isinstance(value, str) else ""


def _column(values: array[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    """A read-only view of a column, without a copy."""
    return _sealed(np.frombuffer(values, dtype=values.typecode) if len(values) else np.empty(0, values.typecode))


def _sealed(column: np.ndarray[Any, np.dtype[Any]]) -> np.ndarray[Any, np.dtype[Any]]:
    column.flags.writeable = False
    return column


def _columns(columns: Mapping[str, array[Any]]) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    return {name: _column(values) for name, values in columns.items()}


def _settings(found: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(found, dict):
        return ()
    plain = ((name, value) for name, value in found.items() if isinstance(value, str | int | float))
    return tuple((_text(name), str(value)[:MOST_TEXT]) for name, value in plain)[:MOST_SETTINGS]


def _annotations(found: object) -> tuple[Annotation, ...]:
    if not isinstance(found, list):
        return ()
    return tuple(
        Annotation(
            name=_text(each.get("name")),
            stage=_text(each.get("stage"))[:16],
            device=_number(each.get("device"), 1 << 20),
            time=_number(each.get("time_us"), LARGEST // 1000) * 1000,
        )
        for each in found[:MOST_ANNOTATIONS]
        if isinstance(each, dict)
    )
