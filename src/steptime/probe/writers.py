"""Writers of steptime.log_to: loggers as the job has them open. None of them is imported here, and none gets a
row, a file or a run that it would not have without us.
"""

from __future__ import annotations

import gc
import sys
from typing import Any

from steptime.probe.step_metrics import Write

TENSORBOARD = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
TRIES = 6
"""So often is a logger looked for among the job's objects, which takes milliseconds."""


def writer_of(target: Any) -> Write:
    """The way to write to a TensorBoard SummaryWriter, a run of Weights & Biases or its module, a run of MLflow or its
    module, whatever has log_metrics(values, step) as Lightning's loggers do, or a function of name, value and step;
    None: whatever of the first three the job has open. Raises TypeError."""
    if target is None:
        return OpenLoggers()
    if hasattr(target, "add_scalar"):
        return _TensorBoard(target)
    if _package(target) == "wandb":
        return _Wandb(target)
    if _package(target) == "mlflow":
        return _MLflow(target)
    if hasattr(target, "log_metrics"):
        return lambda values, step: target.log_metrics(values, step=step)
    if callable(target):
        return _function(target)
    raise TypeError(
        f"steptime.log_to cannot write to a {type(target).__name__}: give a SummaryWriter, a wandb run, mlflow, a "
        "logger with log_metrics, or a function of name, value and step"
    )


def _package(target: Any) -> str:
    """The package that a module, or an object's class, is of."""
    name = target.__name__ if isinstance(target, type(sys)) else type(target).__module__
    return str(name).partition(".")[0]


def _function(target: Any) -> Write:
    def write(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            target(name, value, step)

    return write


class _TensorBoard:
    """A SummaryWriter; one that was closed would start a new file, so it gets nothing."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    @property
    def open(self) -> bool:
        return getattr(self.writer, "all_writers", self) is not None

    def __call__(self, values: dict[str, float], step: int) -> None:
        if self.open:
            _function(self.writer.add_scalar)(values, step)


class _Wandb:
    """A run of Weights & Biases, whose rows are numbered upwards by the job's own calls: a row, or a number, of ours
    would make it drop what the job logs next for an earlier one. So the values go into the row that is open, and the
    job ends it; where it logs more rarely than we do, the newest stand."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, values: dict[str, float], step: int) -> None:
        run = self._run.run if isinstance(self._run, type(sys)) else self._run
        if run is not None and not getattr(run, "_is_finished", False):
            run.log(values, commit=False)


class _MLflow:
    """A run of MLflow, or its module, which knows the run that is active: without one it would start one. The network
    is left to a thread of MLflow's."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, values: dict[str, float], step: int) -> None:
        library: Any = sys.modules["mlflow"]
        run = library.active_run() if self._run is library else self._run
        if run is not None:
            library.log_metrics(values, step=step, synchronous=False, run_id=run.info.run_id)


class OpenLoggers:
    """Whatever the job has open by the time that there is something to write."""

    def __init__(self) -> None:
        self._writers: list[Write] = []
        self._tries = 0

    def __call__(self, values: dict[str, float], step: int) -> None:
        if not self._writers and self._tries < TRIES:
            self._writers = open_loggers()
            self._tries += 1
        for write in self._writers:
            write(values, step)


def open_loggers() -> list[Write]:
    """The active run of Weights & Biases and of MLflow, every writer of TensorBoard that is not closed."""
    found: list[Write] = []
    if getattr(wandb := sys.modules.get("wandb"), "run", None) is not None:
        found.append(_Wandb(wandb))
    active_run = getattr(mlflow := sys.modules.get("mlflow"), "active_run", None)
    if active_run is not None and active_run() is not None:
        found.append(_MLflow(mlflow))
    for name in TENSORBOARD:
        kind = getattr(sys.modules.get(name), "SummaryWriter", None)
        if isinstance(kind, type):
            mine = [_TensorBoard(each) for each in gc.get_referrers(kind) if isinstance(each, kind)]
            found += [each for each in mine if each.open]
    return found
