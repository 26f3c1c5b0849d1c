"""A watched job is the same job: what it sees of itself, what it computes, how it ends. No difference is allowed.

Every test runs the same command twice, bare and through `launch`, and compares. What is ours by design and left out
of the comparison is named in observed_job.py: our environment variables, the finder that waits for torch (gone as
soon as torch is there), our files in the recording, modules called steptime.*, and our entry in gc.callbacks. A
function of torch that is timed keeps its object, name, signature, documentation and source, but not its code object.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from preloading import python

from benchmarks.faithful.looking import OBSERVED, TORCH_ENDINGS, bare, differences, properties, watched

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")
FEWEST_PROPERTIES = 29
ENDINGS = ("0", "3", "raise", "chain", "words", "hard", "SIGINT", "SIGTERM", "SIGKILL", "SIGUSR1")
MORE_TORCH_ENDINGS = ("0", "3", "backward", "chain", "hard", "SIGINT")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(OBSERVED, tmp_path / "job", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "users").mkdir()
    return tmp_path / "job"


def other_python(version: str) -> str:
    """The interpreter of another version than ours, as PATH has it."""
    path = shutil.which(f"python{version}")
    if path is not None and f"{sys.version_info.major}.{sys.version_info.minor}" != version:
        ask = [path, "-c", "import sys; print(sys.executable)"]
        asked = subprocess.run(ask, capture_output=True, text=True, check=False)
        if asked.returncode == 0:
            return asked.stdout.strip()
    pytest.skip(f"no other Python {version} is here")


@pytest.mark.parametrize(
    ("how", "mode"),
    [
        ("module", "plain"),
        pytest.param("script", "torch", marks=needs_torch),
        pytest.param("script", "plain", marks=pytest.mark.slow),
        pytest.param("module", "torch long", marks=[needs_torch, pytest.mark.slow]),
    ],
)
def test_a_job_cannot_tell_that_it_is_watched(folder: Path, mode: str, how: str) -> None:
    job = ["-m", "observed_job"] if how == "module" else ["observed_job.py"]
    words = [sys.executable, *job, *mode.split()]
    alone, together = properties(bare(words, folder)), properties(watched(words, folder))
    assert differences(alone, together) == {}
    assert len(alone) >= FEWEST_PROPERTIES
    assert (folder / "recording" / "seen-torch").exists() == (mode != "plain")
    assert len(list((folder / "recording").glob("process-*/trace-*.json*"))) == (0 if mode == "plain" else 4)


def test_the_comparison_sees_a_tool_that_runs_the_script_itself(folder: Path) -> None:
    words = [sys.executable, "observed_job.py", "plain"]
    runpy = "import runpy, sys; sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
    through = bare([sys.executable, "-c", runpy, *words[1:]], folder)
    first = json.loads(through.stdout.decode().splitlines()[0]) if through.stdout else {}
    assert len(differences(properties(bare(words, folder)), first)) > 5


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
@pytest.mark.parametrize("how", ["script", "module"])
def test_other_pythons_than_ours_are_left_alone_as_well(folder: Path, version: str, how: str) -> None:
    job = ["observed_job.py"] if how == "script" else ["-m", "observed_job"]
    words = [other_python(version), *job, "plain"]
    assert differences(properties(bare(words, folder)), properties(watched(words, folder))) == {}


@pytest.mark.parametrize("how", ENDINGS)
def test_a_job_ends_as_it_would_have_ended(folder: Path, how: str) -> None:
    compare_endings(folder, [sys.executable, "endings.py", how, "plain"])


@needs_torch
@pytest.mark.parametrize("how", TORCH_ENDINGS)
def test_a_training_job_ends_as_it_would_have_ended(folder: Path, how: str) -> None:
    compare_endings(folder, [python(), "endings.py", how, "torch"])


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("how", [*TORCH_ENDINGS, *MORE_TORCH_ENDINGS])
def test_a_training_job_in_a_python_of_its_own_ends_as_it_would_have_ended(folder: Path, how: str) -> None:
    compare_endings(folder, [sys.executable, "endings.py", how, "torch"])


def compare_endings(folder: Path, words: Sequence[str]) -> None:
    alone, together = bare(words, folder), watched(words, folder)
    assert together.returncode == alone.returncode
    assert together.stdout.decode() == alone.stdout.decode()
    assert together.stderr.decode() == alone.stderr.decode()
    manifest = json.loads((folder / "recording" / "manifest.json").read_text())
    assert manifest["exit_status"] == (alone.returncode if alone.returncode >= 0 else 128 - alone.returncode)
    assert manifest["ended_by_signal"] == (-alone.returncode if alone.returncode < 0 else None)


FOLDS = """
import gc, weakref, torch
def fold(steps, compiled):
    model = torch.nn.Linear(8, 1)
    if compiled:
        model.compile(backend="eager")
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()
    return [weakref.ref(each) for each in (model, optimizer, model.weight)]
for compiled in (False, True, True, False):
    left = fold(300, compiled)
    torch.compiler.reset()
    gc.collect()
    print([each() is None for each in left])
"""


LIVES = """
import sys, weakref, torch
model, seen = torch.nn.Linear(64, 64), []
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
def table():
    made = torch.arange(64 * 200.0).reshape(200, 64).cos()
    life = weakref.ref(made)
    kept = made * 2
    del made
    return kept, life() is None, sys.getrefcount(kept)
def train():
    for step in range(60):
        batch, (rows, gone, holders) = torch.ones(200, 64), table()
        life = weakref.ref(rows)
        loss = model(batch + rows).square().mean()
        loss.backward()
        optimizer.step(); optimizer.zero_grad()
        seen.append([gone, holders, *map(sys.getrefcount, (batch, rows, model, optimizer, model.weight))])
        del rows
        seen.append([life() is None, sys.getrefcount(table)])
train()
for each in seen: print(*each)
"""


@needs_torch
def test_lives_and_reference_counts_are_the_jobs_own_in_every_step(folder: Path) -> None:
    """All looks of the probe are within these steps, those at results that come again, too."""
    (folder / "lives.py").write_text(LIVES)
    words = [python(), "lives.py"]
    alone, together = bare(words, folder), watched(words, folder)
    assert (together.stdout.decode(), together.returncode) == (alone.stdout.decode(), 0), together.stderr
    facts = [path.read_text() for path in (folder / "recording").rglob("facts.jsonl")]
    assert any('"repeats"' in each and "table()" in each for each in facts)


@needs_torch
def test_models_that_a_job_drops_are_gone(folder: Path) -> None:
    """The memory of a fold is the next one's."""
    finished = watched([python(), "-c", FOLDS], folder)
    assert finished.stdout.decode().splitlines() == ["[True, True, True]"] * 4, finished.stderr
    assert (folder / "recording").is_dir()


def test_an_interrupt_is_minus_two_and_a_termination_minus_fifteen(folder: Path) -> None:
    words = [sys.executable, "endings.py"]
    assert watched([*words, "SIGINT", "plain"], folder).returncode == -signal.SIGINT
    shutil.rmtree(folder / "recording")
    assert watched([*words, "SIGTERM", "plain"], folder).returncode == -signal.SIGTERM


def test_a_sitecustomize_that_ours_hides_runs_as_it_would(folder: Path) -> None:
    users = folder / "users"
    (folder / "users").mkdir()
    (users / "sitecustomize.py").write_text("import sys\nLOADED = sorted(sys.modules)\nprint('theirs', __file__)\n")
    words = [sys.executable, "-c", "import sitecustomize as it; print(it.LOADED, it.__spec__.origin)"]
    alone, together = bare(words, folder), watched(words, folder)
    assert (alone.stdout, alone.stderr) == (together.stdout, together.stderr)
    assert b"theirs" in alone.stdout


def test_a_sitecustomize_that_fails_fails_as_it_would(folder: Path) -> None:
    (folder / "users").mkdir()
    (folder / "users" / "sitecustomize.py").write_text("import no_such_module\n")
    words = [sys.executable, "-c", "import sys; print('sitecustomize' in sys.modules)"]
    alone, together = bare(words, folder), watched(words, folder)
    assert (alone.stdout, alone.stderr) == (together.stdout, together.stderr)
    assert b"no_such_module" in alone.stderr
