"""Why a distributed job hangs: the dumps of its ranks laid beside one another, group by group.

One law: ranks of a process group call its collectives in the same order, with arguments that fit. The first place where
they do not, and where somebody still waits, is where the job stopped; whatever else waits, waits for that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from steptime.flight.dump import Call, Dump
from steptime.flight.sends import unmatched_sends
from steptime.flight.stall import Fault, Stall, at_place, counted_ranks, group_name, progress

NEIGHBOURHOOD = 4
"""Calls around a place where a swapped one is looked for."""
ROOTED = ("scatter", "gather", "broadcast", "reduce")
"""Only one rank gives in (or gets out) all of it, so sizes of one side may differ: in of scatter, out of gather."""
UNEVEN = ("all_to_all", "alltoall", "_v", "v_")
"""Operations whose sizes differ from rank to rank by design."""
NO_DATA = ("barrier",)
CIRCLE = "a circle: these ranks wait for one another, as they call the collectives of two groups in another order"


@dataclass(frozen=True, slots=True)
class Triage:
    """What dumps say. stalls: what waits, the cause first. ranks: whose dumps were given; absent: members of groups
    without a dump. checked: collectives that were compared."""

    stalls: tuple[Stall, ...]
    ranks: tuple[int, ...]
    absent: tuple[int, ...]
    checked: int


def triage(dumps: Sequence[Dump]) -> Triage:
    """Compares the dumps of a job, one of each rank."""
    given = {dump.rank: dump for dump in dumps}
    groups = _groups(dumps)
    members = {rank for ranks in groups.values() for rank in ranks}
    stalls: list[Stall] = []
    checked = 0
    for (name, _), ranks in groups.items():
        calls = {rank: _by_sequence(given[rank], name) for rank in ranks if rank in given}
        stall, compared = _first_stall(name, ranks, calls, given)
        checked += compared
        stalls += [stall] if stall is not None else []
        stalls += unmatched_sends(name, ranks, given)
    return Triage(_causes_first(stalls, given), tuple(sorted(given)), tuple(sorted(members - given.keys())), checked)


def _groups(dumps: Iterable[Dump]) -> dict[tuple[str, tuple[int, ...]], tuple[int, ...]]:
    """Members by (name, members): several groups of one name (made by splitting) have different members."""
    found: dict[tuple[str, tuple[int, ...]], tuple[int, ...]] = {}
    ranks = tuple(sorted(dump.rank for dump in dumps))
    for dump in dumps:
        for name in dict.fromkeys([*dump.groups, *(call.group for call in dump.calls)]):
            members = dump.groups.get(name) or ranks
            found[name, members] = members
    return found


def _by_sequence(dump: Dump, group: str) -> dict[int, Call]:
    """The collectives of a group; of a coalesced one (several calls with one number) the last, which is the whole."""
    return {call.sequence: call for call in dump.calls if call.group == group and not call.point_to_point}


def _first_stall(
    name: str, members: tuple[int, ...], calls: Mapping[int, Mapping[int, Call]], given: Mapping[int, Dump]
) -> tuple[Stall | None, int]:
    """The first collective of a group at which its ranks part, or which is not done, and how many were compared."""
    known = [each for each in calls.values() if each]
    if not known:
        return None, 0
    first = max(min(each) for each in known)  # what is older has left somebody's ring
    numbers = sorted({sequence for each in known for sequence in each if sequence >= first})
    ending: Stall | None = None
    for number, sequence in enumerate(numbers, 1):
        here = {rank: each[sequence] for rank, each in calls.items() if sequence in each}
        lacking = [rank for rank in calls if rank not in here and _before(calls[rank], sequence)]
        parted = _parted(name, members, sequence, here, calls)
        stall = parted or _not_done(name, members, sequence, here, lacking, given)
        if stall is None:
            continue
        if stall.fault is not Fault.NOT_DONE or not any(call.done for call in here.values()):
            return stall, number
        ending = ending or stall  # some rank is done with it, so it only ends late on the others
    return ending, len(numbers)


def _before(calls: Mapping[int, Call], sequence: int) -> bool:
    """Whether a rank had not yet come to a number: one that is missing in the middle was never kept."""
    return not calls or max(calls) < sequence


def _parted(
    name: str,
    members: tuple[int, ...],
    sequence: int,
    here: Mapping[int, Call],
    calls: Mapping[int, Mapping[int, Call]],
) -> Stall | None:
    """The ranks called different things under one number, and somebody still waits for it."""
    if len(here) < 2 or all(call.done for call in here.values()):
        return None
    for fault, tell in ((Fault.TYPE, _operation), (Fault.SIZE, _size), (Fault.ELEMENT_TYPE, _element_type)):
        told = {rank: tell(call) for rank, call in here.items()}
        if len(set(told.values())) < 2:
            continue
        usual, count = Counter(told.values()).most_common(1)[0]
        odd = tuple(rank for rank, each in told.items() if each != usual)
        odd = tuple(here) if 2 * count == len(here) else odd
        swapped = fault is Fault.TYPE and _swapped(sequence, here, calls)
        evidence = tuple(f"rank {rank} called {_described(here[rank])}" for rank in sorted(here)[:8])
        return Stall(
            fault=Fault.ORDER if swapped else fault,
            group=group_name(name, here.values()),
            members=members,
            sequence=sequence,
            operation=next(call.operation for rank, call in here.items() if told[rank] == usual),
            culprits=odd,
            waiting=tuple(rank for rank in here if rank not in odd),
            since=min(call.created for call in here.values()),
            source=here[odd[0]].source,
            evidence=evidence,
        )
    return None


def _operation(call: Call) -> object:
    return call.operation.split(" ")[0]


def _size(call: Call) -> object:
    """What must be equal on all ranks: nothing, for operations that are uneven by design."""
    kind = call.operation.split(" ")[0]
    if any(each in kind for each in (*UNEVEN, *NO_DATA)):
        return ()
    if kind.strip("_").startswith(("gather", "reduce_oop")) or kind == "reduce":
        return call.input_sizes
    return call.output_sizes if kind.startswith("scatter") else (call.input_sizes, call.output_sizes)


def _element_type(call: Call) -> object:
    kind = call.operation.split(" ")[0]
    return () if kind.startswith(ROOTED) or any(each in kind for each in NO_DATA) else call.input_types


def _swapped(sequence: int, here: Mapping[int, Call], calls: Mapping[int, Mapping[int, Call]]) -> bool:
    """Whether each rank calls soon what the others call now: the same collectives in another order."""
    wanted = {call.operation for call in here.values()}
    around = range(sequence - NEIGHBOURHOOD, sequence + NEIGHBOURHOOD + 1)
    return all(
        wanted <= {each[number].operation for number in around if number in each}
        for rank, each in calls.items()
        if rank in here
    )


def _not_done(
    name: str,
    members: tuple[int, ...],
    sequence: int,
    here: Mapping[int, Call],
    lacking: Sequence[int],
    given: Mapping[int, Dump],
) -> Stall | None:
    """Some ranks wait for others that have not called it, or all have and it does not end."""
    waiting = tuple(rank for rank, call in here.items() if not call.done)
    if not waiting:
        return None
    unknown = tuple(rank for rank in members if rank not in given)
    call = here[waiting[0]]
    culprits = tuple(lacking)
    if lacking:
        fault, evidence = Fault.MISSING, tuple(_last_call(given[rank]) for rank in lacking[:8])
    elif unknown:
        fault, culprits = Fault.NO_DUMP, unknown
        evidence = ("a rank without a dump has died, hangs outside of collectives, or was not given",)
    else:
        fault, culprits = Fault.NOT_DONE, ()
        evidence = (f"all ranks have called it, and it is {call.state} on {counted_ranks(waiting)}",)
    blamed = given[lacking[0]].calls[-1].source if lacking and given[lacking[0]].calls else None
    return Stall(
        fault=fault,
        group=group_name(name, here.values()),
        members=members,
        sequence=sequence,
        operation=call.operation,
        culprits=culprits,
        waiting=waiting,
        since=min(each.created for each in here.values()),
        source=blamed or call.source,
        evidence=(*evidence, f"{counted_ranks(waiting)} called it{at_place(call)}"),
    )


def _described(call: Call) -> str:
    shape = " ".join(str(list(size)) for size in call.input_sizes[:2])
    kind = ", ".join(dict.fromkeys(call.input_types))
    return f"{call.operation}({', '.join(each for each in (shape, kind) if each)}){at_place(call)}"


def _last_call(dump: Dump) -> str:
    if not dump.calls:
        return f"rank {dump.rank} has called no collective that its dump holds"
    call = dump.calls[-1]
    group = group_name(call.group, (call,))
    what = f"{call.operation} #{call.sequence} of {group}, {progress(call)}{at_place(call)}"
    return f"rank {dump.rank}'s last call is {what}"


def _causes_first(stalls: Sequence[Stall], given: Mapping[int, Dump]) -> tuple[Stall, ...]:
    """A rank that is missing in one group because it waits in another is no cause: those whose culprits wait nowhere
    come first, then the older ones."""
    found = []
    for stall in stalls:
        elsewhere = [other for other in stalls if other is not stall and set(stall.culprits) & set(other.waiting)]
        held = {rank for other in elsewhere for rank in other.waiting} & set(stall.culprits)
        if held:
            because = f"{counted_ranks(held)} cannot come: see {elsewhere[0].operation} of {elsewhere[0].group}"
            free = tuple(rank for rank in stall.culprits if rank not in held)
            evidence = (*stall.evidence, because)
            stall = replace(stall, culprits=free or stall.culprits, consequence=not free, evidence=evidence)
        found.append(stall)
    if found and all(stall.consequence for stall in found):  # nobody is first: they wait for one another
        found = [replace(stall, consequence=False, evidence=(*stall.evidence, CIRCLE)) for stall in found]
    return tuple(sorted(found, key=lambda stall: (stall.consequence, stall.fault is Fault.NO_DUMP, stall.since)))
