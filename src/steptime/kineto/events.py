"""One event of a trace as the parser sees it, and its exact time.

Typed structs: the parser skips what is not named here without building it, which is worth a factor of three. Types are
as wide as what real files hold: ROCm writes streams and byte counts as strings, lanes are strings on a few events.
"""

from __future__ import annotations

import functools
import math
import operator
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Float64, Int64
from steptime.kineto.table import ABSENT

Number: TypeAlias = int | str | None
NOTHING = msgspec.Raw()
RAW_FIELDS = ("shapes", "dtypes", "inputs", "grid", "block")
FLOAT_HOLDS_NANOSECONDS = 2.0**43
"""Below this many microseconds a float64 lies within half a nanosecond of what was written; above, it may not."""
PRECISE_TIME = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d')
"""A time too long for a float64: Kineto of spring 2024 wrote epoch microseconds with three more digits."""
PRECISE_LAYOUT = "dddddddddddddddd.ddd"
"""Such a time, digit by digit."""
POINT = PRECISE_LAYOUT.index(".")
POINT_AS_DIGIT = (ord(".") - ord("0")) % 256
LATEST = 2.0**52
"""Microseconds: 142 years. A time beyond is garbage, and its ns would leave int64."""
PHASES_PASSED_OVER = (*"iIfstCBEbenNODPRcavV(),=", "")
"""Phases of the Trace Event Format that hold no measured interval; arrows alone are up to 40 % of the events."""


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """The `args` that the analyses read, in the order of the file: the parser looks for the next name first.

    Raw fields point into the parser's buffer.
    """

    external: Number = msgspec.field(default=ABSENT, name="External id")
    sequence: Number = msgspec.field(default=ABSENT, name="Sequence number")
    inputs: msgspec.Raw = msgspec.field(default=NOTHING, name="Concrete Inputs")
    dtypes: msgspec.Raw = msgspec.field(default=NOTHING, name="Input type")
    shapes: msgspec.Raw = msgspec.field(default=NOTHING, name="Input Dims")
    device: Number = ABSENT
    stream: Number = ABSENT
    correlation: Number = ABSENT
    bytes: Number = ABSENT
    grid: msgspec.Raw = NOTHING
    block: msgspec.Raw = NOTHING
    python_parent: Number = msgspec.field(default=ABSENT, name="Python parent id")
    python: Number = msgspec.field(default=ABSENT, name="Python id")
    external_of_2021: Number = msgspec.field(default=ABSENT, name="external id")


NO_ARGUMENTS = Arguments()


class Complete(msgspec.Struct, tag="X", tag_field="ph", gc=False, kw_only=True):
    """An event with a begin and a duration, microseconds as floats."""

    cat: str = ""
    name: str
    pid: Number = None
    tid: Number = None
    ts: float
    dur: float = 0.0
    args: Arguments = NO_ARGUMENTS


class CompleteExactly(msgspec.Struct, tag="X", tag_field="ph", gc=False, kw_only=True):
    """The same, where a float cannot hold the time: its digits."""

    cat: str = ""
    name: str
    pid: Number = None
    tid: Number = None
    ts: msgspec.Raw
    dur: float = 0.0
    args: Arguments = NO_ARGUMENTS


class Metadata(msgspec.Struct, tag="M", tag_field="ph", gc=False):
    """A name of a process or thread: not needed."""


def _passed_over(phase: str) -> type[msgspec.Struct]:
    return msgspec.defstruct(f"Phase{ord(phase or '_')}", [], tag=phase, tag_field="ph", gc=False)


Event: TypeAlias = Complete | CompleteExactly
_OTHERS = (Metadata, *(_passed_over(phase) for phase in PHASES_PASSED_OVER))


def _decoder(complete: type[msgspec.Struct], *, listed: bool) -> msgspec.json.Decoder[object]:
    union: Any = functools.reduce(operator.or_, _OTHERS, complete)
    return msgspec.json.Decoder(list[union] if listed else union)


_LISTS = {False: _decoder(Complete, listed=True), True: _decoder(CompleteExactly, listed=True)}
_SINGLES = {False: _decoder(Complete, listed=False), True: _decoder(CompleteExactly, listed=False)}


def _decoded(decoder: msgspec.json.Decoder[object], text: memoryview | bytes) -> object:
    try:
        return decoder.decode(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def decode_list(block: memoryview | bytes, *, exactly: bool) -> list[Event]:
    """The complete events of a JSON array. Raises ValueError (msgspec's or of invalid UTF-8) when it is not one."""
    events = cast("list[object]", _decoded(_LISTS[exactly], block))
    wanted = CompleteExactly if exactly else Complete
    return [event for event in events if type(event) is wanted]


def decode_one(text: bytes, *, exactly: bool) -> Event | None:
    """The event, None when it is no complete one. Raises ValueError when it is not JSON or not typed as expected."""
    event = _decoded(_SINGLES[exactly], text)
    return event if isinstance(event, (Complete, CompleteExactly)) else None


def needs_exactness(events: list[Event], block: memoryview | bytes) -> bool:
    """True when the floats of a block have lost digits that the file holds."""
    late = any(float(event.ts) >= FLOAT_HOLDS_NANOSECONDS for event in events)
    return late and PRECISE_TIME.search(block) is not None


def nanoseconds(microseconds: Float64) -> Int64:
    """Microseconds to ns without the loss of a product in float64, which is up to 128 ns for times of 2022."""
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000).astype(np.int64)


def begins(events: Sequence[Event], *, exactly: bool) -> tuple[Int64, Bool]:
    """The begins of events in ns, as the file has them, and which of them are times at all."""
    if exactly:
        return _exact_begins([event.ts for event in events])
    times = np.fromiter([event.ts for event in events], np.float64, len(events))
    sound = np.abs(times) < LATEST
    return nanoseconds(times if sound.all() else np.where(sound, times, 0)), sound


def _exact_begins(texts: list[Any]) -> tuple[Int64, Bool]:
    """Of times as they are written, all at once where all are written as Kineto of 2024 did."""
    joined, count = b"".join(texts), len(texts)
    if len(joined) == count * len(PRECISE_LAYOUT):
        digits = np.frombuffer(joined, np.uint8).reshape(count, len(PRECISE_LAYOUT)) - np.uint8(ord("0"))
        whole, point, fraction = digits[:, :POINT], digits[:, POINT], digits[:, POINT + 1 :]
        if (point == POINT_AS_DIGIT).all() and whole.max() <= 9 and fraction.max() <= 9:
            times = _joined_digits(whole) * 1000 + fraction @ np.array([100, 10, 1], np.int64)
            return times, np.abs(times) < LATEST * 1000
    found = [_in_nanoseconds(bytes(text)) for text in texts]
    return np.array([time or 0 for time in found], np.int64), np.array([time is not None for time in found])


def _joined_digits(digits: npt.NDArray[np.uint8]) -> Int64:
    """Sixteen digits a row as a number, by pairs, pairs of pairs and so on: narrow types for as long as they do."""
    pairs = digits[:, ::2] * np.uint8(10) + digits[:, 1::2]
    pairs = pairs.astype(np.uint16)
    fours = (pairs[:, ::2] * np.uint16(100) + pairs[:, 1::2]).astype(np.uint32)
    eights = (fours[:, ::2] * np.uint32(10_000) + fours[:, 1::2]).astype(np.int64)
    joined: Int64 = eights[:, 0] * 100_000_000 + eights[:, 1]
    return joined


def _in_nanoseconds(text: bytes) -> int | None:
    """A time as it is written, in microseconds; None when it is none. Halves go to the even nanosecond."""
    try:
        time = Decimal(text.decode("ascii", "replace").strip('"'))
    except InvalidOperation:
        return None
    return int((time * 1000).to_integral_value()) if time.is_finite() and abs(time) < LATEST else None


def lenient(event: dict[str, object], *, exactly: bool) -> Event | None:
    """An event that the typed parser refused, as far as it can be understood; None without a time or a name."""
    time, name = event.get("ts"), event.get("name")
    duration = _number(event.get("dur", 0))
    if not isinstance(name, str) or not _is_time(time) or duration is None:
        return None
    category = event.get("cat")
    rest: dict[str, Any] = {
        "name": name,
        "dur": duration,
        "cat": category if isinstance(category, str) else "",
        "pid": _lane(event.get("pid")),
        "tid": _lane(event.get("tid")),
        "args": _arguments(event.get("args")),
    }
    if exactly:
        return CompleteExactly(ts=msgspec.Raw(str(time).encode()), **rest)
    return Complete(ts=float(str(time)), **rest)


def integer(value: Number, absent: int) -> int:
    """An id as an integer: decimal or hexadecimal text counts, and what is none or exceeds int64 is absent."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return absent
    if value is None or not -(2**63) <= value < 2**63:
        return absent
    return value


def _arguments(given: object) -> Arguments:
    """The integers among the arguments; raw JSON is not kept on this road."""
    if not isinstance(given, dict):
        return NO_ARGUMENTS
    keys = zip(Arguments.__struct_fields__, Arguments.__struct_encode_fields__, strict=True)
    known = {name: _integer(given[key]) for name, key in keys if key in given and name not in RAW_FIELDS}
    return Arguments(**known)  # type: ignore[arg-type]


def _is_time(value: object) -> bool:
    number = _number(value)
    return number is not None and abs(number) < 2**53


def _number(value: object) -> float | None:
    try:
        number = float(Decimal(str(value)))
    except InvalidOperation:
        return None
    return number if math.isfinite(number) else None


def _integer(value: object) -> Number:
    if isinstance(value, (float, Decimal)):
        return int(value) if -(2**63) <= value < 2**63 and value == int(value) else ABSENT
    return value if isinstance(value, (int, str)) else ABSENT


def _lane(value: object) -> Number:
    return value if isinstance(value, (int, str)) else str(value) if value is not None else None
