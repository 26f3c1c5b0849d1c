"""Nothing that a process of a trial has started outlives it, or steptime, and nothing stays stopped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE

from steptime.changes import Change
from steptime.launcher import watchdog
from steptime.launcher.outcome import ProbeOptions
from steptime.launcher.variant import OUTPUT, VariantPlace, end_job, run_plain, run_variant, start_kept

WAYS = {
    "a session of its own": "subprocess.Popen(SLEEPER, start_new_session=True)",
    "a double fork": "os.fork() or (os.setsid(), os.fork() and os._exit(0), os.execv(SLEEPER[0], SLEEPER))",
    "a shell's background": "subprocess.run(['sh', '-c', 'setsid nohup ' + shlex.join(SLEEPER) + ' & :'])",
    "what ignores to be asked": "subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP INT; sleep 600; :', MARK])",
    "a stopped helper": "os.kill(subprocess.Popen(SLEEPER, start_new_session=True).pid, signal.SIGSTOP)",
    "its own reaper": "subprocess.Popen([sys.executable, '-c', REAPER], start_new_session=True)",
}
JOB = """
import os, shlex, signal, subprocess, sys, time
MARK = {mark!r}
SLEEPER = ["/bin/sh", "-c", "sleep 600; :", MARK]
REAPER = "import ctypes, os, subprocess, time; ctypes.CDLL(None).prctl(36, 1); " + (
    "subprocess.Popen(%r, start_new_session=True); time.sleep(600)" % SLEEPER)
{ways}
time.sleep(0.3)
print("started", flush=True)
{then}
"""


def marked(mark: str) -> list[psutil.Process]:
    """What lives of a job: all that has its mark in its words."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "status"])
        if process.pid != os.getpid()
        and process.info["status"] != psutil.STATUS_ZOMBIE
        and any(mark in word for word in process.info["cmdline"] or ())
    ]


def gone(mark: str) -> bool:
    """Whether nothing of it lives, soon."""
    until = time.monotonic() + PATIENCE
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.02)
    left = marked(mark)
    for process in left:
        process.kill()
    return not left


def job_with(folder: Path, mark: str, then: str = "") -> tuple[str, ...]:
    script = folder / f"{mark}.py"
    script.write_text(JOB.format(mark=mark, ways="\n".join(WAYS.values()), then=then))
    return sys.executable, str(script), mark


def test_what_a_job_has_started_ends_with_it(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-ended"
    words = job_with(tmp_path, mark, f"import subprocess; print(subprocess.run(['pgrep', '-fc', {mark!r}]))")
    outcome = run_plain(words, tmp_path / "run", (), VariantPlace(tmp_path), lambda: False)
    assert outcome.status == 0
    assert "started" in (tmp_path / "run" / OUTPUT).read_text()
    assert not marked(mark)


@pytest.mark.parametrize(("then", "status", "number"), [("sys.exit(7)", 7, None), ("os.abort()", 134, 6)])
def test_a_job_ends_as_it_did_without_a_watchdog(tmp_path: Path, then: str, status: int, number: int | None) -> None:
    outcome = run_plain(
        job_with(tmp_path, f"mark-{os.getpid()}-{status}", then), tmp_path / "run", (), VariantPlace(tmp_path), bool
    )
    assert (outcome.status, outcome.signal) == (status, number)


def test_a_job_that_is_reported_to_end_takes_all_with_it(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-told"
    words = job_with(tmp_path, mark, "time.sleep(600)")
    with (tmp_path / "out").open("wb") as output:
        job = start_kept(VariantPlace(tmp_path), words, os.environ, output, subprocess.STDOUT)
    until = time.monotonic() + PATIENCE
    while b"started" not in (tmp_path / "out").read_bytes() and time.monotonic() < until:
        time.sleep(0.02)
    assert len(marked(mark)) > len(WAYS), "else nothing is tried"
    end_job(job)
    assert not marked(mark)


KILLED = """
import os, signal, subprocess, sys, threading, time
from pathlib import Path
import psutil
from steptime.launcher import turns
from steptime.launcher.watchdog import OwnFolder
from steptime.launcher.variant import VariantPlace, start_kept

folder, words = Path(sys.argv[1]), sys.argv[2:]
place = VariantPlace(folder)
workspace = place.janitor.take(OwnFolder(folder / "copies" / "one"))
place.janitor.take_empty(folder / "copies")
workspace.mkdir(parents=True)
(workspace / "locked").mkdir(mode=0)
with (folder / "out").open("wb") as output:
    job = start_kept(place, words, os.environ, output, subprocess.STDOUT)
while b"started" not in (folder / "out").read_bytes():
    time.sleep(0.02)
stopped = psutil.Process(job.pid).children(recursive=True)
for each in stopped:
    each.send_signal(signal.SIGSTOP)
print(len(stopped), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_is_left_where_we_are_killed_nor_stays_stopped(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-killed"
    words = [sys.executable, "-c", KILLED, str(tmp_path), *job_with(tmp_path, mark, "time.sleep(600)")]
    killed = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert int(killed.stdout) > len(WAYS)
    assert gone(mark)
    until = time.monotonic() + PATIENCE
    while (tmp_path / "copies").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not (tmp_path / "copies").exists()


@pytest.mark.parametrize("ranks", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_of_torchrun_end_with_it(tmp_path: Path, ranks: int) -> None:
    pytest.importorskip("torch")
    mark = f"mark-{os.getpid()}-torchrun-{ranks}"
    script = tmp_path / f"{mark}.py"
    script.write_text(
        textwrap.dedent(f"""
        import os, pathlib, subprocess, sys, time
        subprocess.Popen(["/bin/sh", "-c", "sleep 600; :", {mark!r}], start_new_session=True)
        pathlib.Path("rank-" + os.environ["RANK"]).touch()
        time.sleep(600)
        """)
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script))
    there = [tmp_path / f"rank-{rank}" for rank in range(ranks)]
    seen: list[int] = []

    def over() -> bool:
        if not all(path.exists() for path in there):
            return False
        seen.append(len({os.getsid(each.pid) for each in marked(mark)}))
        return True

    outcome = run_plain(torchrun, tmp_path / "run", (), VariantPlace(tmp_path, deadline=PATIENCE), over)
    assert seen, outcome
    assert seen[-1] >= 1 + ranks, "else nothing has left the launcher's session"
    assert not marked(mark)


def test_no_variable_of_a_change_acts_before_the_process_is_contained(tmp_path: Path) -> None:
    """A library that a plan preloads would run in our own interpreter, which nothing contains yet."""
    job = tmp_path / "job.sh"
    job.write_text("env > seen\n")
    change = Change("environment", arguments=(("LD_DEBUG", "libs"), ("LD_DEBUG_OUTPUT", str(tmp_path / "loaded"))))
    run_plain(("sh", "job.sh"), tmp_path / "run", (change,), VariantPlace(tmp_path), lambda: False)
    assert "LD_DEBUG=libs" in (tmp_path / "seen").read_text()
    loaded = [path.read_text() for path in tmp_path.glob("loaded.*")]
    assert loaded
    assert not any("libpython" in text or "/python" in text.split("initialize program")[-1][:200] for text in loaded)


def test_a_number_that_is_another_process_s_by_now_is_left_alone() -> None:
    sleeper = subprocess.Popen(["sleep", "600"])
    try:
        watchdog.send(sleeper.pid, "1", signal.SIGKILL)
        assert sleeper.poll() is None
        ((number, began),) = [each for each in watchdog.descendants(os.getpid()) if each[0] == sleeper.pid]
        watchdog.send(number, began, signal.SIGKILL)
        assert sleeper.wait(PATIENCE) == -signal.SIGKILL
    finally:
        sleeper.kill()
        sleeper.wait()


def test_a_watched_job_is_ended_with_its_helpers(tmp_path: Path) -> None:
    mark = f"mark-{os.getpid()}-watched"
    outcome = run_variant(job_with(tmp_path, mark), tmp_path / "recording", ProbeOptions(), VariantPlace(tmp_path))
    assert outcome.status == 0
    assert not marked(mark)


LINKING = """
import json, os, pathlib, sys, time
recording, victim = pathlib.Path(json.loads(os.environ["STEPTIME_PROBE"])["recording"]), pathlib.Path(sys.argv[1])
for name in ("manifest.json.partial", "manifest.json", "telemetry.jsonl", "machine.json", "rest-request", "seen-torch"):
    (recording / name).unlink(missing_ok=True)
    (recording / name).symlink_to(victim / "thesis.tex")
(recording / "process-1").symlink_to(victim)
(recording / "process-2").mkdir()
(recording / "process-2" / "process.json").write_text(json.dumps({"host": os.uname().nodename, "pid": 1 << 22}))
(recording / "process-2" / "journal.bin").write_bytes(bytes(24 << 14))
(recording / "process-2" / "trace-2.json").write_text("{}")
for name in ("journal.packed.partial", "journal.packed", "trace-2.json.gz.partial"):
    (recording / "process-2" / name).symlink_to(victim / "thesis.tex")
(recording / "process-3").mkdir()
(recording / "process-3" / "trace-3.json").symlink_to(victim / "trace-1.json")
time.sleep(1.5)
"""


def test_a_link_that_a_job_makes_in_its_recording_leads_us_nowhere(tmp_path: Path) -> None:
    """Nothing contains us: through such a link we would write, pack or remove what is the user's."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "thesis.tex").write_text("mine")
    (victim / "trace-1.json").write_text("{}")
    (victim / "journal.bin").write_bytes(bytes(24 << 14))
    (victim / "process.json").write_text(json.dumps({"host": os.uname().nodename, "pid": 1 << 22}))
    before = {path.name: path.read_bytes() for path in victim.iterdir()}
    (tmp_path / "job.py").write_text(LINKING)
    words = (sys.executable, "job.py", str(victim))
    outcome = run_variant(words, tmp_path / "recording", ProbeOptions(), VariantPlace(tmp_path))
    assert outcome.status == 0
    assert {path.name: path.read_bytes() for path in victim.iterdir()} == before
    assert (tmp_path / "recording" / "process-2" / "trace-2.json.gz").exists(), "else nothing was packed at all"


def test_a_janitor_that_somebody_ends_is_followed_by_another(tmp_path: Path) -> None:
    janitor = watchdog.Janitor()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        janitor.take(watchdog.OwnFolder(tmp_path / name))
        for process in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # a child of another test that has ended meanwhile
                if watchdog.__file__ in process.cmdline() and name == "one":
                    process.kill()
                    while process.status() != psutil.STATUS_ZOMBIE:
                        time.sleep(0.01)
    janitor.close()
    assert list(tmp_path.iterdir()) == []
    janitor.close()
