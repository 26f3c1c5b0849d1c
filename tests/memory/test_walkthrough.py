"""The commands of docs/memory.md run as they are there."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from preloading import python

ROOT = Path(__file__).resolve().parent.parent.parent


def commands(heading: str) -> list[list[str]]:
    """The commands under a heading."""
    text = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def ran(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    assert words[0] == "steptime"
    rest = [python() if word == "python" else word for word in words[1:]]
    return subprocess.run([python(), "-m", "steptime", *rest], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_job_whose_memory_grows(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    shutil.copy(ROOT / "examples" / "kept_outputs.py", tmp_path)
    run, memory = (ran(words, tmp_path) for words in commands("A job whose memory grows"))
    assert run.returncode == 0, run.stderr
    assert re.search(
        r"^Memory grows by .* per step, full in .*: list outputs, at kept_outputs.py:20", run.stderr, re.MULTILINE
    )
    assert "Next:  steptime run --recording kept-changed -- " in run.stderr, "which says whether it is gone"
    assert memory.returncode == 0, memory.stderr
    leak = "Leak: list outputs grows at kept_outputs.py:20: 130 KiB in 2 tensors per step, with their graph"
    assert leak in memory.stdout.splitlines()
    grown = re.search(r"^Growth: resident memory grows by ([\d.]+) KiB per step", memory.stdout, re.MULTILINE)
    assert grown is not None
    assert 128 <= float(grown[1]) < 256  # 64 x 512 floats between the layers, 2.5 KiB, and what malloc adds


def test_the_snapshot_of_a_device_that_is_nearly_full(tmp_path: Path, shared_data: Path) -> None:
    shutil.copy(shared_data / "snapshots" / "medium_512_training_memory_snapshot.pickle", tmp_path)
    reported, written = (ran(words, tmp_path) for words in commands("A snapshot of a device that is nearly full"))
    assert reported.returncode == written.returncode == 0, reported.stderr + written.stderr
    documented = (ROOT / "docs" / "memory.md").read_text(encoding="utf-8")
    for line in reported.stdout.splitlines()[1:4]:
        assert line in documented
    assert "activation checkpointing of the 24 blocks called at model.py:253" in reported.stdout
    assert "Fits 24 GiB" in reported.stdout
    text = (tmp_path / "memory.md").read_text(encoding="utf-8")
    assert "how it was estimated" in text
    assert (tmp_path / "memory.json").exists()
