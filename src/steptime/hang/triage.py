"""Cause of a hang in a distributed job: the dumps of its ranks are compared, group by group.

Ranks of a process group call its collectives in the same order, with matching arguments. The job stopped at the first
place where they do not and some rank still waits; all other waits follow from that one.

NCCL's dumps list the members of every group under its name. gloo's (torch 2.13) name groups in their calls only, and
hold one list without a name: of all ranks if the process made no further group, else empty. So the known members of a
gloo group are those that have called something in it, and it is mostly unknown whether there are others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from steptime.errors import UsageError
from steptime.hang.dump import COMPLETED, CollectiveCall, Dump
from steptime.hang.waits import Group, Wait, waiting_for, waits_of
from steptime.quantities import SourceLine, format_source

DEFAULT, DEFAULT_NAMES = "default_pg", ("", "0")
"""Group of all ranks: torch's description, and its names if no description was recorded."""
LARGEST_WORLD = 1 << 20
"""Largest number of ranks for which missing numbers are assumed to exist: a larger one in a file is a mistake."""
MOST_DIMENSIONS = 16


def world_of(dumps: Sequence[Dump], world_size: int | None = None) -> Group:
    """Group of all ranks of the job. They are numbered from 0, so ranks between known ones exist.

    world_size: given by the user, or None. Raises UsageError if a dump contains a larger rank."""
    known = {dump.rank for dump in dumps}.union(*(members for dump in dumps for members in dump.groups.values()))
    last = max(known, default=0)
    if world_size is not None and last >= world_size:
        raise UsageError("usage", f"--world-size {world_size} contradicts the dumps, which mention rank {last}.")
    if last >= LARGEST_WORLD:
        return Group("", tuple(sorted(known)), open=True)
    size = world_size or _gathered(call for dump in dumps for call in dump.calls if _is_default(call))
    listed = any(len(dump.groups.get(name, ())) > last for dump in dumps for name in DEFAULT_NAMES)
    return Group("", tuple(range(max(size, last + 1))), open=not (listed or size > last))


def groups_of(dumps: Sequence[Dump], world: Group) -> tuple[Group, ...]:
    """All groups that a dump lists or has calls of. Groups of one name (made by splitting) differ in their members."""
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
    """Group whose members no dump lists. calls: in the group, by rank."""
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
    """Number of ranks in a group, from an all-gather, whose output is a multiple of its input; 0 if there is none."""
    for call in calls:
        if call.operation.replace("_", "").startswith("allgather") and "_v" not in call.operation:
            given, got = _elements(call.input_sizes), _elements(call.output_sizes)
            if given and got % given == 0 and 0 < got // given <= LARGEST_WORLD:
                return got // given
    return 0


def _elements(sizes: Iterable[tuple[int, ...]]) -> int:
    return sum(prod(size[:MOST_DIMENSIONS]) for size in sizes)


NAMED = 8
"""Most ranks that a sentence lists one by one."""
ROOTED = ("scatter", "gather", "broadcast", "reduce")
"""Operations in which only one rank has all inputs (scatter) or outputs (gather), so sizes of that side may differ."""
NEIGHBOURHOOD = 4
"""Calls after a position in which a swapped call is looked for."""
UNEVEN = ("all_to_all", "alltoall", "_v", "v_")
"""Operations whose sizes differ from rank to rank by design."""
NO_DATA = "barrier"
LATE = 1.0
"""Seconds that clocks of a cluster do not differ by, and collectives of ranks that train alike do not, either."""
NO_DUMP = "a rank without a dump is dead, stuck in its own code, or its file was not given: check it first"
CIRCLE = (
    "deadlock: these ranks wait for one another, because they call the collectives of two groups in different orders"
)


class Fault(Enum):
    """Kind of reason that a collective does not end."""

    MISSING = "missing"
    """Some ranks have not called it."""
    NO_DUMP = "no-dump"
    """All ranks with a dump have called it; nothing is known of the others."""
    MEMBERS_UNKNOWN = "members-unknown"
    """All known members of the group have called it; the dumps do not say whether there are more."""
    TYPE = "type"
    """The ranks called different operations."""
    ORDER = "order"
    """The ranks called the same operations in another order."""
    SIZE = "size"
    ELEMENT_TYPE = "element-type"
    NOT_DONE = "not-done"
    """All ranks have called it alike and it does not end: the network, a device, or a dead peer."""
    UNMATCHED = "unmatched"
    """A send has no receive, or a receive no send."""
    DEVICE = "device"
    """It has ended on other ranks, which went on to later calls, but not on one rank's device."""


UNSURE = frozenset({Fault.NO_DUMP, Fault.MEMBERS_UNKNOWN})
"""Faults that blame no rank whose dump was given."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Call that does not end, with its cause.

    group: name for the reader ("group tp"). members: ranks of the job in the group. culprits: missing or odd ranks; all
    ranks in a tie. waiting: ranks that wait for the call. since: time of its first call, epoch ns. source: line of the
    culprits' last call, else of the waiting ranks'. consequence: True if the culprits themselves wait in another stall.
    absent: ranks without a dump that belong to the group, or may belong to it."""

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
        unknown = self.absent and self.fault is not Fault.NO_DUMP
        return f"{self._seen}; {no_dump(self.absent)}." if unknown else f"{self._seen}."

    @property
    def _seen(self) -> str:
        place = f"{self.operation} #{self.sequence} of {self.group}"
        who, several = counted_ranks(self.culprits), len(self.culprits) != 1
        wait = f"{counted_ranks(self.waiting)} {'wait' if len(self.waiting) != 1 else 'waits'} in {place}"
        not_called = f"{who} {'have' if several else 'has'} not called"
        tie = not self.waiting  # no rank is the odd one: they differ from one another
        odd = "have different {}s" if tie else "have another {} than the others'"
        return {
            Fault.MISSING: f"{wait}; {not_called} it",
            Fault.NO_DUMP: f"{wait}; the {first_suspects(self.culprits)}, without a dump",
            Fault.MEMBERS_UNKNOWN: f"{wait}; the dumps do not list its other ranks",
            Fault.TYPE: f"{place}: {who} called "
            f"{'different operations' if tie else 'another operation than the others'}",
            Fault.ORDER: f"{place}: {who} {'call' if several else 'calls'} the collectives in "
            f"{'different orders' if tie else 'another order'}",
            Fault.SIZE: f"{place}: the tensors of {who} {odd.format('size')}",
            Fault.ELEMENT_TYPE: f"{place}: the tensors of {who} {odd.format('element type')}",
            Fault.NOT_DONE: f"{wait}, {self._held}",
            Fault.UNMATCHED: f"{wait}; {not_called} its other half",
            Fault.DEVICE: f"the device of {who} has not finished {place}, which has ended on the other ranks",
        }[self.fault]

    @property
    def _held(self) -> str:
        """Possible causes if no rank is missing."""
        roots = "their roots differ, or " if has_root(self.operation) else ""
        ended = set(self.members) - set(self.waiting)
        if not ended:
            return f"which all {len(self.members)} ranks have called alike: {roots}the network or a device holds it"
        older = f"{counted_ranks(self.waiting)} {'were' if len(self.waiting) != 1 else 'was'} dumped earlier"
        return f"which has ended on {counted_ranks(ended)}: {roots}{older}, or the network or a device holds it"


def counted_ranks(ranks: Iterable[int]) -> str:
    """Ranks as text: "rank 3", "ranks 0, 1 and 2", "ranks 0 to 63", "ranks 0, 2, 4 and 61 more"."""
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


def first_suspects(ranks: Sequence[int]) -> str:
    """Text such as "first suspect is rank 3"."""
    return f"first {'suspects are' if len(ranks) != 1 else 'suspect is'} {counted_ranks(ranks)}"


def has_root(operation: str) -> bool:
    """True if one rank, which no dump names, sends the data to all ranks or receives it from all."""
    kind = operation.strip("_")
    return kind.startswith(ROOTED) and not kind.startswith("reduce_scatter")


def no_dump(ranks: Iterable[int]) -> str:
    """Text such as "there is no dump of rank 3"."""
    return f"there is no dump of {counted_ranks(ranks)}"


@dataclass(frozen=True, slots=True)
class HangTriage:
    """Findings from the dumps of a job. stalls: causes first. ranks: those with a dump; absent: the job's without one.
    whole: True if the job has no other ranks, by the dumps or the user. checked: number of compared collectives."""

    stalls: tuple[Stall, ...]
    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    whole: bool
    checked: int

    @property
    def to_blame(self) -> tuple[int, ...]:
        """Ranks with a dump that certainly hold up others, in order."""
        causes = (stall for stall in self.stalls if not (stall.consequence or stall.fault in UNSURE))
        return tuple(sorted({rank for stall in causes for rank in stall.culprits}))


def triage(dumps: Sequence[Dump], world_size: int | None = None) -> HangTriage:
    """Compares the dumps of a job, one per rank. world_size: number of ranks that the user gave, or
    None. Raises UsageError if a dump has a rank that is not below it."""
    given = {dump.rank: dump for dump in dumps}
    world = world_of(dumps, world_size)
    groups = groups_of(dumps, world)
    stalls: list[Stall] = []
    checked = 0
    for group in groups:
        stall, compared = _first_stall(group, given)
        checked += compared
        stalls += [stall] if stall is not None else []
        stalls += _unmatched_sends(group, given)
    waits = waits_of(groups, given)
    stalls += _stuck_devices(waits, stalls)
    members = {rank for group in (world, *groups) for rank in group.members}
    absent = tuple(sorted(members - given.keys()))
    return HangTriage(_causes_first(stalls, waits), tuple(sorted(given)), absent, world.whole, checked)


def _first_stall(group: Group, given: Mapping[int, Dump]) -> tuple[Stall | None, int]:
    """(first collective of a group at which its ranks differ or that is not done, number of compared ones)."""
    calls = {
        rank: {
            call.sequence: call  # of a coalesced one (several calls with one number) the last, which is the whole
            for call in given[rank].calls
            if call.group == group.name and not call.point_to_point
        }
        for rank in group.members
        if rank in given
    }
    known = [each for each in calls.values() if each]
    if not known:
        return None, 0
    first = max(min(each) for each in known)  # what is older has left somebody's ring
    numbers = sorted({sequence for each in known for sequence in each if sequence >= first})
    ending: Stall | None = None
    for number, sequence in enumerate(numbers, 1):
        here = {rank: each[sequence] for rank, each in calls.items() if sequence in each}
        # Of a rank that has called later ones, a number that is missing was never kept.
        lacking = [rank for rank, each in calls.items() if max(each, default=-1) < sequence]
        stall = _differing(group, sequence, here, calls) or _not_done(group, sequence, here, lacking, given)
        if stall is None:
            continue
        if stall.fault not in (Fault.NOT_DONE, *UNSURE) or not any(call.done for call in here.values()):
            return stall, number
        ending = ending or stall  # some rank is done with it, so it only ends late on the others
    return ending, len(numbers)


def _differing(
    group: Group, sequence: int, here: Mapping[int, CollectiveCall], calls: Mapping[int, Mapping[int, CollectiveCall]]
) -> Stall | None:
    """Stall if the ranks called different things under one number and not all of the calls completed; else None."""
    if len(here) < 2 or all(call.state == COMPLETED for call in here.values()):  # gloo ends what differs with an error
        return None
    for fault, notify in ((Fault.TYPE, _kind), (Fault.SIZE, _size), (Fault.ELEMENT_TYPE, _element_type)):
        values = {rank: notify(call) for rank, call in here.items()}
        if len(set(values.values())) < 2:
            continue
        usual, count = Counter(values.values()).most_common(1)[0]
        tie = 2 * count == len(here)
        odd = tuple(rank for rank, each in values.items() if tie or each != usual)
        return Stall(
            fault=Fault.ORDER if fault is Fault.TYPE and _swapped(sequence, here, calls) else fault,
            group=_group_name(group.name, here.values()),
            members=group.members,
            sequence=sequence,
            operation=next(call.operation for rank, call in here.items() if values[rank] == usual),
            culprits=odd,
            waiting=tuple(rank for rank in here if rank not in odd),
            since=min(call.created for call in here.values()),
            source=here[odd[0]].source,
            evidence=tuple(f"rank {rank} called {_described(here[rank])}" for rank in sorted(here)[:8]),
            absent=tuple(rank for rank in group.members if rank not in calls),
        )
    return None


def _kind(call: CollectiveCall) -> str:
    return call.operation.split(" ")[0]


def _size(call: CollectiveCall) -> object:
    """Sizes that must be equal on all ranks; () for operations with uneven sizes by design."""
    kind = _kind(call)
    if any(each in kind for each in (*UNEVEN, NO_DATA)):
        return ()
    if kind.strip("_").startswith(("gather", "reduce_oop")) or kind == "reduce":
        return call.input_sizes
    return call.output_sizes if kind.startswith("scatter") else (call.input_sizes, call.output_sizes)


def _element_type(call: CollectiveCall) -> object:
    kind = _kind(call)
    return () if kind.startswith(ROOTED) or NO_DATA in kind else call.input_types


def _swapped(
    sequence: int, here: Mapping[int, CollectiveCall], calls: Mapping[int, Mapping[int, CollectiveCall]]
) -> bool:
    """True if each rank soon calls what the others call now: the same collectives in another order."""
    wanted = {call.operation for call in here.values()}
    soon = range(sequence, sequence + NEIGHBOURHOOD + 1)  # what came before agrees
    return all(wanted <= {calls[rank][number].operation for number in soon if number in calls[rank]} for rank in here)


def _not_done(
    group: Group, sequence: int, here: Mapping[int, CollectiveCall], lacking: Sequence[int], given: Mapping[int, Dump]
) -> Stall | None:
    """Stall if ranks wait for ranks that have not called it, for ranks without a dump, or for no rank; else None."""
    waiting = tuple(rank for rank, call in here.items() if not call.done)
    if not waiting:
        return None
    unknown = tuple(rank for rank in group.members if rank not in given)
    call = here[waiting[0]]
    blamed = None
    if lacking:
        fault, evidence = Fault.MISSING, tuple(_last_call(given[rank]) for rank in lacking[:8])
        blamed = given[lacking[0]].calls[-1].source if given[lacking[0]].calls else None
    elif unknown:
        fault, evidence = Fault.NO_DUMP, (NO_DUMP,)
    elif not group.whole:
        fault, evidence = Fault.MEMBERS_UNKNOWN, _who_else(group, given)
    else:
        fault, evidence = Fault.NOT_DONE, _alike(call, waiting, here)
    return Stall(
        fault=fault,
        group=_group_name(group.name, here.values()),
        members=group.members,
        sequence=sequence,
        operation=call.operation,
        culprits=tuple(lacking) or unknown,
        waiting=waiting,
        since=min(each.created for each in here.values()),
        source=blamed or call.source,
        evidence=(*evidence, f"{counted_ranks(waiting)} called it{_at_place(call)}"),
        absent=unknown or tuple(rank for rank in group.possible if rank not in given),
    )


def _who_else(group: Group, given: Mapping[int, Dump]) -> tuple[str, ...]:
    """Sentences on the ranks that may be missing, and how to find out."""
    silent = [rank for rank in group.possible if rank in given]
    lines = []
    if silent:
        lines.append(f"{counted_ranks(silent)} called nothing in this group: whichever belongs to it is missing there")
    if len(silent) < len(group.possible) or group.open:
        lines.append(NO_DUMP)
    if group.open:
        lines.append("with --world-size N the ranks without a dump are named")
    return tuple(lines)


def _alike(call: CollectiveCall, waiting: Sequence[int], here: Mapping[int, CollectiveCall]) -> tuple[str, ...]:
    """Evidence on a collective that all ranks called alike: its state, and what may still differ."""
    evidence = [f"it is {call.state} on {counted_ranks(waiting)}"]
    last = max(here, key=lambda rank: here[rank].created)
    late = (here[last].created - min(each.created for each in here.values())) / 1e9
    if late >= LATE:
        evidence.append(f"rank {last} called it last, {late:.0f} s after the first, by its clock")
    if has_root(call.operation):
        evidence.append("a dump holds no roots: look whether all ranks name the same one")
    return tuple(evidence)


def _unmatched_sends(group: Group, given: Mapping[int, Dump]) -> Iterator[Stall]:
    """For each two ranks of a group, the first send or receive that still waits and whose counterpart is missing or
    differs in size. Both have one number, which counts the messages between the two ranks."""
    calls: dict[tuple[str, int, int], dict[int, CollectiveCall]] = {}
    for rank in group.members:
        for call in given[rank].calls if rank in given else ():
            direction = call.direction
            if call.group == group.name and direction is not None:
                calls.setdefault(direction, {})[call.sequence] = call
    for (kind, source, destination), mine in calls.items():
        waiting = [number for number, call in sorted(mine.items()) if not call.done]
        if not waiting or max(source, destination) >= len(group.members):
            continue
        other_kind, caller, peer = ("recv", source, destination) if kind == "send" else ("send", destination, source)
        other = calls.get((other_kind, source, destination), {}).get(waiting[0])
        stall = _unmatched(group, mine[waiting[0]], other, (group.members[caller], group.members[peer]), given)
        if stall is not None:
            yield stall


def _unmatched(
    group: Group, call: CollectiveCall, other: CollectiveCall | None, ends: tuple[int, int], given: Mapping[int, Dump]
) -> Stall | None:
    """Stall of a send or receive, None if it matches. other: its counterpart. ends: (rank of the caller, its peer)."""
    caller, peer = ends
    evidence: tuple[str, ...] = (f"rank {caller} called {call.operation}{_at_place(call)}",)
    if other is None:
        fault = Fault.UNMATCHED if peer in given else Fault.NO_DUMP
        if peer in given and given[peer].calls:
            last = given[peer].calls[-1]
            evidence += (f"rank {peer}'s last call is {last.operation}, {_progress(last)}{_at_place(last)}",)
    elif call.direction is not None and call.direction[0] == "send" and call.input_sizes != other.output_sizes:
        fault = Fault.SIZE
        evidence += (f"rank {caller} sends {list(call.input_sizes)}, rank {peer} receives {list(other.output_sizes)}",)
    else:
        return None
    return Stall(
        fault=fault,
        group=_group_name(group.name, (call,)),
        members=group.members,
        sequence=call.sequence,
        operation=call.operation,
        culprits=(peer,),
        waiting=(caller,),
        since=call.created,
        source=call.source,
        evidence=evidence,
    )


def _stuck_devices(waits: Mapping[int, Wait], stalls: Sequence[Stall]) -> Iterator[Stall]:
    """Ranks whose first open call has ended on the other members, and that others wait for. A single rank that is
    behind, without others waiting, may just have been dumped earlier."""
    for rank, wait in waits.items():
        behind = waiting_for(rank, waits)
        if not wait.stuck or not behind:
            continue
        call = wait.call
        yield Stall(
            fault=Fault.DEVICE,
            group=_group_name(call.group, (call,)),
            members=wait.members,
            sequence=call.sequence,
            operation=call.operation,
            culprits=(rank,),
            waiting=behind,
            since=call.created,
            source=call.source,
            evidence=(
                f"it has ended on {counted_ranks(wait.ended_on)}",
                f"{counted_ranks(behind)} {'wait' if len(behind) != 1 else 'waits'} for rank {rank}, in later calls",
                "look at that rank's device: errors of the driver (nvidia-smi -q, dmesg), a kernel that does not end",
            ),
        )


def _causes_first(stalls: Sequence[Stall], waits: Mapping[int, Wait]) -> tuple[Stall, ...]:
    """Stalls in causal order. A rank that itself waits for another one, in any group, is no cause: stalls that only
    such ranks hold up are consequences. Causes that blame more ranks come first."""
    held = {rank for rank, wait in waits.items() if wait.held}
    stuck = {rank for stall in stalls if stall.fault is Fault.DEVICE for rank in stall.culprits}
    found = []
    for stall in stalls:
        free = tuple(rank for rank in stall.culprits if rank not in held)
        kept = [rank for rank in stall.culprits if rank in held]
        if kept:
            first = waits[kept[0]].call
            because = (
                f"{counted_ranks(kept)} cannot come: see {first.operation} of {_group_name(first.group, (first,))}"
            )
            stall = replace(stall, evidence=(*stall.evidence, because), culprits=free or stall.culprits)
        waiting_too = not stall.culprits and any(rank in waits and waits[rank].held_by for rank in stall.waiting)
        explained = stall.fault is not Fault.DEVICE and bool(free) and stuck.issuperset(free)
        found.append(replace(stall, consequence=waiting_too or explained or bool(kept and not free)))
    if found and all(stall.consequence for stall in found):  # none is first: they wait for one another
        found = [replace(stall, consequence=False, evidence=(*stall.evidence, CIRCLE)) for stall in found]

    def order(stall: Stall) -> tuple[bool, bool, int, int]:
        return stall.consequence, stall.fault in UNSURE, -len(set(stall.culprits) - held), stall.since

    return tuple(sorted(found, key=order))


def _group_name(name: str, calls: Iterable[CollectiveCall]) -> str:
    """Name of a group for the reader: its description if it has one."""
    described = next((call.description for call in calls if call.description), "")
    return f"group {described or name}" if described or name else "a group without a name"


def _at_place(call: CollectiveCall) -> str:
    """Text such as " at train.py:12", or ""."""
    return f" at {format_source(call.source)}" if call.source is not None else ""


def _progress(call: CollectiveCall) -> str:
    """Progress of a call. If gloo has ended it, no dump says whether it failed."""
    return "ended" if call.done and call.state != COMPLETED else call.state


def _described(call: CollectiveCall) -> str:
    shape = " ".join(str(list(size)) for size in call.input_sizes[:2])
    kind = ", ".join(dict.fromkeys(call.input_types))
    return f"{call.operation}({', '.join(each for each in (shape, kind) if each)}){_at_place(call)}"


def _last_call(dump: Dump) -> str:
    if not dump.calls:
        return f"rank {dump.rank} has called no collective that its dump holds"
    call = dump.calls[-1]
    what = f"{call.operation} #{call.sequence} of {_group_name(call.group, (call,))}"
    return f"rank {dump.rank}'s last call is {what}, {_progress(call)}{_at_place(call)}"
