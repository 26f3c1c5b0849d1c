"""The page of a real run: what is on the screen is what the JSON next to it says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from once import made_once
from patience import PATIENCE
from preloading import python
from printed import violations
from report.step_views import events_of

from steptime.quantities import format_duration
from steptime.report import json
from steptime.report.report import Report

pytest.importorskip("torch")
JOB = """
import torch
from torch.utils.data import DataLoader, Dataset

class Items(Dataset):
    def __len__(self):
        return 8 * 160
    def __getitem__(self, index):
        total = sum(number % 7 for number in range(16000))
        return torch.full((64,), float(total % 5)), torch.tensor(1.0)

if __name__ == "__main__":
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for values, wanted in DataLoader(Items(), batch_size=8, num_workers=1):
        optimizer.zero_grad()
        (model(values).squeeze(1) - wanted).square().mean().backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with r.html and r.json, both of one run."""
    return made_once(tmp_path_factory, "real-run", write)


def write(folder: Path) -> None:
    (folder / "train.py").write_text(JOB, encoding="utf-8")
    words = ("run", "--quiet", "--no-peaks", "--recording", "r", "-o", "r.html", "-o", "r.json", "--full", "--")
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python(), "-m", "steptime", *words, python(), "train.py"], cwd=folder, env=environment,
                          capture_output=True, text=True, timeout=PATIENCE, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def reported(written: Path) -> Report:
    return json.read((written / "r.json").read_bytes(), "r.json")


def test_nothing_is_printed_that_cannot_be(reported: Report) -> None:
    assert violations(reported) == []


def test_the_screen_says_what_the_json_says(written: Path, reported: Report, open_text: Any) -> None:
    sheet = open_text((written / "r.html").read_text(encoding="utf-8"))
    process = reported.processes[0]
    assert sheet.words(sheet.page.locator("h1")) == process.verdict.sentence
    for use in process.case.categories:
        if use.duration.value < 0.001 * process.case.step.duration.value:
            continue  # the smallest share a row
        row = sheet.page.locator("#waterfall .row", has=sheet.page.get_by_text(use.name, exact=True))
        assert format_duration(use.duration.value) in sheet.words(row)
    assert process.series is not None
    assert len(process.series.kinds) == len(process.step_ns) == process.case.step.total
    sheet.page.locator("#series").focus()
    sheet.page.keyboard.press("End")
    assert sheet.words(sheet.page.locator("#chosen")).startswith(f"Step {len(process.step_ns)}: ")


def test_the_page_carries_the_traces_and_memory_by_owner(written: Path, reported: Report, open_text: Any) -> None:
    sheet = open_text((written / "r.html").read_text(encoding="utf-8"))
    process = reported.processes[0]
    assert process.traces
    assert process.memory_by_owner is not None
    assert "activations" in process.memory_by_owner.owners
    assert sheet.page.locator("#owners polygon").count() == len(process.memory_by_owner.owners)
    for number, trace in enumerate(process.traces):
        with sheet.page.expect_download() as download:
            sheet.page.locator("#traces button[data-keep]").nth(number).click()
        assert Path(download.value.path()).read_bytes() == (written / trace.path).read_bytes()


def test_the_profiled_step_is_a_timeline_with_its_worker(reported: Report) -> None:
    process = reported.processes[0]
    step_view = process.step_view
    assert step_view is not None
    assert process.series is not None
    assert process.series.names[process.series.kinds[step_view.step]] == "profiled"
    seen = events_of(step_view)
    posted = sum(each.end - each.start for each in seen if each.kind == "category")
    assert posted == step_view.end - step_view.start, "every nanosecond of the step"
    phases = {each.name for each in seen if each.kind == "phase"}
    assert {"input", "forward", "backward", "optimizer"} <= phases
    worked = {each.name for each in seen if each.kind == "worker"}
    assert worked, "a worker reads, collates, or waits: it is always at something"
    assert worked <= {"reads items", "collates", "waits for an index"}
    assert any(each.name.startswith("aten::") for each in seen if each.kind == "thread")


def test_the_categories_of_a_steady_step_sum_to_its_duration(reported: Report) -> None:
    process = reported.processes[0]
    series = process.series
    assert series is not None
    known = [step for step, steady in enumerate(process.steady) if steady]
    assert len(known) > 20
    assert all(sum(series.spent[step]) == process.step_ns[step] for step in known)
    assert all(sum(series.spent[step]) in (0, process.step_ns[step]) for step in range(len(process.steady)))
