"""Every way in which people start training: each process that trains is found, and the job's output is its own.

The jobs train a tiny model for a few steps; what is compared is what they print.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import textwrap
import venv
from collections.abc import Sequence
from pathlib import Path

import pytest
from preloading import python

pytest.importorskip("torch")

LAUNCHER = """
import sys
from pathlib import Path
from steptime.launcher.launch import ProbeOptions, exit_as, launch
exit_as(launch(sys.argv[2:], Path(sys.argv[1]), ProbeOptions()))
"""
TRAIN = """
import os, sys
import torch

def train(steps=8, seed=0):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(3, 4)).square().sum()
        loss.backward()
        optimizer.step()
    return loss.item().hex()
"""
LIBRARY = textwrap.dedent(TRAIN)
SCRIPT = LIBRARY + "\nprint(train(), sys.argv[1:], os.getcwd(), flush=True)\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "library.py").write_text(LIBRARY)
    return tmp_path


def run(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def trained(folder: Path, words: Sequence[str], bare: Sequence[str] = ()) -> list[Path]:
    """Runs the job bare and watched, compares, and returns the folders of the processes that trained. bare: what does
    the same in less time."""
    alone = run(bare or [python() if word == sys.executable else word for word in words], folder)
    assert alone.returncode == 0, alone.stderr
    together = run([sys.executable, "-I", "-c", LAUNCHER, str(folder / "recording"), *words], folder)
    assert together.stderr == alone.stderr
    assert sorted(together.stdout.splitlines()) == sorted(alone.stdout.splitlines())
    assert together.returncode == 0
    return sorted((folder / "recording").glob("process-*"))


def facts(process: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((process / "process.json").read_text())
    return found


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return f"./{path.name}"


def test_a_script(folder: Path) -> None:
    (process,) = trained(folder, [python(), "train.py", "--lr", "1"])
    assert facts(process)["argv"] == [sys.executable, "train.py", "--lr", "1"]
    assert (process / "journal.bin").stat().st_size > 0


def test_a_module(folder: Path) -> None:
    assert len(trained(folder, [python(), "-m", "train"])) == 1


def test_code_on_the_command_line(folder: Path) -> None:
    assert len(trained(folder, [python(), "-c", "from library import train; print(train())"])) == 1


def test_code_on_standard_input(folder: Path) -> None:
    assert len(trained(folder, ["sh", "-c", f"{python()} - x < train.py"])) == 1


def test_a_program_with_an_interpreter_line(folder: Path) -> None:
    assert len(trained(folder, [script(folder / "program", f"#!{python()}\n{SCRIPT}")])) == 1


def test_a_shell_script_with_two_trainings(folder: Path) -> None:
    lines = f"set -e\n{python()} train.py first\n{python()} train.py second\n"
    assert len(trained(folder, ["bash", script(folder / "all.sh", lines)])) == 2


@pytest.mark.slow
def test_trainers_that_multiprocessing_spawns(folder: Path) -> None:
    (folder / "many.py").write_text(
        "import torch.multiprocessing as mp\nfrom library import train\n"
        "import os\ndef work(rank):\n    os.write(1, f'{rank} {train(seed=rank)}\\n'.encode())\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n"
    )
    assert len(trained(folder, [sys.executable, "many.py"])) == 2


def test_trainers_that_are_forked(folder: Path) -> None:
    (folder / "many.py").write_text(
        "import multiprocessing as mp\nfrom library import train\n"
        "import os\ndef work(rank):\n    os.write(1, f'{rank} {train(seed=rank)}\\n'.encode())\n"
        "if __name__ == '__main__':\n"
        "    many = [mp.get_context('fork').Process(target=work, args=(rank,)) for rank in range(2)]\n"
        "    [one.start() for one in many]; [one.join() for one in many]\n"
    )
    processes = trained(folder, [python(), "many.py"])
    assert len({facts(process)["pid"] for process in processes}) == 2


@pytest.mark.parametrize("rounds", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_many_short_processes_that_import_torch_and_train_nothing(folder: Path, rounds: int) -> None:
    (folder / "short.py").write_text(
        f"import subprocess\nwords = [{python()!r}, '-c', 'import torch; print(torch.ones(1).item())']\n"
        f"for _ in range({rounds}):\n    many = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(8)]\n"
        "    print(*(each.communicate()[0] for each in many), *(each.returncode for each in many))\n" + SCRIPT
    )
    assert len(trained(folder, [python(), "short.py"])) == 1


@pytest.mark.parametrize("ranks", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_the_ranks_of_torchrun(folder: Path, ranks: int) -> None:
    (folder / "ranks.py").write_text(
        LIBRARY + "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "print(dist.get_rank(), train(seed=dist.get_rank()), flush=True)\n"
        "dist.barrier()\n"  # a rank that leaves while another one still connects ends that one with an error
        "dist.destroy_process_group()\n"
        "import time\ntime.sleep(0.3)\n"  # gloo's threads end a moment later: a process gone before may abort
    )
    torchrun = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    processes = trained(folder, [*torchrun, "ranks.py"])
    found = [(facts(process)["rank"], facts(process)["world_size"]) for process in processes]
    assert sorted(found) == [(rank, ranks) for rank in range(ranks)]


def test_a_program_that_changes_its_folder(folder: Path) -> None:
    (folder / "outputs").mkdir()
    (folder / "chdir.py").write_text("import os\nos.chdir('outputs')\n" + SCRIPT)
    assert len(trained(folder, [python(), "chdir.py"])) == 1
    assert list((folder / "outputs").iterdir()) == []


@pytest.mark.slow  # test_programs.py does it with both halves trained
def test_a_program_that_starts_itself_anew(folder: Path) -> None:
    (folder / "anew.py").write_text(
        "import os, sys\nimport torch\nif len(sys.argv) == 1:\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\n" + SCRIPT
    )
    assert len(trained(folder, [python(), "anew.py"], bare=[python(), "anew.py", "again"])) == 1


def test_workers_of_a_loader_are_no_trainers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRELOADED_SPAWNS_ARE_FORKS", "1")
    (folder / "loads.py").write_text(
        LIBRARY + "from torch.utils.data import DataLoader\n"
        "if __name__ == '__main__':\n"
        "    for context in ('fork', sys.argv[1]):\n"
        "        print(len(list(DataLoader(range(8), num_workers=1, multiprocessing_context=context))))\n"
        "    print(train())\n"
    )
    assert len(trained(folder, [python(), "loads.py", "spawn"], bare=[python(), "loads.py", "fork"])) == 1


def test_a_module_called_steptime_is_not_imported_by_us(folder: Path) -> None:
    (folder / "steptime.py").write_text("print('a module of the job is imported')\n")
    trained(folder, [python(), "train.py"])


def test_an_environment_that_has_no_steptime(folder: Path) -> None:
    """torch is lent to it by a path file; steptime, installed elsewhere or not at all, comes from the launcher."""
    import torch

    venv.create(folder / "theirs", with_pip=False, symlinks=True)
    theirs = folder / "theirs" / "bin" / "python"
    (packages,) = (folder / "theirs" / "lib").glob("python*/site-packages")
    lent = packages / "lent"
    lent.mkdir()
    for entry in Path(torch.__file__).parent.parent.iterdir():
        ours = entry.name.startswith(("steptime", "_steptime", "__editable__", "__pycache__"))
        if not ours and entry.suffix != ".pth":
            (lent / entry.name).symlink_to(entry)
    (packages / "lent.pth").write_text("lent\n")
    code = "import importlib.util as u, runpy; assert u.find_spec('steptime') is None; runpy.run_path('train.py')"
    (process,) = trained(folder, [str(theirs), "-c", code], bare=[python(), "train.py"])
    assert facts(process)["executable"] == str(theirs)
