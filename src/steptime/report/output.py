"""Reports on their way out: the name gives the format, only our own is overwritten unasked, no half file stays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from steptime.errors import OutputError
from steptime.report import json, text
from steptime.report.report import Report
from steptime.written import is_our_file, remember

STANDARD_OUTPUT = "-"
Reported = TypeVar("Reported")


@dataclass(frozen=True, slots=True)
class Renderer(Generic[Reported]):
    """A format: `render` gets a report (or a comparison) and nothing else; pictures come as bytes."""

    file_extension: str
    render: Callable[[Reported], str | bytes]
    prepare: Callable[[], None] = lambda: None
    """Raises OutputError where what it needs is not installed: before a job, not after it."""
    pictures: bool = False
    """Whether it shows a step's timeline and memory over time."""


def _page(report: Report) -> str:
    from steptime.report.page import page  # templates take a while to import, and names are checked before a job starts

    return page.render(report)


def _markdown(report: Report) -> str:
    from steptime.report import markdown

    return markdown.render(report)


def _compact(report: Report) -> str:
    from steptime.report import compact

    return compact.render(report)


def _sarif(report: Report) -> str:
    from steptime.report import sarif

    return sarif.render(report)


def _speedscope(report: Report) -> str:
    from steptime.report import speedscope

    return speedscope.render(report)


def _svg(report: Report) -> str:
    from steptime.report.page import pictures

    return pictures.render_svg(report)


def _check_images() -> None:
    if find_spec("resvg_py") is None:
        raise OutputError(
            "images-missing",
            "A .png is drawn with the extra images, which is not installed: pip install 'steptime[images]', or name a "
            ".svg, which needs nothing.",
        )


def _png(report: Report) -> bytes:
    from steptime.report.page import pictures

    return pictures.render_png(report)


RENDERERS: tuple[Renderer[Report], ...] = (
    Renderer(".txt", text.render),
    Renderer(".md", _markdown),
    Renderer(".speedscope.json", _speedscope, pictures=True),
    Renderer(".json", _compact),
    Renderer(".sarif", _sarif),
    Renderer(".html", _page, pictures=True),
    Renderer(".svg", _svg, pictures=True),
    Renderer(".png", _png, _check_images, pictures=True),
)


def renderers_of(*, full: bool) -> tuple[Renderer[Report], ...]:
    """Those of a report; full: JSON with everything that is known, which can be read back."""
    return tuple(
        replace(each, render=json.render, pictures=True) if full and each.file_extension == ".json" else each
        for each in RENDERERS
    )


def show_pictures(outputs: Sequence[str], *, full: bool) -> bool:
    """Whether one of the formats shows a step's timeline and memory over time."""
    renderers = renderers_of(full=full)
    files = [each for each in outputs if each != STANDARD_OUTPUT]
    return full or any(renderer_for(each, renderers).pictures for each in files)


def check(destination: str, *, force: bool, renderers: Sequence[Renderer[Any]] = RENDERERS) -> None:
    """Refuses now what could not be written later, after the job has run. Raises OutputError."""
    if destination == STANDARD_OUTPUT:
        return
    renderer_for(destination, renderers).prepare()
    path = Path(destination)
    if path.is_dir():
        raise OutputError("output-folder", f"{destination} is a folder; name a file, such as {path / 'report.md'}.")
    if path.exists() and not force and not is_our_file(path):
        raise OutputError("output-exists", f"{destination} exists and is not overwritten; add --force or name another.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(destination, f"{folder} is not writable")


def renderer_for(destination: str, renderers: Sequence[Renderer[Reported]]) -> Renderer[Reported]:
    """By the extension of the name. Raises OutputError for an extension that is none of ours."""
    name = Path(destination).name.lower()
    for renderer in renderers:
        if name.endswith(renderer.file_extension) and name != renderer.file_extension:
            return renderer
    known = ", ".join(renderer.file_extension for renderer in renderers)
    raise OutputError(
        "output-format", f"No report format belongs to {destination!r}; its name must end in one of {known}."
    )


def write_as(renderers: Sequence[Renderer[Reported]], reported: Reported, destination: str, *, force: bool) -> bool:
    """Writes what is told to a file, in the format of its name, whole or not at all; whether something was there.
    Raises OutputError."""
    check(destination, force=force, renderers=renderers)
    there = Path(destination).exists()
    content = renderer_for(destination, renderers).render(reported)
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
        write_whole(Path(destination), data)
    except OSError as error:
        raise _unwritable(destination, error.strerror or str(error)) from error
    remember(data)
    return there


def write_whole(path: Path, content: bytes) -> None:
    """Beside its place first, then moved there in one instant. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
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
