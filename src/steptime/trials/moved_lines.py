"""Where recorded lines stand after other edits of the same file."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any, TypeVar

from steptime.quantities import SourceLine
from steptime.remedies.remedy import AutocastEdit, CallEdit, CopyEdit, LoopEdit, ModelEdit, SingleEdit


class MovedLines:
    """From the lines of a file as it was recorded to those of its edited text. Indentation is no difference, and lines
    that were replaced by as many others are the same ones."""

    def __init__(self, recorded: str) -> None:
        self._now = _stripped(recorded)
        self._places = {number: number for number in range(len(self._now))}

    def follow(self, edited: str) -> None:
        """One more edit has been made: step by step, what moved where is never in doubt."""
        after = _stripped(edited)
        step: dict[int, int] = {}
        for _, begin, end, first, last in SequenceMatcher(None, self._now, after, autojunk=False).get_opcodes():
            if end - begin == last - first:
                step.update(zip(range(begin, end), range(first, last), strict=True))
        self._places = {line: step[place] for line, place in self._places.items() if place in step}
        self._now = after

    def edit(self, edit: SingleEdit) -> SingleEdit | None:
        """The edit with its lines as they are now; None where one is gone."""
        if isinstance(edit, CallEdit | CopyEdit):
            return self._with(edit, site=edit.site)
        if isinstance(edit, AutocastEdit):
            return self._with(edit, forward=edit.forward, backward=edit.backward)
        if isinstance(edit, ModelEdit):
            return self._with(edit, forward=edit.forward, optimizer=edit.optimizer)
        return self._with(edit, forward=edit.forward) if isinstance(edit, LoopEdit) else edit

    def _with(self, edit: _Lined, **lines: SourceLine | None) -> _Lined | None:
        moved: dict[str, Any] = {name: self._line(line) for name, line in lines.items() if line is not None}
        return None if None in moved.values() else replace(edit, **moved)

    def _line(self, line: SourceLine) -> SourceLine | None:
        place = self._places.get(line.line - 1)
        if place is None:
            return None
        return replace(line, line=place + 1, text=self._now[place] if line.text else "")


_Lined = TypeVar("_Lined", CallEdit, CopyEdit, CallEdit | CopyEdit, AutocastEdit, ModelEdit, LoopEdit)


def _stripped(text: str) -> list[str]:
    return [line.strip() for line in text.split("\n")]
