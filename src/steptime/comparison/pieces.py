"""Parts of a step that appeared, vanished, grew or shrank: operators, kernels, lines, causes of idle time, copies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from steptime.comparison.comparison import Fate, Piece
from steptime.findings.case import Case
from steptime.findings.kernel_kinds import short_kernel
from steptime.findings.operator_time import profile_scale
from steptime.findings.stakes import ratio
from steptime.quantities import format_source

TRIFLE = 0.01
"""Of the longer step: a part that moved by less is not worth a row."""
OWN = 0.1
"""Of the part itself, for one that is on both sides: no interval of a single part is known, and a tenth is more than
steady parts vary by."""
MOST = 40
"""Pieces that are kept, those that changed most."""


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    duration: float
    calls: float | None
    account: str


def pieces_between(before: Case, after: Case, noise: float) -> tuple[Piece, ...]:
    """What changed by more than a trifle, the largest change first. noise: of the step, between runs."""
    step = max(before.step.duration.value, after.step.duration.value)
    found = []
    for kind in ("kernel", "operator", "line", "idle", "copy"):
        one, other = _parts(before, kind), _parts(after, kind)
        if (one and other) or _was_looked_for(before, after, kind):
            found += _changes(kind, one, other, step, noise)
    return tuple(sorted(found, key=lambda piece: -abs(piece.change))[:MOST])


def _was_looked_for(before: Case, after: Case, kind: str) -> bool:
    """Whether an empty list means that there was nothing: idle time and copies may be gone, kernels may not."""
    return kind in ("idle", "copy") and bool(before.kernels) and bool(after.kernels)


def _changes(kind: str, one: dict[str, _Part], other: dict[str, _Part], step: float, noise: float) -> list[Piece]:
    found = []
    for name in dict.fromkeys((*one, *other)):
        before, after = one.get(name), other.get(name)
        spent, now = before.duration if before else 0.0, after.duration if after else 0.0
        own = max(OWN, noise) * max(spent, now) if before and after else 0.0
        if abs(now - spent) < max(TRIFLE * step, own):
            continue
        known = before or after
        found.append(
            Piece(
                kind,
                name,
                _fate(before, after),
                before.duration if before else None,
                after.duration if after else None,
                before.calls if before else None,
                after.calls if after else None,
                known.account if known else "",
            )
        )
    return found


def _fate(before: _Part | None, after: _Part | None) -> Fate:
    if before is None:
        return Fate.APPEARED
    if after is None:
        return Fate.VANISHED
    return Fate.GREW if after.duration > before.duration else Fate.SHRANK


def _parts(case: Case, kind: str) -> dict[str, _Part]:
    """By name, those of one name summed up; lines and operators on the scale of the steady steps."""
    if kind == "kernel":
        return _summed(
            _Part(" of ".join(filter(None, (short_kernel(use.name), use.operator))), use.duration, use.calls, "")
            for use in case.kernels
        )
    if kind == "operator":
        scale = profile_scale(case.operators, case.accounts) if case.step.device == "cpu" else 1.0
        return _summed(_Part(use.name, scale * use.duration, use.calls, "") for use in case.operators)
    if kind == "line":
        scale = _line_scale(case)
        return _summed(
            _Part(use.source.text or format_source(use.source), scale * use.duration.value, use.hits, use.role)
            for use in case.lines
        )
    if kind == "idle":
        return _summed(
            _Part(": ".join(filter(None, (use.account, use.cause))), use.duration.value, use.count, use.account)
            for use in case.gaps
        )
    return _summed(
        _Part(" ".join(filter(None, (use.kind, use.memory))), use.exposed.value, use.calls, "copy")
        for use in case.copies
    )


def _line_scale(case: Case) -> float:
    """At most 1: lines are timed in a few steps, which may all have been slow ones; no step is shorter than its
    lines."""
    return min(1.0, ratio(case.step.duration.value, sum(use.duration.value for use in case.lines)) or 1.0)


def _summed(parts: Iterable[_Part]) -> dict[str, _Part]:
    found: dict[str, _Part] = {}
    for part in parts:
        known = found.get(part.name)
        if known is not None:
            calls = known.calls + part.calls if known.calls is not None and part.calls is not None else None
            part = _Part(part.name, known.duration + part.duration, calls, part.account)
        found[part.name] = part
    return found
