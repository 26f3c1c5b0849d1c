"""Who waits for whom, over all process groups: the first call of each rank that has not ended, and the ranks that keep
it from ending.

A rank's calls run on its device in about the order in which it makes them. So a rank that is busy with an earlier call
keeps up the members of every later one, and the cause lies with the ranks that wait for nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from steptime.hang.dump import CollectiveCall, Dump


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. name: as calls give it. members: the ranks of the job that are known to belong to it. possible:
    those that may, as no dump says it. open: there may be ranks that no dump names."""

    name: str
    members: tuple[int, ...]
    possible: tuple[int, ...] = ()
    open: bool = False

    @property
    def whole(self) -> bool:
        """True if no other rank can belong to it."""
        return not (self.possible or self.open)


class CallProgress(Enum):
    """How far another rank is with a call."""

    ENDED = auto()
    """It has ended there, or later ones of the group have been called since and it is not open any more."""
    OPEN = auto()
    """It is that rank's first open call, too."""
    BEHIND = auto()
    """That rank has not called it, or an earlier call of its own is open."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The first open call of a rank.

    members: ranks of its group. held_by: members that have not called it or have an earlier call open. ended_on:
    members on which it has ended. unknown: there are members, or may be, without a dump."""

    call: CollectiveCall
    members: tuple[int, ...]
    held_by: tuple[int, ...]
    ended_on: tuple[int, ...]
    unknown: bool

    @property
    def held(self) -> bool:
        """True if other ranks keep the call from ending, as far as is known or for all that is known."""
        return bool(self.held_by) or self.unknown

    @property
    def stuck(self) -> bool:
        """True if the rank's own device is what the call waits for: it has ended on others, and nobody holds it."""
        return bool(self.ended_on) and not self.held


def waits_of(groups: Sequence[Group], given: Mapping[int, Dump]) -> dict[int, Wait]:
    """The waits of all ranks that have an open call, by rank. given: dumps by rank."""
    found = {rank: next((call for call in dump.calls if not call.done), None) for rank, dump in given.items()}
    first = {rank: call for rank, call in found.items() if call is not None}
    return {rank: _wait(rank, call, groups, given, first) for rank, call in first.items()}


def waiting_for(rank: int, waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """All ranks that wait for this one, directly or through others; in order."""
    found: set[int] = set()
    new = {rank}
    while new:
        new = {other for other, wait in waits.items() if new & set(wait.held_by)} - found
        found |= new
    return tuple(sorted(found - {rank}))


def _wait(
    rank: int,
    call: CollectiveCall,
    groups: Sequence[Group],
    given: Mapping[int, Dump],
    first: Mapping[int, CollectiveCall],
) -> Wait:
    group = next((each for each in groups if each.name == call.group and rank in each.members), None)
    members = group.members if group is not None else (rank,)
    others = tuple(_others(rank, call, members))
    unknown = group is None or any(other not in given for other in others)
    unknown = unknown or (call.direction is None and group is not None and not group.whole)
    progress = {other: _progress(call, given[other], first.get(other)) for other in others if other in given}
    held = tuple(other for other, each in progress.items() if each is CallProgress.BEHIND)
    ended = tuple(other for other, each in progress.items() if each is CallProgress.ENDED)
    return Wait(call, members, held, ended, unknown)


def _others(rank: int, call: CollectiveCall, members: tuple[int, ...]) -> Iterator[int]:
    """The ranks that a call of `rank` needs."""
    direction = call.direction
    ends = set(direction[1:]) if direction is not None else None
    for place, member in enumerate(members):
        if member != rank and (ends is None or place in ends):
            yield member


def _progress(call: CollectiveCall, dump: Dump, first: CollectiveCall | None) -> CallProgress:
    """How far the rank of a dump is with another rank's call. first: its own first open one."""
    alike = [each for each in dump.calls if _belongs(each, call)]
    same = next((each for each in alike if each.sequence == call.sequence), None)
    if same is not None and same.done:
        return CallProgress.ENDED
    if same is not None:
        return CallProgress.OPEN if first is None or first.record >= same.record else CallProgress.BEHIND
    # Some rings hold open calls alone: one that is missing before later ones has ended.
    return CallProgress.ENDED if any(each.sequence > call.sequence for each in alike) else CallProgress.BEHIND


def _belongs(each: CollectiveCall, call: CollectiveCall) -> bool:
    """True if `each` is numbered in one row with the other side of `call`."""
    if each.group != call.group or each.point_to_point != call.point_to_point:
        return False
    mine, other = call.direction, each.direction
    if mine is None or other is None:
        return mine is other
    return mine[0] != other[0] and mine[1:] == other[1:]
