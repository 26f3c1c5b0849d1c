"""Waits between ranks, over all process groups: each rank's first open call, and the ranks that hold it up.

A rank's calls run on its device in about the order in which it makes them. So a rank that is busy with an earlier call
holds up the members of every later one, and the cause is at the ranks that wait for no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from steptime.hang.dump import CollectiveCall, Dump


@dataclass(frozen=True, slots=True)
class Group:
    """Process group of a job. name: as in calls. members: known members, as ranks of the job. possible: further ranks
    that may belong to it. open: True if there may be ranks that no dump names."""

    name: str
    members: tuple[int, ...]
    possible: tuple[int, ...] = ()
    open: bool = False

    @property
    def whole(self) -> bool:
        """True if no other rank can belong to it."""
        return not (self.possible or self.open)


class CallProgress(Enum):
    """State of a call on another rank, relative to the rank that waits in it."""

    ENDED = auto()
    """The call has ended there: it is done, or later calls of the group exist and it is no longer open."""
    OPEN = auto()
    """The call is that rank's first open call too."""
    BEHIND = auto()
    """That rank has not called it, or has an earlier open call."""


@dataclass(frozen=True, slots=True)
class Wait:
    """First open call of a rank. members: ranks of its group. held_by: members that have not called it or have an
    earlier open call. ended_on: members on which it has ended. unknown: True if there are, or may be, members without a
    dump."""

    call: CollectiveCall
    members: tuple[int, ...]
    held_by: tuple[int, ...]
    ended_on: tuple[int, ...]
    unknown: bool

    @property
    def held(self) -> bool:
        """True if other ranks hold up the call, or may do so."""
        return bool(self.held_by) or self.unknown

    @property
    def stuck(self) -> bool:
        """True if the call waits for the rank's own device: it has ended on other ranks, and no rank holds it up."""
        return bool(self.ended_on) and not self.held


def waits_of(groups: Sequence[Group], given: Mapping[int, Dump]) -> dict[int, Wait]:
    """Waits of all ranks with an open call, by rank. given: dumps by rank."""
    found = {rank: next((call for call in dump.calls if not call.done), None) for rank, dump in given.items()}
    first = {rank: call for rank, call in found.items() if call is not None}
    waits = {}
    for rank, call in first.items():
        group = next((each for each in groups if each.name == call.group and rank in each.members), None)
        members = group.members if group is not None else (rank,)
        others = _others(rank, call, members)
        unknown = group is None or any(other not in given for other in others)
        unknown = unknown or (call.direction is None and group is not None and not group.whole)
        progress = {other: _progress(call, given[other], first.get(other)) for other in others if other in given}
        held = tuple(other for other, each in progress.items() if each is CallProgress.BEHIND)
        ended = tuple(other for other, each in progress.items() if each is CallProgress.ENDED)
        waits[rank] = Wait(call, members, held, ended, unknown)
    return waits


def waiting_for(rank: int, waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """All ranks that wait for this one, directly or through others; in order."""
    found: set[int] = set()
    new = {rank}
    while new:
        new = {other for other, wait in waits.items() if new & set(wait.held_by)} - found
        found |= new
    return tuple(sorted(found - {rank}))


def _others(rank: int, call: CollectiveCall, members: tuple[int, ...]) -> list[int]:
    """Ranks that a call of `rank` needs: all members, or the other end of a send or receive."""
    ends = range(len(members)) if call.direction is None else call.direction[1:]
    return [member for place, member in enumerate(members) if member != rank and place in ends]


def _progress(call: CollectiveCall, dump: Dump, first: CollectiveCall | None) -> CallProgress:
    """Progress of a dump's rank with another rank's call. first: its own first open call."""
    alike = [each for each in dump.calls if _belongs(each, call)]
    same = next((each for each in alike if each.sequence == call.sequence), None)
    if same is not None and same.done:
        return CallProgress.ENDED
    if same is not None:
        return CallProgress.OPEN if first is None or first.record >= same.record else CallProgress.BEHIND
    # Some rings hold open calls alone: one that is missing before later ones has ended.
    return CallProgress.ENDED if any(each.sequence > call.sequence for each in alike) else CallProgress.BEHIND


def _belongs(each: CollectiveCall, call: CollectiveCall) -> bool:
    """True if `each` belongs to the same sequence of numbers as the other side of `call`."""
    if each.group != call.group or each.point_to_point != call.point_to_point:
        return False
    mine, other = call.direction, each.direction
    if mine is None or other is None:
        return mine is other
    return mine[0] != other[0] and mine[1:] == other[1:]
