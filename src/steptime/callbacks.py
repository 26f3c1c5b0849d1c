"""Callbacks for frameworks, for those who prefer a line of code to a command. Each records the training, as `steptime
run` does, sends the step's numbers to the framework's own loggers, and prints the command that diagnoses the recording.
Under `steptime run` it only sends the numbers.

    lightning.Trainer(callbacks=[steptime.callbacks.Lightning()])
    transformers.Trainer(..., callbacks=[steptime.callbacks.HuggingFace()])
    accelerate.Accelerator(log_with=["tensorboard", steptime.callbacks.Accelerate()])
    model.fit(..., callbacks=[steptime.callbacks.Keras()])

Each class is made on first use, so that only frameworks that the job uses are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from steptime.in_process import OwnRecording, log_to, record, shared_name

Folder = str | os.PathLike[str] | None


class Recorded:
    """Base class of the callbacks. folder: folder of the recording, None for runs/<script>-<time>. every: seconds
    between two transmissions of numbers. profile: True if a few steps are profiled."""

    def __init__(self, folder: Folder = None, *, every: float = 10.0, profile: bool = True) -> None:
        super().__init__()
        self._folder, self._every, self._profile = folder, every, profile
        self._recording = OwnRecording(None)
        self._numbers: Any = None

    def _start(self, folder: Folder = None) -> None:
        self._recording = record(self._folder if folder is None else folder, profile=self._profile)

    def _log(self, writer: Any, step: Callable[[], int] | None = None) -> None:
        if self._numbers is None and self._recording.folder is not None:
            self._numbers = log_to(writer, every=self._every, step=step)

    def _write(self) -> None:
        if self._numbers is not None:
            self._numbers.write()

    def _end(self) -> None:
        if self._numbers is not None:
            self._numbers.end()
            self._numbers = None
        self._recording.stop()


def _lightning() -> type:
    unified = "lightning.pytorch" in sys.modules or ("pytorch_lightning" not in sys.modules and find_spec("lightning"))
    base: Any = import_module("lightning.pytorch" if unified else "pytorch_lightning").Callback

    class Lightning(Recorded, base):  # type: ignore[misc]  # known at run time only
        """Lightning Callback. The numbers go to all loggers of the trainer, under its global_step."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            """Starts the recording, before loaders and optimizers are made."""
            if stage == "fit":
                named = self._folder
                if named is None and trainer.world_size > 1:  # ranks have different parents here
                    named = trainer.strategy.broadcast(str(shared_name()))
                self._start(named)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            """Starts sending numbers, once the loggers exist."""

            def write(values: dict[str, float], step: int) -> None:
                for logger in trainer.loggers:
                    logger.log_metrics(values, step=step)

            self._log(SimpleNamespace(log_metrics=write), lambda: int(trainer.global_step))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            """Sends the last numbers, while the loggers are still open."""
            self._write()
            self._end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            """Ends the recording, also after Ctrl-C."""
            self._end()

    return Lightning


def _hugging_face() -> type:
    base: Any = import_module("transformers").TrainerCallback

    class HuggingFace(Recorded, base):  # type: ignore[misc]
        """TrainerCallback of Hugging Face's transformers. The numbers go to the loggers that its report_to has opened
        (TensorBoard, Weights & Biases or MLflow), under the trainer's global_step."""

        def on_init_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Starts the recording, before loaders and optimizers are made."""
            self._start()

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Starts sending numbers, once the reporting has started."""
            self._start()
            self._log(None, lambda: int(state.global_step))

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Sends the numbers after the last step, because the reporting ends before this callback's on_train_end."""
            if control.should_training_stop or state.global_step >= state.max_steps:
                self._write()

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._end()

    return HuggingFace


def _accelerate() -> type:
    base: Any = import_module("accelerate.tracking").GeneralTracker

    class Accelerate(Recorded, base):  # type: ignore[misc]
        """Tracker for Accelerator(log_with=[…]). The numbers go to the job's open loggers (TensorBoard, Weights &
        Biases or MLflow), under the step of the job's latest accelerator.log(…, step=…). It records from its
        construction on, on every rank."""

        name = "steptime"
        requires_logging_directory = False
        main_process_only = False

        def __init__(self, folder: Folder = None, *, every: float = 10.0, profile: bool = True) -> None:
            super().__init__(folder, every=every, profile=profile)
            self._latest: int | None = None
            self._start()
            self._log(None, lambda: self._numbers.steps if self._latest is None else self._latest)

        @property
        def tracker(self) -> OwnRecording:
            return self._recording

        def store_init_configuration(self, values: dict[str, Any]) -> None:
            """Does nothing, because the recording has the command line."""

        def log(self, values: dict[str, Any], step: int | None = None, **others: Any) -> None:
            """Keeps the step only: the job's own values are for its other trackers."""
            self._latest = self._latest if step is None else step

        def finish(self) -> None:
            """Ends the recording, at accelerator.end_training()."""
            self._write()
            self._end()

    return Accelerate


def _keras() -> type:
    base: Any = import_module("keras").callbacks.Callback

    class Keras(Recorded, base):  # type: ignore[misc]
        """Keras Callback, for the torch backend. The numbers go into each epoch's logs, for History and later ones."""

        def __init__(self, folder: Folder = None, *, every: float = 1.0, profile: bool = True) -> None:
            super().__init__(folder, every=every, profile=profile)
            self._values: dict[str, float] = {}

        def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
            """Starts the recording, before the loader's iterator is made."""
            self._start()
            self._log(SimpleNamespace(log_metrics=lambda values, step: self._values.update(values)))

        def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
            """Adds the newest numbers to the epoch's logs."""
            self._write()
            if logs is not None:
                logs.update(self._values)

        def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
            self._end()

    return Keras


MAKERS = {"Lightning": _lightning, "HuggingFace": _hugging_face, "Accelerate": _accelerate, "Keras": _keras}


def __getattr__(name: str) -> Any:
    """Class for a framework (PEP 562), undecorated for type checkers. Raises ImportError if that is not installed."""
    return _made(name)


@cache
def _made(name: str) -> Any:
    if name not in MAKERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return MAKERS[name]()


def __dir__() -> list[str]:
    return sorted([*globals(), *MAKERS])
