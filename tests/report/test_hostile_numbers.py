"""What a report's file says of numbers and of places in tables is checked where it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptime.answer.output import rendered
from steptime.errors import RecordingError
from steptime.report.answer import answer_of
from steptime.report.json import read

GOLD = Path(__file__).parent / "gold"


def changed(name: str, path: str, value: object) -> bytes:
    """A sound report with one value in the place of another."""
    document: Any = json.loads((GOLD / name).read_text(encoding="utf-8"))
    *way, last = [int(each) if each.isdigit() else each for each in path.split(".")]
    inner = document
    for each in way:
        inner = inner[each]
    assert inner[last] != value
    inner[last] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("ranks.json", "ranks.rows.3.categories.3", -1e308),
        ("ranks.json", "ranks.rows.0.categories", []),
        ("trace.json", "processes.0.case.kernels.0.calls", 1e-320),
        ("run.json", "processes.0.case.categories.2.duration.high", 1e308),
        ("run.json", "processes.0.series.marks.0.step", -(2**63)),
        ("run.json", "processes.0.series.kinds.3", 99),
        ("run.json", "processes.0.series.names", []),
        ("run.json", "processes.0.series.stride", 0),
        ("trials.json", "processes.0.case.loader.demand", -(2**63)),
        ("overflow.json", "processes.0.memory.owners", []),
    ],
)
def test_a_number_that_nothing_measures_or_a_place_that_is_none_is_refused(name: str, path: str, value: object) -> None:
    with pytest.raises(RecordingError, match="is not a report that this steptime can read") as refused:
        read(changed(name, path, value), name)
    assert len(str(refused.value).splitlines()) == 1


def test_a_verdict_that_the_file_alone_knows_is_displayed_as_the_last_one() -> None:
    answer = answer_of(read(changed("trials.json", "trials.variants.0.verdict", "javascript:alert(1)"), "x"))
    assert "Tried" in str(rendered(answer, ".txt"))
    assert "javascript:" in str(rendered(answer, ".html")), "as text"
    assert '="javascript:' not in str(rendered(answer, ".html"))
