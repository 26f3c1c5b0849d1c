"""That a step keeps its level is said of runs that are alike only."""

from __future__ import annotations

from steptime.compare.compare import level_text


def test_runs_that_are_alike_keep_their_level() -> None:
    assert level_text([90e6, 91e6, 92e6], "runs") == "shows no change over 3 runs, within noise"


def test_runs_that_are_not_alike_are_not_called_level() -> None:
    reported = level_text([90.8e6, 205e6], "recordings")
    assert reported.startswith("varies widely over 2 recordings, 90.8 ms to 205 ms")
