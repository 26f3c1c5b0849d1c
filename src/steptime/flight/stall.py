"""A stall: one collective that does not end, and who is to blame for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from steptime.flight.dump import COMPLETED, Call
from steptime.quantities import SourceLine, format_source

NAMED = 8
"""Ranks that a sentence lists before it counts them."""
ROOTED = ("scatter", "gather", "broadcast", "reduce")
"""Only one rank gives in (or gets out) all of it, so sizes of one side may differ: in of scatter, out of gather."""


class Fault(Enum):
    """What keeps a collective from ending."""

    MISSING = "missing"
    """Some ranks have not called it."""
    NO_DUMP = "no-dump"
    """All ranks whose dumps were given have; of the others nothing is known."""
    MEMBERS_UNKNOWN = "members-unknown"
    """All ranks that are known to belong to the group have; whether there are others the dumps do not say."""
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


UNSURE = frozenset({Fault.NO_DUMP, Fault.MEMBERS_UNKNOWN})
"""What says of no rank that was seen that it is to blame."""


@dataclass(frozen=True, slots=True)
class Stall:
    """group: as a reader knows it ("group tp"). members: ranks of the job. culprits: ranks that are missing or odd;
    of a tie all. waiting: those that wait for it. since: epoch ns of the first call of it. source: the line of the
    culprits' last call, else of the waiting ones'. consequence: the culprits themselves wait in another stall. absent:
    ranks without a dump that belong to the group, or may."""

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
    absent: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """What happened, in one sentence."""
        unknown = self.absent and self.fault is not Fault.NO_DUMP
        return f"{self._seen[:-1]}; {no_dump(self.absent)}." if unknown else self._seen

    @property
    def _seen(self) -> str:
        """What the dumps that were given say."""
        place = f"{self.operation} #{self.sequence} of {self.group}"
        who, several = counted_ranks(self.culprits), len(self.culprits) != 1
        wait = f"{counted_ranks(self.waiting)} {'wait' if len(self.waiting) != 1 else 'waits'} in {place}"
        not_called = f"{'have' if several else 'has'} not called"
        suspects = f"first {'suspects are' if several else 'suspect is'}"
        tie = not self.waiting  # nobody is the odd one: they differ from one another
        return {
            Fault.MISSING: f"{wait}; {who} {not_called} it.",
            Fault.NO_DUMP: f"{wait}; the {suspects} {who}, of which there is no dump.",
            Fault.MEMBERS_UNKNOWN: f"{wait}; which other ranks belong to it, the dumps do not say.",
            Fault.TYPE: f"{place}: {who} called "
            f"{'different operations' if tie else 'another operation than the others'}.",
            Fault.ORDER: f"{place}: {who} {'call' if several else 'calls'} the collectives in "
            f"{'different orders' if tie else 'another order'}.",
            Fault.SIZE: f"{place}: the tensors of {who} {_have('size', tie=tie)}.",
            Fault.ELEMENT_TYPE: f"{place}: the tensors of {who} {_have('element type', tie=tie)}.",
            Fault.NOT_DONE: f"{wait}, {self._held}.",
            Fault.UNMATCHED: f"{wait}; {who} {not_called} its other half.",
        }[self.fault]

    @property
    def _held(self) -> str:
        """What may hold a call that no rank is missing from."""
        roots = "their roots differ, or " if has_root(self.operation) else ""
        ended = set(self.members) - set(self.waiting)
        if not ended:
            return f"which all {len(self.members)} ranks have called alike: {roots}the network or a device holds it"
        were = "were" if len(self.waiting) != 1 else "was"
        older = f"{counted_ranks(self.waiting)} {were} dumped earlier"
        return f"which has ended on {counted_ranks(ended)}: {roots}{older}, or the network or a device holds it"


def _have(what: str, *, tie: bool) -> str:
    return f"have different {what}s" if tie else f"have another {what} than the others'"


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


def has_root(operation: str) -> bool:
    """Whether one rank, which no dump names, gives to all or gets from all."""
    kind = operation.strip("_")
    return kind.startswith(ROOTED) and not kind.startswith("reduce_scatter")


def no_dump(ranks: Iterable[int]) -> str:
    """ "there is no dump of rank 3"."""
    return f"there is no dump of {counted_ranks(ranks)}"


def group_name(name: str, calls: Iterable[Call]) -> str:
    """What a reader knows a group by: its description where it has one."""
    described = next((call.description for call in calls if call.description), "")
    return f"group {described or name or '?'}"


def at_place(call: Call) -> str:
    """ " at train.py:12", or nothing."""
    return f" at {format_source(call.source)}" if call.source is not None else ""


def progress(call: Call) -> str:
    """How far a call has come. Of one that gloo has ended no dump says whether it failed."""
    return "ended" if call.done and call.state != COMPLETED else call.state
