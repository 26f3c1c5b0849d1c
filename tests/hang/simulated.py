"""Simulated hung jobs of several process groups: hosts call ahead, devices work in order, some ranks stand still."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from hang.dumps import entry, open_entry

AHEAD = 8
"""Calls that a host makes before its device has done the first of them."""


@dataclass
class Rank:
    """stops: the number of calls after which its host makes no more. silent: of its own calls, those from which on its
    device reports nothing as ended."""

    program: list[tuple[str, str]]
    stops: int
    silent: int
    called: int = 0
    done: int = 0
    numbers: list[int] = field(default_factory=list)


def layout(world: int, chance: random.Random) -> dict[str, list[list[int]]]:
    """Groups by kind: tensor-parallel ones of neighbours, data-parallel ones across, and all ranks."""
    width = chance.choice([size for size in (1, 2, 4, 8) if world % size == 0 and size < world])
    tensor = [list(range(start, start + width)) for start in range(0, world, width)]
    data = [list(range(start, world, width)) for start in range(width)]
    return {"tensor": tensor if width > 1 else [], "data": data, "world": [list(range(world))]}


def job(world: int, chance: random.Random, faults: dict[int, str]) -> tuple[dict[int, Rank], dict[str, list[int]]]:
    """A job that has stood still, by rank, and the members of its groups. faults: ranks and what befalls them."""
    kinds = layout(world, chance)
    names = {(kind, number): f"{kind}_{number}" for kind, groups in kinds.items() for number, _ in enumerate(groups)}
    members = {names[kind, number]: group for kind, groups in kinds.items() for number, group in enumerate(groups)}
    steps = [chance.choice([kind for kind in kinds if kinds[kind]]) for _ in range(60)]
    ranks = {}
    for rank in range(world):
        program = []
        for kind in steps:
            number = next(number for number, group in enumerate(kinds[kind]) if rank in group)
            program.append((names[kind, number], "all_reduce" if kind != "tensor" else "_all_gather_base"))
        fault, where = faults.get(rank), chance.randrange(20, 40)
        stops = where if fault == "host" else where + chance.randrange(6) if fault == "device" else len(program)
        ranks[rank] = Rank(program, stops, where - chance.randrange(1, 8) if fault == "device" else len(program))
    play(ranks, members)
    return ranks, members


def play(ranks: dict[int, Rank], members: dict[str, list[int]]) -> None:
    """Runs until nothing moves: a call ends when it is the next one of all its members' devices."""
    counted: dict[int, dict[str, int]] = {rank: defaultdict(int) for rank in ranks}
    moved = True
    while moved:
        moved = False
        for number, rank in ranks.items():
            while rank.called < min(rank.stops, rank.done + AHEAD, len(rank.program)):
                group = rank.program[rank.called][0]
                counted[number][group] += 1
                rank.numbers.append(counted[number][group])
                rank.called += 1
                moved = True
        for rank in ranks.values():
            if rank.done < rank.called and all(
                other.done < other.called and other.program[other.done] == rank.program[rank.done]
                for other in (ranks[each] for each in members[rank.program[rank.done][0]])
            ):
                for each in members[rank.program[rank.done][0]]:
                    ranks[each].done += 1
                moved = True


def dumped(ranks: dict[int, Rank], *, only_open: bool) -> dict[int, list[dict[str, Any]]]:
    """Entries of each rank's ring. only_open: it has lost those that have ended, as some releases write it."""
    found = {}
    for number, rank in ranks.items():
        entries = []
        for place in range(rank.called):
            group, operation = rank.program[place]
            ended = place < min(rank.done, rank.silent)
            if ended and only_open:
                continue
            make = entry if ended else open_entry
            entries.append(make(place, rank.numbers[place], operation, process_group=(group, group)))
        found[number] = entries
    return found
