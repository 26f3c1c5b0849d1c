"""Changes of an unedited job, as data: written into the plan, resolved by name in the probe.

Standard library only: the probe reads the same fields from JSON."""

from __future__ import annotations

from dataclasses import dataclass

Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Change:
    """Change of a job. kind: name of its applier in `probe/changes/` ("loader", "autocast", "compile", …). target: the
    one of several objects that it is for ("" for all that apply). arguments: the applier's own, JSON scalars.

    "environment" and "preload" are applied at launch, before the interpreter starts."""

    kind: str
    target: str = ""
    arguments: tuple[tuple[str, Scalar], ...] = ()

    def argument(self, name: str) -> Scalar:
        """Argument of that name; None if the change has none."""
        return dict(self.arguments).get(name)


SWITCHABLE = frozenset(
    {
        "autocast",
        "channels-last",
        "checkpointing",
        "compile",
        "deterministic-off",
        "matmul-precision",
        "optimizer",
        "sdpa-backend",
        "unchecked-distributions",
        "zero-grad",
    }
)
"""Kinds that can be applied and reverted within a process, at any step boundary. cuDNN's benchmark is not: its choice
for a shape is permanent. Nor is the garbage collector: freezing resets its counts."""


def is_switchable(change: Change) -> bool:
    """True if a change can be applied and reverted within a process. For checkpointing, only switching the job's own
    off: adding it saves memory, whose two peaks one process cannot show."""
    return change.kind in SWITCHABLE and (change.kind != "checkpointing" or change.argument("enabled") is False)


@dataclass(frozen=True, slots=True)
class VariantOptions:
    """Options of a process of a trial. steps: steady steps after which it ends at a boundary, with status 0 and without
    the job's own end (no final save); limit_seconds: most time for these. warm_up: steps before them.

    seed: start of every generator at the import of torch; seed_offset: added to every seed that the job sets itself.
    dropout: False makes every dropout the identity. fingerprint_steps: number of first steps whose gradient norms, per
    parameter, are written after the last backward. until_loss: the process ends soon after the job's mean loss has
    fallen to this value. alternating: it reports the end of its warm-up in a file, and takes turns with others from
    then on. exact: it computes in float64, and draws random numbers per caller (see probe/changes/exact). switched:
    changes of several variants, which this one process runs in blocks of steps."""

    steps: int
    warm_up: int = 5
    limit_seconds: float = 60.0
    seed: int = 0
    seed_offset: int = 0
    dropout: bool = True
    fingerprint_steps: int = 0
    until_loss: float | None = None
    alternating: bool = False
    switched: tuple[tuple[Change, ...], ...] = ()
    exact: bool = False
