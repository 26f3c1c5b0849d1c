"""The change "gc-freeze": what is alive behind the first steps is never looked at again by Python's collector."""

from __future__ import annotations

import gc

from steptime.capture.probe.changes.applier import Applier

FROZEN_AFTER = 2
"""Steps: model, optimiser state and workers are there by then."""
THRESHOLD = 50_000
"""Objects made until the youngest generation is collected; Python's own is 700 (2000 from 3.13 on)."""


class GarbageFreeze(Applier):
    """arguments: threshold."""

    def install(self) -> None:
        """Waits for the steps."""
        self.detail = f"the job has not made {FROZEN_AFTER} steps"

    def border(self, steps: int) -> None:
        """Freezes once."""
        if steps < FROZEN_AFTER or self.applied:
            return
        if not gc.isenabled():
            self.refused("the job has switched the collector off")
            return
        gc.collect()
        gc.freeze()
        threshold = int(self.arguments.get("threshold") or THRESHOLD)
        gc.set_threshold(threshold, *gc.get_threshold()[1:])
        self.applied = self.exercised = True
        self.detail = f"{gc.get_freeze_count()} objects frozen, threshold {threshold}"
