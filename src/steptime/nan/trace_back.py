"""From what the processes have written to one result. The room's main function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptime.nan.cause import cause_of, divergence, growth_of, over_the_run
from steptime.nan.nonfinite import BatchFacts, NonFinite, NonFiniteOrigin, ProcessNumerics, Trigger

WATCHED, RECEIVED = "watch", "collective"
SIGNS = ("loss", "read", "gradient", "skipped")
"""Kinds of signs as they come within a step: a loss is known before the gradients that other ranks share."""
PHASES = ("input", "forward", "backward", "optimizer")


def first_sign(processes: Sequence[ProcessNumerics]) -> Trigger | None:
    """The earliest of the triggers: by step, and by the order within the step."""
    triggers = [process.trigger for process in processes if process.trigger is not None]
    return min(triggers, key=_order, default=None)


def _order(trigger: Trigger) -> tuple[int, int]:
    return trigger.step, SIGNS.index(trigger.kind) if trigger.kind in SIGNS else len(SIGNS)


def _only_rank(trigger: Trigger | None, processes: Sequence[ProcessNumerics]) -> int | None:
    """Where a sign was seen first; None where several ranks saw it at once, as they share their gradients."""
    if trigger is None:
        return None
    ranks = {each.rank for each in processes if each.trigger is not None and _order(each.trigger) == _order(trigger)}
    return ranks.pop() if len(ranks) == 1 else None


def trace_back(
    command: Sequence[str], watched: Sequence[ProcessNumerics], instrumented: Sequence[ProcessNumerics] = ()
) -> NonFinite:
    """The result of a job that was watched, and of its instrumented run where there was one."""
    trigger = first_sign(watched)
    witness = next((each for each in watched if each.trigger is trigger and trigger is not None), None)
    last = witness.history if witness is not None else ()
    spread = watched[0].spread if watched and trigger is None else ()
    result = NonFinite(
        command=tuple(command),
        steps=max((process.steps for process in watched or instrumented), default=0),
        trigger=trigger,
        skipped_steps=max((process.skipped_steps for process in watched), default=0),
        rank=_only_rank(trigger, watched),
        ranks=max(len(watched), len(instrumented), 1),
        growth=growth_of(last) or over_the_run(spread),
        diverging=divergence(spread),
        notes=tuple(dict.fromkeys(note for process in (*watched, *instrumented) for note in process.notes)),
    )
    found = min((each for each in instrumented if each.trigger is not None), key=_origin_order, default=None)
    return result if found is None else _with_origin(result, found, (*watched, *instrumented))


def _origin_order(process: ProcessNumerics) -> tuple[bool, bool, int, int, int]:
    """Of the rank that it was born on the least: not of one that has it from another, and the earliest, by step and
    within the step."""
    origin = process.origin or NonFiniteOrigin()
    phase = PHASES.index(origin.phase) if origin.phase in PHASES else len(PHASES)
    return process.origin is None, origin.kind == RECEIVED, origin.step, phase, process.rank or 0


def _with_origin(result: NonFinite, found: ProcessNumerics, processes: Sequence[ProcessNumerics]) -> NonFinite:
    """The sign and the rank are those of the rank of the origin; of one that died without a result, whatever was seen
    first on any."""
    origin = found.origin
    batch = found.batch or BatchFacts()
    growth = max(result.growth, growth_of(found.history), key=len)
    born_here = origin is None or origin.kind != RECEIVED
    own = first_sign([each for each in processes if each.mode == WATCHED and each.rank == found.rank])
    trigger = found.trigger if born_here else first_sign(processes)
    if born_here and own is not None and (trigger is None or own.step <= trigger.step):
        trigger = own  # else the watch, which looks at the gradients of some steps only, has seen it later
    return replace(
        result,
        trigger=trigger,
        reproduced=True,
        rank=found.rank if born_here else _only_rank(trigger, processes),
        origin=origin,
        cause=cause_of(origin, growth, batch) if origin is not None else None,
        growth=growth,
        batch=batch,
        bad_gradients=found.bad_gradients,
    )
