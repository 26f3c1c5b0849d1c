"""A finding: one thing that is wrong, with its time at stake and its evidence. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from steptime.quantities import Estimate, SourceLine


class Weight(Enum):
    """How a finding is shown."""

    FINDING = "finding"
    """Time per training step is at stake."""
    NOTE = "note"
    """Worth knowing, charged to no training step (a slow evaluation)."""
    DOUBT = "doubt"
    """The measurement itself is in doubt: the verdict becomes UNDECIDED (background load)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """at_stake: ns per step that a perfect fix of this alone could save, None for notes and doubts. summary: one line
    with the numbers. advice: what helps *given the configuration in force*, one or two sentences, naming no remedy
    object. evidence: further sentences. account: name of the account that it explains."""

    code: str
    name: str
    weight: Weight
    summary: str
    advice: str
    at_stake: Estimate | None = None
    account: str = ""
    source: SourceLine | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Examination:
    """What examining a case gave. not_examined: (code, reason); failed: (code, message of the exception)."""

    findings: tuple[Finding, ...]
    not_examined: tuple[tuple[str, str], ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
