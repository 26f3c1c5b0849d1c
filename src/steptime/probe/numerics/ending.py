"""The end of a job whose fault was found: at a step's boundary, on all ranks of this host, without the job's own end.

A final save of a model that is full of NaN helps nobody, and a rank that ended alone would leave the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from steptime.probe.changes.variant import ProcessVariant

FOR_EVER = 1 << 60


class Ending:
    """Ends the process."""

    def __init__(self, recording: str) -> None:
        self._variant = ProcessVariant(steps=FOR_EVER, warm_up=0, limit_seconds=float(FOR_EVER))
        self._recording = recording
        self._variant.install(recording)

    def finish_with(self, finish: Callable[[], None]) -> None:
        """What is called before the end, wherever that comes from: a rank that another one ends has an account, too."""
        self._variant.finish = finish

    def boundary(self, step: int) -> None:
        """A step has ended, 0 for the beginning; ends the process where another rank has found something."""
        if self._variant.over(step, self._recording):
            self._variant.end()

    def end(self, step: int) -> None:
        """Ends the process here, with status 0. Does not return."""
        self._variant.end_all(step)
        self._variant.end()
