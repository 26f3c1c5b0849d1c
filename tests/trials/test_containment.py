"""No process of a trial changes the user's files: with overlays, with Landlock, and seen where there is neither."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python
from trials.rotating_job import make_job, state_of

from steptime.changes import VariantOptions
from steptime.errors import NothingMeasuredError, UsageError
from steptime.trials import containment, execute as executing
from steptime.trials.conduct import TrialRunner
from steptime.trials.containment import Layer, Workspace, contained, ground_of, refuse_uncontained
from steptime.trials.execute import ScheduledRun, execute
from steptime.trials.results import NAME, Plan, append_result
from steptime.trials.trial import Run, Variant

pytest.importorskip("torch")

COMMAND = (sys.executable, "train.py")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return make_job(tmp_path / "job", tmp_path / "elsewhere")


def force(layer: Layer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a system that permits no more than this."""
    containment._ground.cache_clear()
    monkeypatch.setattr(containment, "_worked", set())
    if layer is not Layer.OVERLAY:
        monkeypatch.setattr(containment, "overlays_work", lambda *_: False)
    if layer is Layer.COPY:
        monkeypatch.setattr(containment, "guards", lambda: False)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    containment._ground.cache_clear()


def run(workspace: Workspace) -> Run:
    return execute(
        workspace,
        ScheduledRun(
            Variant("baseline"), 0, 0, 0, VariantOptions(steps=3, warm_up=3), rehearsal=True, deadline=PATIENCE
        ),
    )


def permitted(workspace: Workspace, layer: Layer) -> None:
    if ground_of(workspace).layer is not layer:
        pytest.skip(f"this system does not permit {layer.value}")


@pytest.mark.parametrize("layer", [Layer.OVERLAY, Layer.LANDLOCK])
def test_every_byte_and_every_name_is_as_before(
    job: Path, tmp_path: Path, layer: Layer, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(layer, monkeypatch)
    # A fork enters namespaces, and knows nothing of Landlock.
    command = (python(), "train.py") if layer is Layer.OVERLAY else COMMAND
    workspace = Workspace(command, tmp_path / "trial", job, keep=True)
    permitted(workspace, layer)
    before = state_of(job, tmp_path / "elsewhere")
    done = run(workspace)
    assert state_of(job, tmp_path / "elsewhere") == before
    assert (done.failure, done.outside) == ("", ())
    assert len(done.losses) == 6
    refused = (tmp_path / "trial" / "variants" / done.folder / "output.log").read_text().count("refused")
    assert refused == (0 if layer is Layer.OVERLAY else 3)
    ground_of(workspace).janitor.await_cleared()
    assert not list((tmp_path / "trial" / "copies").iterdir())


def test_what_nothing_can_prevent_is_seen_and_ends_the_trial(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a copy that nothing guards: the folder stays as it was, and what the job names by its path is told."""
    force(Layer.COPY, monkeypatch)
    plan = Plan(COMMAND, str(job), "", (), 0.03)
    trial = tmp_path / "trial"
    append_result(trial, plan=plan)
    before = state_of(job)
    with pytest.raises(
        NothingMeasuredError, match=r"changed .*elsewhere.*, so steptime stopped the trial.*not-contained"
    ):
        TrialRunner(Workspace(COMMAND, trial, job), plan).conduct(0, (Variant("RM101"),))
    assert state_of(job) == before
    (reported,) = (trial / NAME).read_text().splitlines()[1:]
    for name in ("result.txt", "result.txt.old", "result.txt.log", "result.txt.shell"):
        assert str(tmp_path / "elsewhere" / name) in reported
    accepted = run(Workspace(COMMAND, tmp_path / "accepted", job, uncontained=True))
    assert (accepted.failure, str(tmp_path / "elsewhere" / "result.txt") in accepted.outside) == ("", True)
    assert state_of(job) == before


def test_a_change_of_the_users_folder_that_no_hook_hears_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(Layer.COPY, monkeypatch)
    job = tmp_path / "job"
    (job / "ckpt").mkdir(parents=True)
    (job / "ckpt" / "last.pt").write_text("mine")
    path = job / "ckpt" / "last.pt"
    (job / "train.py").write_text(f"import ctypes; ctypes.CDLL(None).unlink({str(path).encode()!r})")
    assert run(Workspace(COMMAND, tmp_path / "trial", job)).outside == (str(path),)


def test_what_cannot_be_contained_is_refused_before_anything_starts(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(COMMAND, tmp_path / "trial", job, outside=(tmp_path / "elsewhere" / "result.txt",))
    if ground_of(workspace).layer is Layer.OVERLAY:
        refuse_uncontained(workspace)
    remote = Workspace(("python", "train.py", "--out=s3://bucket/run"), tmp_path / "trial", job)
    with pytest.raises(UsageError, match=r"names --out=s3://bucket/run.*--uncontained"):
        refuse_uncontained(remote)
    refuse_uncontained(Workspace(("python", "--see", "https://a/b", "file:///a"), tmp_path / "trial", job))
    force(Layer.LANDLOCK, monkeypatch)
    with pytest.raises(UsageError, match=r"elsewhere/result.txt, outside its folder.*--uncontained"):
        refuse_uncontained(workspace)
    assert not workspace.folder.exists()
    refuse_uncontained(Workspace(COMMAND, tmp_path / "trial", job, outside=workspace.outside, uncontained=True))


def test_workspaces_lie_elsewhere_where_the_folder_of_the_trial_cannot_hold_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    works = containment.overlays_work
    monkeypatch.setattr(
        containment, "overlays_work", lambda base, *more: base != tmp_path / "trial" and works(base, *more)
    )
    workspace = Workspace(("true",), tmp_path / "trial", tmp_path / "job")
    permitted(workspace, Layer.OVERLAY)
    with contained_words(workspace) as words:
        subprocess.run([*words, "sh", "-c", "echo 1 > new; echo 1 > ../new"], check=True)
        assert list((tmp_path / "tmp").rglob("new"))
    containment.leave(workspace)
    assert [path.name for path in tmp_path.rglob("*")] == ["job", "tmp", "trial", "recording"]


def test_a_process_that_fills_the_disk_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("import time; open('big', 'wb').write(bytes(1000)); time.sleep(60)")
    free = iter([1 << 40, 1 << 40, 1 << 20, *[1 << 20] * 9])
    monkeypatch.setattr(executing, "free_bytes", lambda _: next(free))
    assert "filled the disk" in run(Workspace(COMMAND, tmp_path / "trial", tmp_path / "job")).failure


@pytest.mark.timeout(PATIENCE)
def test_an_interrupt_in_the_middle_of_a_look_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("import time; time.sleep(10**6)")

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    workspace = Workspace(COMMAND, tmp_path / "trial", tmp_path / "job")
    with pytest.raises(KeyboardInterrupt):
        execute(
            workspace, ScheduledRun(Variant("baseline"), 0, 0, 0, VariantOptions(steps=3), deadline=10**6), interrupt
        )
    ground_of(workspace).janitor.await_cleared()
    assert not list((tmp_path / "trial" / "copies").iterdir())


OBSERVANT = """
import json, os, signal, socket, subprocess, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
state = {
    "user": os.getuid(),
    "groups": os.getgroups(),
    "folder": os.getcwd(),
    "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN,
    "open": sorted(os.listdir("/proc/self/fd")),
    "leader": os.getpid() == os.getsid(0),
    "locale": os.environ.get("LC_CTYPE"),
    "shared": open("/dev/shm/" + sys.argv[2], "w").write("1"),
    "hidden": os.path.exists(sys.argv[3]),
}
print(json.dumps(state))
"""


def test_a_process_is_what_it_would_be_without(tmp_path: Path) -> None:
    """Signals, descriptors, identity, services and shared memory; a shell takes the place of the job's interpreter,
    which changes some of that itself."""
    workspace = Workspace(("true",), tmp_path / "trial", tmp_path / "job")
    workspace.directory.mkdir()
    permitted(workspace, Layer.OVERLAY)
    with contained_words(workspace) as words, socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "service"))
        service.listen()
        name = f"steptime-test-{os.getpid()}"
        given = [str(tmp_path / "service"), name, str(tmp_path / "trial" / "copies")]
        shell = ["sh", "-c", 'kill -PIPE $$; echo "SIGPIPE is ignored"']
        try:
            alone, inside = (
                [
                    subprocess.run(
                        [*before, *command], capture_output=True, text=True, cwd=workspace.directory, env=env
                    )
                    for command in ([sys.executable, "-c", OBSERVANT, *given], shell)
                ]
                for before, env in (([], {"PATH": os.environ["PATH"]}), (words, {"PATH": os.environ["PATH"]}))
            )
        finally:
            Path("/dev/shm", name).unlink()
    assert inside[0].stderr == ""
    observed = json.loads(inside[0].stdout)
    assert observed.pop("hidden") is False
    assert observed == {key: value for key, value in json.loads(alone[0].stdout).items() if key != "hidden"}
    assert [each.returncode for each in inside] == [each.returncode for each in alone] == [0, -signal.SIGPIPE]


def test_a_patched_source_is_what_the_process_reads_wherever_it_lies(tmp_path: Path) -> None:
    workspace = Workspace(("true",), tmp_path / "trial", tmp_path / "project" / "job")
    workspace.directory.mkdir(parents=True)
    script = tmp_path / "project" / "train.py"
    script.write_text("old")
    script.chmod(0o750)
    permitted(workspace, Layer.OVERLAY)
    with contained_words(workspace, [("../train.py", "new")]) as words:
        reported = subprocess.check_output([*words, "sh", "-c", "cat ../train.py; stat -c %a ../train.py"], text=True)
    assert reported == "new750\n"
    assert script.read_text() == "old"


def test_folders_in_shared_memory_are_contained_and_shared_memory_is_shared(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, tempfile.NamedTemporaryFile(dir="/dev/shm") as shared:
        (Path(folder) / "data").write_text("the user's")
        workspace = Workspace(("true",), tmp_path / "trial", Path(folder))
        permitted(workspace, Layer.OVERLAY)
        with contained_words(workspace) as words:
            subprocess.run([*words, "sh", "-c", f"echo 1 > data; echo 1 > new; echo 1 > {shared.name}"], check=True)
        assert [path.read_text() for path in Path(folder).iterdir()] == ["the user's"]
        assert shared.read() == b"1\n"
    left = Workspace(
        ("true",), tmp_path / "trial", Path("/dev/shm")
    )  # no overlay, and nothing that Landlock could guard
    assert ground_of(left).layer is Layer.COPY


def test_caches_of_compilers_last_from_one_process_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "users").write_text("1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "there"))
    workspace = Workspace(("true",), tmp_path / "trial", tmp_path / "job")
    workspace.directory.mkdir()
    permitted(workspace, Layer.OVERLAY)
    command = 'cd "$1"; cat users kept; echo 2 > kept; ls "$2"; echo 3 > "$2/third"'
    reported = []
    for _ in range(2):
        with contained_words(workspace) as words:
            shell = [*words, "sh", "-c", command, "sh", str(cache), str(tmp_path / "not" / "there")]
            reported.append(subprocess.run(shell, capture_output=True, text=True, check=True).stdout)
    assert reported == ["1", "12\nthird\n"]
    assert sorted(path.name for path in cache.iterdir()) == ["users"]
    assert not (tmp_path / "not").exists()
    containment.leave(workspace)
    assert list(workspace.folder.iterdir()) == [workspace.folder / "recording"]


def test_a_system_that_forbids_namespaces_is_recognised(tmp_path: Path) -> None:
    """In a namespace that lets no further one be made, as a container's rules do."""
    (tmp_path / "job").mkdir()
    script = (
        "from pathlib import Path; from steptime.trials.containment import Workspace, ground_of; "
        f"folder = Path({str(tmp_path)!r}); ground = ground_of(Workspace((), folder / 'trial', folder / 'job')); "
        "print(ground.layer.value)"
    )
    shell = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -c "$1"'
    words = ["unshare", "--user", "--map-root-user", "sh", "-c", shell, sys.executable, script]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no namespace can be made here: {done.stderr}")
    assert done.stdout.strip() in ("landlock", "copy")
    assert not (tmp_path / "trial").exists() or not list((tmp_path / "trial").rglob("*.json"))


UNPRIVILEGED = """
import os, sys
from pathlib import Path
os.setgroups([]); os.setgid(65534); os.setuid(65534)
os.environ["HOME"] = sys.argv[1]
sys.path.insert(0, sys.argv[2])
from steptime.trials.containment import Workspace, ground_of, contained
import subprocess
folder = Path(sys.argv[1])
stand = Workspace(("true",), folder / "mine" / "trial", folder / "shared" / "job")
print(ground_of(stand).layer.value, flush=True)
recording = stand.folder / "variants" / "a"
recording.mkdir(parents=True)
with contained(stand, "a", recording) as (_, place):
    subprocess.run([*place.entry, "sh", "-c", sys.argv[3]], cwd=place.directory, check=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="takes root to become another user")
def test_a_user_without_privilege_is_contained_in_a_folder_of_a_group(tmp_path: Path) -> None:
    """What lies above the job's folder belongs to others, and so does the folder, which its group may write to."""
    for path in (tmp_path, *tmp_path.parents[:-2]):
        path.chmod(0o755)
    (tmp_path / "mine").mkdir()
    os.chown(tmp_path / "mine", 65534, 65534)
    job = tmp_path / "shared" / "job"
    job.mkdir(parents=True)
    (job / "log").write_text("the user's")
    os.chown(job, 0, 65534)
    job.chmod(0o2775)
    package = tmp_path / "package"
    python = "/usr/bin/python3"
    shutil.copytree(Path(containment.__file__).parents[1], package / "steptime")
    words = [python, "-c", UNPRIVILEGED, str(tmp_path), str(package), "rm log; echo 1 > new; mv new newer; ls"]
    done = subprocess.run(words, capture_output=True, text=True)
    if "ModuleNotFoundError" in done.stderr or done.stdout.startswith("landlock"):
        pytest.skip("another user has no interpreter with our dependencies here, or no namespaces")
    assert (done.stdout, done.stderr) == ("overlay\nnewer\n", "")
    assert [path.name for path in job.iterdir()] == ["log"]


@contextmanager
def contained_words(workspace: Workspace, sources: Sequence[tuple[str, str]] = ()) -> Iterator[tuple[str, ...]]:
    recording = workspace.folder / "recording"
    recording.mkdir(parents=True, exist_ok=True)
    with contained(workspace, "a", recording, sources) as (_, place):
        yield place.entry
