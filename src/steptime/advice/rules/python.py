"""ST2xx: Python of the user's own inside the step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from steptime.advice.evidence import Case, LineUse, PathUse
from steptime.advice.kernels import MATRIX, plain_name
from steptime.advice.line_evidence import (
    LineKind,
    LineTime,
    converts_lists,
    function_of,
    line_kind,
    line_times,
    lines_around,
    loop_functions,
    own_share,
    own_times,
    profile_scale,
    sampled_lines,
)
from steptime.advice.line_ways import UNLOGGED
from steptime.advice.models import REFUSED, hand_made_update, or_compile
from steptime.advice.rule import LONGEST_SUMMARY, Finding, Part, Rule, rule
from steptime.advice.run_uses import GarbageUse, SegmentUse, StepSummary
from steptime.advice.savings import (
    capped,
    in_step,
    largest,
    less,
    modelled,
    more,
    named,
    partly,
    ratio,
    rises,
    scaled,
    share_of_step,
    summed,
    total,
)
from steptime.analysis.operators import OperatorUse
from steptime.quantities import Estimate, SourceLine, format_count, format_duration, format_source
from steptime.trace.links import is_user_file

MOST_LINES = 3
"""A fourth line would not be read."""
LEAST_SHARE = 0.1
"""Fraction of the step, for the category as a whole: below it is what every loop has, and a profile with stacks adds
some."""
LEAST_LINE = 0.05
"""Fraction of the step, for a line: below it is what zero_grad, a schedule or a loss cost in any loop. A package's own
line, which nobody edits, must hold LEAST_SHARE."""
LEAST_OUTSIDE = 0.08
"""Fraction of the step, for code that may be needed: a loss of the user's own, a schedule, an average of weights."""
EACH_UPDATE = "Each update needs it: clip_grad_norm_(…, foreach=True) takes all gradients at once."
"""What can be reported of the clipping of gradients, which is never done less often."""
SHORT_TEXT = 40
"""Characters of a line that a sentence holds."""
LOSSES = frozenset(
    {
        "_log_softmax", "nll_loss", "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward", "cross_entropy_loss",
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "kl_div", "_ctc_loss",
        "binary_cross_entropy_with_logits", "soft_margin_loss", "cosine_embedding_loss", "poisson_nll_loss",
    }
)  # fmt: skip
"""Operators that a loss function of torch is made of."""
LOSS_CALL = re.compile(r"torch\.nn\.functional\.(\w*loss\w*|\w*cross_entropy\w*|kl_div)")
LAYER_CALL = re.compile(r"torch\.nn\.modules\.module\.Module\._(?:wrapped_)?call_impl")
DRAWS = re.compile(r"torch\.distributions\.|torch\.(?:Tensor\.)?multinomial$")
LIGHTNING_LOG = re.compile(r"(?:lightning|pytorch_lightning)\..*LightningModule\.log(?:_dict)?")
"""Calls seen at a line: a loss function of torch; a module; a draw from a distribution; a LightningModule's logging."""
UNPROFILED: Final = "rest"
"""Stands for the category of Python, and of operators outside of the model, where no step was profiled."""
IN_PHASES = ("forward", "backward", "optimizer")
"""Roles of lines inside of what the always-on timers call forward, backward and update."""
LOOP_ROLES = ("python", *IN_PHASES)
"""Roles whose Python is examined here; input, transfer and evaluation have rules of their own."""
MOST_OF_IT = 0.5
"""Fraction of the step's Python, for one line that was looked at now and then to be reported."""
TRAINED_THROUGH = 0.1
"""Fraction of the time of a function outside of the model, in backward: from here on the loss goes through it."""
LIKELY_FASTER, SURELY_FASTER = 0.3, 0.05
"""Fraction of the time of code that the loss goes through which faster operators likely and surely save. A judgement:
they save dispatch and traffic, not the arithmetic, and the work has to be done."""
OFTEN = 50
"""Steps between two checkpoints: when more are between, saving is an event between steps (ST902), not part of them."""
BY_CHANCE = 4
"""Times the collections per step of the run: a line with more in the few timed steps had them by chance."""
LEAST_CONVERSION = 200_000.0
"""ns per execution: a conversion of one array of some MB is done by then (a copy at several GB/s)."""


@rule("ST201", "python-time", supersedes=("outside-model",), by_line=True)
def python_time(step: StepSummary, case: Case) -> Iterator[Finding]:
    """Python code in the step keeps the model waiting

    What it means: The training thread runs Python or a library that is not torch: no operator, no kernel, no loader.

    How we know: The lines of the training loop are timed exactly in a few steps. A line's own Python is its time
    outside of torch's operators, the loader and the phases of the step. The savings are that time. On a CPU, the rest
    of the breakdown's Python is spent in functions inside of the phases (a hook, a module's forward). Their lines are
    timed, too: a line that runs no operators counts in full. Another line counts with its share of the Python that a
    step with stacks saw outside of operators; without such a step it does not count. If no step was profiled, the
    time in operators is not known; the finding then reports time outside of forward, backward and optimizer. If lines
    could not be timed, the finding is about the breakdown's Python as a whole; a trace with stacks names the
    functions that ran while the device idled.

    What helps: Move it out of the loop, do it every n-th step, use whole arrays instead of single items, or move it
    to another thread or process.

    When to ignore it: When the device is busy meanwhile: then the breakdown has no Python time and the rule does
    not fire.
    """
    times = [time for time in line_times(case.lines, case.phases) if time.line.role in LOOP_ROLES]
    unprofiled = named(case.categories, UNPROFILED)
    python = named(case.categories, "python") or unprofiled
    spent = sum(map(_host, times))
    # Lines hold operators outside the model too (a loss, an index), of which the category knows the part.
    part = min(1.0, ratio(python.duration.value, spent)) if python is not None and spent > 0 else 1.0
    groups = [
        (scaled(total(time.python for time in group), part), group)
        for group in _by_function(times, loop_functions(case.lines))
    ]
    if python is not None and unprofiled is None and step.device == "cpu":
        collected = case.garbage.duration.value if case.garbage is not None else 0.0
        groups += _in_phases(case, times, less(python.duration, part * spent + collected))
        groups.sort(key=lambda each: -each[0].value)
    for saving, group in groups[:MOST_LINES]:
        least = LEAST_LINE if is_user_file(group[0].line.source.file) else LEAST_SHARE
        if ratio(saving.value, step.duration.value) >= least and not _is_of_torch(group):
            yield _finding(step, group, saving, unprofiled is not None, case.second_order)
    if not times:
        yield from _whole_breakdown(case)


def _is_of_torch(group: Sequence[LineTime]) -> bool:
    """True for a line that starts backward or the update and calls nothing else than torch: its own time frees the
    graph, or is the optimizer's Python, of which ST501 and ST503 speak."""
    line = group[0].line
    return line.role in ("backward", "optimizer") and all(each.startswith("torch.") for each in line.calls)


def _by_function(times: list[LineTime], loops: frozenset[tuple[str, str]]) -> list[list[LineTime]]:
    """Lines of the loop one by one, lines of a function that it calls together; the longest group and line first. A
    line of the loop that calls nothing but such a function ends its group: freeing what the function has made is the
    calling line's own time, and goes with the call."""
    groups: dict[tuple[str, str, int], list[LineTime]] = {}
    calls: list[LineTime] = []
    by_host = sorted(times, key=_host, reverse=True)
    functions = {_function(time) for time in times} - loops
    for time in by_host:
        alone = _function(time) in loops
        if alone and any(_only_calls(time, each) for each in functions):
            calls.append(time)
        else:
            groups.setdefault((*_function(time), time.line.source.line if alone else 0), []).append(time)
    for call in calls:
        next(group for place, group in groups.items() if _only_calls(call, place[:2])).append(call)
    return sorted(groups.values(), key=lambda group: -sum(map(_host, group)))


def _only_calls(time: LineTime, function: tuple[str, str]) -> bool:
    """True if a line was seen to call this function, and nothing else."""
    file, name = function
    modules = (PurePath(file).stem, *(["__main__"] if file == time.line.source.file else []))
    called = f".{time.line.calls[0]}" if len(time.line.calls) == 1 else ""
    return any(called.endswith(f".{module}.{name}") for module in modules)


def _behind(group: Sequence[LineTime]) -> str:
    """Rest of a group behind its first line, in words: the other lines of the function, and its calls."""
    function = _function(group[0])
    others = sum(_function(each) == function for each in group[1:])
    calls = [format_source(each.line.source) for each in group if _function(each) != function]
    words = f" and {format_count(others, 'more line')} of {function[1]}" if others else ""
    return words + (f", called at {' and '.join(calls)}" if calls else "")


def _in_phases(case: Case, times: list[LineTime], left: Estimate) -> Iterator[tuple[Estimate, list[LineTime]]]:
    """Lines that run inside of forward, backward and update and run no operators, by function, as far as the breakdown
    has Python left for them; the longest first. In a function with operators a line must have been seen to call other
    things only: arithmetic of tensors is no call."""
    if case.functions:
        yield from _by_stacks(case, times, left)
        return
    inside = [time for time in times if time.line.role in IN_PHASES] if any(time.line.calls for time in times) else []
    loops = loop_functions(time.line for time in times)  # where the lines of these roles call backward and update
    inside = [each for each in inside if each.line.role == "forward" or _function(each) not in loops]
    holding = {function_of(use.source) for use in case.operators if use.source is not None}
    silent = {function_of(time.line.source) for time in inside} - holding if holding else set()
    silent -= {function_of(time.line.source) for time in inside if _calls_torch(time)}
    silent_lines: dict[tuple[str, str], list[LineTime]] = defaultdict(list)
    for time in sorted(inside, key=lambda time: -time.duration.value):
        function = function_of(time.line.source)
        if function in silent or (time.line.calls and not _calls_torch(time)):
            silent_lines[function].append(time)
    found = [(total(time.duration for time in group), group) for group in silent_lines.values()]
    for spent, group in sorted(found, key=lambda each: -each[0].value):
        taken = capped(spent, left)
        left = less(left, taken.value)
        yield taken, group


def _by_stacks(case: Case, times: list[LineTime], left: Estimate) -> Iterator[tuple[Estimate, list[LineTime]]]:
    """The breakdown's remaining Python, by the functions that ran outside of operators inside of the phases."""
    inside = [use for use in case.functions if use.phase in IN_PHASES]
    working = {use.source for use in inside if use.operators > 0}
    spent = summed((use.source, use.python) for use in inside if use.source is not None and use.python > 0)
    ranked = sorted(spent, key=lambda source: -spent[source])
    reported: list[LineTime] = []
    for source in ranked:  # where no operator ran, the lines' own clock is exact: a step with stacks slows them
        lines = [each for each in _timed_lines(case.paths, times, source) if each not in reported]
        if source not in working and lines:
            taken = capped(total(each.duration for each in lines), left)
            left, reported = less(left, taken.value), [*reported, *lines]
            yield taken, lines
    silent = {source for source in ranked if source not in working and _timed_lines(case.paths, times, source)}
    whole = sum(use.python for use in inside if use.source not in silent)
    for source in [each for each in ranked if each not in silent][:MOST_LINES]:
        taken = scaled(left, ratio(spent[source], whole))
        yield taken, _lines_of(case.paths, times, source) or [_as_time(source, taken)]


def _function(time: LineTime) -> tuple[str, str]:
    return time.line.source.file, time.line.source.function


def _lines_of(paths: tuple[PathUse, ...], times: list[LineTime], source: SourceLine) -> list[LineTime]:
    """The timed lines of a function, the longest first; of one that ran too many lines, those that were sampled."""
    found = _timed_lines(paths, times, source) or [
        _as_time(line, modelled(spent, spent, spent)) for line, spent in sampled_lines(paths, source).items()
    ]
    return sorted(found, key=lambda time: -time.duration.value)


def _timed_lines(paths: tuple[PathUse, ...], times: list[LineTime], source: SourceLine) -> list[LineTime]:
    own = lines_around([time.line for time in times], paths, source)
    return sorted((time for time in times if time.line in own), key=lambda time: -time.duration.value)


def _as_time(source: SourceLine, spent: Estimate) -> LineTime:
    return LineTime(LineUse(source, "python", spent, spent, 1.0), spent, spent)


def _calls_torch(time: LineTime) -> bool:
    return any(each.startswith("torch.") for each in time.line.calls)


def _host(time: LineTime) -> float:
    return time.python.value


def _finding(
    step: StepSummary, group: list[LineTime], saving: Estimate, unprofiled: bool, second_order: bool | None = None
) -> Finding:
    source = group[0].line.source
    where = format_source(source) + _behind(group)
    inside = "outside of forward, backward and optimizer" if unprofiled else "in Python"
    summary = f"{where}: {in_step(saving.value, step)} {inside}"
    named_function = summary.replace(inside, _in_what(group[0], inside) if len(group) == 1 else inside)
    summary = named_function if len(named_function) <= LONGEST_SUMMARY else summary
    advice = "Move this out of the step, do it less often, or vectorize it (whole arrays, no loop)."
    if group[0].line.trained:
        advice = "The loss depends on it, so each step needs it: look for what it computes again each time."
    elif group[0].line.role == "forward" and any(map(LAYER_CALL.fullmatch, group[0].line.calls)):
        advice = f"Python around layers: call fewer of them, on larger tensors{or_compile(second_order, 'the model')}."
    if any(line_kind(each.line.calls) is LineKind.GRADIENTS for each in group):
        advice = EACH_UPDATE
    evidence = tuple(time.line.source.text for time in group[:3] if time.line.source.text)
    category: Part = UNPROFILED if unprofiled else "python"
    return python_time.finding(summary, advice, saving, category=category, source=source, evidence=evidence)


def _in_what(time: LineTime, otherwise: str) -> str:
    """The function that a line spends its time in, where it calls one alone: "in inspect.stack, 5 times per step"."""
    if len(time.line.calls) != 1 or _calls_torch(time) or time.line.calls[0].startswith("builtins."):
        return otherwise
    times = f", {time.line.hits:.3g} times per step" if time.line.hits >= 2 else ""
    return f"in {time.line.calls[0]}{times}"


def _whole_breakdown(case: Case) -> Iterator[Finding]:
    python = named(case.categories, "python")
    if python is None or ratio(python.duration.value, case.step.duration.value) < LEAST_SHARE:
        return
    # Of a loop whose lines could not be timed one by one: they were looked at now and then.
    line, spent = largest(own_times(path for path in case.paths if not path.part))
    if line is not None and spent >= MOST_OF_IT * python.duration.value:
        taken = capped(modelled(spent, spent, spent), python.duration)
        yield _finding(case.step, [_as_time(line, taken)], taken, unprofiled=False)
        return
    idle_behind = [gap for gap in case.gaps if gap.category == "python" and gap.cause]
    idle_behind.sort(key=lambda gap: gap.duration.value, reverse=True)
    idle = [
        f"{format_duration(gap.duration.value)} idle per step after {gap.cause}" for gap in idle_behind[:MOST_LINES]
    ]
    held = [f"{format_duration(spent)} per step in {name}" for gap in idle_behind[:1] for name, spent in gap.functions]
    yield python_time.finding(
        f"Python outside torch takes {in_step(python.duration.value, case.step)}",
        "Look for loops, logging and conversions in the step.",
        python.recoverable,
        category="python",
        source=next((gap.source for gap in idle_behind if gap.source is not None), None),
        evidence=(*idle, *held),
    )


@rule("ST202", "garbage-collection", supersedes=("python-time", "overhead-bound", "outside-model"))
def garbage_collection(step: StepSummary, garbage: GarbageUse, lines: tuple[LineUse, ...] = ()) -> Finding:
    """Python's garbage collector runs inside the step

    What it means: A collection visits every container object of the process. With millions of objects alive (a list
    of samples, a vocabulary, a graph of Python objects) each collection takes tens of milliseconds, at moments that
    nothing in the loop shows.

    How we know: Python calls steptime at the start and the end of each collection. The savings are the time of the
    collections in the training thread.

    What helps: gc.freeze() after set-up excludes the long-lived objects from every later collection. Keep data in
    arrays instead of lists of objects. Or call gc.disable(), and gc.collect() every few hundred steps. A
    gc.collect() that is in the loop can nearly always go: tensors are freed by reference counts.

    When to ignore it: When reference cycles hold large tensors and memory is short: then the collector is what
    frees them.
    """
    collecting = [line for line in lines if line.garbage > 0 and line.role != "evaluation"]
    often = [line for line in collecting if line.garbage <= BY_CHANCE * garbage.collections]
    collecting = [line for line in collecting if line in often or line_kind(line.calls) is LineKind.COLLECT]
    source = max(collecting, key=lambda line: line.garbage).source if collecting else None
    spent = in_step(garbage.duration.value, step)
    summary = f"The garbage collector takes {spent}, {garbage.collections:.2g} collections per step"
    advice = "Call gc.freeze() once before the loop, or keep long-lived data in arrays instead of Python objects."
    if any(line.source == source and line_kind(line.calls) is LineKind.COLLECT for line in collecting):
        advice = "Take gc.collect() out of the loop: tensors are freed by their reference counts."
    return garbage_collection.finding(summary, advice, garbage.duration, category=garbage.category, source=source)


@rule(
    "ST203",
    "logging-in-step",
    supersedes=("python-time", "metrics-in-step", "outside-model", "periodic-steps"),
    by_line=True,
)
def logging_in_step(step: StepSummary, lines: tuple[LineUse, ...], case: Case) -> Iterator[Finding]:
    """Logging takes part of every step

    What it means: Printing, writing to a file or sending to a tracker happens in the training thread, in every step or
    nearly so.

    How we know: The lines of the loop are timed exactly in a few steps. A line counts if it was seen to call print,
    logging, a writer, a tracker or a file. On a CPU the savings are the line's time, on a device the line's Python.

    What helps: Log every n-th step. Keep running sums on the device and read them only when they are logged. Let
    the handler write from a queue in another thread, and do not flush each line. Lightning's self.log does most of
    its work in each call, whatever the Trainer's log_every_n_steps: call it for every n-th batch only.

    When to ignore it: When steps are so long that each of them is worth a line; when Lightning's mean over an epoch
    (on_epoch=True) must include every batch.
    """
    for time in line_times(lines, case.phases):
        if time.line.role != "evaluation" and line_kind(time.line.calls) is LineKind.LOGGING:
            saving = time.duration if step.device == "cpu" else time.python
            dropped = any(each.kind == UNLOGGED and each.source == time.line.source for each in case.works)
            does = f"{MADE_TO_DROP if dropped else 'logs for'} {in_step(saving.value, step)}"
            advice = "Log every n-th step, or from another thread."
            if any(map(LIGHTNING_LOG.fullmatch, time.line.calls)):
                advice = "Call it for every n-th batch only: the Trainer's log_every_n_steps does not skip the call."
            yield _line(logging_in_step, time.line, does, advice, saving)


MADE_TO_DROP = "formats messages that are never written (below the logger's level), for"


def _line(made: Rule, line: LineUse, does: str, advice: str, saving: Estimate, category: Part = "") -> Finding:
    """A finding about one line. does: what the line does, and what that takes."""
    summary = f"{format_source(line.source)} {does}"
    text = (line.source.text,)
    return made.finding(summary, advice, saving, category=category, source=line.source, evidence=text)


SAVE_WHAT_IS_NEW = "Something in it grows with the run: save only what is new, or save that part separately and rarely."


@rule("ST204", "checkpoint-in-step", supersedes=("outside-model",))
def checkpoint_in_step(step: StepSummary, case: Case, segments: tuple[SegmentUse, ...] = ()) -> Finding | None:
    """A checkpoint is written every few steps

    What it means: torch.save serialises parameters and optimizer state in the training thread and writes them to disk,
    so often that every step pays for it.

    How we know: Each torch.save in the training thread is timed. The savings are the total, divided by the steps. If
    every step saves, the savings are the part of the line's time that is in torch.save. The finding's line is the one
    of the loop that makes the call. If saves become longer, steadily and by half or more, the job saves something
    that grows, and the finding says so.

    What helps: Save less often. Save only what is new since the last save. Copy the state to the CPU and write it
    from another thread or process (torch.distributed.checkpoint.async_save does both). Save the optimizer's state
    less often than the parameters.

    When to ignore it: When the machine may vanish at any time and a step is expensive.
    """
    use = next((use for use in segments if use.kind == "checkpoint"), None)
    steps = max(1, step.total - step.warm_up)
    of_steps = [line for line in case.lines if line.role != "evaluation"]
    advice = "Save every few hundred steps, or from another thread (torch.distributed.checkpoint.async_save)."
    if use is None:  # what belongs to every step is no segment: the lines know it
        line = max(of_steps, key=lambda line: line.checkpoint, default=None)
        if line is None or not line.checkpoint:
            return None
        saving = scaled(line.duration, ratio(line.checkpoint, line.duration.value))
        share = share_of_step(saving.value, step)
        summary = f"Every step writes a checkpoint, for {format_duration(saving.value)} ({share} of the step)"
        return checkpoint_in_step.finding(summary, advice, saving, category="python", source=line.source)
    if use.count * OFTEN < steps:
        return None
    each = use.duration / max(1, use.count)
    every = use.every or steps / max(1, use.count)
    spread = each / every
    takes = format_duration(each)
    if use.growth is not None:
        takes, advice = rises(use.growth), SAVE_WHAT_IS_NEW
    summary = (
        f"A checkpoint every {every:.0f} steps takes {takes}: "
        f"{format_duration(spread)} for each step ({share_of_step(spread, step)} of it)"
    )
    saving = modelled(spread, 0.8 * spread, 1.2 * spread, use.count)
    saves = [line for line in of_steps if _saving(line) > 0]
    source = max(saves, key=_saving).source if saves else None
    return checkpoint_in_step.finding(summary, advice, saving, source=source)


def _saving(line: LineUse) -> float:
    """Time in torch.save; a line that was timed in steps without one is known by what it called."""
    return line.checkpoint or float(line_kind(line.calls) is LineKind.CHECKPOINT)


@rule(
    "ST205",
    "metrics-in-step",
    supersedes=("python-time", "dispatch-loop", "outside-model", "periodic-steps"),
    by_line=True,
)
def metrics_in_step(step: StepSummary, lines: tuple[LineUse, ...], case: Case) -> Iterator[Finding]:
    """Metrics are computed in every step

    What it means: The loop computes accuracy, scores or running statistics of each batch in Python: element by
    element, or with a library that runs on the CPU.

    How we know: The lines of the loop are timed exactly in a few steps. A line counts if it was seen to call item,
    tolist or numpy of a tensor, a metrics library, or a function named like a metric, an accuracy or a score. A line
    that draws from a distribution does not count: it reads an action, not a metric. On a CPU the savings are the
    line's time. On an accelerator they are the line's Python only; ST303 reports waits for the device.

    What helps: Compute metrics every n-th step or at evaluation. Accumulate tensors with torch operations and read
    them once. Replace loops over elements by one comparison of whole tensors.

    When to ignore it: When training itself depends on the value (early stopping within an epoch, curriculum).
    """
    advice = "Compute it every n-th step, with whole-tensor operations, and read the value only when it is shown."
    for time in line_times(lines, case.phases):
        drawn = any(map(DRAWS.match, time.line.calls))
        if time.line.role == "python" and line_kind(time.line.calls) is LineKind.METRICS and not drawn:
            saving = time.duration if step.device == "cpu" else time.python
            does = f"takes {in_step(saving.value, step)} for a metric"
            yield _line(metrics_in_step, time.line, does, advice, saving)


@rule(
    "ST206",
    "list-conversion",
    supersedes=("python-time", "batch-preparation", "metrics-in-step", "outside-model", "periodic-steps"),
    by_line=True,
)
def list_conversion(step: StepSummary, lines: tuple[LineUse, ...], case: Case) -> Iterator[Finding]:
    """A tensor is made of lists or of a list of arrays

    What it means: torch.tensor(list) reads every element as a Python object; given a list of NumPy arrays it does so
    too, and is some hundred times slower than a copy.

    How we know: The lines of the loop are timed exactly in a few steps. A line counts if it was seen to call
    torch.tensor and no function of NumPy, and takes at least 0.2 ms each time: by then one array of some megabytes
    would be copied. The savings are the line's time, without the time in your own functions that it calls: making the
    elements is not making a tensor of them.

    What helps: torch.from_numpy(np.stack(arrays)) for a list of arrays; keep the data as one array from the start
    and index it. A mask or positions in a model's forward: make them once, in __init__, with register_buffer. If
    they depend on the batch, use torch.arange, torch.tril and comparisons.

    When to ignore it: When the argument is one large array and the time is that of its copy: then torch.from_numpy
    saves the copy.
    """
    for time in line_times(lines, case.phases):
        line, spent = time.line, scaled(time.duration, own_share(case.paths, time.line.source))
        slow = spent.value >= LEAST_CONVERSION * max(line.hits, 1.0)
        if slow and line.role != "evaluation" and converts_lists(line.calls):
            does = f"converts Python lists to a tensor: {in_step(spent.value, step)}"
            advice = "Use torch.from_numpy(np.stack(arrays)), or keep the data as one array."
            if line.role == "forward":
                advice = "Make it once (register_buffer) if no batch changes it, else with operators on whole tensors."
            yield _line(list_conversion, line, does, advice, spent, "input" if line.role == "input" else "")


@rule("ST207", "outside-model", by_line=True)
def outside_model(step: StepSummary, lines: tuple[LineUse, ...], case: Case) -> Iterator[Finding]:
    """Code next to the model and the optimizer takes part of the step

    What it means: A line of the loop, or a function that it calls (a loss, a callback, a logger), takes a good part
    of each step, in Python or in operators. No rule knows what it does; this one shows where it is.

    How we know: In a few steps every line of the loop is timed, and of your functions that it calls. A line's time
    outside of the loader, forward, backward and update counts, with its operators and, where a step with stacks shows
    it, with their backward. The variables that each line reads and sets show whether the loss may depend on it. Loss
    functions of torch do not count, because every training needs one; nor does an update written by hand (ST505). The
    trained model called a second time without gradients in the same steps counts. If the loss depends on the line, or
    the line calls model.forward() itself, its work is needed. Then the likely savings are a third of its time outside
    of matmuls and convolutions, and the sure ones a twentieth.

    What helps: Ask whether each step needs it. Do it every n-th step, do it once before the loop, or reuse what the
    step has computed. If the loss depends on it, each step needs it: use torch.compile on that function, or
    ready-made operators.

    When to ignore it: When it is the point of the training (a loss of your own that must be that large).
    """
    if step.device != "cpu":  # a device only waits for what the CPU cannot hide
        return
    times = [time for time in line_times(lines, case.phases) if time.line.role == "python"]
    loops, updating = loop_functions(lines), hand_made_update(case)
    for group in _by_function([time for time in times if time not in updating], loops):
        own = [each for each in group if _function(each) == _function(group[0])]
        group.sort(key=lambda time: (time in own, time.duration.value), reverse=True)
        source, spent = group[0].line.source, total(time.duration for time in group)
        backward = _in_backward(case, source) if (source.file, source.function) not in loops else 0.0
        if (source.file, source.function) not in loops:
            spent = more(less(spent, _needed(case.operators, source)), backward)
        elif any(map(LOSS_CALL.fullmatch, group[0].line.calls)):
            spent = less(spent, _needed_in_loop(case.operators, group[0], times, loops))
        if is_user_file(source.file) and ratio(spent.value, step.duration.value) >= LEAST_OUTSIDE:
            called = _is_forward(source) and not case.functions
            trained = backward >= TRAINED_THROUGH * spent.value or group[0].line.trained or called
            faster = max(0.0, spent.value - _in_matmuls(case, source))
            saving = partly(faster, LIKELY_FASTER, SURELY_FASTER, step) if trained else spent
            yield _outside(step, group, spent, saving, _advice_outside(case, group, trained, loops))
    if case.repeated is not None:
        again = case.repeated
        where = f"{format_source(again.source)} runs" if again.source is not None else "The loop runs"
        yield outside_model.finding(
            f"{where} a model again without gradients: {in_step(again.duration.value, step)}",
            "Use the step's own outputs, or do it every n-th step.",
            again.duration,
            source=again.source,
            evidence=(again.source.text,) if again.source is not None and again.source.text else (),
        )


def _needed(operators: tuple[OperatorUse, ...], source: SourceLine) -> float:
    """ns per step of a function in torch's own loss functions."""
    return sum(
        use.duration
        for use in operators
        if use.phase == "rest"
        and use.source is not None
        and plain_name(use.name) in LOSSES
        and function_of(use.source) == function_of(source)
    )


def _in_matmuls(case: Case, source: SourceLine) -> float:
    """ns per step of a function in matmuls and convolutions, forward and backward: they are ready-made already, and a
    compiler calls the same ones."""
    return profile_scale(case.operators, case.categories) * sum(
        use.duration
        for use in case.operators
        if use.source is not None and plain_name(use.name) in MATRIX and function_of(use.source) == function_of(source)
    )


def _needed_in_loop(
    operators: tuple[OperatorUse, ...], time: LineTime, times: Sequence[LineTime], loops: Collection[tuple[str, str]]
) -> float:
    """ns per step of a line of the loop in torch's own loss functions: of the loop's operators, which have no function
    in a trace, their part in profiled time."""
    own = [each for each in times if (each.line.source.file, each.line.source.function) in loops]
    losing = [each for each in own if any(map(LOSS_CALL.fullmatch, each.line.calls))]
    rest = [use for use in operators if use.phase == "rest" and use.source is None]
    losses = sum(use.duration for use in rest if plain_name(use.name) in LOSSES)
    part = ratio(losses, sum(use.duration for use in rest)) * sum(map(_in_operators, own))
    return min(_in_operators(time), part * ratio(_in_operators(time), sum(map(_in_operators, losing))))


def _in_operators(time: LineTime) -> float:
    return max(0.0, time.duration.value - time.python.value)


def _in_backward(case: Case, source: SourceLine) -> float:
    """ns per step of what autograd runs for the operators of a function, except losses."""
    backward = [use for use in case.functions if use.phase == "backward"]
    phase, whole = named(case.phases, "backward"), sum(use.operators for use in backward)
    own = sum(use.operators for use in backward if use.source and function_of(use.source) == function_of(source))
    needed = sum(
        use.duration
        for use in case.operators
        if use.phase == "backward"
        and use.source is not None
        and plain_name(use.name).removesuffix("_data").removesuffix("_backward") in LOSSES
        and function_of(use.source) == function_of(source)
    )
    return max(0.0, ratio(own, whole) * phase.duration.value - needed) if phase is not None else 0.0


def _is_forward(source: SourceLine) -> bool:
    """True for a forward() that the job calls itself, past the module's call: the loss goes through it."""
    return source.function.endswith(".forward")


def _advice_outside(case: Case, group: Sequence[LineTime], trained: bool, loops: Collection[tuple[str, str]]) -> str:
    """By whether the loss goes through it. A line of the loop itself with operators of unknown origin: backward's are
    known by function, and the loop's own line holds all kinds."""
    source = group[0].line.source
    if any(line_kind(each.line.calls) is LineKind.GRADIENTS for each in group):
        return EACH_UPDATE
    faster = f"use ready-made operators; {REFUSED}" if case.second_order else "compile it, or use ready-made operators"
    if trained:
        return f"The loss depends on it, so each step needs it: {faster}."
    operators = 2 * sum(each.python.value for each in group) < sum(each.duration.value for each in group)
    if operators and (source.file, source.function) in loops and named(case.phases, "backward") is not None:
        return f"If the loss or its gradients depend on it: {faster}. Else do it every n-th step."
    return "Ask whether each step needs it: do it every n-th step, or once before the loop."


def _outside(step: StepSummary, group: Sequence[LineTime], spent: Estimate, saving: Estimate, advice: str) -> Finding:
    source = group[0].line.source
    where = format_source(source) + (f" `{source.text}`" if 0 < len(source.text) <= SHORT_TEXT else "")
    where += _behind(group)
    around = "its submodules" if _is_forward(source) else "model"
    place = "on the way to the loss" if group[0].line.trained else f"outside of {around} and optimizer"
    summary = f"{where}: {in_step(spent.value, step)}, {place}"
    return outside_model.finding(
        summary, advice, saving, source=source, evidence=(source.text,) if len(source.text) > SHORT_TEXT else ()
    )
