"""What is said while the arms of a trial run: a line for each process that begins, and in a terminal the step it is at.

Their own output goes to files, so that line can be drawn in place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from steptime.quantities import format_duration
from steptime.trials.conduct import MAX_ROUNDS, MIN_ROUNDS, Notice


class TrialAnnouncer:
    """Tells each process that begins, and, in a terminal, the step that it is at."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._live = sys.stderr.isatty()
        self._drawn = 0

    def show(self, notice: Notice | None) -> None:
        """Called when a process begins, twice a second, and with None when none runs any more."""
        if notice is None:
            self._clear()
        elif notice.begins:
            self._clear()
            self._say(_line(notice))
        elif self._live:
            text = f"  step {notice.done} of {notice.steps}{_to_go(notice)}"
            sys.stderr.write(f"\r{text:<{self._drawn}}")
            sys.stderr.flush()
            self._drawn = len(text)

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\r{'':<{self._drawn}}\r")
            sys.stderr.flush()
            self._drawn = 0


def _line(notice: Notice) -> str:
    turn = notice.turn
    number = turn.round + 1
    rounds = f"round {number} of {MIN_ROUNDS}" if number <= MIN_ROUNDS else f"round {number} of {MAX_ROUNDS} at most"
    what = "rehearsal" if turn.rehearsal else f"{rounds}, {notice.steps} steps"
    label = f" {turn.arm.label}" if turn.arm.label else ""
    return f"{turn.arm.name}{label}: {what}{_to_go(notice)}"


def _to_go(notice: Notice) -> str:
    if not notice.eta:
        return ""
    left = format_duration(notice.eta * 1e9)
    return f"; about {left} to go" if notice.turn.round < MIN_ROUNDS else f"; this round: about {left}"
