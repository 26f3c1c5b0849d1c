"""Where turns are run: the seam between what is tried and the machines that it is tried on.

One law: an executor decides where and when a turn runs, never what it means; the same turns leave the same runs in the
same results file.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from steptime.capture.outcome import Progress
from steptime.trials.containment import Stand
from steptime.trials.execute import Turn, execute
from steptime.trials.trial import Run

Block = Sequence[Turn]
"""Turns that run one after the other on one device: an arm is compared with the baselines of its own block."""
Tell = Callable[[Turn, Progress | None], None]
"""Called when a turn begins, and where it is known how far it has come."""


class Executor(Protocol):
    """Runs blocks of turns."""

    @property
    def width(self) -> int:
        """How many blocks run at the same time, each on a device of its own."""

    def run(self, stand: Stand, blocks: Sequence[Block], tell: Tell) -> Generator[Run, None, None]:
        """The runs, each as soon as it has ended. Closing the generator ends what is running. Raises what `execute`
        raises."""

    def close(self) -> None:
        """Nothing will be run any more."""


class LocalExecutor:
    """This machine, one process of the trial at a time: two would disturb each other's times."""

    width = 1

    def run(self, stand: Stand, blocks: Sequence[Block], tell: Tell) -> Generator[Run, None, None]:
        """See Executor."""
        for turn in (turn for block in blocks for turn in block):
            tell(turn, None)
            yield execute(stand, turn, lambda progress, turn=turn: tell(turn, progress))  # type: ignore[misc]

    def close(self) -> None:
        """See Executor."""
