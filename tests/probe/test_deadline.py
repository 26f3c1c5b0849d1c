"""Deadlines: what a job should not carry on with ends between two lines of it, and nowhere else."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

torch = pytest.importorskip("torch")

from steptime.journal import RECORD, Kind  # noqa: E402
from steptime.probe import allowance, deadline, schedule  # noqa: E402
from steptime.probe.deadline import Deadline  # noqa: E402
from steptime.probe.lines import LineTimeline, LoopFrame  # noqa: E402
from steptime.probe.profiling import ProfilerWindow  # noqa: E402
from steptime.probe.session import Session  # noqa: E402

NEVER = 3600 * 10**9
FUNCTION: Any = torch.autograd.Function


def fails(error: Exception) -> None:
    raise AssertionError from error


def wait_until(reached: Callable[[], bool]) -> None:
    """Runs lines of Python, as a job does; few of them, as a profiler may keep each."""
    end = time.monotonic() + PATIENCE
    while not reached():
        sum(range(100_000))
        assert time.monotonic() < end


def test_it_is_called_once_and_in_the_main_thread() -> None:
    called: list[int] = []
    with Deadline(1, lambda: called.append(threading.get_ident()), fails):
        wait_until(lambda: bool(called))
    assert called == [threading.get_ident()]


TWO_AT_ONCE = """
import sys, time
from steptime.probe.deadline import Deadline
called = []
def is_called(name):
    called.append(name)
def overdue():
    time.sleep(0.5)  # in C: meanwhile the other deadline passes
    is_called("first")
def failed(error):
    raise error
sys.setprofile(lambda *_: None)
with Deadline(1, overdue, failed), Deadline(100_000_000, lambda: is_called("second"), failed):
    while len(called) < 2:
        sum(range(1000))
print(*called)
"""


def test_a_deadline_that_passes_while_another_one_is_ended_under_a_profile_function_stops_nobody() -> None:
    job = subprocess.run([python(), "-c", TWO_AT_ONCE], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert job.stdout == "first second\n", job.stderr


IN_AN_OPERATOR = """
import sys, torch
from steptime.probe.deadline import Deadline
from steptime.probe.profiling import ProfilerWindow
from steptime.probe.recorder import Recorder

class Asked(Deadline):
    times = 0
    def ask(self):
        self.times += 1
        super().ask()

class Odd(torch.Tensor):
    @staticmethod
    def __new__(cls):
        kept = torch.ones(4, device="meta")
        options = {"dispatch_device": True, "device_for_backend_keys": torch.device("cpu")}
        return torch.Tensor._make_subclass(cls, kept, False, **options)
    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        if function is torch.ops.prim.device.default:
            before = deadline.times
            if sys.argv[2] == "abandoned":
                window.abandon()
            while window.on and sys.argv[2] == "overdue" and deadline.times < before + 2:
                sum(range(1000))
            held.append(window.on)
            return torch.device("cpu")
        return torch.ones(4)

def failed(error):
    raise error

recorder = Recorder(print)
recorder.open(sys.argv[1])
odd, window, held = Odd(), ProfilerWindow(recorder, 1, stacks=False), []
window.start()
deadline = Asked(1 if sys.argv[2] == "overdue" else 3600 * 10**9, lambda: window.stop(1), failed)
with deadline:
    odd + odd
    print(held[0])
    while window.on:
        sum(range(1000))
print(deadline.times >= 3)
"""


@pytest.mark.parametrize("how", ["overdue", "abandoned"])
def test_no_window_ends_in_the_middle_of_an_operator(tmp_path: Path, how: str) -> None:
    """torch asks a tensor for its device while it writes down the inputs of an operator: the profiler that is stopped
    there takes the job with it."""
    command = [python(), "-c", IN_AN_OPERATOR, str(tmp_path), how]
    job = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (job.returncode, job.stdout.split()) == (0, ["True", str(how == "overdue")]), job.stderr
    assert (tmp_path / "trace-1.json").exists() == (how == "overdue")


def test_no_thread_of_ours_is_among_the_jobs() -> None:
    before = threading.enumerate()
    with Deadline(NEVER, lambda: None, fails):
        assert threading.enumerate() == before


def test_nothing_is_called_after_the_block() -> None:
    called: list[int] = []
    limit = Deadline(NEVER, lambda: called.append(1), fails)
    with limit:
        pass
    limit.ask()
    assert called == []


def test_what_fails_is_handed_over() -> None:
    failures: list[Exception] = []

    def breaks() -> None:
        raise OSError(28, "No space left on device")

    with Deadline(1, breaks, failures.append):
        wait_until(lambda: bool(failures))
    assert [str(failure) for failure in failures] == ["[Errno 28] No space left on device"]


def leaves(*arguments: Any) -> None:
    raise SystemExit(128 + arguments[0])


def leaves_by_number(number: int, frame: Any) -> None:
    raise SystemExit(128 + number)


class Leaving:
    """A handler that is an object, and one that is a method."""

    def __call__(self, number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    def method(self, number: int, frame: Any) -> None:
        raise SystemExit(128 + number)


HANDLERS = [leaves, leaves_by_number, Leaving(), Leaving().method, functools.partial(leaves)]


@pytest.fixture
def handled() -> Iterator[Callable[[Any], None]]:
    """One handler for several signals, as many jobs have it."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]

    def handle(handler: Any) -> None:
        for number in numbers:
            signal.signal(number, handler)

    yield handle
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_signal_that_comes_meanwhile_reaches_the_job(
    handled: Callable[[Any], None], handler: Any, number: int
) -> None:
    handled(handler)
    with pytest.raises(SystemExit) as ended, Deadline(1, lambda: signal.raise_signal(number), fails):
        wait_until(lambda: False)
    assert ended.value.code == 128 + number


def test_an_interrupt_that_comes_meanwhile_reaches_the_job(handled: Callable[[Any], None]) -> None:
    handled(signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), Deadline(1, lambda: signal.raise_signal(signal.SIGINT), fails):
        wait_until(lambda: False)


def test_a_backward_pass_is_not_interrupted() -> None:
    called: list[int] = []
    limit = Deadline(NEVER, lambda: called.append(1), fails)

    class Asked(FUNCTION):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, tensor: Any) -> Any:
            return tensor * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            limit.ask()
            return gradient

    with limit:
        Asked.apply(torch.ones(2, requires_grad=True)).sum().backward()
        assert called == []
        limit.ask()
        assert called == [1]


def test_a_forked_child_has_none() -> None:
    limit = Deadline(NEVER, lambda: os._exit(1), fails)
    with limit:
        child = os.fork()
        if not child:
            limit.ask()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0


def test_other_threads_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(deadline, "start_new_thread", lambda *arguments: started.append(arguments))

    def trains() -> None:
        with Deadline(NEVER, lambda: None, fails):
            pass

    thread = threading.Thread(target=trains)
    thread.start()
    thread.join()
    assert started == []
    trains()
    assert len(started) == 1


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    """One that trains in this thread and waits for a window's steps for a millisecond, whatever windows cost."""
    made = Session({"recording": str(tmp_path)}, schedule.run)
    made._open()
    monkeypatch.setattr(schedule, "SECOND", 10**6)
    monkeypatch.setattr(allowance, "LEAST", NEVER)
    yield made
    made.stop_listening()
    made.recorder.journal.close()


def is_on() -> bool:
    return bool(torch.autograd._profiler_enabled())


def off() -> bool:
    return not is_on()


def windows_in(session: Session) -> int:
    """How many have ended so far."""
    session.recorder.journal.flush()
    records = RECORD.iter_unpack(Path(session.recorder.folder, "journal.bin").read_bytes())
    return sum(head & 0xFF == Kind.PROFILED for head, *_ in records)


def traces(session: Session) -> list[str]:
    return sorted(path.name for path in Path(session.recorder.folder).glob("trace*"))


@pytest.mark.parametrize("stacks", [False, True])
def test_a_window_of_a_job_that_leaves_its_rhythm_is_ended_and_tried_once_more(session: Session, stacks: bool) -> None:
    session._script = schedule._profile(session, ProfilerWindow(session.recorder, 1, stacks), 3)
    for begun in (1, 2):
        session._boundary(time.perf_counter_ns())
        wait_until(off)  # on a busy machine it may be over already
        assert windows_in(session) == begun
        assert traces(session) == []
    session._boundary(time.perf_counter_ns())
    assert off()
    assert windows_in(session) == 2


def test_what_was_recorded_until_then_is_kept(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "SECOND", NEVER)
    window = ProfilerWindow(session.recorder, 1, stacks=False)
    session._script = schedule._profile(session, window, 3)
    session._boundary(time.perf_counter_ns())
    torch.ones(2).add_(1)
    session._boundary(time.perf_counter_ns())
    window.stop(1)  # as its deadline does
    assert off()
    assert traces(session) == ["trace-1.json"]
    session._boundary(time.perf_counter_ns())
    assert window.steps == 1
    assert windows_in(session) == 1


def test_lines_are_timed_no_longer_than_their_patience(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up: list[None] = []
    original = LineTimeline.give_up
    monkeypatch.setattr(LineTimeline, "give_up", lambda self: given_up.append(original(self)))
    monkeypatch.setattr(schedule, "LINE_LIMIT", 1)
    session._script = schedule._lines(session, LoopFrame(), [wait_until.__code__])
    session._boundary(time.perf_counter_ns())
    wait_until(lambda: bool(given_up))
    session._boundary(time.perf_counter_ns())
    session._boundary(time.perf_counter_ns())


def train(steps: int, boundary: Callable[[], None], inside: Callable[[], None]) -> list[float]:
    """Losses of a job with a custom function, hooks and a closure, in all of which Python runs."""

    class Doubled(FUNCTION):  # type: ignore[misc]
        @staticmethod
        def forward(context: Any, tensor: Any) -> Any:
            inside()
            return tensor * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            inside()
            return gradient * 2

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    model[0].register_forward_hook(lambda *_: inside())
    model[0].weight.register_hook(lambda gradient: inside())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    losses = []

    def closure() -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu"), torch.profiler.record_function("mine"):
            loss = Doubled.apply(model(torch.ones(8, 4))).square().mean()
        loss.backward()
        losses.append(loss.item())
        inside()
        return loss

    for _ in range(steps):
        boundary()
        optimizer.step(closure)
    return losses


def test_a_window_may_end_anywhere_in_a_step_and_the_training_stays_the_same(session: Session) -> None:
    chance = random.Random(5)
    windows: list[ProfilerWindow] = []

    def start() -> None:
        if off():
            windows.append(ProfilerWindow(session.recorder, len(windows), stacks=chance.random() < 0.5))
            windows[-1].start()

    def end() -> None:
        if chance.random() < 0.2:
            limit = Deadline(NEVER, lambda: windows[-1].stop(1), fails)
            with limit:
                limit.ask()

    assert train(30, start, end) == train(30, lambda: None, lambda: None)
    windows[-1].stop(1)
    assert len(windows) > 10
    assert off()
