"""The callbacks for frameworks, in the real ones. Each records the training and gives its numbers to the framework's
own loggers.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from steptime.recording.load import load

pytest.importorskip("torch")

needs_keras = pytest.mark.skipif(find_spec("keras") is None, reason="keras is not installed")
"""Which is not imported here: without a word it would want TensorFlow."""
NAMES = {"step_ms", "input_ms", "forward_ms", "backward_ms", "optimizer_ms", "other_ms", "samples_per_second"}
MODEL = """
import json, torch, steptime
from torch.utils.data import DataLoader, TensorDataset
"""
LIGHTNING = f"""{MODEL}
import pytorch_lightning
from pytorch_lightning.loggers import CSVLogger

class Module(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4)

if __name__ == "__main__":
    trainer = pytorch_lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=DEVICES, logger=CSVLogger("."), enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=[steptime.callbacks.Lightning(every=0)],
    )
    trainer.fit(Module(), DataLoader(TensorDataset(torch.ones(1200, 64)), batch_size=8))
"""
HUGGING_FACE = f"""{MODEL}
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 1)

    def forward(self, x=None, labels=None):
        return {{"loss": self.layer(x).square().mean()}}

settings = TrainingArguments(
    output_dir="out", report_to=["tensorboard"], max_steps=200, use_cpu=True, disable_tqdm=True, save_strategy="no",
)
data = [{{"x": torch.ones(64), "labels": torch.zeros(1)}}] * 800
Trainer(Model(), settings, train_dataset=data, callbacks=[steptime.callbacks.HuggingFace(every=0)]).train()
"""
ACCELERATE = f"""{MODEL}
from accelerate import Accelerator
accelerator = Accelerator(log_with=[steptime.callbacks.Accelerate(every=0), "tensorboard"], project_dir="out", cpu=True)
accelerator.init_trackers("project", {{"rate": 0.1}})
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model, optimizer, loader = accelerator.prepare(
    model, optimizer, DataLoader(TensorDataset(torch.ones(1600, 64)), batch_size=8))
for number, (batch,) in enumerate(loader):
    optimizer.zero_grad()
    accelerator.backward(model(batch).square().mean())
    optimizer.step()
    accelerator.log({{"loss": 0.5}}, step=1000 + number)
accelerator.end_training()
"""
KERAS = """
import json, os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy, steptime
model = keras.Sequential([keras.layers.Dense(8), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse")
found = model.fit(
    numpy.ones((4000, 32)), numpy.ones((4000, 1)), batch_size=32, epochs=2, verbose=0,
    callbacks=[steptime.callbacks.Keras(every=0)],
)
print(json.dumps(found.history))
"""


def train(folder: Path, script: str, *launch: str) -> tuple[str, str]:
    (folder / "train.py").write_text(script, encoding="utf-8")
    found = subprocess.run(
        [sys.executable, *launch, "train.py"], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return found.stdout, found.stderr


def recorded(folder: Path, message: str) -> list[int]:
    """The ranks of the only recording, which the job has named once."""
    (recording,) = (folder / "runs").iterdir()
    assert message.count(f"steptime: recorded runs/{recording.name}: steptime diagnose runs/{recording.name}\n") == 1
    return sorted(process.facts.rank or 0 for process in load(recording).processes)


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of the event files below a folder, by our names."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: dict[str, list[tuple[int, float]]] = {}
    for file in folder.rglob("events.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        for name in events.Tags()["scalars"]:
            if name.startswith("steptime/"):
                found[name.removeprefix("steptime/")] = [(each.step, each.value) for each in events.Scalars(name)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_lightning_gives_the_numbers_to_its_loggers(devices: int, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_lightning")
    _, message = train(tmp_path, LIGHTNING.replace("DEVICES", str(devices)))
    assert recorded(tmp_path, message) == list(range(devices))
    with next(tmp_path.rglob("metrics.csv")).open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {f"steptime/{name}" for name in NAMES} <= set(rows[-1])
    assert 1 < int(rows[0]["step"]) <= int(rows[-1]["step"]) <= 300 / devices


@pytest.mark.slow
def test_hugging_faces_reporting_has_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    _, message = train(tmp_path, HUGGING_FACE)
    assert recorded(tmp_path, message) == [0]
    found = logged(tmp_path / "out")
    assert set(found) >= NAMES
    assert 150 < found["step_ms"][-1][0] <= 200


@pytest.mark.slow
def test_accelerates_other_trackers_have_the_numbers_under_the_jobs_steps(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    _, message = train(tmp_path, ACCELERATE)
    assert recorded(tmp_path, message) == [0]
    found = logged(tmp_path / "out")
    assert set(found) >= NAMES
    assert all(1000 <= step < 1200 for step, _ in found["step_ms"])


@needs_keras
@pytest.mark.slow
def test_the_history_of_keras_has_the_numbers(tmp_path: Path) -> None:
    out, message = train(tmp_path, KERAS)
    assert recorded(tmp_path, message) == [0]
    history = json.loads(out)
    assert len(history["steptime/step_ms"]) == len(history["loss"]) == 2
    assert 0 < history["steptime/backward_ms"][1] < history["steptime/step_ms"][1]


@needs_keras
@pytest.mark.slow
def test_under_run_a_callback_records_nothing_of_its_own(tmp_path: Path) -> None:
    _, message = train(tmp_path, KERAS, "-m", "steptime", "run", "-q", "--no-peaks", "--recording", "rec", "--",
                    sys.executable)  # fmt: skip
    assert "recorded" not in message
    assert not (tmp_path / "runs").exists()
    assert len(load(tmp_path / "rec").processes) == 1


def test_a_framework_is_asked_for_by_its_name() -> None:
    program = """
import sys, steptime
assert {"Lightning", "HuggingFace", "Accelerate", "Keras"} <= set(dir(steptime.callbacks))
assert not {"pytorch_lightning", "lightning", "transformers", "accelerate", "keras", "torch"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    from steptime import callbacks

    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        getattr(callbacks, "Nothing")  # noqa: B009
