"""The line that switched a debugging mode on is found in the user's modules, by its text."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from steptime.probe import sites  # noqa: E402
from steptime.probe.identity import settings_facts  # noqa: E402

HELPER = """
# torch.autograd.set_detect_anomaly(True) is for the hunt of a NaN
torch.autograd.set_detect_anomaly(False)
torch.autograd.set_detect_anomaly(True)
"""


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "helper_of_a_job.py"
    file.write_text(HELPER, encoding="utf-8")
    module = ModuleType("helper_of_a_job")
    module.__file__ = str(file)
    for name in [name for name, each in sys.modules.items() if sites.whose(str(getattr(each, "__file__", "<>"))) == 2]:
        monkeypatch.delitem(sys.modules, name)  # the tests' own modules name the functions, too
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return file


def test_the_line_that_switches_on_is_told_and_no_comment_and_no_switching_off(helper: Path) -> None:
    site = sites.line_that_calls("detect_anomaly")
    assert site is not None
    assert (site["file"], site["line"]) == (str(helper), 4)
    assert sites.line_that_calls("use_deterministic_algorithms") is None


@pytest.mark.usefixtures("helper")
def test_files_are_looked_through_only_for_what_is_on() -> None:
    assert settings_facts()["anomaly_site"] is None
    with torch.autograd.set_detect_anomaly(True):
        assert settings_facts()["anomaly_site"]["line"] == 4
