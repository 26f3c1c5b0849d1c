"""A flight recorder's dump: the last collectives that one rank has called. The room's central types.

torch keeps them in a ring (of TORCH_FR_BUFFER_SIZE entries, in older releases TORCH_NCCL_TRACE_BUFFER_SIZE) and writes
them when a collective times out. The fields are those of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from steptime.quantities import SourceLine

COMPLETED = "completed"
"""The state of a call that has ended; before that it is "scheduled" (by the host) or "started" (on the device)."""
POINT_TO_POINT = re.compile(r"(send|recv|isend|irecv) (\d+)(->|<-)(\d+)")


@dataclass(frozen=True, slots=True)
class Call:
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
    calls: tuple[Call, ...]
    groups: dict[str, tuple[int, ...]]
