"""Answers on their way out: the name gives the format, only our own is overwritten unasked, no half file stays."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from steptime.answer.answer import Answer
from steptime.answer.json import as_json
from steptime.answer.markdown import as_markdown
from steptime.answer.text import as_text
from steptime.errors import OutputError
from steptime.written import is_our_file, remember

STANDARD_OUTPUT = "-"


def _as_page(answer: Answer) -> str:
    from steptime.answer.page.page import as_page  # templates take a while to import

    return as_page(answer)


def _as_card(answer: Answer) -> bytes:
    from steptime.answer.page.card import as_card

    return as_card(answer)


RENDERERS: dict[str, Callable[[Answer], str | bytes]] = {
    ".txt": as_text,
    ".md": as_markdown,
    ".json": as_json,
    ".html": _as_page,
    "card.png": _as_card,
}
"""Formats of every answer, by file extension; `Answer.exports` has what one answer can, too."""
FORMATS = tuple(RENDERERS)


def rendered(answer: Answer, extension: str) -> str | bytes:
    """The answer in a format: its own way of it, or else everybody's."""
    export = answer.exports.get(extension)
    return export() if export is not None else RENDERERS[extension](answer)


def check_all(destinations: Sequence[str], formats: Sequence[str] = FORMATS, *, force: bool) -> None:
    """Refuses now what could not be written later, after the job has run. Raises OutputError."""
    for destination in destinations:
        check(destination, formats, force=force)


def check(destination: str, formats: Sequence[str] = FORMATS, *, force: bool) -> None:
    """The same of one destination. Raises OutputError."""
    if destination == STANDARD_OUTPUT:
        return
    if extension_of(destination, formats).endswith(".png") and find_spec("resvg_py") is None:
        raise OutputError(
            "images-missing",
            "A .png is drawn with the extra images, which is not installed: pip install 'steptime[images]', or name a "
            ".svg, which needs nothing.",
        )
    path = Path(destination)
    if path.is_dir():
        raise OutputError("output-folder", f"{destination} is a folder; name a file, such as {path / 'report.md'}.")
    if path.exists() and not force and not is_our_file(path):
        raise OutputError("output-exists", f"{destination} exists and is not overwritten; add --force or name another.")
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _unwritable(destination, f"{folder} is not writable")


def extension_of(destination: str, formats: Sequence[str] = FORMATS) -> str:
    """The format that a name ends in. Raises OutputError for one that is none of these."""
    name = Path(destination).name.lower()
    for extension in sorted(formats, key=len, reverse=True):  # .speedscope.json before .json, card.png before .png
        before = name.removesuffix(extension)
        if before != name and (before if extension.startswith(".") else before[-1:] in ("", ".", "-", "_")):
            return extension
    known = ", ".join(formats)
    raise OutputError(
        "output-format", f"No report format belongs to {destination!r}; its name must end in one of {known}."
    )


def write(answer: Answer, destination: str, formats: Sequence[str] = FORMATS, *, force: bool) -> bool:
    """Writes an answer to a file, in the format of its name, whole or not at all; whether something was there. Raises
    OutputError."""
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
    """Next to its place first, then moved there in one instant. Raises OSError."""
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
