"""Errors, and their words: one clear sentence for the user, never a traceback.

Every error carries a slug; each slug has a paragraph in docs/messages.md. The text says what was seen, what was
expected, and what to run next.
"""

from __future__ import annotations

from collections.abc import Callable


class SteptimeError(Exception):
    """Base of all errors that are shown as one sentence. `slug` names the paragraph in docs/messages.md."""

    exit_status = 1

    def __init__(self, slug: str, sentence: str, *, exit_status: int | None = None) -> None:
        sentence = " ".join(sentence.splitlines())  # names of files and other libraries' words hold anything
        super().__init__(sentence)
        self.slug = slug
        self.sentence = sentence
        if exit_status is not None:
            self.exit_status = exit_status

    def __str__(self) -> str:
        return f"{self.sentence} ({self.slug})"

    def __reduce__(self) -> tuple[Callable[..., SteptimeError], tuple[object, ...]]:
        """Worker processes raise it into ours."""
        return _again, (type(self), self.slug, self.sentence, self.exit_status)


def _again(kind: type[SteptimeError], slug: str, sentence: str, exit_status: int) -> SteptimeError:
    return kind(slug, sentence, exit_status=exit_status)


class UsageError(SteptimeError):
    """The command line cannot be followed."""

    exit_status = 2


class CommandError(SteptimeError):
    """The user's command cannot be started."""


class RecordingError(SteptimeError):
    """A recording is missing, damaged or of a newer format."""


class TraceError(SteptimeError):
    """A file is no Kineto trace, or is too damaged or too large to read."""


class SnapshotError(SteptimeError):
    """A file is no snapshot of an allocator, or asks for what plain data never asks for."""


class NothingMeasuredError(SteptimeError):
    """The job ran, but there was nothing to account for."""


class OutputError(SteptimeError):
    """A file cannot be written where it was asked for."""


class ImbalanceError(SteptimeError):
    """The accounts of a breakdown do not sum to its wall clock; always a bug of ours."""


def no_such_file(path: object, expected: str, error: type[SteptimeError] = RecordingError) -> SteptimeError:
    """The refusal of a path where nothing is. expected: what could be there."""
    return error("no-such-file", f"No such file or directory: {path}. Expected {expected}.")
