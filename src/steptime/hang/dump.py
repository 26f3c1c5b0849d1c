"""A flight recorder's dump: the last collectives that one rank has called. The room's central types.

torch keeps them in a ring (of TORCH_FR_BUFFER_SIZE entries, in older releases TORCH_NCCL_TRACE_BUFFER_SIZE) and writes
them when a collective times out. The fields are those of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.

Which ranks belong to which process group, as far as the dumps say it.

NCCL's dumps list the members of every group under its name. gloo's (torch 2.13) name groups in their calls only, and
hold one list without a name: of all ranks where the process made no further group, empty where it did. So of a gloo
group those members are known that have called something in it, and whether there are others is mostly not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from steptime.errors import UsageError
from steptime.quantities import SourceLine

COMPLETED = "completed"
"""The state of a call that has ended; before that it is "scheduled" (by the host) or "started" (on the device)."""
POINT_TO_POINT = re.compile(r"(send|recv|isend|irecv) (\d+)(->|<-)(\d+)")


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective (or send, or receive) of one rank.

    operation: torch's name without the backend ("all_reduce", "send 0->1"). group: the name of its process group,
    description: what the user calls it. sequence: its number among the collectives of the group (or among the sends and
    receives between two ranks). state: how far it had come, as torch says it; done: it has ended (gloo leaves the state
    at "scheduled" and says only that the entry was retired). sizes and types: of its tensors, as given in and got out.
    created: epoch ns.
    source: the user's innermost line, None where no stack was kept.
    """

    operation: str
    group: str
    description: str
    sequence: int
    record: int
    state: str
    done: bool
    input_sizes: tuple[tuple[int, ...], ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    input_types: tuple[str, ...] = ()
    output_types: tuple[str, ...] = ()
    created: int = 0
    point_to_point: bool = False
    source: SourceLine | None = None

    @property
    def direction(self) -> tuple[str, int, int] | None:
        """("send" or "recv", source, destination) within the group; None for a collective."""
        found = POINT_TO_POINT.fullmatch(self.operation)
        if found is None:
            return None
        kind, first, arrow, second = found.groups()
        ends = (int(first), int(second)) if arrow == "->" else (int(second), int(first))
        return kind.removeprefix("i"), *ends


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank had called last, the oldest first. groups: members (ranks of the whole job) by the group's name, as
    far as the backend says them (gloo does not)."""

    path: str
    rank: int
    version: str
    calls: tuple[CollectiveCall, ...]
    groups: dict[str, tuple[int, ...]]


DEFAULT, DEFAULT_NAMES = "default_pg", ("", "0")
"""The group of all ranks: what torch describes it as, and its names where no description is kept."""
LARGEST_WORLD = 1 << 20
"""Ranks up to which those between are taken to exist: a larger number in a file is a mistake."""
MOST_DIMENSIONS = 16


@dataclass(frozen=True, slots=True)
class Group:
    """name: as calls give it. members: the ranks of the job that are known to belong to it. possible: those that may,
    as no dump says it. open: there may be ranks that no dump names."""

    name: str
    members: tuple[int, ...]
    possible: tuple[int, ...] = ()
    open: bool = False

    @property
    def whole(self) -> bool:
        """Whether no other rank can belong to it."""
        return not (self.possible or self.open)


def world_of(dumps: Sequence[Dump], world_size: int | None = None) -> Group:
    """The group of all ranks of the job: they are numbered from 0 on, so that those between known ones exist.

    world_size: how many there are, where the user says it. Raises UsageError where a dump names others.
    """
    known = {dump.rank for dump in dumps}.union(*(members for dump in dumps for members in dump.groups.values()))
    last = max(known, default=0)
    if world_size is not None and last >= world_size:
        raise UsageError("usage", f"A job of {world_size} ranks has no rank {last}, which a dump is of or names.")
    if last >= LARGEST_WORLD:
        return Group("", tuple(sorted(known)), open=True)
    size = world_size or _gathered(call for dump in dumps for call in dump.calls if _is_default(call)) or 0
    listed = any(
        len(members) > last for dump in dumps for name, members in dump.groups.items() if name in DEFAULT_NAMES
    )
    return Group("", tuple(range(max(size, last + 1))), open=not (listed or size > last))


def groups_of(dumps: Sequence[Dump], world: Group) -> tuple[Group, ...]:
    """Every group that a dump lists or has calls of. Several of one name (made by splitting) have different members."""
    found: dict[tuple[str, tuple[int, ...]], Group] = {}
    for dump in dumps:
        for name, members in dump.groups.items():
            if name:
                found[name, members] = Group(name, members)
    for name, calls in _unlisted(dumps).items():
        own = [call for each in calls.values() for call in each]
        members = tuple(sorted(calls))
        if any(map(_is_default, own)):
            group = Group(name, world.members, open=world.open)
        elif _gathered(own) == len(members):
            group = Group(name, members)
        else:
            others = tuple(rank for rank in world.members if rank not in calls)
            group = Group(name, members, others, world.open)
        found[name, group.members] = group
    return tuple(found.values())


def _is_default(call: CollectiveCall) -> bool:
    return call.group in DEFAULT_NAMES or call.description == DEFAULT


def _unlisted(dumps: Iterable[Dump]) -> dict[str, dict[int, list[CollectiveCall]]]:
    """Calls by group and rank, of groups whose members the rank's own dump does not list."""
    found: dict[str, dict[int, list[CollectiveCall]]] = {}
    for dump in dumps:
        for call in dump.calls:
            if not (call.group and call.group in dump.groups):
                found.setdefault(call.group, {}).setdefault(dump.rank, []).append(call)
    return found


def _gathered(calls: Iterable[CollectiveCall]) -> int | None:
    """How many ranks a group has, by an all-gather, which gets as much from each; None where none was kept."""
    for call in calls:
        if call.operation.strip("_").replace("_", "").startswith("allgather") and "_v" not in call.operation:
            given, got = _elements(call.input_sizes), _elements(call.output_sizes)
            if given and got % given == 0 and 0 < got // given <= LARGEST_WORLD:
                return got // given
    return None


def _elements(sizes: Iterable[tuple[int, ...]]) -> int:
    return sum(prod(size[:MOST_DIMENSIONS]) for size in sizes)
