"""The changes "anomaly-off" and "deterministic-off": switches for debugging that a job has left on."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.autograd import anomaly_mode

from steptime.capture.probe.changes.applier import Applier, with_arguments


class AnomalyOff(Applier):
    """No arguments. Anomaly detection keeps a stack for every operator of the forward."""

    def install(self) -> None:
        """Both ways of switching it on switch nothing on."""
        self.detail = "the job does not switch anomaly detection on"

        def edit(bound: inspect.BoundArguments) -> None:
            if bound.arguments.get("mode"):
                bound.arguments["mode"] = False
                self._seen()

        cls: Any = anomaly_mode.set_detect_anomaly
        cls.__init__ = with_arguments(self, cls.__init__, edit)
        context: Any = anomaly_mode.detect_anomaly
        context.__enter__ = lambda _: self._seen()
        self.applied = True

    def _seen(self) -> None:
        self.exercised = True
        self.detail = "anomaly detection was left off"


class DeterministicOff(Applier):
    """No arguments. Deterministic algorithms, of torch and of cuDNN."""

    def install(self) -> None:
        """Requests are passed over."""
        self.detail = "the job does not ask for deterministic algorithms"
        self._original = torch.use_deterministic_algorithms

        def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
            if mode:
                self._seen()

        torch.use_deterministic_algorithms = use_deterministic_algorithms
        self.applied = True

    def root(self, module: torch.nn.Module) -> None:
        """What was switched on by another way."""
        if torch.are_deterministic_algorithms_enabled():
            self._original(False)
            self._seen()
        if torch.backends.cudnn.deterministic:
            torch.backends.cudnn.deterministic = False
            if any(each.is_cuda for each in module.parameters()):
                self._seen()

    def _seen(self) -> None:
        self.exercised = True
        self.detail = "deterministic algorithms were left off"
