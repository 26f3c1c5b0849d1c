"""What a signal's handler of the job's raises in the middle of our code reaches the job."""

from __future__ import annotations

import functools
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from steptime import probe  # noqa: E402
from steptime.probe import calls, free_memory, standby  # noqa: E402
from steptime.probe.objects import SideTable  # noqa: E402
from steptime.probe.ours import handler_of, suppressed  # noqa: E402
from steptime.probe.recorder import Recorder  # noqa: E402


@pytest.fixture
def in_the_middle() -> Iterator[Callable[..., Any]]:
    """Called in the place of something of ours: a signal comes there, and its handler raises what time limits do."""

    def handler(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda *_, **__: signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def test_a_time_limit_is_not_taken_for_a_disk_that_is_full(
    tmp_path: Path, in_the_middle: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []
    recorder = Recorder(ended.append)
    recorder.open(str(tmp_path))
    monkeypatch.setattr(recorder.journal, "append", in_the_middle)
    with pytest.raises(TimeoutError):
        recorder.append(1, 0, 0, 1, 2)
    assert len(ended) == 1


def test_it_is_not_taken_for_a_file_of_the_system_that_is_missing(in_the_middle: Callable[..., Any]) -> None:
    class Path:
        def __fspath__(self) -> str:
            in_the_middle()
            return ""

    assert free_memory.read("/does/not/exist") == b""
    with pytest.raises(TimeoutError):
        free_memory.read(Path())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [OSError, Exception])
def test_what_is_ours_is_suppressed(in_the_middle: Callable[..., Any], kind: type[Exception]) -> None:
    with suppressed(kind):
        Path("/does/not/exist").read_text()
    with pytest.raises(TimeoutError), suppressed(kind):
        in_the_middle()
    with pytest.raises(KeyError), suppressed(OSError):
        raise KeyError


def test_a_handler_of_our_own_is_none_of_the_jobs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job in standby: where the file is missing that it is woken with, it goes on."""
    before = signal.signal(signal.SIGUSR1, standby.wake)
    try:
        monkeypatch.setattr(standby, "folder_of", lambda _: "/does/not/exist")
        signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "switched off: FileNotFoundError" in capsys.readouterr().err


def test_handlers_are_known_in_every_form(in_the_middle: Callable[..., Any]) -> None:
    class Limit:
        def __call__(self, *_: Any) -> None:
            raise TimeoutError

        def reached(self, *_: Any) -> None:
            raise TimeoutError

    for handler in (Limit(), Limit().reached, functools.partial(Limit.reached, Limit())):
        signal.signal(signal.SIGUSR1, handler)
        with pytest.raises(TimeoutError) as raised:
            in_the_middle()
        assert handler_of(raised.value) == signal.SIGUSR1
    assert not handler_of(ValueError())


def test_no_function_of_ours_runs_while_objects_of_the_jobs_go(capsys: pytest.CaptureFixture[str]) -> None:
    """A Python profile function sees every function that the collector has called."""
    table: SideTable[int] = SideTable()
    model = torch.nn.Linear(1, 1)
    model.itself = [model]
    calls.observe(model, calls.CallObserver())
    table.keep(model, 1)
    number = id(model)
    called: list[str] = []
    del model
    sys.setprofile(lambda frame, *_: called.append(frame.f_code.co_filename))
    gc.collect()
    sys.setprofile(None)
    assert not [name for name in called if name.startswith(str(Path(probe.__file__).parent))]
    other = torch.nn.Linear(1, 1)
    table.keep(other, 2)
    calls.observe(other, calls.CallObserver())
    assert number not in table._known or id(other) == number
    assert number not in calls._observed or id(other) == number
    assert capsys.readouterr().err == ""


def test_it_reaches_a_job_that_imports_torch(in_the_middle: Callable[..., Any]) -> None:
    """The start of the probe, by the file that Python itself runs at its start."""
    path = Path(probe.__file__).with_name("inject") / "sitecustomize.py"
    names: dict[str, Any] = {"__name__": "tried", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), names)
    finder = names["TorchFinder"]("nowhere")
    names["start"] = in_the_middle
    sys.meta_path.insert(0, finder)
    with pytest.raises(TimeoutError):
        finder.imported()
    assert finder not in sys.meta_path
