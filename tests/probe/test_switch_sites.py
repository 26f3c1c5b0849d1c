"""Debugging modes and tracers that are on, and the line that switched one on: it is found in the user's modules, by its
text."""

from __future__ import annotations

import cProfile
import json
import sys
import tracemalloc
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from steptime.probe import schedule, sites  # noqa: E402
from steptime.probe.identity import settings_facts, tracers  # noqa: E402
from steptime.probe.profiling import now  # noqa: E402
from steptime.probe.session import Session, end_script  # noqa: E402

HELPER = """
# torch.autograd.set_detect_anomaly(True) is for the hunt of a NaN
torch.autograd.set_detect_anomaly(False)
torch.autograd.set_detect_anomaly(True)
sys.settrace(None)
sys.settrace(look)
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


def by_kind() -> dict[str, str]:
    return {each["kind"]: each["tool"] for each in tracers()}


NOTHING_ON = sys.gettrace() is None and sys.getprofile() is None and not tracemalloc.is_tracing()
alone = pytest.mark.skipif(not NOTHING_ON, reason="a tracer is on")


@alone
def test_tools_that_python_calls_are_named_while_they_are_on() -> None:
    assert by_kind() == {}
    tracemalloc.start()
    try:
        assert by_kind() == {"memory": "tracemalloc"}
    finally:
        tracemalloc.stop()
    with cProfile.Profile():
        assert by_kind() == {"profile": "cProfile"}
    assert by_kind() == {}


@alone
def test_a_debugger_is_named_with_the_line_that_switches_it_on(helper: Path) -> None:
    sys.settrace(lambda *_: None)
    try:
        found = tracers()
    finally:
        sys.settrace(None)
    assert [(each["kind"], each["tool"]) for each in found] == [("trace", __name__.partition(".")[0])]
    assert (found[0]["site"]["file"], found[0]["site"]["line"]) == (str(helper), 6)


class Strange:
    """A tracer that cannot be read like a function."""

    __module__ = None  # type: ignore[assignment]

    def __call__(self, *_: object) -> None: ...

    def __getattr__(self, name: str) -> None:
        raise AssertionError(f"{name} of the user's object was asked for")


@alone
def test_an_object_of_the_users_is_a_tool_without_a_name() -> None:
    sys.setprofile(Strange())
    try:
        found = by_kind()
    finally:
        sys.setprofile(None)
    assert found == {"profile": "?"}


@alone
@pytest.mark.parametrize(("events", "found"), [(1, {"profile": "cProfile"}), (0, {})])
def test_a_profiler_of_sys_monitoring_is_named_while_it_gets_events(
    events: int, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monitoring = SimpleNamespace(
        PROFILER_ID=2, get_tool={2: "cProfile"}.get, get_events=lambda tool: events if tool == 2 else 0
    )
    monkeypatch.setattr(sys, "monitoring", monitoring, raising=False)
    assert by_kind() == found


@alone
def test_the_schedule_records_tools_before_it_uses_the_same_places(tmp_path: Path) -> None:
    session = Session({"recording": str(tmp_path)}, schedule.run)
    session._open()
    tracemalloc.start()
    try:
        for _ in range(4):
            torch.ones(4).add_(1)
            session._boundary(now())
    finally:
        tracemalloc.stop()
        end_script(session._script)
        session.stop_listening()
        session.recorder.journal.close()
    every = map(json.loads, Path(session.recorder.folder, "facts.jsonl").read_text(encoding="utf-8").splitlines())
    assert [(each["kind"], each["tool"]) for each in every if each["fact"] == "tracer"] == [("memory", "tracemalloc")]
