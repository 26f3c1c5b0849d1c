"""What the patches tell the session, and how they are put in place."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

now = time.perf_counter_ns


class Quiet:
    """What the patches go by while nobody waits for a step's boundary: they only keep records then, as a call more
    costs a step of the job most of a microsecond out of a cold cache."""

    __slots__ = ("records", "thread", "threads", "together", "trainer", "until")

    def __init__(self, records: list[int], threads: dict[int, int]) -> None:
        self.until = 0
        """ns: what ends before is only kept."""
        self.records = records
        """The journal's (see journal.Journal), to which three integers are added in one step."""
        self.threads = threads
        """This process's small number of each thread, by the system's identifier."""
        self.trainer = 0
        """The system's identifier of the training thread."""
        self.thread = 0
        """Its number, in its place in the head of a record."""
        self.together = False
        """Whether items and collate of a batch that this process makes are not told apart (see loader.tell_apart)."""

    def follow(self, trainer: int) -> None:
        """This is the training thread."""
        self.trainer, self.thread = trainer, self.threads[trainer] << 16

    def keep(self, head: int, begin: int, end: int) -> None:
        """Keeps a record of this thread, whichever it is. `head`: without the thread."""
        self.records += head | self.threads[get_ident()] << 16, begin, end


class Listener(Protocol):
    """What the patches tell the session. Times: ns of the monotonic clock. What raises in it is handed to `failed`."""

    marks: Any
    """None where no device is in use: then `forward_begins` is not called."""
    quiet: Quiet
    """What the patches go by while nobody waits for a boundary."""

    def range_begins(self, kind: int, owner: Any, begin: int) -> int:
        """A loader's next or an optimiser's step begins; `owner`: iterator or optimiser. Returns its number."""

    def range_ends(self, kind: int, number: int, begin: int, end: int, failed: bool) -> None:
        """The range has ended, outside of torch's own record."""

    def only(self, kind: int, owner: Any) -> bool:
        """Whether nobody else can open a range of this name, until `RangePatch.forget` is called."""

    def failed(self, error: Exception) -> None:
        """Something of ours has raised: the watch ends. Raises nothing itself."""

    def backward_begins(self, begin: int) -> None:
        """A backward pass begins."""

    def backward_ends(self, begin: int, end: int, flags: int) -> None:
        """A backward pass has ended."""

    def forward_begins(self, begin: int) -> None:
        """A root module's call begins."""

    def forward_ends(self, root: int, begin: int, end: int, flags: int) -> None:
        """A root module's call has ended."""

    def interval(self, kind: int, identity: int, begin: int, end: int) -> None:
        """Any other interval has ended."""


class Follower:
    """Told of every step's end; of a plain run nobody is. See `changes.trial.Trial`."""

    def boundary(self, steps: int) -> None:
        """A step has ended; `steps`: how many there were."""

    def finish(self) -> None:
        """The process ends: the last chance to write."""


class Installable(Protocol):
    """Something that can be put in place and taken away again."""

    def install(self) -> None:
        """Puts it in place."""

    def remove(self) -> None:
        """Restores what was there."""


def told(listener: Listener, method: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a method of the listener where a few more hundred nanoseconds do not matter."""
    try:
        return method(*arguments)
    except Exception as error:  # noqa: BLE001 - the probe's boundary: nothing of ours reaches the user
        listener.failed(error)
        return None
