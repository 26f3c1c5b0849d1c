"""Which ranks belong to which process group, as far as the dumps say it.

NCCL's dumps list the members of every group under its name. gloo's (torch 2.13) name groups in their calls only, and
hold one list without a name: of all ranks where the process made no further group, empty where it did. So of a gloo
group those members are known that have called something in it, and whether there are others is mostly not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from steptime.errors import UsageError
from steptime.hang.dump import CollectiveCall, Dump

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
    size = world_size or _gathered(call for dump in dumps for call in dump.calls if _is_default(call))
    listed = any(len(dump.groups.get(name, ())) > last for dump in dumps for name in DEFAULT_NAMES)
    return Group("", tuple(range(max(size, last + 1))), open=not (listed or size > last))


def groups_of(dumps: Sequence[Dump], world: Group) -> tuple[Group, ...]:
    """Every group that a dump lists or has calls of. Several of one name (made by splitting) have different members."""
    listed = (Group(name, members) for dump in dumps for name, members in dump.groups.items() if name)
    found = {(group.name, group.members): group for group in listed}
    unlisted: dict[str, dict[int, list[CollectiveCall]]] = {}
    for dump in dumps:
        for call in dump.calls:
            if not (call.group and call.group in dump.groups):
                unlisted.setdefault(call.group, {}).setdefault(dump.rank, []).append(call)
    for name, calls in unlisted.items():
        group = _by_calls(name, calls, world)
        found[name, group.members] = group
    return tuple(found.values())


def _by_calls(name: str, calls: dict[int, list[CollectiveCall]], world: Group) -> Group:
    """A group that no dump lists the members of. calls: in it, by rank."""
    own = [call for each in calls.values() for call in each]
    members = tuple(sorted(calls))
    if any(map(_is_default, own)):
        return Group(name, world.members, open=world.open)
    if _gathered(own) == len(members):
        return Group(name, members)
    return Group(name, members, tuple(rank for rank in world.members if rank not in calls), world.open)


def _is_default(call: CollectiveCall) -> bool:
    return call.group in DEFAULT_NAMES or call.description == DEFAULT


def _gathered(calls: Iterable[CollectiveCall]) -> int:
    """How many ranks a group has, by an all-gather, which gets as much from each; 0 where none was kept."""
    for call in calls:
        if call.operation.replace("_", "").startswith("allgather") and "_v" not in call.operation:
            given, got = _elements(call.input_sizes), _elements(call.output_sizes)
            if given and got % given == 0 and 0 < got // given <= LARGEST_WORLD:
                return got // given
    return 0


def _elements(sizes: Iterable[tuple[int, ...]]) -> int:
    return sum(prod(size[:MOST_DIMENSIONS]) for size in sizes)
