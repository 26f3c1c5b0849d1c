"""The profiler in the job: whatever fails, it is never left on, and nothing reaches the job."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

torch = pytest.importorskip("torch")

from steptime.probe import (  # noqa: E402
    profiling,
    schedule,
)
from steptime.probe.compiler import hide_from_dynamo  # noqa: E402
from steptime.probe.identity import RankPlace  # noqa: E402
from steptime.probe.memory import allocations  # noqa: E402
from steptime.probe.messages import switched_off  # noqa: E402
from steptime.probe.profiling import TRACER, ProfilerWindow  # noqa: E402
from steptime.probe.recorder import Recorder  # noqa: E402
from steptime.probe.session import Session, end_script  # noqa: E402
from steptime.probe.steps import OPTIMIZER  # noqa: E402


def is_on() -> bool:
    return bool(torch.autograd._profiler_enabled())


@pytest.fixture(autouse=True)
def nothing_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """No window of another test counts."""
    monkeypatch.setattr(allocations._AllocationsState, "freed", 0)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    """One that trains in this thread, in the middle of a window, and listens to nothing."""
    made = Session({"recording": str(tmp_path)}, schedule.run)
    parameter = torch.nn.Parameter(torch.zeros(2))
    made._open()
    made._script = schedule._profile(made, ProfilerWindow(made.recorder, 1, stacks=True, trained=()), 1)
    yield made
    end_script(made._script)  # else it ends at some later test's collection
    made.stop_listening()  # a test may have had its watch on: later tests of this process would be watched
    made.recorder.journal.close()
    assert parameter.requires_grad


def test_a_watch_that_is_switched_off_takes_its_profiler_along(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    assert session._script is not None
    next(session._script)
    assert is_on()
    session.switch_off("the disk is full")
    assert not is_on()
    assert capsys.readouterr().err == "steptime: switched off: the disk is full; the job goes on\n"


def test_a_watch_that_fails_while_its_script_runs_takes_its_profiler_along(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session.recorder, "pause", lambda start: session.switch_off("the disk is full"))
    session._boundary(1)
    assert not is_on()


def two_steps(session: Session) -> None:
    for time in (1, 2):
        session._boundary(time)


@pytest.mark.parametrize("where", ["start_history", "end_history"])
def test_a_history_of_allocations_that_fails_leaves_no_profiler_on(
    session: Session, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fails(*_: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(allocations, "start_history", lambda: True)
    monkeypatch.setattr(allocations, "end_history", lambda path: None)
    monkeypatch.setattr(allocations, where, fails)
    with pytest.raises(OSError, match="No space left"):
        two_steps(session)
    assert not is_on()


CONFIG_THREAD = """
import os, sys, threading
from steptime.probe import profiling
from steptime.probe.recorder import Recorder
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
recorder = Recorder(print)
recorder.open(sys.argv[1])
before, stop = profiling._threads(), profiling.stop_config_thread
def spied():
    own = str(threading.get_native_id())
    print(own == str(os.getpid()), all(map(profiling._sleeps, profiling._threads() - before - {own})))
    stop()
profiling.stop_config_thread = spied
for number in (1, 2):
    window = profiling.ProfilerWindow(recorder, number, stacks=False)
    window.start()
    window.stop(1)
"""


def test_the_job_never_waits_for_kinetos_thread(tmp_path: Path) -> None:
    """On its way to a wait of five seconds that thread hears nobody, and where there is one CPU it is on its way."""
    step = subprocess.run([python(), "-c", CONFIG_THREAD, str(tmp_path)], capture_output=True, text=True,
                          timeout=PATIENCE, check=True)  # fmt: skip
    ((in_the_job, sleeps),) = [line.split() for line in step.stdout.splitlines() if line.count(" ") == 1]
    assert (in_the_job, sleeps) == ("True", "True") or in_the_job == "False"


SPOILING = [
    ([92, 96, 118, 314], [False, False, False, True]),
    ([300, 290, 310], [False, False, False]),
    ([92, 150, 170], [False, False, False]),
    ([900, 90, 185], [False, False, False]),
]
"""Milliseconds of profiled steps, and which of them end the window: those of a large step, of an operator-bound one
that the profiler slows from its first step on, a little slower ones, and a late one after a slow beginning."""


@pytest.mark.parametrize(("took", "spoilt"), SPOILING)
def test_a_step_that_takes_much_longer_than_its_window_ends_it(
    session: Session, monkeypatch: pytest.MonkeyPatch, took: list[int], spoilt: list[bool]
) -> None:
    time = [0]
    monkeypatch.setattr(profiling, "now", lambda: time[0])
    window = ProfilerWindow(session.recorder, 1, stacks=False)
    found = []
    for each in took:
        time[0] += each * 1_000_000
        found.append(window.spoils(usual=85_000_000))
    assert found == spoilt


@pytest.mark.parametrize(("alone", "steps"), [(True, 2), (False, 3)])
def test_a_spoilt_window_holds_the_steps_so_far_unless_other_ranks_profile_too(
    session: Session, monkeypatch: pytest.MonkeyPatch, alone: bool, steps: int
) -> None:
    answers = iter([False, True])
    monkeypatch.setattr(ProfilerWindow, "spoils", lambda self, usual: next(answers))
    monkeypatch.setattr(schedule, "place", lambda: RankPlace(None if alone else 0, None, 2))
    window = ProfilerWindow(session.recorder, 1, stacks=False)
    session._script = schedule._profile(session, window, 3)
    for time in range(1, 6):
        session._boundary(time)
    assert window.steps == steps
    assert not is_on()


def test_a_step_that_ends_inside_of_a_compiled_function_is_not_profiled(session: Session) -> None:
    """torch's range around the function would end in memory that the profiler has freed."""
    window = ProfilerWindow(session.recorder, 1, stacks=False)
    inside: list[str] = []
    hide_from_dynamo()

    def boundary() -> None:
        inside.append(window.obstacle())

    boundary._torchdynamo_disable = True  # type: ignore[attr-defined]

    def step(values: Any) -> Any:
        boundary()
        return values + 1

    torch.compile(step, backend="eager")(torch.ones(2))
    assert "compiled function" in inside[0]
    assert window.obstacle() == ""


@pytest.mark.parametrize("stream", [None, object()])
def test_a_job_without_a_standard_error_is_reported_nothing(monkeypatch: pytest.MonkeyPatch, stream: object) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    switched_off("nobody hears it")


STEP_WITH_MEMORY = """
import json, pathlib, sys, torch
from steptime.probe.profiling import ProfilerWindow
from steptime.probe.recorder import Recorder
recorder = Recorder(print)
recorder.open(sys.argv[1])
parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(int(sys.argv[2]))]
for number in range(int(sys.argv[3])):
    for each in parameters:
        each.grad = torch.zeros(2)
    window = ProfilerWindow(recorder, number, stacks=True, trained=())
    window.start()
    for each in parameters:
        each.grad = None
    window.stop(1)
for line in pathlib.Path(sys.argv[1], "facts.jsonl").read_text().splitlines():
    print(json.loads(line)["memory"])
"""


@pytest.mark.parametrize(("parameters", "windows", "with_memory"), [(300, 4, 2), (1500, 1, 0)], ids=["some", "many"])
def test_recording_allocations_never_makes_torch_warn_on_the_users_stderr(
    tmp_path: Path, parameters: int, windows: int, with_memory: int
) -> None:
    command = [python(), "-c", STEP_WITH_MEMORY, str(tmp_path), str(parameters), str(windows)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    step = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert step.stdout.split() == ["True"] * with_memory + ["False"] * (windows - with_memory)
    assert step.stderr == ""


WARNINGS_OF_THE_JOB = """
import pathlib, sys, warnings
import torch
from torch.profiler import profiler
from steptime.probe.profiling import ProfilerWindow
from steptime.probe.recorder import Recorder
CYCLES = "Warning: Profiler clears events at the end of each cycle."
prepare = profiler._KinetoProfile.prepare_trace
def as_before_2_13(self):
    prepare(self)
    if not self.acc_events:
        profiler._warn_once(CYCLES)
profiler._KinetoProfile.prepare_trace = as_before_2_13
def state():
    modules = {name: vars(each) for name, each in list(sys.modules.items()) if hasattr(each, "__dict__")}
    warned = {name: dict(found) for name, each in modules.items() if (found := each.get("__warningregistry__"))}
    return list(warnings.filters), warned, set(profiler._WARNINGS_SHOWN)
recorder = Recorder(print)
recorder.open(sys.argv[1])
torch.ones(4).add_(1)
before = state()
for number in (1, 2):
    window = ProfilerWindow(recorder, number, stacks=False)
    window.start()
    torch.ones(4).add_(1)
    window.stop(1)
    assert window._profile is None
    assert "aten::add_" in pathlib.Path(sys.argv[1], f"trace-{number}.json").read_text()
print(state() == before)
with torch.profiler.profile():  # the job's own: it warns as ever
    torch.ones(4).add_(1)
"""


KINETO_SPEAKS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""It writes a line on stderr for each profile that starts or stops."""


def test_a_profiler_of_ours_warns_of_nothing_and_the_jobs_own_as_ever(tmp_path: Path) -> None:
    command = [python(), "-c", WARNINGS_OF_THE_JOB, str(tmp_path)]
    job = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert job.stdout == "True\n", job.stderr
    assert job.stderr.count("profiler_start") == job.stderr.count("profiler_stop") == KINETO_SPEAKS
    assert job.stderr.count("Profiler clears events") == 1


@pytest.mark.parametrize("kept", [False, True])
def test_the_events_of_a_window_never_become_objects(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch.autograd.profiler.profile, "_ensure_function_events", lambda self: made.append(self))
    if kept:
        profile = torch.profiler.profile(acc_events=True)
        profile.start()
        profile.stop()
    else:
        recorder = Recorder(print)
        recorder.open(str(tmp_path))
        window = ProfilerWindow(recorder, 1, stacks=False)
        window.start()
        window.stop(1)
    assert len(made) == kept


@pytest.mark.parametrize("known", [False, True])
def test_what_torch_imports_for_stacks_is_let_go_unless_the_job_had_it(
    known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if known:
        importlib.import_module(TRACER)
    else:
        monkeypatch.delitem(sys.modules, TRACER, raising=False)
        monkeypatch.delattr(torch.profiler, "python_tracer", raising=False)
    recorder = Recorder(print)
    recorder.open(str(tmp_path))
    for number in (1, 2):
        window = ProfilerWindow(recorder, number, stacks=True, trained=())
        window.start()
        torch.ones(2).add_(1)
        window.stop(1)
        assert (TRACER in sys.modules, hasattr(torch.profiler, "python_tracer")) == (known, known)
        assert "python_function" in (tmp_path / f"trace-{number}.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("backend", ["", "gloo"])
def test_a_window_ends_when_collectives_of_gloo_have_written_their_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    waited: list[bool] = []
    monkeypatch.setattr("time.sleep", lambda seconds: waited.append(is_on()))
    recorder = Recorder(print)
    recorder.open(str(tmp_path))
    window = ProfilerWindow(recorder, 1, stacks=False)
    if backend:
        store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        window.start()
        window.stop(1)
    finally:
        if backend:
            torch.distributed.destroy_process_group()
    assert waited == [True] * bool(backend)


def test_turns_measure_the_watch_as_it_is_for_most_of_a_run(session: Session) -> None:
    """With the watch on nobody is told of a step, so that what is measured is no visit of ours at each boundary."""
    session.counter.mode = OPTIMIZER
    reported = {True: 0, False: 0}
    for _ in schedule._turns(session, duration=schedule.TURN_TIME // 5):
        assert session.watching == (session.fast_path.until > 0)
        reported[session.watching] += 1
        session.steps += 5 if session.watching else 1  # those that end before `until` are counted with the next one
    assert reported == {True: schedule.TURNS, False: 5 * schedule.TURNS}


def test_installed_packages_are_known_by_their_paths() -> None:
    paths = profiling.installed()
    assert str(Path(torch.__file__).parent) in paths
