"""Whole report as JSON, versioned, to be read back (docs/report-schema.json); programs should use `report.compact`."""

from __future__ import annotations

import inspect
import io
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
"""Schema name of compact documents (`report.compact`), which are no whole reports."""
LEFT_OUT = "…"
_SHORTEST = 5
"""Least characters of a secret source line: a shorter one ("pass") reveals nothing, but may occur in many sentences."""
_PATH = re.compile(
    r"(?<![\w:.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[\\/][^\s\\/:;,()\[\]<>\"'|]+){2,}[\\/]?(?:[:(]\d+\)?)?"  # /home/ada/x:12
    r"|(?<![\w./\\-])[\w./\\-]{1,300}\.(?:pyx?|ipynb|sh)\b(?:[:(]\d+\)?)?"  # train.py:12, models/net.py(12)
)
_Any = TypeVar("_Any")
_NOTHING = object()


def without_sources(report: Report) -> Report:
    """Report without source lines, paths and what depends on them; commands and the recording keep file names."""
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
    """Trials without the diff, which is source, and without the job's own error messages."""
    if cleaned is None or trials is None:
        return None
    variants = tuple(
        replace(variant, sentence="" if variant.verdict == "failed" else variant.sentence)
        for variant in cleaned.variants
    )
    folder, command = _names(trials.folder), _names(trials.command)
    return replace(cleaned, diff="", apply="", variants=variants, folder=folder, command=command)


def sources_of(value: object) -> Iterator[SourceLine]:
    """All source lines in a record, at any depth."""
    if isinstance(value, SourceLine):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from sources_of(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from sources_of(getattr(value, field.name))


def _clean(value: _Any, secret: re.Pattern[str] | None) -> Any:
    """Value without secrets and paths; _NOTHING for a record that is only about a source line."""
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
    """Every word of a command without its folders."""
    return " ".join(re.sub(r"^.*[\\/](?=[^\\/'\"])", "", word) for word in command.split())


FARTHEST = 1e140
"""Largest factor of a number from 1: real reports stay far below, whatever the unit."""
LARGEST = 256 << 20
"""Most bytes of a report; that of a large job has a few million."""


def render(report: Report) -> str:
    """Report as JSON that `read` accepts, without the content of traces."""
    return document(without_contents(report))


def without_contents(report: Report) -> Report:
    processes = (
        replace(process, traces=tuple(replace(each, content=None) for each in process.traces))
        for process in report.processes
    )
    return replace(report, processes=tuple(processes))


def read(text: bytes, path: str) -> Report:
    """Report that `render` wrote. Raises RecordingError for any other text, or another version."""
    try:
        head = msgspec.json.decode(text, type=_ReportHead)
        if head.schema == COMPACT:
            raise RecordingError(
                "report-compact",
                f"{path} is a compact report, which steptime cannot read back. Write the full one: steptime "
                f"report {shlex.quote(head.source)} -o {path} --full --force",
            )
        version = head.schema_version
        if version > SCHEMA_VERSION:
            raise RecordingError(
                "report-newer",
                f"{path} has schema version {version}; this steptime reads up to {SCHEMA_VERSION}. Upgrade: "
                "pip install --upgrade steptime",
            )
        if version < SCHEMA_VERSION:
            raise RecordingError(
                "report-older",
                f"{path} has schema version {version}, from an older steptime; this one reads version "
                f"{SCHEMA_VERSION}. Write it again from its recording: steptime report RECORDING -o {path} "
                "--full --force.",
            )
        report = msgspec.json.decode(text, type=Report)
        if not _measurable(msgspec.json.decode(text)):
            raise msgspec.ValidationError("it has a number that nothing measures")
        return report
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordingError(
            "report-unreadable",
            f"{path} is not a report that this steptime can read: {error}. If it is from another version, "
            f"write it again from its recording: steptime report RECORDING -o {path} --full --force.",
        ) from error


def _measurable(value: object) -> bool:
    """True if sums, squares and ratios of all its numbers stay finite."""
    if isinstance(value, dict | list):
        return all(map(_measurable, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or value == 0 or FARTHEST > abs(value) > 1 / FARTHEST


def read_file(path: Path, name: str) -> Report:
    """Report in a file, which the user calls `name`. Raises RecordingError like `read`, and like `content`."""
    return read(content(path, name), name)


def content(path: Path, name: str) -> bytes:
    """Bytes of the file at `path`, which the user calls `name`. Raises RecordingError if too large or not readable."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST + 1)
    except OSError as error:
        raise RecordingError("report-unreadable", f"{name} cannot be read ({error.strerror}).") from None
    if len(text) > LARGEST:
        raise RecordingError(
            "report-unreadable", f"{name} is not a report of steptime: it is larger than {LARGEST} bytes."
        )
    return text


def is_report(path: Path) -> bool:
    """True if a file starts like a report, which distinguishes it from a trace in JSON. False if it cannot be read."""
    return b'"schema_version"' in start_of(path, 64)


def start_of(path: Path, most: int) -> bytes:
    """First bytes of a file, at most `most`; b"" for a pipe, or if it cannot be read."""
    try:
        with path.open("rb") if not path.is_fifo() else io.BytesIO() as file:
            return file.read(most)
    except OSError:
        return b""


def schema_text(document_type: type = Report) -> str:
    """JSON Schema (2020-12) of a document type, as in docs/report-schema.json."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(document_type)}
    for each in (schema, *schema.get("$defs", {}).values()):
        if "description" in each:  # whose indentation msgspec keeps up to 0.22, and not later
            each["description"] = inspect.cleandoc(each["description"])
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"


class _ReportHead(msgspec.Struct):
    schema_version: int
    schema: str = ""
    source: str = "RECORDING"
