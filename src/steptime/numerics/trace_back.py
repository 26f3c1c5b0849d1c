"""From what the processes have written to one account. The room's main function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptime.numerics.cause import cause_of
from steptime.numerics.growth import divergence, growth_of, over_the_run
from steptime.numerics.numerics import BatchFacts, NonFinite, ProcessNumerics, Trigger


def first_sign(processes: Sequence[ProcessNumerics]) -> Trigger | None:
    """The earliest of the triggers, of the lowest rank."""
    triggers = [process.trigger for process in processes if process.trigger is not None]
    return min(triggers, key=lambda trigger: trigger.step, default=None)


def trace_back(
    command: Sequence[str], watched: Sequence[ProcessNumerics], instrumented: Sequence[ProcessNumerics] = ()
) -> NonFinite:
    """The account of a job that was watched, and of its instrumented run where there was one."""
    trigger = first_sign(watched)
    witness = next((each for each in watched if each.trigger is trigger and trigger is not None), None)
    last = witness.history if witness is not None else ()
    spread = watched[0].spread if watched and trigger is None else ()
    account = NonFinite(
        command=tuple(command),
        steps=max((process.steps for process in watched or instrumented), default=0),
        trigger=trigger,
        skipped_steps=max((process.skipped_steps for process in watched), default=0),
        rank=witness.rank if witness is not None else None,
        ranks=max(len(watched), len(instrumented), 1),
        growth=growth_of(last) or over_the_run(spread),
        diverging=divergence(spread),
        notes=tuple(dict.fromkeys(note for process in (*watched, *instrumented) for note in process.notes)),
    )
    found = _chosen(instrumented)
    return account if found is None else _with_origin(account, found)


def _chosen(instrumented: Sequence[ProcessNumerics]) -> ProcessNumerics | None:
    """The rank that it was born on: not one that has it from another, and the earliest."""
    found = [process for process in instrumented if process.trigger is not None]
    return min(
        found,
        key=lambda process: (
            process.origin is None,
            process.origin is not None and process.origin.kind == "collective",
            process.origin.step if process.origin is not None else 0,
            process.rank or 0,
        ),
        default=None,
    )


def _with_origin(account: NonFinite, found: ProcessNumerics) -> NonFinite:
    origin = found.origin
    batch = found.batch or BatchFacts()
    growth = max(account.growth, growth_of(found.history), key=len)
    return replace(
        account,
        trigger=_earlier(account.trigger, found.trigger),
        reproduced=True,
        rank=found.rank,
        origin=origin,
        cause=cause_of(origin, growth, batch) if origin is not None else None,
        growth=growth,
        batch=batch,
        bad_gradients=found.bad_gradients,
    )


def _earlier(watched: Trigger | None, instrumented: Trigger | None) -> Trigger | None:
    """The watch looks at the gradients of some steps only; the instrumented run, at all."""
    if watched is None or instrumented is None:
        return watched or instrumented
    return instrumented if instrumented.step < watched.step else watched
