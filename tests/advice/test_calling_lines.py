"""The line of a forward without gradients: the one that runs then, whatever else runs at other times."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from steptime.advice.line_evidence import _calling
from steptime.analysis.lines import identity_of
from steptime.analysis.timeline import RecordTable
from steptime.journal import Kind
from steptime.recording.recording import CodeFacts, CodeLine, Process


def called_at(times: list[int], others: list[int], lines: dict[int, tuple[int, int]]) -> int | None:
    """Number of the line that is found. lines: (start, end) by number."""
    code = CodeFacts(0, "train.py", "main", 0, False, tuple(CodeLine(number, "") for number in lines))
    spans = sorted((span, identity_of(code, line)) for span, line in zip(lines.values(), code.lines, strict=True))
    columns = np.array([(identity, *span) for span, identity in spans], np.int64).T
    zeros = np.zeros(len(spans), np.uint8)
    records = RecordTable(zeros + np.uint8(Kind.LINE), zeros, *columns)
    layout: Any = SimpleNamespace(records=records)
    process: Process | Any = SimpleNamespace(codes=(code,))
    found = _calling(process, layout, np.array(times), np.array(others))
    return found.line if found is not None else None


def test_a_line_with_both_forwards_is_found_beside_one_with_none() -> None:
    assert called_at([12], [15], {5: (10, 20), 6: (20, 30)}) == 5


def test_a_line_of_its_own_is_rather_named() -> None:
    assert called_at([12], [15], {5: (10, 20), 7: (11, 13)}) == 7
    assert called_at([40], [15], {5: (10, 20)}) is None
