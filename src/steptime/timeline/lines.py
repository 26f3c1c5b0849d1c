"""The lines of the user's own code: when each was the innermost one, and what each is for.

One law: what a line does is seen by the clock first (it holds a backward, a loader's next …) and told by the names that
flow through it only where the clock sees nothing: a line that makes what the model is then called with prepares the
batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from steptime.arrays import Int64
from steptime.intervals import Intervals, measure, union
from steptime.journal import Kind
from steptime.recording.recording import CodeFacts, CodeLine, Process, SiteFacts
from steptime.timeline.activity import Activity
from steptime.timeline.flow import find_preparing, identity_of
from steptime.timeline.lane import Lane, innermost
from steptime.timeline.phases import Work


class Role(Enum):
    """What a line is for. Values: `findings.case.LineUse.role`."""

    INPUT = "input"
    TRANSFER = "transfer"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    EVALUATION = "evaluation"
    HOST = "host"


SLIVER = 0.01
"""A line that spends less than this share of its time in an interval only touches it: clocks of two records differ."""
TRANSFER_CALLS = ("to", "cuda", "copy_")
TRANSFER_TEXT = re.compile(r"\.(?:to|cuda|copy_)\(")


@dataclass(frozen=True, slots=True, eq=False)
class LineTimes:
    """Exclusive stretches of lines: identity, begin, end (columns). hit_identity, hit_begin: executions."""

    identity: Int64
    begin: Int64
    end: Int64
    hit_identity: Int64
    hit_begin: Int64

    def of(self, identities: Iterable[int]) -> Intervals:
        """The instants of some lines."""
        mask = np.isin(self.identity, list(identities))
        return union(self.begin[mask], self.end[mask])


@dataclass(frozen=True, slots=True)
class LineRoles:
    """Roles by LINE identity, and the lines' times."""

    times: LineTimes
    roles: dict[int, Role] = field(default_factory=dict)

    def of(self, *wanted: Role) -> Intervals:
        """The instants of lines with one of these roles."""
        return self.times.of(each for each, role in self.roles.items() if role in wanted)


def find_lines(process: Process, lane: Lane, activity: Activity, work: Work) -> LineRoles:
    """Times and roles of the lines that were traced."""
    records = lane.of(Kind.LINE)
    owners, begin, end = innermost(records)
    times = LineTimes(records.identity[owners], begin, end, records.identity, records.begin)
    seen = _roles_by_clock(times, activity, work)
    forwards = {each for each, role in seen.items() if role is Role.FORWARD}
    evaluating = {each for each, role in seen.items() if role is Role.EVALUATION}
    preparing = find_preparing(process.codes, forwards, evaluating, set(seen))
    on_device = process.facts.device != "cpu"
    moved = _moving_lines(process.sites) if on_device else frozenset()
    roles = dict.fromkeys(np.unique(times.identity).tolist(), Role.HOST) | seen
    for code, line in _lines_of(process.codes, preparing):
        moves = on_device and ((code.file, line.line) in moved or bool(TRANSFER_TEXT.search(line.text)))
        roles[identity_of(code, line)] = Role.TRANSFER if moves else Role.INPUT
    return LineRoles(times, roles)


def _lines_of(codes: tuple[CodeFacts, ...], identities: set[int]) -> list[tuple[CodeFacts, CodeLine]]:
    return [(code, line) for code in codes for line in code.lines if identity_of(code, line) in identities]


def _moving_lines(sites: tuple[SiteFacts, ...]) -> frozenset[tuple[str, int]]:
    return frozenset((site.site.file, site.site.line) for site in sites if site.name in TRANSFER_CALLS)


def _roles_by_clock(times: LineTimes, activity: Activity, work: Work) -> dict[int, Role]:
    """The role of each line that holds more than a sliver of something instrumented: the largest such part."""
    parts = {
        Role.EVALUATION: activity.evaluation,
        Role.INPUT: work.loader,
        Role.FORWARD: work.forward,
        Role.BACKWARD: work.backward,
        Role.OPTIMIZER: work.updates,
    }
    identities, number = np.unique(times.identity, return_inverse=True)
    whole = np.bincount(number, weights=times.end - times.begin, minlength=len(identities))
    held = np.zeros((len(parts), len(identities)))
    for row, instants in enumerate(parts.values()):
        inside = measure(instants, times.begin, times.end)
        held[row] = np.bincount(number, weights=inside, minlength=len(identities))
    if not len(identities):
        return {}
    largest = held.argmax(axis=0)
    names = list(parts)
    return {
        int(each): names[largest[column]]
        for column, each in enumerate(identities)
        if held[largest[column], column] > SLIVER * whole[column]
    }
