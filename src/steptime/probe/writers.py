"""Writers of steptime.log_to, for loggers that the job has open. They import no logger, and create no row, file or run
that the job would not have."""

from __future__ import annotations

import gc
import sys
from typing import Any

from steptime.probe.step_metrics import Write

TENSORBOARD = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
TRIES = 6
"""Searches for a logger among the job's objects, each of which takes milliseconds."""


def writer_of(target: Any) -> Write:
    """Returns a writer to `target`: a TensorBoard SummaryWriter, a run of Weights & Biases or its module, a run of
    MLflow or its module, any object with log_metrics(values, step) such as Lightning's loggers, or a function of name,
    value and step; None for any of the first three that the job has open. Raises TypeError."""
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
    """Returns the top-level package of a module, or of an object's class."""
    name = target.__name__ if isinstance(target, type(sys)) else type(target).__module__
    return str(name).partition(".")[0]


def _function(target: Any) -> Write:
    def write(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            target(name, value, step)

    return write


class _TensorBoard:
    """Writer to a SummaryWriter. A closed one gets nothing, because it would start a new file."""

    def __init__(self, writer: Any) -> None:
        self.writer = writer

    @property
    def open(self) -> bool:
        return getattr(self.writer, "all_writers", self) is not None

    def __call__(self, values: dict[str, float], step: int) -> None:
        if self.open:
            _function(self.writer.add_scalar)(values, step)


class _Wandb:
    """Writer to a run of Weights & Biases. A step of ours would make it drop the job's own later rows with smaller
    steps. So the values go into the open row, which the job ends. If the job logs more rarely, only the newest
    remain."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, values: dict[str, float], step: int) -> None:
        run = self._run.run if isinstance(self._run, type(sys)) else self._run
        if run is not None and not getattr(run, "_is_finished", False):
            run.log(values, commit=False)


class _MLflow:
    """Writer to a run of MLflow, or to its module's active run: without one, logging would start one. A thread of
    MLflow's sends the values."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def __call__(self, values: dict[str, float], step: int) -> None:
        library: Any = sys.modules["mlflow"]
        run = library.active_run() if self._run is library else self._run
        if run is not None:
            library.log_metrics(values, step=step, synchronous=False, run_id=run.info.run_id)


class OpenLoggers:
    """Writer to all loggers that the job has open at the first write."""

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
    """Returns writers to the active runs of Weights & Biases and MLflow, and to every open TensorBoard writer."""
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
