"""What was adopted, together: greedily, the best first, leaving out what adds nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptime.remedies.remedy import Promise
from steptime.trials.conduct import PROBE, PROOF, Bench
from steptime.trials.trial import Arm, Judgement, Verdict


def combine(bench: Bench, judgements: Sequence[Judgement], first_stage: int = 1) -> tuple[Arm | None, Judgement | None]:
    """The adopted arms together: (the arm, what it proved; None where the budget was spent before).

    Each further one is tried on top of those already taken; the last stage is all of them against the job as it is.
    """
    gains = [(each.gain(bench.plan.goal), each) for each in judgements if each.verdict is Verdict.ADOPT]
    ordered = sorted(((gain.value, each) for gain, each in gains if gain is not None), key=lambda pair: -pair[0])
    adopted = [each for _, each in ordered]
    if not adopted:
        return None, None
    taken, stage = adopted[0].arm, first_stage
    for other in adopted[1:]:
        if taken.rivals(other.arm):
            continue
        if bench.budget.left() <= 0:
            break
        both = together(taken, other.arm)
        (proved,) = bench.conduct(stage, (both,), baseline=replace(PROBE, changes=taken.changes), later=PROOF)
        stage += 1
        if proved.verdict is Verdict.ADOPT:
            taken = both
    if taken is adopted[0].arm:
        return taken, adopted[0]
    if bench.budget.left() <= 0:
        return taken, None
    (proved,) = bench.conduct(stage, (taken,), later=PROOF)
    return taken, proved


def together(one: Arm, other: Arm) -> Arm:
    """Both arms' changes at once, promising what the weaker one does."""
    order = (Promise.SAME_BITS, Promise.SAME_CURVE, Promise.NEW_TRAINING)
    return Arm(
        name=f"{one.name}+{other.name}",
        changes=(*one.changes, *other.changes),
        proposal=f"{one.proposal} {other.proposal}",
        label=f"{one.label}; {other.label}",
        promise=max(one.promise, other.promise, key=order.index),
        streams=", ".join(filter(None, (one.streams, other.streams))),
        other_data=one.other_data or other.other_data,
        low_precision=one.low_precision or other.low_precision,
    )
