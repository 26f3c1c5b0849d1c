"""Jobs that set PYTHONPATH themselves are entered where their environment has steptime, and told of where it has not.

The environment is one of its own, as an installation makes it: the start-up file, and a folder with the packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
import venv
from pathlib import Path

import pytest
from patience import PATIENCE

from steptime.launcher import launch as launching
from steptime.launcher.launch import INJECT
from steptime.launcher.outcome import ProbeOptions, Progress
from steptime.launcher.progress import Overlooked

START = INJECT.parent / "steptime-start.pth"
SEEN = "import sys; print([type(each).__name__ for each in sys.meta_path].count('TorchFinder'))"
LEFT = f"import sys; print({str(INJECT)!r} in sys.path, 'sitecustomize' in sys.modules, 'steptime' in sys.modules)"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that has steptime, as an editable installation makes it."""
    folder = tmp_path_factory.mktemp("with") / "venv"
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "_steptime.pth").write_text(f"{INJECT.parents[2]}\n")
    shutil.copy(START, packages)
    return folder / "bin" / "python"


def seen(python: Path, folder: Path, *options: str, code: str = SEEN, **variables: str) -> str:
    started = {name: value for name, value in os.environ.items() if not name.startswith(("STEPTIME", "PYTHON"))}
    plan = json.dumps({"recording": str(folder)})
    run = subprocess.run(
        [python, *options, "-c", code],
        env={**started, "STEPTIME_PROBE": plan, "STEPTIME_INJECT": str(INJECT), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stderr == ""
    return run.stdout.strip()


@pytest.mark.parametrize("path", [".", "", "/nowhere", str(INJECT), f"{INJECT}:/nowhere", f"/nowhere:{INJECT}"])
def test_whatever_pythonpath_is_it_enters_once_and_leaves_nothing(environment: Path, tmp_path: Path, path: str) -> None:
    assert seen(environment, tmp_path, PYTHONPATH=path) == "1"
    assert len((tmp_path / "seen-python").read_text().split()) == 1
    assert seen(environment, tmp_path, PYTHONPATH=path, code=LEFT) == "False False False"


@pytest.mark.parametrize(("option", "times"), [("-I", "1"), ("-E", "1"), ("-s", "1"), ("-S", "0")])
def test_isolated_pythons_are_entered_where_start_up_files_run(
    environment: Path, tmp_path: Path, option: str, times: str
) -> None:
    assert seen(environment, tmp_path, option) == times


def test_an_isolated_python_runs_no_code_from_where_a_variable_leads(environment: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "steptime" / "capture" / "inject"
    elsewhere.mkdir(parents=True)
    (elsewhere / "sitecustomize.py").write_text("print('ran')")
    for option, runs in (("-I", False), ("-E", False), ("-s", True)):
        assert ("ran" in seen(environment, tmp_path, option, STEPTIME_INJECT=str(elsewhere))) is runs


def test_without_the_variable_or_its_folder_nothing_happens(environment: Path, tmp_path: Path) -> None:
    for variables in ({"STEPTIME_INJECT": ""}, {"STEPTIME_INJECT": str(tmp_path / "gone")}, {"STEPTIME_PROBE": ""}):
        assert seen(environment, tmp_path, **variables) == "0"
    assert list(tmp_path.iterdir()) == []


def test_the_users_own_sitecustomize_runs(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('theirs')")
    for path in (f"{tmp_path}", f"{INJECT}:{tmp_path}", f"{tmp_path}:{INJECT}"):
        assert seen(environment, tmp_path, PYTHONPATH=path) == "theirs\n1"


def test_the_wheel_has_it_at_its_root() -> None:
    project = (INJECT.parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    included = re.search(r"^\"(.+)\" = \"steptime-start\.pth\"$", project, re.MULTILINE)
    assert included is not None
    assert INJECT.parents[3] / included[1] == START
    lines = START.read_text().splitlines()
    assert all(line.startswith("import os; os.environ.get(") for line in lines), "site runs line by line"
    assert len(lines) == 2, "one for jobs that we start, one for those that stand by"


JOB = r"""
import mmap, os, sys, time
library = open(os.environ["LIBRARY"], "rb")
if "torch" in sys.argv[1]:
    mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
if "fork" in sys.argv[1]:
    os.fork()
os.write(1, b"%d\n" % os.getpid())
while not os.path.exists(os.environ["STOP"]):
    time.sleep(0.01)
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """What a process that has imported torch has mapped, by its name."""
    path = tmp_path / "libtorch_python.so"
    path.write_bytes(bytes(4096))
    return path


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python of an environment that has no steptime, and so no start-up file of its."""
    folder = tmp_path_factory.mktemp("foreign")
    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin" / "python")


def looked(python: str, folder: Path, library: Path, what: str, *options: str, **variables: str) -> str:
    """What is said of a Python that does this; of its fork, too."""
    with subprocess.Popen(
        [python, *options, "-c", JOB, what],
        env={**os.environ, "STEPTIME_INJECT": str(INJECT), "STEPTIME_PROBE": json.dumps({"recording": str(folder)}),
             "LIBRARY": str(library), "STOP": str(folder / "stop"), **variables},
        stdout=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        assert job.stdout is not None
        pids = [int(job.stdout.readline()) for _ in range(2 if "fork" in what else 1)]
        message = Overlooked(folder, lambda: pids).look()
        (folder / "stop").touch()
    return message


@pytest.mark.parametrize(
    ("options", "variables", "why", "help_"),
    [
        ((), {"PYTHONPATH": "."}, "replaced PYTHONPATH", "PYTHONPATH=.:$PYTHONPATH"),
        ((), {"PYTHONPATH": "/with space"}, "replaced PYTHONPATH", "PYTHONPATH='/with space':$PYTHONPATH"),
        (("-S",), {}, "with python -S", "leave that out"),
        (("-BI",), {"PYTHONPATH": str(INJECT)}, "with python -I", "pip install steptime"),
    ],
)
def test_what_imports_torch_without_us_is_reported_with_what_helps(
    foreign: str,
    tmp_path: Path,
    library: Path,
    options: tuple[str, ...],
    variables: dict[str, str],
    why: str,
    help_: str,
) -> None:
    message = looked(foreign, tmp_path, library, "torch", *options, **variables)
    assert why in message
    assert help_ in message
    assert message.startswith(foreign)
    assert message.endswith("(not-entered)")


@pytest.mark.parametrize(
    ("what", "path"), [("helper", "."), ("torch", str(INJECT)), ("torch fork", str(INJECT)), ("helper fork", ".")]
)
def test_what_needs_no_torch_or_was_entered_is_no_alarm(
    foreign: str, tmp_path: Path, library: Path, what: str, path: str
) -> None:
    assert looked(foreign, tmp_path, library, what, PYTHONPATH=path) == ""


def test_a_launch_tells_it_while_the_job_runs(
    foreign: str, tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell script that replaces PYTHONPATH, in an environment without the start-up file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIBRARY", str(library))
    stop = tmp_path / "stop"
    monkeypatch.setenv("STOP", str(stop))
    (tmp_path / "train.py").write_text(JOB)
    (tmp_path / "run.sh").write_text(f"export PYTHONPATH=$PWD\n{foreign} train.py torch\n")
    reported: list[Progress] = []
    until = time.monotonic() + PATIENCE

    def show(progress: Progress) -> None:
        reported.append(progress)
        if progress.notice or time.monotonic() > until:
            stop.touch()

    outcome = launching.launch(["sh", "run.sh"], tmp_path / "recording", ProbeOptions(), show)
    notice = next(progress for progress in reported if progress.notice)
    assert f"PYTHONPATH={tmp_path}:$PYTHONPATH" in notice.notice
    assert not outcome.python_seen
