"""A stall: one collective that does not end, and who is to blame for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from steptime.flight.dump import Call
from steptime.quantities import SourceLine, format_source

NAMED = 8
"""Ranks that a sentence lists before it counts them."""


class Fault(Enum):
    """What keeps a collective from ending."""

    MISSING = "missing"
    """Some ranks have not called it."""
    NO_DUMP = "no-dump"
    """All ranks whose dumps are known have; of the others nothing is known."""
    TYPE = "type"
    """The ranks called different operations."""
    ORDER = "order"
    """They call the same ones in another order."""
    SIZE = "size"
    ELEMENT_TYPE = "element-type"
    NOT_DONE = "not-done"
    """All have called it alike, and it does not end: the network, a device, or a dead peer."""
    UNMATCHED = "unmatched"
    """A send without its receive, or the other way round."""


@dataclass(frozen=True, slots=True)
class Stall:
    """group: as a reader knows it ("group tp"). members: ranks of the job. culprits: ranks that are missing or odd;
    of a tie all. waiting: those that wait for it. since: epoch ns of the first call of it. source: the line of the
    culprits' last call, else of the waiting ones'. consequence: the culprits themselves wait in another stall."""

    fault: Fault
    group: str
    members: tuple[int, ...]
    sequence: int
    operation: str
    culprits: tuple[int, ...]
    waiting: tuple[int, ...]
    since: int
    source: SourceLine | None = None
    evidence: tuple[str, ...] = ()
    consequence: bool = False

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        place = f"{self.operation} #{self.sequence} of {self.group}"
        who = counted_ranks(self.culprits)
        wait = f"{counted_ranks(self.waiting)} {'wait' if len(self.waiting) != 1 else 'waits'} in {place}"
        several = len(self.culprits) != 1
        return {
            Fault.MISSING: f"{wait}; {who} never called it.",
            Fault.NO_DUMP: f"{wait}; of {who} no dump was given.",
            Fault.TYPE: f"{place}: {who} called another operation than the others.",
            Fault.ORDER: f"{place}: {who} {'call' if several else 'calls'} the collectives in another order.",
            Fault.SIZE: f"{place}: the tensors of {who} have another size than the others'.",
            Fault.ELEMENT_TYPE: f"{place}: the tensors of {who} have another element type than the others'.",
            Fault.NOT_DONE: f"{wait}, which all ranks have called alike: the network or a device holds it.",
            Fault.UNMATCHED: f"{wait}; {who} never called its other half.",
        }[self.fault].replace("the others'.", "the others'." if self.waiting else "one another.")


def counted_ranks(ranks: Iterable[int]) -> str:
    """ "rank 3", "ranks 0, 1 and 2", "ranks 0 to 63", "ranks 0, 2, 4 and 61 more"."""
    ordered = sorted(ranks)
    if not ordered:
        return "no rank"
    if len(ordered) == 1:
        return f"rank {ordered[0]}"
    if len(ordered) > 3 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"ranks {ordered[0]} to {ordered[-1]}"
    if len(ordered) > NAMED:
        return f"ranks {', '.join(map(str, ordered[:3]))} and {len(ordered) - 3} more"
    return f"ranks {', '.join(map(str, ordered[:-1]))} and {ordered[-1]}"


def group_name(name: str, calls: Iterable[Call]) -> str:
    """What a reader knows a group by: its description where it has one."""
    described = next((call.description for call in calls if call.description), "")
    return f"group {described or name or '?'}"


def at_place(call: Call) -> str:
    """ " at train.py:12", or nothing."""
    return f" at {format_source(call.source)}" if call.source is not None else ""


def progress(call: Call) -> str:
    """How far a call has come."""
    return "completed" if call.done else call.state
