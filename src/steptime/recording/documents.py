"""The JSON files of a recording: manifest, process, facts, telemetry. Untrusted: sizes are bounded, types are strict.

One law: a line or file that cannot be read is one sentence among the problems, and the rest is kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptime.errors import RecordingError
from steptime.recording import recording as rec

T = TypeVar("T")

LARGEST_DOCUMENT = 16 << 20
"""Bytes of manifest.json or process.json: thousands of times what is ever written."""
LARGEST_LINES = 256 << 20
"""Bytes of facts.jsonl or telemetry.jsonl: a sample a second for ten years."""
LARGEST_NUMBER = 1 << 62
"""No time, size or count of a recording reaches this; larger numbers would not fit the columns."""

ESCAPE = re.compile(rb"\\(?:ud[89ab]..\\ud[c-f]..|(?P<half>ud[89a-f]..)|.)", re.DOTALL)
"""An escape of JSON, as Python writes it: a surrogate pair, half of one, or any other."""

FACT_TYPES: dict[str, type[Any]] = {
    "device": rec.DeviceFacts,
    "optimizer": rec.OptimizerFacts,
    "root": rec.TopModuleFacts,
    "loader": rec.LoaderFacts,
    "code": rec.CodeFacts,
    "site": rec.SiteFacts,
    "called": rec.CalledFacts,
    "settings": rec.SettingsFacts,
    "compilation": rec.CompilationFacts,
    "graph_break": rec.GraphBreakFacts,
    "trace": rec.TraceFacts,
    "change": rec.ChangeFacts,
    "leak": rec.LeakFacts,
    "padding": rec.PaddingFacts,
    "inputs": rec.InputFacts,
    "items": rec.ItemFacts,
    "samples": rec.SampleFacts,
    "worker_samples": rec.WorkerSampleFacts,
    "modules": rec.ModuleFacts,
    "between": rec.BetweenFacts,
    "caught": rec.CaughtFacts,
    "line_cost": rec.LineCostFacts,
    "out_of_memory": rec.OutOfMemoryFacts,
}
"""By the `fact` of a line; "note" has a `text` besides."""


WRITTEN_KEY = (b'"begin":', b'"start":')
"""Name of an interval's start on disk, and in the records."""


class _Heading(msgspec.Struct):
    fact: str
    text: str = ""


_heading = msgspec.json.Decoder(_Heading)
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in FACT_TYPES.items()}


def read_bytes(path: Path, largest: int, problems: list[str]) -> bytes:
    """A file's bytes, at most `largest`; empty when it is missing. Raises RecordingError when reading is forbidden."""
    return b"".join(read_blocks(path, largest, largest, problems))


def read_blocks(path: Path, largest: int, block: int, problems: list[str]) -> Iterator[bytes]:
    """The same in pieces of `block` bytes, the last one excepted: a file's holes shall take no memory."""
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
            "recording-permission", f"{path} may not be read: ask for read access to the whole recording."
        ) from None
    except OSError as error:
        problems.append(f"{_place(path)} cannot be read ({error.strerror}): left out.")
        return
    if size > largest:
        problems.append(f"{_place(path)} is larger than {largest >> 20} MiB: only its beginning was read.")


def sound(data: bytes) -> bytes:
    """JSON with the mark of what cannot be read, U+FFFD, for the bytes of names that are no text. Python writes each of
    them as half of a surrogate pair (PEP 383), which is no character."""
    if b"\\ud" not in data:
        return data
    return ESCAPE.sub(lambda found: rb"\ufffd" if found["half"] else found[0], data)


def decode_document(data: bytes, kind: type[T]) -> T:
    """One JSON document. Raises ValueError with the reason."""
    try:
        document = msgspec.json.decode(sound(data), type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not _bounded(document):
        raise ValueError("a number is out of range")
    return document


def decode_lines(path: Path, data: bytes, decode: Callable[[bytes], T], problems: list[str]) -> list[T]:
    """One value a line; what cannot be read is left out: a torn last line silently (a killed job), others counted."""
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
        problems.append(f"{_place(path)}: {bad} of {len(lines) - 1} lines cannot be read and were left out.")
    if lines[-1].strip():
        problems.append(f"{_place(path)}: the last line is torn and was left out.")
    return found


def decode_fact(line: bytes) -> object:
    """One line of facts.jsonl: one of `FACT_TYPES`, or the text of a note. Raises ValueError."""
    line = sound(line)
    try:
        heading = _heading.decode(line)
        if heading.fact == "note":
            return heading.text
        fact = _decoders[heading.fact].decode(line.replace(*WRITTEN_KEY))
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if not _bounded(fact):
        raise ValueError("a number is out of range")
    return fact


def decode_sample(line: bytes) -> rec.TelemetrySample:
    """One line of telemetry.jsonl. Raises ValueError. Old recordings have the figures of all devices of the
    machine as one, in fields of the sample that start with "gpu_"."""
    sample = decode_document(line, rec.TelemetrySample)
    if b'"gpu_' not in line:
        return sample
    merged = decode_document(line.replace(b'"gpu_', b'"'), rec.DeviceSample)
    return replace(sample, devices=(merged,)) if merged != rec.DeviceSample() else sample


def _bounded(value: Any) -> bool:
    """True if all numbers inside fit: JSON knows no limits, columns do. Identities and counts are never negative."""
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
