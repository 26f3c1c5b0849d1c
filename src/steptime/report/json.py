"""The whole report as JSON: every field of `Report`, versioned, to be read back. Its JSON Schema is
docs/report-schema.json; `report.compact` is what programs want."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from steptime.answer.json import document
from steptime.errors import RecordingError
from steptime.quantities import SourceLine, format_source
from steptime.report.report import SCHEMA_VERSION, Report
from steptime.report.trials import TrialReport

COMPACT = "steptime-compact"
"""Names by which a document says that it is no whole report (`report.compact`)."""
LEFT_OUT = "…"
_SHORTEST = 5
"""Characters: a shorter line of source ("pass") says nothing of its program, but may be in many sentences."""
_PATH = re.compile(
    r"(?<![\w:.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[\\/][^\s\\/:;,()\[\]<>\"'|]+){2,}[\\/]?(?:[:(]\d+\)?)?"  # /home/ada/x:12
    r"|(?<![\w./\\-])[\w./\\-]{1,300}\.(?:pyx?|ipynb|sh)\b(?:[:(]\d+\)?)?"  # train.py:12, models/net.py(12)
)
_Any = TypeVar("_Any")
_NOTHING = object()


def without_sources(report: Report) -> Report:
    """The report with every source line left out, what cannot be told without one, and paths; of commands and of the
    recording, the last parts of their paths stay: the names of the programs."""
    known = {text for source in sources_of(report) for text in (source.file, source.text, format_source(source))}
    secret = sorted((text for text in known if len(text) >= _SHORTEST), key=len, reverse=True)
    cleaned: Report = _clean(report, re.compile("|".join(map(re.escape, secret))) if secret else None)
    return replace(
        cleaned,
        source=_names(report.source),
        next_command=_names(report.next_command),
        environment=replace(cleaned.environment, command=_names(report.environment.command)),
        trials=_without_patch(cleaned.trials, report.trials),
        processes=tuple(replace(process, traces=()) for process in cleaned.processes),
    )


def _without_patch(cleaned: TrialReport | None, trials: TrialReport | None) -> TrialReport | None:
    """Without the diff, which is source, and without what the job itself said as it failed."""
    if cleaned is None or trials is None:
        return None
    variants = tuple(
        replace(variant, sentence="" if variant.verdict == "failed" else variant.sentence)
        for variant in cleaned.variants
    )
    folder, command = _names(trials.folder), _names(trials.command)
    return replace(cleaned, diff="", apply="", variants=variants, folder=folder, command=command)


def sources_of(value: object) -> Iterator[SourceLine]:
    """Every source line that a record names, in whatever part of it."""
    if isinstance(value, SourceLine):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from sources_of(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from sources_of(getattr(value, field.name))


def _clean(value: _Any, secret: re.Pattern[str] | None) -> Any:
    """The value without them; _NOTHING for what is about a source line and nothing else."""
    if isinstance(value, str):
        return _PATH.sub(LEFT_OUT, secret.sub(LEFT_OUT, value) if secret is not None else value)
    if isinstance(value, tuple):
        items = (_clean(item, secret) for item in value)
        return tuple(item for item in items if item is not _NOTHING)
    if isinstance(value, SourceLine):
        return None
    if not is_dataclass(value) or isinstance(value, type):
        return value
    if any(field.default is MISSING and isinstance(getattr(value, field.name), SourceLine) for field in fields(value)):
        return _NOTHING
    return replace(value, **{field.name: _clean(getattr(value, field.name), secret) for field in fields(value)})


def _names(command: str) -> str:
    """Every word without the folders in it."""
    return " ".join(re.sub(r"^.*[\\/](?=[^\\/'\"])", "", word) for word in command.split())


FARTHEST = 1e140
"""Largest factor of a number from 1: real reports are far nearer, whatever the unit."""
LARGEST = 256 << 20
"""Bytes of a report; that of a large job has a few million."""


def render(report: Report) -> str:
    """One indented JSON document and a line feed, without what is in the traces. Halves of surrogate pairs, which no
    JSON can hold, are escaped."""
    return document(without_contents(report))


def without_contents(report: Report) -> Report:
    """The report without what is in its traces."""
    processes = (
        replace(process, traces=tuple(replace(each, content=None) for each in process.traces))
        for process in report.processes
    )
    return replace(report, processes=tuple(processes))


def read(text: bytes, path: str) -> Report:
    """The report that `render` wrote. Raises RecordingError where the text is none, or of another version."""
    try:
        head = msgspec.json.decode(text, type=_ReportHead)
        if head.schema == COMPACT:
            raise RecordingError(
                "report-compact",
                f"{path} is a compact report, which is not read back: write the whole one with --full, as in: "
                f"steptime report {shlex.quote(head.source)} -o {path} --full --force",
            )
        version = head.schema_version
        if version > SCHEMA_VERSION:
            raise RecordingError(
                "report-newer",
                f"{path} is a report of schema version {version} and this steptime reads up to {SCHEMA_VERSION}; "
                "a newer steptime can: pip install --upgrade steptime.",
            )
        if version < SCHEMA_VERSION:
            raise RecordingError(
                "report-older",
                f"{path} is a report of schema version {version}, by an older steptime; this one reads version "
                f"{SCHEMA_VERSION}. Make it anew from its recording: "
                f"steptime report RECORDING -o {path} --full --force.",
            )
        report = msgspec.json.decode(text, type=Report)
        if not _measurable(msgspec.json.decode(text)):
            raise msgspec.ValidationError("it has a number that nothing measures")
        return report
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(
            "report-unreadable",
            f"{path} is no report that this steptime reads: {error}. One of another "
            f"version is made anew from its recording: steptime report RECORDING -o {path} --full --force.",
        ) from error


def _measurable(value: object) -> bool:
    """True if sums, squares and shares of all its numbers are numbers, too."""
    if isinstance(value, dict | list):
        return all(map(_measurable, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or value == 0 or FARTHEST > abs(value) > 1 / FARTHEST


def read_file(path: Path, name: str) -> Report:
    """The report in a file, which the user calls `name`. Raises RecordingError like `read`, and like `content`."""
    return read(content(path, name), name)


def content(path: Path, name: str) -> bytes:
    """All of a document's file. Raises RecordingError where it is larger than any, or cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise RecordingError("report-unreadable", f"{name} cannot be read ({error.strerror}).") from None
    if len(text) > LARGEST:
        raise RecordingError("report-unreadable", f"{name} is no report of steptime: it has more than {LARGEST} bytes.")
    return text


def is_report(path: Path) -> bool:
    """True if a file starts as a report does: a trace is a JSON object too. False where it cannot be read."""
    if path.is_fifo():
        return False
    try:
        with path.open("rb") as file:
            return b'"schema_version"' in file.read(64)
    except OSError:
        return False


def schema_text(document_type: type = Report) -> str:
    """The JSON Schema (2020-12) of a document, as docs/report-schema.json has that of a report."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(document_type)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"


class _ReportHead(msgspec.Struct):
    schema_version: int
    schema: str = ""
    source: str = "RECORDING"
