"""The answer of `steptime nan`: the first non-finite value, the line that made it, and advice."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace

from steptime.answer.answer import Answer, Item, Section
from steptime.answer.printable import one_line
from steptime.nan.cause import AGAINST_GROWTH
from steptime.nan.nonfinite import (
    NonFinite,
    NonFiniteOrigin,
    Number,
    Trigger,
    ValueRange,
    Where,
    listed,
    plain_number,
    value_of,
)
from steptime.quantities import SourceLine, format_count

PHASES = {"forward": "forward", "backward": "backward", "optimizer": "optimizer's update", "input": "loading"}


def answer_of(result: NonFinite) -> Answer:
    """Answer with the cause and its line if found, then the observations."""
    found = result.trigger is not None
    return Answer(
        title=f"Not finite: {shlex.join(result.command)}" if found else f"Finite: {shlex.join(result.command)}",
        headline=_headline(result, result.trigger) if result.trigger is not None else _clean(result),
        badge=_badge(result),
        parts=(Section("", tuple(_items(result))),),
        notes=tuple(f"Note: {note}" for note in result.notes),
        next_command=_next(result),
        data=result,
    )


def _badge(result: NonFinite) -> str:
    """Confidence in the line: whether a second run with the same seeds confirmed it."""
    if result.trigger is None:
        return ""
    if result.origin is None:
        return "Unclear: the operator that produced it is unknown."
    return "Confident: a second run reproduced it." if result.reproduced else "Likely: it occurred in one run."


def _items(result: NonFinite) -> Iterator[Item]:
    if result.trigger is None:
        if result.diverging > 1:
            yield Item(f"Helps: {AGAINST_GROWTH}")
    else:
        if result.cause is not None:
            yield Item(f"Cause: {result.cause.sentence} ({result.cause.name})")
            yield Item(f"Helps: {result.cause.advice}")
        if result.origin is not None:
            yield Item(f"Seen: {_sign(result, result.trigger)}")
        yield from _origin(result)
    if result.bad_gradients:
        yield Item(f"Gradients not finite: {listed(result.bad_gradients)}")
    if result.batch is not None and result.batch.indices:
        yield Item(f"Batch: samples {listed(result.batch.indices)} of the data set")
    if len(result.growth) > 1:
        norms = ", ".join(_number(norm) for _, norm in result.growth)
        yield Item(f"Gradient norm, steps {result.growth[0][0]} to {result.growth[-1][0]}: {norms}")
    if result.skipped_steps:
        steps = format_count(result.steps, "step")
        yield Item(f"Overflow-skipped by the gradient scaler: {result.skipped_steps} of {steps}")


def _clean(result: NonFinite) -> str:
    if not result.steps:
        return "No step was seen: the job ended before its first one."
    ranks = f" of {result.ranks} ranks" if result.ranks > 1 else ""
    if result.diverging > 1:
        grown = f"The gradients grew by a factor of {plain_number(result.diverging)}: the training diverges."
        return f"{grown} All losses were finite in {format_count(result.steps, 'step')}{ranks}."
    return f"All losses and gradients were finite in {format_count(result.steps, 'step')}{ranks}."


def _headline(result: NonFinite, trigger: Trigger) -> str:
    """Headline: the place where the value was made if known, else the observation."""
    origin = result.origin
    if origin is None:
        return f"Not finite: {_sign(result, trigger)}"
    site = origin.forward_site or origin.site
    place = f" at {_file(site, result.directory)}:{site.line}," if site is not None else " in"
    return f"Not finite{place} {_born(origin)}"


def _sign(result: NonFinite, trigger: Trigger) -> str:
    rank = f" on rank {result.rank} of {result.ranks}" if result.ranks > 1 and result.rank is not None else ""
    step = f"step {trigger.step}{rank}"
    loss = "the loss" if trigger.value is None else f"the loss is {_number(trigger.value)}"
    return {
        "loss": f"{loss} in {step}",
        "gradient": f"the gradient{f' of {trigger.name}' * bool(trigger.name)} in {step}; its loss is finite",
        "skipped": f"every gradient in many steps up to {step}, all skipped by the gradient scaler",
    }.get(trigger.kind, f"a value that the job read in {step} and then stopped")


def _origin(result: NonFinite) -> Iterator[Item]:
    origin = result.origin
    if origin is None:
        module = result.trigger.first_module if result.trigger is not None else ""
        if module:
            yield Item(f"Seen: the output of {module} is the first non-finite one among the checked modules")
        if result.reproduced:
            yield Item("Origin: none of the checked operators")
        return
    made = "made" if origin.kind == "operator" else "held"
    lines = [*_lines_of(origin, result.directory), *(f"from   {_range(each)}" for each in origin.inputs)]
    lines += [f"{made}   {_range(replace(each, zeros=0))}{_rows(origin)}" for each in origin.outputs[:1]]
    lines += [f"then   NaN in {_place(origin.became_nan)}"] if origin.became_nan is not None else []
    yield Item(f"Origin: {_born(origin)}", lines=tuple(lines))


def _born(origin: NonFiniteOrigin) -> str:
    what = {
        "batch": "in the batch, first used by",
        "parameter": f"in the parameter {origin.name}",
        "collective": "on another rank; a collective brought it here",
        "outside": "outside the checked operators, first used in",
        "constant": "as a constant, in",
    }.get(origin.kind, f"{origin.operator} in")
    module = f", module {origin.module}" if origin.module else ""
    return f"step {origin.step}: {what} the {_phase(origin)}{module}"


def _phase(where: Where) -> str:
    of = f" of {where.forward_operator}" if where.phase == "backward" and where.forward_operator else ""
    return f"{PHASES.get(where.phase, where.phase)}{of}"


def _lines_of(where: Where, directory: str) -> list[str]:
    """Lines of a place; paths below the job's folder are relative to it."""
    site, caller = (where.forward_site, where.forward_caller) if where.forward_site else (where.site, where.caller)
    if site is None:
        return []
    file = _file(site, directory)
    lines = [f"{file}:{site.line}, in {site.function}", f"    {one_line(site.text)}"]
    if caller is None:
        return lines
    outer = _file(caller, directory)
    return [*lines, f"called at {outer}:{caller.line}   {one_line(caller.text)}"]


def _file(site: SourceLine, directory: str) -> str:
    return site.file.removeprefix(f"{directory}/")


def _place(where: Where) -> str:
    site = where.forward_site or where.site
    at = f" ({site.file.rpartition('/')[2]}:{site.line})" if site is not None else ""
    return f"{where.operator}, {_phase(where)}{at}"


def _range(values: ValueRange) -> str:
    name = f"{values.name:<8} " if values.name else ""
    span = (
        f"{plain_number(values.low)} to {plain_number(values.high or 0.0)}" if values.low is not None else "no finite"
    )
    counted = [
        f"{number} of {values.elements} {what}"
        for number, what in ((values.nan, "NaN"), (values.infinite, "infinite"), (values.zeros, "zero"))
        if number
    ]
    return f"{name}{values.dtype} {list(values.shape)}: {', '.join([span, *counted])}"


def _rows(origin: NonFiniteOrigin) -> str:
    if not origin.rows or not origin.outputs or len(origin.rows) >= (origin.outputs[0].shape or (0,))[0]:
        return ""
    samples = f" = {listed(origin.samples, 'sample')}" if origin.samples else ""
    return f"; {listed(origin.rows, 'row')}{samples}"


def _next(result: NonFinite) -> str:
    command = one_line(shlex.join(result.command))
    if result.trigger is None and result.diverging == 1:
        return f"steptime run -- {command}"
    if result.trigger is not None and result.origin is None:
        return f"steptime nan --at {result.trigger.step} --max-steps 50 -- {command}"
    return f"change {'that' if result.trigger is None else 'the line'}, then: steptime nan -- {command}"


def _number(value: Number) -> str:
    return plain_number(value_of(value)) if value is not None else "not finite"
