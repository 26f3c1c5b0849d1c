"""The result of `steptime nan` in a terminal: at most 25 lines, ending with the next command."""

from __future__ import annotations

import shlex
from dataclasses import replace

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
from steptime.quantities import format_count
from steptime.report.printable import one_line, printable

LINES = 25
MOST_RANGES = 4
PHASES = {"forward": "forward", "backward": "backward", "optimizer": "optimiser's update", "input": "loading"}


def render(result: NonFinite) -> str:
    """The whole text, with a line feed at its end."""
    if result.trigger is None:
        lines = _clean(result)
    else:
        lines = [_headline(result, result.trigger), *_origin(result), *_evidence(result)]
    lines += [f"Note:    {one_line(note)}" for note in result.notes[:2]]
    return "".join(f"{printable(line)}\n" for line in (*lines[: LINES - 1], f"Next:    {_next(result)}"))


def _clean(result: NonFinite) -> list[str]:
    ranks = f" of {result.ranks} ranks" if result.ranks > 1 else ""
    lines = [f"All losses and gradients were finite in {format_count(result.steps, 'step')}{ranks}."]
    if result.diverging > 1:
        lines += [f"But the gradients have grown {plain_number(result.diverging)} times: the training diverges."]
        lines += [f"Helps:   {one_line(AGAINST_GROWTH)}"]
    return lines + _skipped(result) + _growth(result)


def _headline(result: NonFinite, trigger: Trigger) -> str:
    rank = f" on rank {result.rank} of {result.ranks}" if result.ranks > 1 and result.rank is not None else ""
    step = f"step {trigger.step}{rank}"
    loss = "the loss" if trigger.value is None else f"the loss is {_number(trigger.value)}"
    sign = {
        "loss": f"{loss} in {step}",
        "gradient": f"the gradient{f' of {trigger.name}' * bool(trigger.name)} in {step}; its loss is finite",
        "skipped": f"every gradient for many steps, to {step}, which the gradient scaler has skipped",
    }.get(trigger.kind, f"a value that the job has read in {step}, and left")
    return f"Not finite: {sign}"


def _origin(result: NonFinite) -> list[str]:
    origin = result.origin
    if origin is None:
        module = result.trigger.first_module if result.trigger is not None else ""
        seen = f"Seen:    the output of {module} was the first, of the modules looked at, that was not finite"
        none = "Origin:  in none of the operators that were seen"
        return ["", *[seen] * bool(module), *[none] * result.reproduced]
    lines = ["", f"Origin:  {_born(origin)}", *_lines_of(origin, result.directory)]
    lines += [f"  from   {_range(each)}" for each in origin.inputs[:MOST_RANGES]]
    made = "made" if origin.kind == "operator" else "held"
    lines += [f"  {made}   {_range(replace(each, zeros=0))}{_rows(origin)}" for each in origin.outputs[:1]]
    if origin.became_nan is not None:
        lines.append(f"  then   NaN in {_place(origin.became_nan)}")
    return lines


def _born(origin: NonFiniteOrigin) -> str:
    what = {
        "batch": "in the batch, first used by",
        "parameter": f"in the parameter {origin.name}",
        "collective": "on another rank; it came by a collective",
        "outside": "outside of all operators that were seen, first used in",
        "constant": "as a constant, in",
    }.get(origin.kind, f"{origin.operator} in")
    module = f", module {origin.module}" if origin.module else ""
    return f"step {origin.step}: {what} the {_phase(origin)}{module}"


def _phase(where: Where) -> str:
    of = f" of {where.forward_operator}" if where.phase == "backward" and where.forward_operator else ""
    return f"{PHASES.get(where.phase, where.phase)}{of}"


def _lines_of(where: Where, directory: str) -> list[str]:
    """Paths below the job's folder are relative to it."""
    site, caller = (where.forward_site, where.forward_caller) if where.forward_site else (where.site, where.caller)
    if site is None:
        return []
    file = site.file.removeprefix(f"{directory}/")
    lines = [f"  {file}:{site.line}, in {site.function}", f"      {one_line(site.text)}"]
    if caller is None:
        return lines
    outer = caller.file.removeprefix(f"{directory}/")
    return [*lines, f"  called at {outer}:{caller.line}   {one_line(caller.text)}"]


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


def _evidence(result: NonFinite) -> list[str]:
    lines = [""]
    if result.cause is not None:
        lines += ["Cause:   " + one_line(f"{result.cause.sentence} ({result.cause.name})")]
        lines += [f"Helps:   {one_line(result.cause.advice)}"]
    if result.bad_gradients:
        lines.append(f"Gradients not finite: {listed(result.bad_gradients[:3])}")
    if result.batch is not None and result.batch.indices:
        lines.append(f"Batch:   samples {listed(result.batch.indices)} of the data set")
    return lines + _growth(result) + _skipped(result)


def _growth(result: NonFinite) -> list[str]:
    if len(result.growth) < 2:
        return []
    norms = ", ".join(_number(norm) for _, norm in result.growth)
    return [f"Gradient norm, steps {result.growth[0][0]} to {result.growth[-1][0]}: {norms}"]


def _skipped(result: NonFinite) -> list[str]:
    if not result.skipped_steps:
        return []
    return [f"Overflow-skipped by the gradient scaler: {result.skipped_steps} of {format_count(result.steps, 'step')}"]


def _next(result: NonFinite) -> str:
    command = one_line(shlex.join(result.command))
    if result.trigger is None and result.diverging == 1:
        return f"steptime run -- {command}"
    if result.trigger is not None and result.origin is None:
        return f"steptime nan --at {result.trigger.step} --max-steps 50 -- {command}"
    return f"change {'that' if result.trigger is None else 'the line'}, then: steptime nan -- {command}"


def _number(value: Number) -> str:
    return plain_number(value_of(value)) if value is not None else "not finite"
