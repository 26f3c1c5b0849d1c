"""The errors that are printed are those that were measured."""

from __future__ import annotations

import json
from pathlib import Path

from steptime.memory.savings import CHECKED, checked

RESULTS = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "results" / "memory-predictions.json"


def test_every_error_is_the_largest_of_the_pairs_that_were_run() -> None:
    pairs = json.loads(RESULTS.read_text(encoding="utf-8"))["pairs"]
    errors: dict[str, list[float]] = {}
    for pair in pairs:
        assert round(pair["predicted"] / pair["measured"] - 1, 4) == pair["error"]
        errors.setdefault(pair["kind"], []).append(abs(pair["error"]))
    assert set(CHECKED) == set(errors)
    for kind, found in errors.items():
        worst, pairs = CHECKED[kind]
        assert pairs == len(found)
        assert round(worst, 3) == round(max(found), 3), kind


def test_what_no_pair_was_run_of_says_so() -> None:
    assert checked("sharding") == "unchecked"
    assert checked("autocast").startswith("±")
