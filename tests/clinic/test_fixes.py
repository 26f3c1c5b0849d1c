"""A fix counts when its variant was adopted, and is held against what the twin is faster by."""

from __future__ import annotations

from typing import Any

from benchmarks.clinic import fixes
from benchmarks.clinic.cases import CASES


def section(*variants: dict[str, Any], **more: Any) -> dict[str, Any]:
    row = {"twin": 2.0, "right": ["RM405"], "failed": "", "variants": list(variants), **more}
    return {"denormals": {"about": {}, "row": row}}


def variant(code: str, verdict: str, speed: list[float] | None) -> dict[str, Any]:
    return {"code": code, "label": "as it is", "verdict": verdict, "speed": speed}


def test_an_adopted_fix_is_reported_with_its_share_of_the_twins_gain() -> None:
    found = section(variant("RM401", "adopt", [3.0, 2.9, 3.1]), variant("RM405", "adopt", [1.6, 1.5, 1.7]), patch=None)
    reported = fixes.table(found, "box")
    assert "adopted in 1 of 1" in reported[0]
    assert reported[-1] == ("| denormals | RM405 as it is | adopt | 1.60× (1.50 to 1.70) | 2.00× | 75% | – |"), (
        "1.6 takes 37.5 % of a step away, the twin 50 %"
    )


def test_what_was_not_adopted_or_not_tried_is_reported_as_such() -> None:
    undecided = fixes.table(section(variant("RM405", "undecided", [1.1, 0.9, 1.3]), patch=None), "box")
    assert "adopted in 0 of 1" in undecided[0]
    missing = fixes.table(section(variant("RM401", "adopt", [1.2, 1.1, 1.3])), "box")
    assert "not tried (RM401 adopt)" in missing[-1]
    assert "no steps" in fixes.table(section(failed="no steps"), "box")[-1]


def test_every_fix_belongs_to_a_case() -> None:
    assert set(fixes.FIXES) <= {case.job for case in CASES}
