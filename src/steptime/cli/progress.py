"""What is said while a job runs: whole lines, at every new stage and once a minute, because the job writes to the same
terminal and a line that redraws itself would tear the job's own."""

from __future__ import annotations

from collections.abc import Callable

from steptime.capture.outcome import Progress

PERIOD_SECONDS = 60.0


class Announcer:
    """Tells each stage and a notice once, then the step count every minute."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._stage = self._notice = ""
        self._next = PERIOD_SECONDS

    def show(self, progress: Progress) -> None:
        """Called twice a second by the supervisor."""
        if progress.notice != self._notice:
            self._notice = progress.notice
            self._say(progress.notice)
        if progress.stage == self._stage and progress.elapsed_seconds < self._next:
            return
        self._stage = progress.stage
        self._next = progress.elapsed_seconds + PERIOD_SECONDS
        several = f" in {progress.processes} processes" if progress.processes > 1 else ""
        steps = f", {progress.steps} steps{several}" if progress.steps else ""
        self._say(f"{progress.elapsed_seconds:.0f} s{steps}: {progress.stage}")
