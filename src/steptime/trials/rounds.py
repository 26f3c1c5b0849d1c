"""The order of a round: which arm stands where between the baselines. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.trials.trial import Arm

TOGETHER = 3
"""Arms between two baselines: the further apart these are, the more a drift between them is a guess."""


def arrange(
    going: Sequence[Arm], baseline: Arm, control: Arm, *, reverse: bool, leads: bool, apart: bool
) -> list[list[Arm]]:
    """A round as blocks of arms that run one after the other on one device.

    leads: a baseline stands first (else the last one that was run does). apart: every block may run on another device,
    and so has baselines and a control of its own; else one block shares them, the control in its middle.
    """
    if apart:
        blocks = [going[begin : begin + TOGETHER - 1] for begin in range(0, len(going), TOGETHER - 1)]
        return [[baseline, *_turned(_with(block, control), reverse), baseline] for block in blocks]
    order = _turned(_with(going, control), reverse)
    block = [baseline] if leads else []
    for begin in range(0, len(order), TOGETHER):
        block += [*order[begin : begin + TOGETHER], baseline]
    return [block]


def _with(arms: Sequence[Arm], control: Arm) -> list[Arm]:
    """The control in the middle."""
    middle = len(arms) // 2
    return [*arms[:middle], control, *arms[middle:]]


def _turned(order: list[Arm], reverse: bool) -> list[Arm]:
    return order[::-1] if reverse else order


def at_once(width: int, arms: int, needed: int) -> int:
    """Rounds of so many arms that are run at the same time where `width` blocks can: none beyond those that every arm
    needs before it can be decided."""
    blocks = -(-arms // (TOGETHER - 1)) or 1
    return max(1, min(width // blocks, needed))


def processes_of(arms: int) -> int:
    """Of a round: the arms, the control, and a baseline behind each group."""
    return arms + 1 + -(-(arms + 1) // TOGETHER)
