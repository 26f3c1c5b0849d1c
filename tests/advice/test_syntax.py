"""Text of a recording may be anything: what cannot be read safely is none of the job's code."""

from __future__ import annotations

import warnings

import pytest

from steptime.advice.line_ways import parsed
from steptime.advice.loops import is_carried
from steptime.advice.syntax import tree_of
from steptime.advice.written_ways import loop_around, passes_of, written_ways
from steptime.recording.rule_facts import FunctionText

HOSTILE = (
    "x = " + "(" * 5000 + ")" * 5000,
    "x = " + "-" * 100_000 + "1",
    "x = torch.sort(a" + ".b" * 700 + ")[0][:, :2]",
    "x = torch.sort(a" + "[0]" * 120 + ")[0][:, :2]",
    "a = m(x" + "+1" * 1500 + "); b = m(y)",
    "x = torch.sort(a)[0][:, :k]\n" * 20_000,
    "x = '\0'",
    "x = '\ud800'",
    "x = (",
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_text_that_cannot_be_walked_through_says_nothing(text: str) -> None:
    function = FunctionText("train.py", "f", 1, text)
    assert (tuple(written_ways(function)), passes_of(function), loop_around(function, 1)) == ((), (), None)
    parsed(text)
    is_carried([text])


def test_a_text_of_the_jobs_warns_nobody() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tree_of(r"pattern = '\d'; same = x is 1") is not None
