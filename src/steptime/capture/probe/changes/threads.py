"""The change "threads": threads of one operator on the CPU."""

from __future__ import annotations

import sys

import torch

from steptime.capture.probe.changes.applier import Applier

WORKER = "torch.utils.data._utils.worker"


class Threads(Applier):
    """arguments: intra_op."""

    def install(self) -> None:
        """Sets the number, and keeps the job from setting another; a loader's worker keeps its single thread."""
        self._number = number = int(self.arguments["intra_op"])
        before = torch.get_num_threads()
        original = torch.set_num_threads

        def set_num_threads(count: int) -> None:
            if sys._getframe(1).f_globals.get("__name__") == WORKER:
                original(count)
                return
            if count != number:
                self.applied, self.detail = True, f"{count} → {number}"
            original(number)

        torch.set_num_threads = set_num_threads
        original(number)
        self.applied = before != number
        self.detail = f"{before} → {number}" if self.applied else f"there were {number} already"

    def border(self, steps: int) -> None:
        """Looks whether it holds."""
        if self.applied:
            self.exercised = torch.get_num_threads() == self._number
