"""No Python of ours imports from the folder that steptime is used in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from steptime.live.watching import diagnosis_command
from steptime.machine.environment import interpreter_with_torch
from steptime.own_python import own_python

NAMES = (
    "steptime", "queue", "types", "csv", "json", "email", "numpy", "psutil", "msgspec", "runpy", "sitecustomize",
    "usercustomize", "multiprocessing", "pickle", "socket", "zipfile", "hashlib", "random", "struct", "typing",
)  # fmt: skip


@pytest.fixture
def trapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules leave a mark, and the current one."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONSTARTUP", str(folder / "queue.py"))
    return tmp_path / "ran"


def test_a_module_of_ours_is_run_by_itself(trapped: Path) -> None:
    done = subprocess.run(own_python("steptime", "--version"), capture_output=True, text=True, check=True)
    assert done.stdout.startswith("steptime")
    assert not trapped.exists()


def test_a_diagnosis_of_the_live_view_imports_nothing_of_the_folders(trapped: Path) -> None:
    words = diagnosis_command(Path("no-recording"))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "(no-such-file)" in done.stderr, done.stderr
    assert not trapped.exists(), trapped.read_text()


def test_a_search_path_that_names_the_folder_does_not_count(trapped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f":{Path.cwd()}")
    monkeypatch.setattr(sys, "path", ["", str(Path.cwd()), *sys.path])
    done = subprocess.run(own_python("steptime", "--version"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not trapped.exists(), trapped.read_text()


def test_what_this_process_imports_from_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that a cluster's modules put on PYTHONPATH."""
    (tmp_path / "elsewhere_only.py").write_text("print('found')")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert subprocess.run(own_python("elsewhere_only"), capture_output=True, text=True, check=True).stdout == "found\n"


def test_looking_for_torch_imports_nothing_of_the_folders(trapped: Path) -> None:
    pytest.importorskip("torch")
    assert interpreter_with_torch(sys.executable) == sys.executable
    assert not trapped.exists(), trapped.read_text()


def test_ranks_are_read_in_processes_that_import_nothing_of_the_folders(trapped: Path) -> None:
    from steptime.analysis.stragglers.fleet import _local

    assert sorted(_local(json.loads, ["1", "2", "3"], 2)) == [1, 2, 3]
    assert not trapped.exists(), trapped.read_text()


def test_python_dash_m_drops_the_folder(trapped: Path) -> None:
    """`python -m steptime` in such a folder: what Python itself imports before us is not ours to prevent."""
    (Path.cwd() / "steptime.py").unlink()
    for name in ("types", "runpy", "sitecustomize", "usercustomize"):
        (Path.cwd() / f"{name}.py").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "steptime", "diagnose", "no-recording"], capture_output=True, text=True
    )
    assert "(no-such-file)" in done.stderr
    assert not trapped.exists(), trapped.read_text()
