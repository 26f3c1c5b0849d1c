"""Reports on their way out: the name gives the format, nothing is overwritten unasked, no half file stays."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steptime.errors import OutputError
from steptime.report import json, markdown, text
from steptime.report.report import Report

STANDARD_OUTPUT = "-"


@dataclass(frozen=True, slots=True)
class Renderer:
    """A format: `render` gets a report and nothing else."""

    file_extension: str
    render: Callable[[Report], str]


def _page(report: Report) -> str:
    from steptime.report.page import page  # templates take a while to import, and names are checked before a job starts

    return page.render(report)


RENDERERS = (
    Renderer(".txt", text.render),
    Renderer(".md", markdown.render),
    Renderer(".json", json.render),
    Renderer(".html", _page),
)


def check(destination: str, *, force: bool) -> None:
    """Refuses now what could not be written later, after the job has run. Raises OutputError."""
    if destination == STANDARD_OUTPUT:
        return
    renderer_for(destination)
    path = Path(destination)
    if path.is_dir():
        raise OutputError("output-folder", f"{destination} is a folder; name a file, such as {path / 'report.md'}.")
    if path.exists() and not force:
        raise OutputError("output-exists", f"{destination} exists and is not overwritten; add --force or name another.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(destination, f"{folder} is not writable")


def renderer_for(destination: str) -> Renderer:
    """By the extension of the name. Raises OutputError for an extension that is none of ours."""
    extension = Path(destination).suffix.lower()
    for renderer in RENDERERS:
        if renderer.file_extension == extension:
            return renderer
    known = ", ".join(renderer.file_extension for renderer in RENDERERS)
    raise OutputError(
        "output-format", f"No report format belongs to {destination!r}; its name must end in one of {known}."
    )


def write(report: Report, destination: str, *, force: bool) -> None:
    """Writes the report to a file, whole or not at all, or to standard output. Raises OutputError."""
    if destination == STANDARD_OUTPUT:
        sys.stdout.write(text.render(report))
        return
    check(destination, force=force)
    content = renderer_for(destination).render(report)
    try:
        _replace(Path(destination), content)
    except OSError as error:
        raise _unwritable(destination, error.strerror or str(error)) from error


def _replace(path: Path, content: str) -> None:
    """Beside its place first, then moved there in one instant."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(content)
        Path(temporary).chmod(0o666 & ~_umask())  # as open() would have made it; mkstemp makes it private
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # there only if something failed


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _unwritable(destination: str, reason: str) -> OutputError:
    return OutputError(
        "output-unwritable", f"{destination} cannot be written ({reason}); make room or name another place with -o."
    )
