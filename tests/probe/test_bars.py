"""Whether a bar of tqdm's is in the line of standard error."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from steptime.probe.messages import OPEN, PERIOD, BarMark, bar_is_open


class Bar:
    """As tqdm's: a file and whether it draws nothing."""

    def __init__(self, number: int = 2, disable: bool = False) -> None:
        self.fp, self.disable = SimpleNamespace(fileno=lambda: number), disable


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> set[Any]:
    """The living ones of a loaded tqdm."""
    living: set[Any] = set()
    module = ModuleType("tqdm.std")
    module.__dict__["tqdm"] = SimpleNamespace(_instances=living)
    monkeypatch.setitem(sys.modules, "tqdm.std", module)
    return living


def test_only_a_bar_that_is_drawn_on_standard_error_counts(bars: set[Any]) -> None:
    assert not bar_is_open()
    bars |= {Bar(1), Bar(disable=True), object()}
    assert not bar_is_open()
    bars.clear()
    bars.add(Bar())
    assert bar_is_open()


def test_the_launcher_is_reported_by_a_file_as_long_as_it_is_open(bars: set[Any], tmp_path: Path) -> None:
    mark = BarMark()
    mark.look(str(tmp_path), PERIOD)
    assert not (tmp_path / OPEN).exists()
    bars.add(Bar())
    mark.look("", 2 * PERIOD)
    mark.look(str(tmp_path), 3 * PERIOD - 1)
    assert not (tmp_path / OPEN).exists(), "a bar stays for many steps: not each is looked at"
    mark.look(str(tmp_path), 3 * PERIOD)
    assert (tmp_path / OPEN).exists()
    bars.clear()
    mark.look(str(tmp_path), 4 * PERIOD)
    assert not (tmp_path / OPEN).exists()
    bars.add(Bar())
    mark.look(str(tmp_path), 5 * PERIOD)
    mark.end(str(tmp_path))
    assert not (tmp_path / OPEN).exists()
