"""`steptime bench-loader`: planted service times, settings that fail, what is no loader."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from preloading import python

from steptime.answer.text import as_text
from steptime.callables.loader_answer import answer_of
from steptime.callables.loader_bench import (
    SCRIPT,
    LoaderBench,
    LoaderBenchOptions,
    LoaderSetting,
    LoaderTransfer,
    best_of,
    usual_counts,
)
from steptime.cli.main import main
from steptime.machine.transfer_script import CudaCopies, transfers_of
from steptime.quantities import Estimate
from steptime.trials.containment import Layer, Workspace, ground_of

ITEM_NS = 12_000_000
DATA = f"""
import time
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

class Remote(Dataset):
    def __len__(self):
        return 20
    def __getitem__(self, index):
        time.sleep({ITEM_NS / 1e9})
        return torch.ones(8), index

class Stream(IterableDataset):
    def __iter__(self):
        yield from (torch.ones(8) for _ in range(64))

class Loud(Remote):
    def __getitem__(self, index):
        print("an item")
        return torch.ones(8)

class Broken(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        raise KeyError("no such sample")

def loader():
    return DataLoader(Remote(), batch_size=5, shuffle=True)

stream = DataLoader(Stream(), batch_size=16)
loud = DataLoader(Loud(), batch_size=5)
dataset = Remote()
broken = DataLoader(Broken())
number = 3
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.py"
    path.write_text(DATA, encoding="utf-8")
    return path


def test_items_that_wait_are_reported_and_workers_advised(
    data: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "loader.html"
    words = ["bench-loader", f"{data}:loader", "--workers", "0,2", "--prefetch", "3", "--seconds", "0.4s"]
    words += ["--python", python()]
    assert main([*words, "--json", "-o", str(page)]) == 0
    found = json.loads(capfd.readouterr().out)
    parts, settings = found["bench"]["parts"], {each["workers"]: each for each in found["bench"]["settings"]}
    assert parts["item_ns"] >= ITEM_NS
    assert parts["busy"] < 0.7  # waiting for a processor counts as work
    assert settings[0]["batch"]["low"] >= 5 * ITEM_NS
    assert found["bench"]["best"]["workers"] > 0
    assert found["headline"].startswith("Set num_workers=")
    assert settings[0]["samples"] == 5
    assert settings[2]["received"] > 0
    assert found["bench"]["variants"][0]["name"].endswith("prefetch_factor=3")
    assert "Set num_workers=" in page.read_text(encoding="utf-8")


def test_an_iterable_dataset_starts_again_where_it_is_used_up(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--workers", "0", "--seconds", "0.1s", "--python", python()]
    assert main(["bench-loader", f"{data}:stream", *words]) == 0
    assert "The current setting, num_workers=0, is the best" in capfd.readouterr().out


def test_workers_that_give_the_same_items_are_no_gain(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--workers", "0,2", "--seconds", "0.1s", "--python", python()]
    assert main(["bench-loader", f"{data}:stream", *words]) == 0
    reported = capfd.readouterr().out
    assert "The current setting, num_workers=0, is the best" in reported
    assert "Every worker yields the same items" in reported


def test_what_a_dataset_prints_for_each_item_is_not_displayed(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--workers", "0,1", "--seconds", "0.1s", "--python", python()]
    assert main(["bench-loader", f"{data}:loud", *words]) == 0
    out, err = capfd.readouterr()
    assert "an item" not in out + err
    assert "num_workers=1" in out


def test_a_dataset_is_reported_to_come_one_sample_a_batch(data: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-loader", f"{data}:dataset", "--workers", "0", "--seconds", "0.1s", "--python", python()]) == 0
    assert "each batch is one sample" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "KeyError"),
        ("number", "it is of type int. Expected a DataLoader, a dataset"),
        ("missing", "AttributeError"),
    ],
)
def test_what_gives_no_batch_is_one_sentence(
    data: Path, name: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench-loader", f"{data}:{name}", "--python", python()]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert message in error
    assert "bench-failed" in error


JOB = """
import pathlib, sys
import torch
from torch.utils.data import DataLoader, Dataset

here = pathlib.Path(__file__).parent

class Rows(Dataset):
    def __init__(self, count):
        self.count = count
    def __len__(self):
        return self.count
    def __getitem__(self, index):
        return torch.frombuffer(bytearray((here / f"{index}.row").read_bytes()), dtype=torch.float32), index

class Checked(Rows):
    pass

(here / "trained.txt").write_text(" ".join(sys.argv[1:]))
for batch in DataLoader(Checked(2)):
    pass
for _ in range(int(sys.argv[2])):
    for rows, targets in DataLoader(Rows(8), batch_size=4):
        print("trains")
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for index in range(8):
        (tmp_path / f"{index}.row").write_bytes(bytes(4096))
    path = tmp_path / "train.py"
    path.write_text(JOB, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return path


def test_the_loader_of_a_job_is_timed_without_training_or_writing(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By forks, which are in the overlays of a trial. They know nothing of Landlock."""
    layer = ground_of(Workspace((), job.parent / "trial", job.parent)).layer
    interpreter = python() if layer is Layer.OVERLAY else sys.executable
    words = ["--workers", "0", "--seconds", "0.1s", "--cold", "--kept", "--formats", "--json"]
    assert main(["bench-loader", *words, "--", interpreter, "-u", "train.py", "--epochs", "3"]) == 0
    found = json.loads(capfd.readouterr().out)["bench"]
    assert found["dataset"] == "Checked"
    assert found["parts"]["length"] == 2
    assert not (job.parent / "trained.txt").exists()
    (kept,) = found["variants"]
    assert kept["name"] == "num_workers=0, items kept in memory"
    stored = {each["name"]: each for each in found["formats"]}
    assert stored["a file each"]["bytes"] >= 4096
    assert stored["a file each"]["warm_ns"] > 0
    assert all(each.get("warm_ns") or each["left_out"] for each in stored.values())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["train.py", "--epochs", "0"], "dataset is not there"),
        (["sh", "-c", "true"], "steptime cannot reach the loader of sh"),
        (["fails.py"], "RuntimeError"),
        (["idle.py"], "the job never requested a batch from a DataLoader"),
    ],
)
def test_a_job_without_that_loader_is_one_sentence(
    job: Path, command: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (job.parent / "fails.py").write_text("raise RuntimeError('mine')", encoding="utf-8")
    (job.parent / "idle.py").write_text("import torch", encoding="utf-8")
    if command[0] == "train.py":
        (job.parent / "train.py").write_text("raise SystemExit('dataset is not there')", encoding="utf-8")
    words = command if command[0] == "sh" else [python(), *command]
    assert main(["bench-loader", "--", *words]) in (1, 2)
    assert message in capfd.readouterr().err.splitlines()[-1]


def test_what_is_stored_in_other_formats_is_read_back_whole(tmp_path: Path) -> None:
    """Each format that has its package here; the script runs in another interpreter, so this is its module alone."""
    script = SCRIPT.parent / "formats_script.py"
    check = tmp_path / "check.py"
    check.write_text(
        "import sys, pathlib, torch, importlib.util\n"
        f"sys.path.insert(0, {str(script.parent)!r})\n"
        "import formats_script as formats\n"
        "samples = [(torch.full((3, 2), float(number)), number) for number in range(40)]\n"
        "for kind, (write, opened) in formats.FORMATS.items():\n"
        "    folder = pathlib.Path(sys.argv[1]) / kind\n"
        "    folder.mkdir()\n"
        "    try:\n"
        "        write(folder, samples)\n"
        "    except ImportError:\n"
        "        continue\n"
        "    for number in (39, 0, 33):\n"
        "        rows, index = opened(folder)(number)\n"
        "        assert rows.tolist() == samples[number][0].tolist() and int(index) == number, kind\n"
        "    print(write.__name__)\n",
        encoding="utf-8",
    )
    run = subprocess.run([python(), str(check), str(tmp_path)], capture_output=True, text=True, check=False)
    assert {"write_files", "write_tar", "write_mapped"} <= set(run.stdout.split()), run.stderr


class SlowDevice(CudaCopies):
    """4 GB/s from pageable memory, during which the host waits; 16 GB/s from pinned memory, and 10 µs to start."""

    def __init__(self) -> None:
        self.pinned: list[int] = []

    def there(self) -> bool:
        return True

    def pin(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = [each.clone() for each in tensors]
        self.pinned = [id(each) for each in copies]
        return copies

    def copy(self, tensors: list[torch.Tensor], *, non_blocking: bool) -> list[torch.Tensor]:
        size = sum(each.nbytes for each in tensors)
        on_device = size / (16 if [id(each) for each in tensors] == self.pinned else 4)
        self.last = (10_000.0 if non_blocking else on_device, on_device)
        return tensors

    def timed(self, work: Callable[[], object]) -> tuple[float, float]:
        work()
        return self.last


class NoDevice(CudaCopies):
    def there(self) -> bool:
        return False


BATCH = [torch.zeros(4, 1000, dtype=torch.float32), torch.zeros(4, dtype=torch.int64)]


def test_a_batch_is_copied_to_a_device_in_three_ways_and_the_answer_says_what_pinning_saves() -> None:
    found = transfers_of(BATCH, SlowDevice())
    size = 4 * 1000 * 4 + 4 * 8
    assert [each["name"] for each in found] == ["pageable", "pinned", "pinned, non_blocking=True"]
    assert {each["bytes"] for each in found} == {size}
    assert [each["device_ns"] for each in found] == [size / 4, size / 16, size / 16]
    assert [each["host_ns"] for each in found] == [size / 4, size / 16, 10_000.0]
    assert [each.get("pin_ns", -1) >= 0 for each in found] == [False, True, True]
    assert transfers_of(BATCH, NoDevice()) == transfers_of([], SlowDevice()) == []

    larger = [LoaderTransfer("pageable", 64 << 20, 16e6, 16e6), LoaderTransfer("pinned", 64 << 20, 3e4, 4e6, 5e6)]
    own = replace(setting(0, 20e6), wait=Estimate(20e6, 20e6, 20e6, 8))
    options = LoaderBenchOptions("data.py:loader")
    known = LoaderBench(options, "2", "Rows", 2, False, False, None, own, own, (own,), (), (), 0.0, tuple(larger))
    text = as_text(answer_of(known))
    assert "a batch (64 MiB) takes 16 ms of the training thread from usual memory, and 30 µs with pin_memory" in text
    assert "4.19 GB/s" in text
    assert "to the device" not in as_text(answer_of(replace(known, transfers=()))).lower()


@pytest.mark.gpu
def test_a_batch_is_copied_to_this_device() -> None:
    pageable, pinned, behind = transfers_of([torch.zeros(64, 3, 224, 224)], CudaCopies())
    assert pageable["bytes"] == 64 * 3 * 224 * 224 * 4
    assert behind["host_ns"] < pinned["host_ns"] < 1.2 * pageable["host_ns"]
    assert 0.5 < behind["device_ns"] / pinned["device_ns"] < 2
    assert 1e9 < behind["bytes"] / behind["device_ns"] * 1e9 < 1e12, "what PCIe and NVLink carry"


def setting(workers: int, batch: float) -> LoaderSetting:
    return LoaderSetting(f"num_workers={workers}", workers, batch=Estimate(batch, batch, batch, 8))


def test_the_fewest_workers_are_best_that_come_near_the_fastest() -> None:
    found = best_of([setting(0, 40e6), setting(2, 10.2e6), setting(4, 10e6), LoaderSetting("failed", 8, failed="x")])
    assert found is not None
    assert found.workers == 2
    assert best_of([LoaderSetting("failed", 0, failed="x")]) is None


def test_what_was_asked_for_of_workers_is_tried_though_none_are_best() -> None:
    options = LoaderBenchOptions("data.py:loader", prefetch=(4,), contexts=("spawn",), batch_sizes=(8,), kept=True)
    assert options.variants(0, 2) == [
        {"workers": 0, "batch_size": 8}, {"workers": 2, "prefetch_factor": 4}, {"workers": 2, "context": "spawn"},
        {"workers": 0, "kept": True},
    ]  # fmt: skip
    assert options.variants(4, 1)[1] == {"workers": 4, "prefetch_factor": 4}


def test_up_to_twice_the_cpus_are_tried_and_no_more_than_a_host_bears() -> None:
    assert usual_counts(1) == (0, 1, 2)
    assert usual_counts(3) == (0, 1, 2, 4)
    assert usual_counts(128) == (0, 1, 2, 4, 8, 16)
