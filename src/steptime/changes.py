"""What is changed about a job that stays unedited, as data: written into the plan, resolved by name by the probe.

Standard library only: the probe's side reads the same fields from JSON.
"""

from __future__ import annotations

from dataclasses import dataclass

Scalar = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change. kind: names its applier in `probe/changes/` ("loader", "autocast", "compile", …). target:
    what it is for where a job has several ("" for all that apply). arguments: the applier's own, JSON scalars.

    "environment" and "preload" are applied by the launch, before the interpreter starts.
    """

    kind: str
    target: str = ""
    arguments: tuple[tuple[str, Scalar], ...] = ()

    def argument(self, name: str) -> Scalar:
        """The argument of that name, None without one."""
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
        "zero-grad",
    }
)
"""Kinds that are put in force and taken back within a process, at the boundary of any step. Not cuDNN's benchmark: what
it chooses for a shape stays chosen. Nor the garbage collector's: to freeze is to reset what it counts."""


def is_switchable(change: Change) -> bool:
    """Whether it can be. Checkpointing of the job's own only: blocks that are computed again take less memory, which
    one process cannot show of two."""
    return change.kind in SWITCHABLE and (change.kind != "checkpointing" or change.argument("enabled") is False)


@dataclass(frozen=True, slots=True)
class VariantOptions:
    """How a process of a trial runs. steps: steady steps after which it ends at a boundary, with status 0 and without
    the job's own end (no final save); limit_seconds: the most that these may take. warm_up: steps before them.

    seed: what every generator starts from at the import of torch; seed_offset: added to every seed that the job sets
    itself. dropout: False makes every dropout the identity. fingerprint_steps: of so many first steps the gradient norm
    of every parameter is written, after the last backward of the step. until_loss: soon after the job's mean loss has
    come down to this, its process ends, too. alternating: it says in a file when its warm-up is over, from where on it
    takes turns with others. exact: it computes in float64, and draws its random numbers by what draws them (see
    probe/changes/exact). switched: the changes of several variants, which this one process runs in blocks of steps.
    """

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
