"""Trials of jobs that rotate, move, delete and append: what an earlier real run has left is as it was.

Each job is made from a seed: files of an earlier run, and some of the actions below in some order, at some step. Every
other one runs without overlays, in a copy that Landlock guards.
"""

from __future__ import annotations

import hashlib
import random
import sys
import tempfile
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from steptime.changes import VariantOptions
from steptime.launcher.variant import OUTPUT
from steptime.trials import containment
from steptime.trials.containment import Layer, Workspace, ground_of, leave
from steptime.trials.execute import ScheduledRun, execute
from steptime.trials.trial import Variant

LAYERS = (Layer.OVERLAY, Layer.LANDLOCK)
MAPPED = 40 << 20
"""Bytes of an input that is mapped into memory: more than what a process of a trial may copy."""
ACTIONS = {
    "rotate": "[old.unlink() for old in sorted(Path('ckpt').glob('step-*.pt'))[:2]]",
    "rename a log": "Path('out/log.csv').rename('out/log.1.csv')",
    "move": "shutil.move('best.pt', 'ckpt/best-of-before.pt')",
    "replace": "torch.save(1, 'ckpt/last.partial'); os.replace('ckpt/last.partial', 'ckpt/last.pt')",
    "delete a folder": "shutil.rmtree('cache')",
    "rename a folder": "os.rename('previous', 'before-previous')",
    "append": "open('train.log', 'a').write('a line\\n')",
    "append in a shell": "subprocess.run('echo line >> shell.log', shell=True, check=True)",
    "append to a data base": "append_to_data_base()",
    "truncate": "os.truncate('metrics.jsonl', 0)",
    "overwrite": "open('config.json', 'w').write('{}')",
    "save over": "torch.save({'a': 1}, 'model.pt')",
    "edit inside": "edit('model.bin')",
    "map": "change_mapped('inputs.bin')",
    "make folders": "os.makedirs('new/deep', exist_ok=True); open('new/deep/a', 'w').write('1')",
    "hard link": "os.link('notes.txt', 'notes-linked.txt'); open('notes-linked.txt', 'a').write('more')",
    "through a link": "open('latest', 'a').write('more')",
    "mode and time": "os.chmod('notes.txt', 0o600); os.utime('notes.txt', (1, 1))",
    "delete in a shell": "subprocess.run(['rm', '-rf', 'logs'], check=True)",
    "write by an absolute path": "forgiving(lambda: open(ELSEWHERE + '/result.txt', 'w').write('trial'))",
    "delete by an absolute path": "forgiving(lambda: os.remove(ELSEWHERE + '/old.txt'))",
    "move by an absolute path": "forgiving(lambda: os.replace(ELSEWHERE + '/a.txt', ELSEWHERE + '/b.txt'))",
    "absolute, in a shell": "subprocess.run(['sh', '-c', 'echo 1 >> ' + ELSEWHERE + '/shell.txt'])",
}
FILES = (
    "out/log.csv", "ckpt/step-1.pt", "ckpt/step-2.pt", "ckpt/step-3.pt", "ckpt/last.pt", "best.pt", "cache/a/b.bin",
    "previous/all.txt", "train.log", "shell.log", "metrics.jsonl", "config.json", "model.pt", "model.bin", "notes.txt",
    "logs/1/events", "logs/2/events",
)  # fmt: skip
OUTSIDE = ("result.txt", "old.txt", "a.txt", "b.txt", "shell.txt")
SCRIPT = """
import mmap, os, shutil, sqlite3, subprocess
from pathlib import Path

import numpy
import torch

ELSEWHERE = {elsewhere!r}


def forgiving(action):
    try:  # what a system that guards files refuses
        action()
    except OSError as error:
        print("refused:", error)


def append_to_data_base():
    with sqlite3.connect("runs.sqlite") as runs:
        runs.execute("create table if not exists steps (number)")
        runs.execute("insert into steps values (1)")
    runs.close()


def edit(path):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[:4] = b"mine"


def change_mapped(path):
    inputs = numpy.memmap(path, dtype="float32")
    inputs[:8] = 1
    assert inputs[:8].sum() == 8


torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(400):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{actions}
"""


@dataclass(frozen=True)
class TrialRun:
    """One process of a trial. changed: names of the user's that are not as before."""

    number: int
    layer: str
    actions: tuple[str, ...]
    names: int
    changed: int
    faults: tuple[str, ...]


def run_trials(seed: int, count: int, first: int = 0) -> Iterator[TrialRun]:
    """One process of each of `count` jobs; what a job does follows from the seed and its number."""
    for number in range(first, first + count):
        draw = random.Random(f"{seed} {number}")
        actions = tuple(draw.sample(list(ACTIONS), draw.randint(5, len(ACTIONS))))
        with tempfile.TemporaryDirectory() as folder:  # on a disk, as jobs are
            yield _tried(Path(folder), number, LAYERS[number % len(LAYERS)], actions, draw)


def _tried(folder: Path, number: int, layer: Layer, actions: tuple[str, ...], draw: random.Random) -> TrialRun:
    job = _make(folder, actions, draw)
    before = _state(folder / "user")
    with patch.object(containment, "overlays_work", containment.overlays_work if layer is Layer.OVERLAY else _none):
        workspace = Workspace((sys.executable, "train.py"), folder / "trial", job, keep=True)
        ground = ground_of(workspace)
        options = VariantOptions(steps=3, warm_up=3)
        run = execute(workspace, ScheduledRun(Variant("baseline"), 0, 0, 0, options, rehearsal=True, deadline=120))
        leave(workspace)
    after = _state(folder / "user")
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    faults = [f"changed: {name}" for name in changed]
    if run.failure:
        faults.append(f"did not run: {run.failure}")
    elif (done := (workspace.folder / "variants" / run.folder / OUTPUT).read_text().count("did ")) < len(actions):
        faults.append(f"did {done} of {len(actions)} actions")
    if ground.layer is not layer:
        faults.append(f"this machine does not permit {layer.value}")
    return TrialRun(number, ground.layer.value, actions, len(before), len(changed), tuple(faults))


def _none(*_: object) -> bool:
    return False


def _make(folder: Path, actions: tuple[str, ...], draw: random.Random) -> Path:
    job, elsewhere = folder / "user" / "job", folder / "user" / "elsewhere"
    for path in (*(job / name for name in FILES), *(elsewhere / name for name in OUTSIDE)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(draw.randbytes(draw.randint(8, 5000)))
    (job / "latest").symlink_to("ckpt/last.pt" if draw.random() < 0.5 else elsewhere / "result.txt")
    with (job / "inputs.bin").open("wb") as file:
        file.truncate(MAPPED)
    lines = [
        f"    if step == {draw.randrange(4)}:\n        {ACTIONS[name]}\n        print('did {name}')" for name in actions
    ]
    if draw.random() < 0.5:
        lines = [line.replace("ELSEWHERE", "'../elsewhere'") for line in lines]
    (job / "train.py").write_text(SCRIPT.format(elsewhere=str(elsewhere), actions="\n".join(lines)))
    return job


def _state(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in folder.rglob("*"):
        known = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (known.st_mode, known.st_ino, known.st_mtime_ns, content)
    return found


def trials_table(trials: list[dict[str, object]]) -> list[str]:
    """A row for each way of containing a process."""
    lines = [
        "\n| trial runs of jobs that rotate, move, delete and append | runs | actions | names of the user's | changed "
        "| faults |",
        "|---|---|---|---|---|---|",
    ]
    for layer in LAYERS:
        mine = [trial for trial in trials if trial["layer"] == layer.value]
        if mine:
            actions, names, changed, faults = (_total(mine, name) for name in ("actions", "names", "changed", "faults"))
            lines.append(f"| contained by {layer.value} | {len(mine)} | {actions} | {names} | {changed} | {faults} |")
    return lines


def _total(trials: list[dict[str, object]], name: str) -> int:
    values = [trial[name] for trial in trials]
    return sum(value if isinstance(value, int) else len(value) for value in values if isinstance(value, int | Sized))
