"""The launcher next to a running job: signals, ends, losses, the manifest, telemetry."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from patience import PATIENCE

from steptime.launcher.launch import age, exit_as, launch, probe_environment
from steptime.launcher.outcome import Outcome, ProbeOptions, Progress
from steptime.recording.recording import Manifest, TelemetrySample

HEARING = """
import signal
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):  # ignored in the background, or by nohup
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
"""
LAUNCHER = """
import sys
from pathlib import Path
from steptime.launcher.launch import ProbeOptions, exit_as, launch
outcome = launch(sys.argv[2:], Path(sys.argv[1]), ProbeOptions())
for problem in outcome.problems:
    print("problem:", problem, flush=True)
exit_as(outcome)
"""
LISTENER = """
import signal, sys, time
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"):
    signal.signal(getattr(signal, name), note)
print("ready", flush=True)
for line in sys.stdin:
    print(line.strip(), flush=True)
"""


class Launched:
    """A launcher in a process group of its own, and a job that tells what signals it gets."""

    def __init__(self, folder: Path, *job: str) -> None:
        words = [sys.executable, "-c", HEARING + LAUNCHER, str(folder / "recording"), *job]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=folder, text=True, start_new_session=True)

    def line(self) -> str:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], PATIENCE)[0], "nothing was said"
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()

    def job(self) -> psutil.Process:
        family = psutil.Process(self.process.pid).children()
        return next(process for process in family if process.cmdline()[2] == LISTENER)


@pytest.fixture
def launched(tmp_path: Path) -> Iterator[Launched]:
    launched = Launched(tmp_path, sys.executable, "-c", LISTENER)
    assert launched.line() == "ready"
    yield launched
    launched.close()


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


NAMES = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2"]


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_to_the_launcher_alone_reaches_the_job_once(launched: Launched, name: str) -> None:
    launched.process.send_signal(getattr(signal, name))
    assert launched.line() == name
    launched.say("nothing more")
    assert launched.line() == "nothing more"
    assert launched.end() == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_signal_to_the_whole_group_reaches_the_job_once(launched: Launched, name: str) -> None:
    os.killpg(launched.process.pid, getattr(signal, name))
    assert launched.line() == name
    launched.process.send_signal(signal.SIGUSR1 if name != "SIGUSR1" else signal.SIGUSR2)  # is handled after the first
    assert launched.line() == ("SIGUSR1" if name != "SIGUSR1" else "SIGUSR2")
    launched.say("nothing more")
    assert launched.line() == "nothing more"
    assert launched.end() == 0


def test_signals_before_and_after_a_group_signal_are_not_mixed_up(launched: Launched) -> None:
    for _ in range(3):
        os.killpg(launched.process.pid, signal.SIGINT)
        assert launched.line() == "SIGINT"
        launched.process.send_signal(signal.SIGTERM)
        assert launched.line() == "SIGTERM"
        launched.process.send_signal(signal.SIGINT)
        assert launched.line() == "SIGINT"
    assert launched.end() == 0


def test_control_c_on_a_terminal_interrupts_the_job_once(tmp_path: Path) -> None:
    listener = LISTENER.replace("sys.stdin", "open('/dev/tty')").replace("line.strip()", "'heard ' + line.strip()")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, [sys.executable, "-c", LAUNCHER, str(tmp_path / "recording"), *python(listener)])
    text = read_until(terminal, b"", b"ready")
    os.write(terminal, b"\x03")
    text = read_until(terminal, text, b"SIGINT")
    os.write(terminal, b"words\n")
    text = read_until(terminal, text, b"heard words")
    os.write(terminal, b"\x1c")
    text = read_until(terminal, text, b"SIGQUIT")
    os.write(terminal, b"\x04")
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (text.count(b"SIGINT"), text.count(b"SIGQUIT")) == (1, 1)


def read_until(terminal: int, text: bytes, wanted: bytes) -> bytes:
    while wanted not in text:
        assert select.select([terminal], [], [], PATIENCE)[0], text
        text += os.read(terminal, 4096)
    return text


def test_a_signal_that_was_ignored_stays_ignored_in_the_job(tmp_path: Path) -> None:
    job = python("import signal; print(signal.getsignal(signal.SIGHUP), signal.getsignal(signal.SIGINT))")
    words = ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, "-c", LAUNCHER, str(tmp_path / "r"), *job]
    message = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert message == f"{signal.SIG_IGN} {signal.SIG_IGN}\n"


def test_the_job_goes_on_when_the_launcher_is_killed(launched: Launched, tmp_path: Path) -> None:
    job = launched.job()
    launched.process.kill()
    launched.process.wait()
    launched.say("still here")
    assert launched.line() == "still here"
    assert launched.process.stdin is not None
    launched.process.stdin.close()
    wait_until(lambda: not psutil.pid_exists(job.pid))
    manifest = read_manifest(tmp_path / "recording")
    assert (manifest.exit_status, manifest.ended_epoch_ns) == (None, None)


def test_the_witness_ends_with_the_launcher(launched: Launched) -> None:
    (witness,) = [child for child in psutil.Process(launched.process.pid).children() if child != launched.job()]
    launched.process.kill()
    launched.process.wait()
    wait_until(lambda: not witness.is_running() or witness.status() == psutil.STATUS_ZOMBIE)


def test_without_a_witness_a_termination_is_passed_on(launched: Launched) -> None:
    (witness,) = [child for child in psutil.Process(launched.process.pid).children() if child != launched.job()]
    witness.kill()
    launched.process.send_signal(signal.SIGTERM)
    assert launched.line() == "SIGTERM"
    assert launched.end() == 0


def test_children_that_outlive_the_job_are_not_waited_for(tmp_path: Path) -> None:
    orphan = "import time; time.sleep(600)"
    job = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {orphan!r}]).pid)"
    job += "; sys.stdout.flush()"
    launched = Launched(tmp_path, *python(job))
    pid = int(launched.line())
    assert launched.end() == 0
    assert psutil.pid_exists(pid)
    os.kill(pid, signal.SIGKILL)
    launched.close()


def test_files_that_the_user_passes_down_reach_the_job(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("by number")
    job = python("import os; print(os.read(7, 100))")
    words = ["bash", "-c", 'exec "$@" 7<input', "bash", sys.executable, "-c", LAUNCHER, str(tmp_path / "r"), *job]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "b'by number'\n"


def test_the_manifest_says_how_the_job_began_and_ended(tmp_path: Path) -> None:
    options = ProbeOptions(profile=False, profile_steps=3)
    outcome = launch(python("raise SystemExit(3)"), tmp_path / "recording", options)
    manifest = read_manifest(tmp_path / "recording")
    assert manifest.command == tuple(python("raise SystemExit(3)"))
    assert manifest.directory == str(Path.cwd())
    assert manifest.options == {"profile": "False", "profile_steps": "3", "max_profile_seconds": "0"}
    assert (manifest.exit_status, manifest.ended_by_signal, manifest.torch_imported) == (3, None, False)
    assert manifest.ended_epoch_ns is not None
    assert 0 < manifest.ended_epoch_ns - manifest.started_epoch_ns < outcome.seconds * 1e9 + 1e9
    assert 0 < manifest.job_ns <= outcome.seconds * 1e9
    assert 0 <= manifest.after_ns <= outcome.seconds * 1e9
    assert manifest.before_ns == 0, "nobody waited for this process"
    assert (outcome.status, outcome.signal, outcome.problems) == (3, None, ())
    assert (outcome.python_seen, outcome.torch_seen, outcome.steps_seen) == (True, False, False)


def test_a_process_knows_how_old_it_is() -> None:
    young = subprocess.run(python("from steptime.launcher.launch import age; print(age())"), capture_output=True)
    assert 0 < int(young.stdout) < age()


def test_what_the_launchers_own_start_has_put_off_is_known(tmp_path: Path) -> None:
    before = age()
    launch(["true"], tmp_path / "recording", ProbeOptions(), waited=True)
    assert before <= read_manifest(tmp_path / "recording").before_ns <= age()


def test_a_job_that_is_no_python_is_known_as_such(tmp_path: Path) -> None:
    outcome = launch(["true"], tmp_path / "recording", ProbeOptions())
    assert (outcome.status, outcome.python_seen) == (0, False)


def test_a_job_killed_by_a_signal_is_known_as_such(tmp_path: Path) -> None:
    outcome = launch(["sh", "-c", "kill -KILL $$"], tmp_path / "recording", ProbeOptions())
    assert (outcome.status, outcome.signal) == (128 + 9, 9)
    assert read_manifest(tmp_path / "recording").ended_by_signal == 9


def test_our_handlers_are_gone_after_the_job(tmp_path: Path) -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in signal.valid_signals()]

    before, wakeup, files = handlers(), signal.set_wakeup_fd(-1), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    children = psutil.Process().children()
    launch(["true"], tmp_path / "recording", ProbeOptions())
    assert handlers() == before
    assert signal.set_wakeup_fd(-1) == wakeup
    assert len(os.listdir("/proc/self/fd")) == files  # noqa: PTH208
    assert psutil.Process().children() == children


def test_a_recording_removed_under_way_costs_the_recording_not_the_job(tmp_path: Path) -> None:
    job = "import shutil, sys, time; shutil.rmtree('recording'); time.sleep(2.5); print('done'); sys.exit(4)"
    words = [sys.executable, "-c", LAUNCHER, str(tmp_path / "recording"), *python(job)]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    done, problem, *more = ended.stdout.splitlines()
    assert (ended.returncode, done) == (4, "done")
    assert "while the job ran, so there is no report" in problem
    assert more == []
    assert ended.stderr == ""


def test_progress_is_reported_while_the_job_runs(tmp_path: Path) -> None:
    seen: list[Progress] = []
    go = tmp_path / "go"

    def show(progress: Progress) -> None:
        seen.append(progress)
        if len(seen) == 3:
            go.touch()

    job = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    assert launch(python(job), tmp_path / "recording", ProbeOptions(), show).status == 0
    assert [progress.steps for progress in seen[:3]] == [0, 0, 0]
    assert seen[0].elapsed_seconds < seen[1].elapsed_seconds < seen[2].elapsed_seconds
    assert seen[0].stage == "waiting for the first training step"


def test_a_progress_function_that_fails_does_not_leave_the_job_alone(tmp_path: Path) -> None:
    done = tmp_path / "done"
    job = python(f"import time; time.sleep(1.2); open({str(done)!r}, 'w')")

    def closed(progress: Progress) -> None:
        raise BrokenPipeError

    def wrong(progress: Progress) -> None:
        raise ZeroDivisionError

    assert launch(job, tmp_path / "first", ProbeOptions(), closed).status == 0
    done.unlink()
    with pytest.raises(ZeroDivisionError):
        launch(job, tmp_path / "second", ProbeOptions(), wrong)
    assert done.exists()


def test_telemetry_sees_the_jobs_work_and_memory(tmp_path: Path) -> None:
    file = tmp_path / "recording" / "telemetry.jsonl"
    job = f"import os\nblock = b'x' * 100_000_000\nwhile not os.path.exists({str(file)!r}): sum(range(10000))"
    launch(python(job), tmp_path / "recording", ProbeOptions())
    samples = [msgspec.json.decode(line, type=TelemetrySample) for line in file.read_bytes().splitlines()]
    assert samples[0].job_cpu > 0.01, "it computes all the time, on however small a part of a CPU"
    assert samples[0].resident_bytes > 100_000_000
    assert samples[0].other_cpu >= 0.0


def test_the_environment_keeps_what_the_user_has_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"first{os.pathsep}second")
    monkeypatch.setenv("KINETO_LOG_LEVEL", "1")
    environment = probe_environment(tmp_path / 'a "quoted" näme', ProbeOptions(profile_steps=2))
    inject, *theirs = environment["PYTHONPATH"].split(os.pathsep)
    assert (Path(inject) / "sitecustomize.py").is_file()
    assert theirs == ["first", "second"]
    assert environment["KINETO_LOG_LEVEL"] == "1"
    plan = json.loads(environment["STEPTIME_PROBE"])
    assert plan["recording"] == str(tmp_path / 'a "quoted" näme')
    assert (plan["profile_steps"], plan["profile"], plan["changes"]) == (2, True, [])
    changed = {name for name in environment if environment[name] != os.environ.get(name)}
    assert changed == {"PYTHONPATH", "STEPTIME_INJECT", "STEPTIME_PROBE"}


def test_a_path_with_a_space_and_an_umlaut_is_found_by_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "größe 1"
    assert launch(python("pass"), folder, ProbeOptions()).python_seen


def test_exit_as_ends_by_the_jobs_signal_without_a_core_file(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from steptime.launcher.launch import Outcome, exit_as
exit_as(Outcome(Path({str(tmp_path)!r}), 134, 6, 1.0, True, True, True))
"""
    ended = subprocess.run(python(code), cwd=tmp_path, capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGABRT, b"")
    assert list(tmp_path.iterdir()) == []


def test_exit_as_ends_with_the_jobs_status() -> None:
    with pytest.raises(SystemExit) as end:
        exit_as(Outcome(Path(), 7, None, 1.0, True, True, True))
    assert end.value.code == 7


def read_manifest(folder: Path) -> Manifest:
    return msgspec.json.decode((folder / "manifest.json").read_bytes(), type=Manifest)
