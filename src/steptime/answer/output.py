"""Output of answers to files: the name determines the format, only steptime's own files are overwritten without
--force, and no half-written file remains."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from steptime.answer.answer import Answer
from steptime.answer.json import as_json
from steptime.answer.markdown import as_markdown
from steptime.answer.text import as_text
from steptime.errors import OutputError
from steptime.written import is_our_file, remember

STANDARD_OUTPUT = "-"


def _late(extension: str, answer: Answer) -> str | bytes:
    """Answer in a format whose renderer takes a while to import: it brings templates, or the rules' pages."""
    from steptime.answer.page.card import as_card
    from steptime.answer.page.frame import as_page
    from steptime.answer.sarif import as_sarif

    if extension == "card.png":
        return as_card(answer)
    return as_page(answer) if extension == ".html" else as_sarif(answer)


RENDERERS: dict[str, Callable[[Answer], str | bytes]] = {
    ".txt": as_text,
    ".md": as_markdown,
    ".json": as_json,
    **{each: partial(_late, each) for each in (".html", "card.png", ".sarif")},
}
"""Renderers by file extension; `Answer.exports` has those of a particular answer."""
FORMATS = tuple(each for each in RENDERERS if each != ".sarif")
"""Formats of every answer; SARIF is of those with findings."""


def rendered(answer: Answer, extension: str) -> str | bytes:
    """Content of an answer in the format of a file extension: its own export, else the common renderer's."""
    export = answer.exports.get(extension)
    return export() if export is not None else RENDERERS[extension](answer)


def check(destination: str, formats: Sequence[str] = FORMATS, *, force: bool) -> None:
    """Checks a destination before a job runs, so that its report can be written afterwards. Raises OutputError."""
    if destination == STANDARD_OUTPUT:
        return
    if extension_of(destination, formats).endswith(".png") and find_spec("resvg_py") is None:
        raise OutputError(
            "images-missing",
            "A .png needs an extra that is not installed: pip install 'steptime[images]'. A .svg needs none.",
        )
    path = Path(destination)
    if path.is_dir():
        raise OutputError("output-folder", f"{destination} is a folder. Give a file, such as {path / 'report.md'}.")
    if path.exists() and not force and not is_our_file(path):
        raise OutputError(
            "output-exists", f"{destination} already exists. Overwrite it with --force, or give another name."
        )
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(destination, f"{folder} is not writable")


def extension_of(destination: str, formats: Sequence[str] = FORMATS) -> str:
    """File extension of a destination, which selects the format. Raises OutputError for an unknown one."""
    name = Path(destination).name.lower()
    for extension in sorted(formats, key=len, reverse=True):  # .speedscope.json before .json, card.png before .png
        before = name.removesuffix(extension)
        if before != name and (before if extension.startswith(".") else before[-1:] in ("", ".", "-", "_")):
            return extension
    known = ", ".join(formats)
    raise OutputError(
        "output-format", f"{destination!r} has no known report format. Its name must end in one of {known}."
    )


def write(answer: Answer, destination: str, formats: Sequence[str] = FORMATS, *, force: bool) -> bool:
    """Writes an answer to a file, in its name's format, atomically; True if it replaced one. Raises OutputError."""
    check(destination, formats, force=force)
    there = Path(destination).exists()
    content = rendered(answer, extension_of(destination, formats))
    try:
        data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
        write_whole(Path(destination), data)
    except OSError as error:
        raise _unwritable(destination, error.strerror or str(error)) from error
    remember(data)
    return there


def write_whole(path: Path, content: bytes) -> None:
    """Writes a temporary file next to the destination and moves it there atomically. Raises OSError."""
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
