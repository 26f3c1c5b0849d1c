"""Errors: one clear sentence for the user, never a traceback.

Every error has a slug, and each slug a paragraph in docs/messages.md. The sentence says what was seen, what was
expected, and what to run next."""

from __future__ import annotations

from collections.abc import Callable


class SteptimeError(Exception):
    """Base of all errors that are shown as one sentence. `slug`: name of the paragraph in docs/messages.md."""

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
        """Arguments to recreate it: worker processes raise it into this one."""
        return _again, (type(self), self.slug, self.sentence, self.exit_status)


def _again(kind: type[SteptimeError], slug: str, sentence: str, exit_status: int) -> SteptimeError:
    return kind(slug, sentence, exit_status=exit_status)


class UsageError(SteptimeError):
    """Invalid command line."""

    exit_status = 2


class CommandError(SteptimeError):
    """User's command that cannot be started."""


class RecordingError(SteptimeError):
    """Missing or damaged recording, or one of a newer format."""


class TraceError(SteptimeError):
    """File that is no Kineto trace, or too damaged or too large to read."""


class SnapshotError(SteptimeError):
    """File that is no snapshot of an allocator, or asks for more than plain data needs."""


class NothingMeasuredError(SteptimeError):
    """Job that ran without anything to analyse."""


class OutputError(SteptimeError):
    """File that cannot be written at its destination."""


class ImbalanceError(SteptimeError):
    """Categories of a breakdown that do not sum to its wall time; always a bug of steptime."""


def no_such_file(path: object, expected: str, error: type[SteptimeError] = RecordingError) -> SteptimeError:
    """Error for a path that does not exist. expected: words for what could be there."""
    return error("no-such-file", f"No such file or directory: {path}. Expected {expected}.")
