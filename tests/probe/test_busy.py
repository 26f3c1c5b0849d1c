"""How much of the making of a batch is work, and what follows for the number of workers: real loaders on two CPUs."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import python

pytest.importorskip("torch")

from steptime.advice.assemble import assemble
from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.fix import CallEdit
from steptime.advice.fixes.input import fitting_workers
from steptime.advice.rules.input import too_few_workers
from steptime.analysis.layout import lay_out_whole
from steptime.journal import BUSY_PARTS, busy_flags
from steptime.probe import loader
from steptime.recording.load import load

INJECT = Path(__file__).resolve().parents[2] / "src" / "steptime" / "probe" / "inject"

JOB = """
import os, sys, time
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

kind, workers = sys.argv[1], int(sys.argv[2])
seconds = 0.1 if kind == "waits" else 0.02  # long beside what a thread of a busy machine waits for a CPU


class Items(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, index):
        if kind == "waits":
            time.sleep(seconds)
        end, number = time.thread_time() + (seconds if kind == "computes" else 0.0), index
        while time.thread_time() < end:
            number = (number * 1103515245 + 12345) % 2147483648
        return torch.rand(8), 0.5


if __name__ == "__main__":
    torch.set_num_threads(1)
    net = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step, (x, y) in enumerate(DataLoader(Items(), batch_size=2 if kind == "waits" else 4, num_workers=workers)):
        (net(x).squeeze(-1) - y).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 14:
            break
"""


def case_of(folder: Path, kind: str, workers: int) -> Case:
    """A run of the job, as the rules see it."""
    script, recording = folder / "job.py", folder / "recording"
    script.write_text(JOB)
    recording.mkdir()
    plan = {"recording": str(recording), "profile": False}
    environment = {**os.environ, "STEPTIME_PROBE": json.dumps(plan), "PYTHONPATH": str(INJECT), "STEPTIME_DEBUG": "1"}
    subprocess.run([python(), str(script), kind, str(workers)], env=environment, check=True, timeout=PATIENCE)
    process = load(recording).processes[0]
    return assemble(process, lay_out_whole(process))


def proposed(case: Case) -> list[int]:
    """The numbers of workers that are tried: in the change and in the patch the same."""
    numbers = []
    for option in fitting_workers(case):
        assert isinstance(option.edit, CallEdit)
        arguments, keywords = dict(option.changes[0].arguments), dict(option.edit.keywords)
        assert keywords["num_workers"] == str(arguments["num_workers"])
        numbers.append(int(keywords["num_workers"]))
    return numbers


def test_items_that_only_wait_get_as_many_workers_as_would_do(tmp_path: Path) -> None:
    case = case_of(tmp_path, "waits", 0)
    assert case.loader is not None
    assert case.loader.busy is not None
    assert case.loader.busy < 0.25
    tried = proposed(case)
    assert tried
    assert min(tried) >= 8, "on two CPUs"
    found = [each for each in examine(case, (too_few_workers,)).findings if each.code == "ST102"]
    assert f"num_workers={tried[0]}" in found[0].advice
    assert "waiting" in found[0].advice


@pytest.mark.parametrize("workers", [0, 4])
def test_items_that_compute_stay_within_the_cpus(tmp_path: Path, workers: int) -> None:
    """Also where the workers outnumber the CPUs: waiting for a CPU is not what more workers could share."""
    case = case_of(tmp_path, "computes", workers)
    assert case.loader is not None
    assert case.loader.busy is not None
    if workers and not Path(loader.SCHEDULED).exists():
        pytest.skip("this system does not tell how long a thread waits for a CPU")
    assert case.loader.busy > 0.67
    assert all(number <= 2 for number in proposed(case))


def test_a_share_is_a_number_between_none_and_all() -> None:
    assert busy_flags(0, 10) == 1
    assert busy_flags(5, 10) == 1 + BUSY_PARTS // 2
    assert busy_flags(30, 10) == 255, "threads of the items' own"
    assert busy_flags(-3, 10) == 1
    assert busy_flags(1, 0) == 0


def test_a_batch_that_an_error_ended_leaves_nothing_to_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader._BusyState, "due", 0)
    monkeypatch.setattr(loader, "SCHEDULED", "/nowhere/at/all")
    clock = iter((100, 500, 700, 730))
    monkeypatch.setattr(loader._BusyState, "clock", lambda: next(clock))
    thread = threading.get_ident()
    loader.fetch_starts(thread, 1)
    loader.fetch_starts(thread, 2)  # too early to be sampled again
    loader.collate_starts(thread)
    assert loader.busy_shares(thread, 2, 1_000, 2_000) == (0, 0)
    loader.fetch_starts(thread, 1 + loader.PERIOD)
    loader.collate_starts(thread)
    assert loader.busy_shares(thread, 0, 400, 1_000) == (busy_flags(200, 400), busy_flags(30, 600))
    assert not loader._BusyState.scheduled
