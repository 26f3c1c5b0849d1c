"""A job as people write them, which rotates, moves, deletes, appends and maps what an earlier real run has left."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

LARGE = 40 << 20
"""Bytes of the input that is mapped into memory: more than what a process of a trial may copy (`changes.outside`)."""
TRAIN = """
import os, shutil, sqlite3, subprocess, sys
from pathlib import Path

import numpy
import torch

torch.manual_seed(0)
ABSOLUTE = {absolute!r}


def forgiving(action, *arguments):
    # What a system that guards files may refuse.
    try:
        action(*arguments)
    except OSError as error:
        print(f"refused: {{error}}")


def begin():
    Path("out/log.csv").rename("out/log.1.csv")
    for old in sorted(Path("ckpt").glob("step-*.pt"))[:2]:
        old.unlink()
    shutil.move("best.pt", "ckpt/best-of-before.pt")
    os.rename("previous", "before-previous")
    shutil.rmtree("cache")
    os.truncate("train.log", 0)
    os.mkdir("fresh")
    os.link("notes.txt", "fresh/notes.txt")
    os.symlink("notes.txt", "fresh/latest")
    os.chmod("notes.txt", 0o600)
    forgiving(Path(ABSOLUTE).write_text, "from a trial")
    forgiving(os.remove, ABSOLUTE + ".old")
    forgiving(os.truncate, ABSOLUTE + ".log", 0)


def save(step, model):
    torch.save(model.state_dict(), "ckpt/last.pt.partial")
    os.replace("ckpt/last.pt.partial", "ckpt/last.pt")
    with sqlite3.connect("runs.sqlite") as runs:
        runs.execute("insert into steps values (?)", (step,))
    runs.close()
    os.system("echo step >> shell.log")
    subprocess.run(["sh", "-c", f"echo step >> {{ABSOLUTE}}.shell 2>/dev/null"])


def main():
    begin()
    known = os.stat("inputs.bin")
    inputs = numpy.memmap("inputs.bin", dtype="float32")
    inputs[:8] = 1  # its own, and nobody else's
    shared = torch.from_file("inputs.bin", True, 8)
    shared += 1
    assert os.stat("inputs.bin").st_ctime_ns == known.st_ctime_ns, "it was copied"
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(400):
        batch = torch.from_numpy(numpy.array(inputs[:32])).reshape(4, 8) + torch.randn(4, 8)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 2:
            assert float(inputs[0]) == 1
            save(step, model)


main()
"""


def make_job(folder: Path, elsewhere: Path) -> Path:
    """The job with what an earlier run of it has left, in its folder and elsewhere; returns its folder."""
    for name in ("out", "ckpt", "previous", "cache"):
        (folder / name).mkdir(parents=True)
    elsewhere.mkdir(parents=True)
    absolute = elsewhere / "result.txt"
    (folder / "train.py").write_text(TRAIN.format(absolute=str(absolute)))
    for name in ("best.pt", "out/log.csv", "ckpt/step-1.pt", "ckpt/step-2.pt", "ckpt/step-3.pt", "ckpt/last.pt"):
        (folder / name).write_text(f"{name} of an earlier run")
    for name in ("train.log", "shell.log", "notes.txt", "previous/all.txt", "cache/a.bin"):
        (folder / name).write_text(f"{name} of an earlier run")
    for suffix in ("", ".old", ".log", ".shell"):
        Path(f"{absolute}{suffix}").write_text("the user's")
    with sqlite3.connect(folder / "runs.sqlite") as runs:
        runs.execute("create table steps (number)")
    runs.close()
    with (folder / "inputs.bin").open("wb") as file:
        file.truncate(LARGE)
    return folder


def state_of(*folders: Path) -> dict[str, tuple[object, ...]]:
    """Every name with its kind, mode, time and bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(path for folder in folders for path in (folder, *folder.rglob("*"))):
        known = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = (known.st_mode, known.st_ino, known.st_mtime_ns, content)
    return found
