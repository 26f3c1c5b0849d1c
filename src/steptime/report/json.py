"""The report as JSON, for programs: every field of `Report`, versioned. Its JSON Schema is docs/report-schema.json."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from steptime.errors import RecordingError
from steptime.report.report import SCHEMA_VERSION, Report

LARGEST = 256 << 20
"""Bytes of a report; that of a large job has a few million."""


def render(report: Report) -> str:
    """One indented JSON document and a line feed, without what is in the traces. Halves of surrogate pairs, which no
    JSON can hold, are escaped."""
    return document(_without_contents(report))


def read(text: bytes, path: str) -> Report:
    """The report that `render` wrote. Raises RecordingError where the text is none, or of a newer version."""
    try:
        version = msgspec.json.decode(text, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            raise RecordingError(
                "report-newer",
                f"{path} is a report of schema version {version} and this steptime reads up to {SCHEMA_VERSION}; "
                "a newer steptime can: pip install --upgrade steptime.",
            )
        return msgspec.json.decode(text, type=Report)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError("report-unreadable", f"{path} is no report of steptime: {error}.") from error


def read_file(path: Path, name: str) -> Report:
    """The report in a file, which the user calls `name`. Raises RecordingError like `read`, and where it is larger than
    any report, or cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise RecordingError("report-unreadable", f"{name} cannot be read ({error.strerror}).") from None
    if len(text) > LARGEST:
        raise RecordingError("report-unreadable", f"{name} is no report of steptime: it has more than {LARGEST} bytes.")
    return read(text, name)


def is_report(path: Path) -> bool:
    """Whether a file begins as a report does: a trace is a JSON object too. False where it cannot be read."""
    if path.is_fifo():
        return False
    try:
        with path.open("rb") as file:
            return b'"schema_version"' in file.read(64)
    except OSError:
        return False


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the report."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Report)}


def schema_text() -> str:
    """The JSON Schema as docs/report-schema.json has it."""
    return msgspec.json.format(msgspec.json.encode(schema()), indent=1).decode() + "\n"


def _without_contents(report: Report) -> Report:
    processes = (
        replace(process, traces=tuple(replace(each, content=None) for each in process.traces))
        for process in report.processes
    )
    return replace(report, processes=tuple(processes))


class _Version(msgspec.Struct):
    schema_version: int


def document(value: Any) -> str:
    """Any value as one indented JSON document and a line feed. Halves of surrogate pairs, which no JSON can hold, are
    escaped."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
