"""`steptime.log_to` and `steptime.record` in real jobs, with the real loggers."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import PATIENCE
from preloading import python

from steptime import probe
from steptime.in_process import log_to
from steptime.recording.load import load

pytest.importorskip("torch")

PARTS = ("input", "forward", "backward", "optimizer", "other")
JOB = """
import sys, torch, steptime
from torch.utils.data import DataLoader, TensorDataset
{start}
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for epoch in range(3):
    for number, (batch,) in enumerate(DataLoader(TensorDataset(torch.ones(640, 64)), batch_size=8)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        {step}
{end}
print("whole")
"""


def run(folder: Path, start: str, end: str = "", step: str = "", launch: tuple[str, ...] = ()) -> str:
    """Standard error of a job that must come to its end."""
    script = folder / "train.py"
    script.write_text(JOB.format(start=start, end=end, step=step), encoding="utf-8")
    words = (python(), *launch, *((python(),) if launch else ()), str(script))
    found = subprocess.run(words, cwd=folder, capture_output=True, text=True, env=environment(folder), check=False)
    assert (found.returncode, found.stdout) == (0, "whole\n"), found.stderr
    return found.stderr


def environment(folder: Path) -> dict[str, str]:
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "MLFLOW_ALLOW_FILE_STORE": "true"}
    return {**os.environ, **offline, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}


UNDER_RUN = ("-m", "steptime", "run", "--quiet", "--no-peaks", "--no-profile", "--recording", "rec")
TENSORBOARD = "from torch.utils.tensorboard import SummaryWriter; writer = SummaryWriter('events')"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Of event files, read by TensorBoard itself: (step, value) by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {name: [(each.step, each.value) for each in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_a_job_by_itself_is_recorded_and_its_numbers_are_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "psutil.py").write_text("raise SystemExit('a module of the job')", encoding="utf-8")
    message = run(tmp_path, f"{TENSORBOARD}; steptime.log_to(writer, every=0)", "writer.close()")
    found = scalars(tmp_path / "events")
    names = ("step_ms", "samples_per_second", "memory_mib", *(f"{part}_ms" for part in PARTS))
    assert set(found) == {f"steptime/{name}" for name in names}
    for place, (step, value) in enumerate(found["steptime/step_ms"]):
        assert 1 < step <= 240
        assert sum(found[f"steptime/{part}_ms"][place][1] for part in PARTS) == pytest.approx(value, rel=1e-4)
        assert found["steptime/samples_per_second"][place][1] == pytest.approx(8000 / value, rel=0.02)
    assert found["steptime/memory_mib"][0][1] > 50
    (folder,) = (tmp_path / "runs").iterdir()
    assert message == f"steptime: recorded runs/{folder.name}: steptime diagnose runs/{folder.name}\n"
    until(lambda: load(folder).manifest.ended_epoch_ns)
    recording = load(folder)
    assert recording.problems == ()
    assert recording.processes[0].loaders[0].batch_size == 8


def until(met: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_run_log_finds_the_writer_that_the_job_has_open(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    closed = "other = SummaryWriter('closed'); other.close()"
    start = f"import steptime.probe.schedule as schedule; schedule.LOG_SECONDS = 0.0; {TENSORBOARD}; {closed}"
    assert run(tmp_path, start, launch=(*UNDER_RUN, "--log", "--")) == ""
    assert scalars(tmp_path / "events")["steptime/step_ms"]
    assert scalars(tmp_path / "closed") == {}
    assert len(list((tmp_path / "closed").iterdir())) == 1


def test_a_function_gets_each_number_with_the_jobs_own_step(tmp_path: Path) -> None:
    start = "seen = []; steptime.log_to(lambda *each: seen.append(each), every=0, step=lambda: 7000 + len(seen))"
    run(
        tmp_path,
        start,
        "assert seen[0][0] == 'steptime/step_ms' and seen[0][2] == 7000, seen",
        launch=(*UNDER_RUN, "--"),
    )


def test_a_logger_that_fails_ends_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    start = "steptime.log_to(lambda name, value, step: 1 / 0, every=0)"
    message = run(tmp_path, start, launch=(*UNDER_RUN, "--"))
    assert message == "steptime: no more numbers are logged (ZeroDivisionError: division by zero); the job goes on\n"
    recording = load(tmp_path / "rec")
    assert recording.problems == ()
    assert int((recording.processes[0].intervals.kind == 8).sum()) > 200


def test_a_recording_that_is_stopped_leaves_the_job_and_another_may_start(tmp_path: Path) -> None:
    start = "recording = steptime.record('first', profile=False)"
    step = "if (epoch, number) == (0, 40): recording.stop(); recording = steptime.record('second', profile=False)"
    message = run(tmp_path, start, "recording.stop(); recording.stop()", step)
    assert message.splitlines() == [
        f"steptime: recorded {name}: steptime diagnose {name}" for name in ("first", "second")
    ]
    counts = []
    for name in ("first", "second"):
        (process,) = load(tmp_path / name).processes
        counts.append(int((process.intervals.kind == 8).sum()))
    assert counts[0] == 41
    assert 150 < counts[1] < 200


def test_what_cannot_be_recorded_is_reported_and_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    message = run(tmp_path, "assert steptime.record('full').folder is None; assert steptime.log_to is not None")
    assert message.count("\n") == 1
    assert "full is not empty" in message
    assert message.endswith("; the job goes on\n")


def test_ranks_share_a_recording(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB.format(start="steptime.record('rec', profile=False)", step="", end=""), encoding="utf-8")
    ranks = [
        subprocess.Popen(
            [python(), str(script)], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**environment(tmp_path), "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]  # fmt: skip
    message = "".join(rank.communicate(timeout=PATIENCE)[1] for rank in ranks)
    assert message == "steptime: recorded rec: steptime diagnose rec\n"
    assert sorted(process.facts.rank or 0 for process in load(tmp_path / "rec").processes) == [0, 1]


SPAWNED = """
import sys, torch, steptime
import torch.multiprocessing

def work(rank, method):
    steptime.record("rec", profile=False)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(20):
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(work, (sys.argv[1],), start_method=sys.argv[1])
"""


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_children_of_multiprocessing_say_it_once_and_by_their_script(method: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SPAWNED, encoding="utf-8")
    found = subprocess.run([python(), "train.py", method], cwd=tmp_path, env=environment(tmp_path),
                           capture_output=True, text=True, check=True)  # fmt: skip
    assert found.stderr == "steptime: recorded rec: steptime diagnose rec\n"
    recording = load(tmp_path / "rec")
    assert any(word.endswith("train.py") for word in recording.manifest.command)
    assert int((recording.processes[0].intervals.kind == 8).sum()) == 20


@pytest.mark.parametrize("every", [-1.0, float("nan"), float("inf")])
def test_no_number_of_seconds_is_refused(every: float) -> None:
    with pytest.raises(ValueError, match="every must be a number of seconds"):
        log_to(print, every=every)


def test_what_is_no_logger_is_refused_before_anything_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match="cannot write to a dict: give a SummaryWriter"):
        log_to({})
    assert list(tmp_path.iterdir()) == []


def test_in_a_trial_nothing_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(active=True, plan={"variant": {"name": "control"}, "recording": "somewhere"})
    monkeypatch.setattr(probe, "_current", [session])
    assert log_to(print) is None


@pytest.mark.slow
@pytest.mark.parametrize("given", ["run", "wandb", "None"])
def test_a_run_of_weights_and_biases_keeps_all_of_its_own_rows(given: str, tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    start = f"import wandb; run = wandb.init(dir='.'); steptime.log_to({given}, every=0)"
    step = "if number % 20 == 0: run.log({'loss': epoch}, step=80 * epoch + number)"
    run(tmp_path, start, "run.finish()", step)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = [dict(row) for row in history(file)]
    assert [row["_step"] for row in rows if "loss" in row] == [str(80 * epoch + number) for epoch in range(3)
                                                               for number in range(0, 80, 20)]  # fmt: skip
    logged = [row for row in rows if "steptime/step_ms" in row]
    assert logged
    assert all(float(row["steptime/forward_ms"]) < float(row["steptime/step_ms"]) for row in logged)


def history(file: Path) -> Iterator[Iterator[tuple[str, str]]]:
    """Rows of an offline run: records of LevelDB's log format, each a message of wandb's own."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole = file.read_bytes(), 7, b""
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the last part
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                yield ((item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item)


@pytest.mark.slow
@pytest.mark.parametrize("given", ["mlflow", "run", "None"])
def test_a_run_of_mlflow_has_the_numbers_in_its_files(given: str, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    start = "import mlflow; mlflow.set_tracking_uri('file:store'); run = mlflow.start_run(); "
    run(tmp_path, f"{start}steptime.log_to({given}, every=0)", "mlflow.end_run()")
    (file,) = tmp_path.glob("store/0/*/metrics/steptime/step_ms")
    values = [line.split() for line in file.read_text().splitlines()]
    assert values
    assert all(float(value) > 0 and 1 < int(step) <= 240 for _, value, step in values)


@pytest.mark.slow
def test_without_an_active_run_mlflow_is_left_alone(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    start = "import mlflow; mlflow.set_tracking_uri('file:store'); steptime.log_to(mlflow, every=0)"
    run(tmp_path, start)
    assert list(tmp_path.glob("store/0/*/metrics")) == []


def test_no_logger_is_imported_for_a_function() -> None:
    program = "import sys, steptime; steptime.callbacks; assert not {'torch', 'wandb', 'mlflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
