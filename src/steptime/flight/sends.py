"""Sends and receives: each needs its other half on the other rank."""

from __future__ import annotations

from collections.abc import Mapping

from steptime.flight.dump import Call, Dump
from steptime.flight.stall import Fault, Stall, at_place, group_name, progress

OTHER = {"send": "recv", "recv": "send"}


def unmatched_sends(name: str, members: tuple[int, ...], given: Mapping[int, Dump]) -> list[Stall]:
    """The first send or receive between each two ranks of a group that still waits and whose other half is missing, or
    of another size. Both halves carry one number, which counts what goes between the two ranks."""
    calls: dict[tuple[str, int, int], dict[int, Call]] = {}
    for rank in members:
        for call in given[rank].calls if rank in given else ():
            direction = call.direction
            if call.group == name and direction is not None:
                calls.setdefault(direction, {})[call.sequence] = call
    stalls = []
    for (kind, source, destination), mine in calls.items():
        if max(source, destination) >= len(members):
            continue
        caller, peer = (members[source], members[destination])[:: 1 if kind == "send" else -1]
        theirs = calls.get((OTHER[kind], source, destination), {})
        waiting = [number for number, call in sorted(mine.items()) if not call.done]
        stall = _stall(name, members, mine[waiting[0]], theirs, caller, peer, given) if waiting else None
        stalls += [stall] if stall is not None else []
    return stalls


def _stall(
    name: str,
    members: tuple[int, ...],
    call: Call,
    theirs: Mapping[int, Call],
    caller: int,
    peer: int,
    given: Mapping[int, Dump],
) -> Stall | None:
    other = theirs.get(call.sequence)
    evidence: tuple[str, ...] = (f"rank {caller} called {call.operation}{at_place(call)}",)
    if other is None:
        fault = Fault.UNMATCHED if peer in given else Fault.NO_DUMP
        last = given[peer].calls[-1] if peer in given and given[peer].calls else None
        if last is not None:
            evidence += (f"rank {peer}'s last call is {last.operation}, {progress(last)}{at_place(last)}",)
    elif call.direction is not None and call.direction[0] == "send" and call.input_sizes != other.output_sizes:
        fault = Fault.SIZE
        evidence += (f"rank {caller} sends {list(call.input_sizes)}, rank {peer} receives {list(other.output_sizes)}",)
    else:
        return None
    return Stall(
        fault=fault,
        group=group_name(name, (call,)),
        members=members,
        sequence=call.sequence,
        operation=call.operation,
        culprits=(peer,),
        waiting=(caller,),
        since=call.created,
        source=call.source,
        evidence=evidence,
    )
