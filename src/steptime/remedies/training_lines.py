"""Where the training loop calls its model and its backward, as far as that is certain: what edits of the source need.

One law: a loop with several backwards, or a forward in another function, has no such lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptime.findings.case import Case
from steptime.quantities import SourceLine
from steptime.remedies.remedy import ModelEdit, Snippet


@dataclass(frozen=True, slots=True)
class TrainingLines:
    """forward: the first line that calls a model; backward: the only line that calls backward. One function."""

    forward: SourceLine
    backward: SourceLine


def training_lines(case: Case) -> TrainingLines | None:
    """The lines of a case; None where they were not timed or are not certain."""
    backwards = [use.source for use in case.lines if use.role == "backward"]
    if len(backwards) != 1:
        return None
    backward = backwards[0]
    forwards = [use.source for use in case.lines if use.role == "forward" and _together(use.source, backward)]
    if not forwards:
        return None
    return TrainingLines(min(forwards, key=_number), backward)


def model_edit(
    case: Case, statement: str, example: str, batch: str = "", in_place: str | None = None
) -> ModelEdit | Snippet:
    """A statement about the model where the loop that calls it is known; else its example. in_place: see `ModelEdit`;
    None where the statement keeps the parameters' names. A module of torch's own is not compiled in place."""
    lines = training_lines(case)
    if lines is None or sum(root.parameters > 0 for root in case.roots) > 1:  # the change acts on all of them
        return Snippet(example)
    site = case.optimizers[0].site if case.optimizers else None
    usable = in_place if in_place and not any(root.own for root in case.roots) else ""
    return ModelEdit(statement, lines.forward, site, example, batch, in_place is not None, usable)


def _together(forward: SourceLine, backward: SourceLine) -> bool:
    return (forward.file, forward.function) == (backward.file, backward.function) and forward.line <= backward.line


def _number(source: SourceLine) -> int:
    return source.line
