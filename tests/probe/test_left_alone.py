"""What a job does itself while the probe is at work: it forks, is profiled by cProfile, and handles signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

torch = pytest.importorskip("torch")

from steptime.probe import schedule  # noqa: E402
from steptime.probe.identity import top_module_facts  # noqa: E402
from steptime.probe.numerics.job import Job, Role  # noqa: E402
from steptime.probe.patches import CALLS_WITHOUT_BACKWARD, InferenceObserver  # noqa: E402
from steptime.probe.profiling import ProfilerWindow  # noqa: E402
from steptime.probe.recorder import Recorder  # noqa: E402
from steptime.probe.session import Session  # noqa: E402

JOB = """
import cProfile, os, sys, torch
from steptime.probe.profiling import ProfilerWindow
from steptime.probe.recorder import Recorder
recorder = Recorder(print)
recorder.open(sys.argv[1])
window = ProfilerWindow(recorder, 1, stacks=True)
"""
FORKED = """
window.start()
window.abandon()
child = os.fork()
if not child:
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
FORKED_INSIDE = """
window.start()
child = os.fork()
if not child:
    recorder.forget()
    window.abandon()
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), os.path.exists(window._partial))
window.abandon()
"""
WARMED_UP = """
from steptime.probe.profiling import observe_profilers
observe_profilers()
with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as profile:
    print(window.obstacle())
    profile.step()
    torch.ones(1)
    profile.step()
print(window.obstacle() or "none")
"""
CALLED_THROUGH = """
original = torch.nn.Module.__call__
print(window.obstacle() or "none")
torch.nn.Module.__call__ = lambda *arguments: original(*arguments)
print(window.obstacle())
window.stacks = False
print(window.obstacle() or "none")
"""
PROFILED = """
profile = cProfile.Profile()
def called(): pass
window.start()
called()
profile.enable()
called()
window.abandon()
called()
profile.disable()
print(next(each.callcount for each in profile.getstats() if getattr(each.code, "co_name", "") == "called"))
"""
TRACED = """
seen = []
def trace(frame, event, argument):
    if event == "call" and frame.f_code.co_name == "called":
        seen.append(event)
def called(): pass
window.start()
sys.setprofile(trace)
window.abandon()
called()
print(len(seen), sys.getprofile() is trace)
"""


def printed(code: str, folder: Path) -> str:
    command = [python(), "-c", JOB + code, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout


def test_a_child_that_the_job_forks_behind_a_window_can_leave(tmp_path: Path) -> None:
    assert printed(FORKED, tmp_path) == "7\n"


def test_a_child_that_the_job_forks_in_a_window_can_leave_and_takes_no_file_along(tmp_path: Path) -> None:
    assert printed(FORKED_INSIDE, tmp_path) == "7 True\n"


def test_a_profile_of_the_jobs_that_warms_up_is_not_disturbed(tmp_path: Path) -> None:
    assert printed(WARMED_UP, tmp_path) == "another profiler was recording\nnone\n"


def test_stacks_are_not_taken_where_the_job_replaces_the_call_of_modules(tmp_path: Path) -> None:
    first, second, third = printed(CALLED_THROUGH, tmp_path).splitlines()
    assert (first, third) == ("none", "none")
    assert "Module.__call__" in second


@pytest.mark.parametrize(
    ("code", "text"), [(PROFILED, "2\n"), pytest.param(TRACED, "1 True\n", marks=pytest.mark.slow)]
)
def test_a_profile_that_the_job_starts_in_a_window_goes_on(tmp_path: Path, code: str, text: str) -> None:
    assert printed(code, tmp_path) == text


def test_stacks_do_not_take_the_place_of_the_jobs_profile_function(tmp_path: Path) -> None:
    before = sys.getprofile()
    sys.setprofile(lambda *_: None)
    try:
        obstacles = [ProfilerWindow(Recorder(print), 1, stacks=stacks).obstacle() for stacks in (True, False)]
    finally:
        sys.setprofile(before)
    assert "setprofile" in obstacles[0]
    assert "setprofile" not in obstacles[1]


class TimeIsUp(Exception):
    """Raised by a handler of the job's."""


@pytest.fixture
def handler() -> Iterator[Callable[..., None]]:
    def leave(*_: Any) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGUSR1, leave)
    yield leave
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.usefixtures("handler")
def test_what_a_handler_raises_in_the_probe_reaches_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session({"recording": str(tmp_path)}, schedule.run)
    monkeypatch.setattr(session, "_open", lambda: signal.raise_signal(signal.SIGUSR1))
    session.install()
    try:
        with pytest.raises(TimeIsUp):
            torch.ones(1, requires_grad=True).sum().backward()
        torch.ones(1, requires_grad=True).sum().backward()
    finally:
        session.stop_listening()
    assert not session.active
    assert capsys.readouterr().err.count("switched off: TimeIsUp") == 1


@pytest.mark.usefixtures("handler")
def test_what_a_handler_raises_in_the_watch_for_nan_reaches_the_job() -> None:
    role = Role()
    job = Job(role)
    with pytest.raises(TimeIsUp):
        job._notify(signal.raise_signal, signal.SIGUSR1)
    job._notify(signal.raise_signal, signal.SIGUSR1)  # is told nothing any more


class Unasked(torch.nn.Sequential):  # type: ignore[misc, name-defined]
    """A model whose own methods notice that they are called."""

    def __hash__(self) -> int:
        raise AssertionError

    named_modules = modules = __hash__


def test_a_models_own_methods_are_not_called_to_describe_it() -> None:
    assert top_module_facts(Unasked(torch.nn.Embedding(3, 2)), 1)["dense_embedding_elements"] == 6


@pytest.mark.usefixtures("handler")
def test_what_a_handler_raises_while_a_model_is_looked_at_reaches_the_job() -> None:
    """The probe is about to take the job for one that only infers."""
    watch = InferenceObserver(lambda _: signal.raise_signal(signal.SIGUSR1))
    watch.install()
    model = torch.nn.Linear(2, 2)
    try:
        for _ in range(CALLS_WITHOUT_BACKWARD - 1):
            model(torch.ones(1, 2))
        with pytest.raises(TimeIsUp):
            model(torch.ones(1, 2))
    finally:
        watch.remove()
    assert model(torch.ones(1, 2)).shape == (1, 2)
