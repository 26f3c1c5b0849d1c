"""JSON files of a recording: manifest, process, facts, telemetry. Untrusted: sizes are limited, types are strict.

A line or file that cannot be read becomes one sentence among the problems; the rest is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptime.errors import RecordingError
from steptime.recording import recording as rec

T = TypeVar("T")

LARGEST_DOCUMENT = 16 << 20
"""Most bytes of manifest.json or process.json: thousands of times their usual size."""
LARGEST_LINES = 256 << 20
"""Most bytes of facts.jsonl or telemetry.jsonl: a sample per second for ten years."""
LARGEST_NUMBER = 1 << 62
"""Bound above every time, size or count of a recording; larger numbers would not fit the columns."""

ESCAPE = re.compile(rb"\\(?:ud[89ab]..\\ud[c-f]..|(?P<half>ud[89a-f]..)|.)", re.DOTALL)
"""Escape of JSON, as Python writes it: a surrogate pair, half of one, or any other."""

FACT_TYPES = {each.name: each.kind for each in rec.FACTS}
"""Type of a line by its `fact`; lines of "note" have a `text` instead."""


class _Heading(msgspec.Struct):
    fact: str
    text: str = ""


_heading = msgspec.json.Decoder(_Heading)
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in FACT_TYPES.items()}


def read_bytes(path: Path, largest: int, problems: list[str]) -> bytes:
    """Returns a file's bytes, at most `largest`; b"" if it is missing. Raises RecordingError if access is denied."""
    return b"".join(read_blocks(path, largest, largest, problems))


def read_blocks(path: Path, largest: int, block: int, problems: list[str]) -> Iterator[bytes]:
    """Yields a file's bytes, at most `largest`, in blocks of `block` bytes, so that holes of a file need no memory."""
    try:
        if not path.is_file():  # a pipe by that name would hold us for ever
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            left = min(largest, size)  # not more than there is: a read asks for its memory before it looks
            while left and (data := file.read(min(block, left))):
                left -= len(data)
                yield data
    except PermissionError:
        raise RecordingError(
            "recording-permission",
            f"You have no permission to read {path}. Ask for read access to the whole recording.",
        ) from None
    except OSError as error:
        problems.append(f"{_place(path)} cannot be read ({error.strerror}) and was skipped.")
        return
    if size > largest:
        problems.append(f"{_place(path)} is larger than {largest >> 20} MiB; steptime read only its start.")


def sound(data: bytes) -> bytes:
    """Returns JSON in which U+FFFD replaces halves of surrogate pairs. Python writes such halves for bytes of names
    that are no text (PEP 383), but they are no characters."""
    if b"\\ud" not in data:
        return data
    return ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def decode_document(data: bytes, kind: type[T]) -> T:
    """Returns one JSON document. Raises ValueError with the reason."""
    try:
        document = msgspec.json.decode(sound(data), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not _bounded(document):
        raise ValueError("a number is out of range")
    return document


def decode_lines(path: Path, data: bytes, decode: Callable[[bytes], T], problems: list[str]) -> list[T]:
    """Returns one value per line. Unreadable lines are one problem, a torn last line (a killed job) is another."""
    found, bad = [], 0
    lines = data.split(b"\n")
    for line in lines[:-1]:
        if not line.strip():
            continue
        try:
            found.append(decode(line))
        except ValueError:
            bad += 1
    if bad:
        problems.append(f"{_place(path)}: {bad} of {len(lines) - 1} lines cannot be read and were skipped.")
    if lines[-1].strip():
        problems.append(f"{_place(path)}: the last line is incomplete and was skipped.")
    return found


def decode_fact(line: bytes) -> object:
    """Returns a line of facts.jsonl as one of `FACT_TYPES`, or a note's text. Raises ValueError."""
    line = sound(line)
    try:
        heading = _heading.decode(line)
        if heading.fact == "note":
            return heading.text
        fact = _decoders[heading.fact].decode(line)
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not _bounded(fact):
        raise ValueError("a number is out of range")
    return fact


def _bounded(value: Any) -> bool:
    """True if all numbers inside fit the columns, unlike JSON's numbers, which have no limits."""
    if isinstance(value, bool | str) or value is None:
        return True
    if isinstance(value, int | float):
        return -LARGEST_NUMBER < value < LARGEST_NUMBER
    if isinstance(value, dict):
        return all(map(_bounded, value.values()))
    inner = value if isinstance(value, tuple) else (getattr(value, name) for name in value.__slots__)
    return all(map(_bounded, inner))


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
