"""The probe enters exactly when torch has been imported, however that comes about, and only then.

A stand-in for torch keeps these tests apart from the real one: what matters is when the probe starts, not what it does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from steptime.launcher.launch import INJECT

SEEN = """
import sys
def seen():
    probe = sys.modules.get("steptime.probe")
    finders = [finder for finder in sys.meta_path if type(finder).__name__ == "TorchFinder"]
    return probe is not None, len(finders)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a package called torch, which the probe cannot use: so it says that it switched itself off."""
    package = tmp_path / "torch"
    (package / "nn").mkdir(parents=True)
    failing = "import os\nif os.environ.get('FAIL'):\n    import no_such_library\n"
    (package / "__init__.py").write_text(failing + "VERSION = 1\n")
    (package / "nn" / "__init__.py").write_text("DEPTH = 2\n")
    (tmp_path / "recording").mkdir()
    return tmp_path


def python(folder: Path, code: str, *, probe: bool = True, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(INJECT), str(folder)]), **settings}
    if probe:
        environment["STEPTIME_PROBE"] = json.dumps({"recording": str(folder / "recording")})
    return execute([sys.executable, "-c", SEEN + code], folder, environment)


def execute(words: Sequence[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_without_torch_it_stays_out(folder: Path) -> None:
    assert python(folder, "print(seen())").stdout == "(False, 1)\n"


def test_without_a_plan_it_does_nothing(folder: Path) -> None:
    finished = python(folder, "import torch; print(seen(), 'sitecustomize' in sys.modules)", probe=False)
    assert finished.stdout == "(False, 0) False\n"
    assert finished.stderr == ""
    assert list((folder / "recording").iterdir()) == []


@pytest.mark.parametrize(
    "code",
    [
        "import torch",
        "import torch.nn",
        "from torch.nn import DEPTH",
        "import importlib; importlib.import_module('torch')",
        "__import__('torch')",
        "import importlib.util; importlib.util.find_spec('torch'); import torch",
        "import importlib.util; importlib.util.find_spec('torch.nn')",
        "import importlib.util as u; s = u.find_spec('torch'); m = u.module_from_spec(s); s.loader.exec_module(m)",
        "import threading; t = threading.Thread(target=lambda: __import__('torch')); t.start(); t.join()",
        "import os\nif not os.fork():\n import torch; print(seen(), flush=True); os._exit(0)\nos.wait(); import torch",
    ],
)
def test_it_enters_with_torch_and_the_finder_leaves(folder: Path, code: str) -> None:
    finished = python(folder, code + "\nprint(seen())")
    assert set(finished.stdout.splitlines()) == {"(True, 0)"}, finished.stderr
    assert (folder / "recording" / "seen-torch").exists()


@pytest.mark.parametrize(
    "code",
    [
        "import importlib.util; importlib.util.find_spec('torch')",
        "import importlib.util; importlib.util.find_spec('torchvision')",
        "import importlib.metadata; list(importlib.metadata.distributions())",
        "import pkgutil; list(pkgutil.iter_modules())",
    ],
)
def test_asking_where_torch_is_does_not_let_it_in(folder: Path, code: str) -> None:
    assert python(folder, code + "\nprint(seen())").stdout == "(False, 1)\n"


def test_a_lazily_loaded_torch_lets_it_in_when_it_is_used(folder: Path) -> None:
    code = """
import importlib.util
spec = importlib.util.find_spec("torch")
loader = importlib.util.LazyLoader(spec.loader)
spec.loader = loader
module = importlib.util.module_from_spec(spec)
sys.modules["torch"] = module
loader.exec_module(module)
print(seen()); module.VERSION; print(seen())
"""
    assert python(folder, code).stdout == "(False, 1)\n(True, 0)\n"


@pytest.mark.parametrize("code", ["import torch", "import torch.nn", "__import__('importlib').import_module('torch')"])
def test_an_import_of_torch_that_fails_fails_as_without_us(folder: Path, code: str) -> None:
    caught = f"try:\n    {code}\nexcept ImportError as error:\n    print(traceback.format_exc(), error.name)"
    code = f"import traceback\n{caught}\n{code}"
    alone, together = python(folder, code, probe=False, FAIL="1"), python(folder, code, FAIL="1")
    assert (alone.stdout, alone.stderr, alone.returncode) == (together.stdout, together.stderr, together.returncode)
    assert "no_such_library" in together.stderr


def test_a_second_try_after_a_failed_import_lets_it_in(folder: Path) -> None:
    code = """
import os
try:
    import torch
except ImportError:
    print(seen())
del os.environ["FAIL"]
import torch
print(seen())
"""
    assert python(folder, code, FAIL="1").stdout == "(False, 1)\n(True, 0)\n"


def test_a_missing_torch_is_missing_as_without_us(tmp_path: Path) -> None:
    code = "sys.path = [entry for entry in sys.path if 'site-packages' not in entry]\nimport torch"
    assert python(tmp_path, code).stderr == python(tmp_path, code, probe=False).stderr


def test_a_reload_of_torch_does_not_start_it_twice(folder: Path) -> None:
    finished = python(folder, "import importlib, torch; importlib.reload(torch); print(seen())")
    assert finished.stdout == "(True, 0)\n"
    assert finished.stderr.count("switched off") == 1


def test_the_loader_keeps_its_type_and_its_attributes(folder: Path) -> None:
    code = """
import importlib.machinery, inspect, torch
loader = torch.__loader__
print(type(loader) is importlib.machinery.SourceFileLoader, sorted(vars(loader)), loader is torch.__spec__.loader)
print(inspect.getsource(torch) == loader.get_source("torch"), torch.__spec__.origin == torch.__file__)
"""
    assert python(folder, code).stdout == "True ['name', 'path'] True\nTrue True\n"


def test_what_fails_in_the_probe_is_one_line_and_the_job_goes_on(folder: Path) -> None:
    finished = python(folder, "import torch; print(torch.VERSION)")
    assert (finished.returncode, finished.stdout) == (0, "1\n")
    (line,) = finished.stderr.splitlines()
    assert line.startswith("steptime: switched off: ")
    assert line.endswith("; the job goes on")


@pytest.mark.parametrize("words", ["2>&-", "2>/dev/full", "<&- >&- 2>&-"])
def test_a_standard_error_that_takes_nothing_does_not_reach_the_job(folder: Path, words: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(INJECT), str(folder)])}
    environment["STEPTIME_PROBE"] = json.dumps({"recording": str(folder / "recording")})
    job = "import torch; open('imported', 'w')"
    shell = ["sh", "-c", f'exec "$@" {words}', "sh", sys.executable, "-c", job]
    assert execute(shell, folder, environment).returncode == 0
    assert (folder / "imported").exists()


def test_another_steptime_in_the_users_environment_is_what_the_job_imports(folder: Path) -> None:
    (folder / "steptime").mkdir()
    (folder / "steptime" / "__init__.py").write_text("VERSION = 'theirs'\n")
    code = "import torch, steptime; print(steptime.__path__[0])"
    assert python(folder, code).stdout.strip() == str(folder / "steptime")


def test_a_job_that_has_loaded_another_steptime_keeps_it(folder: Path) -> None:
    (folder / "steptime").mkdir()
    (folder / "steptime" / "__init__.py").write_text("VERSION = 'theirs'\n")
    finished = python(folder, "import steptime, torch; print(steptime.VERSION)")
    assert finished.stdout == "theirs\n"


def test_a_recording_that_was_removed_does_not_disturb(folder: Path) -> None:
    (folder / "recording").rmdir()
    finished = python(folder, "print(seen())")
    assert (finished.stdout, finished.stderr) == ("(False, 1)\n", "")


def test_the_resource_tracker_of_multiprocessing_is_not_entered(folder: Path) -> None:
    command = "import sys; sys.argv; print([type(f).__name__ for f in sys.meta_path if 'Torch' in type(f).__name__])"
    comment = "  # from multiprocessing.resource_tracker import main"
    environment = {**os.environ, "PYTHONPATH": str(INJECT), "STEPTIME_PROBE": '{"recording": "x"}'}
    assert execute([sys.executable, "-c", command], folder, environment).stdout == "['TorchFinder']\n"
    assert execute([sys.executable, "-c", command + comment], folder, environment).stdout == "[]\n"


def test_the_folder_on_the_users_path_holds_nothing_else() -> None:
    assert [path.name for path in INJECT.iterdir() if path.name != "__pycache__"] == ["sitecustomize.py"]
