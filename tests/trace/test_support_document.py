"""docs/trace-support.md says what the code does: its numbers are the code's, its examples are read as it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from steptime.trace import cache, columns, entries, reader, windows
from steptime.trace.gather import rank_in_name

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "trace-support.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("message", "meant"),
    [
        (r"up to (\d+) GB of JSON of each rank", reader.DEFAULT_MAX_SIZE / 10**9),
        (r"more than (\d+) MB of JSON are kept", cache.LEAST_SIZE / 10**6),
        (r"at most (\d+) GB and a tenth of the free disk", entries.LARGEST_FOLDER / 10**9),
        (r"beyond (\d+) years", columns.LATEST / 1e6 / 86400 // 365.25),
    ],
)
def test_its_numbers_are_the_codes(message: str, meant: float) -> None:
    found = re.search(message, " ".join(TEXT.split()))
    assert found is not None, message
    assert int(found[1]) == meant


def test_a_pause_of_a_day_is_a_day() -> None:
    assert "more than a day apart" in " ".join(TEXT.split())
    assert windows.LONGEST_PAUSE == 24 * 3600 * 10**9


def test_its_names_of_ranks_are_understood() -> None:
    (listed,) = re.findall(r"what its name says \((.*?)\)", " ".join(TEXT.split()))
    names = re.findall(r"`(.*?)`", listed)
    assert [rank_in_name(name) for name in names] == [34, 0, 0, 3]
