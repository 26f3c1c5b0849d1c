"""Operators and functions in which a line or a function of the user's spends its time.

A step with Python stacks shows what each function calls, not at which of its lines. A call belongs to the line that was
seen to call a function of its name or has that name in its text, else to the longest line that has no such call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from steptime.advice.evidence import LineUse, PathUse, RunUse
from steptime.advice.kernels import COPIES, plain_name
from steptime.advice.line_evidence import COPYING, function_of, loop_functions, own_times
from steptime.advice.savings import largest, ratio, summed
from steptime.analysis.user_code import CallUse, FunctionUse
from steptime.quantities import SourceLine

LEAST_SHARE = 0.1
"""Fraction of a line's or a function's time: less is not worth a word."""
MOST_RUNS = 3
"""Calls that are kept of one place."""
WRITTEN = {
    "index": r"\[", "index_select": r"\[|index_select", "slice": r"\[", "select": r"\[", "masked_select": r"\[",
    "index_put": r"\[.*\]\s*=", "matmul": r"@|matmul", "mm": r"@|\bmm\(", "add": r"\+|add", "mul": r"\*|mul",
    "sub": r"-|sub", "div": r"/|div", "pow": r"\*\*|pow",
}  # fmt: skip
"""How a line writes operators that have a sign of their own."""
AS_CALLED = re.compile(r"^_+|^(?:linalg|special|fft|nested)_|_(?:nd|vec)$")
"""Parts of an operator's name that the function lacks which calls it."""
OTHER_NAMES = {
    "upsample": "interpolate",
    "_upsample": "interpolate",
    "grid_sampler": "grid_sample",
    "_unique": "unique",
}
"""Starts of operators' names, and the functions that call them."""

CALL_ALONE = re.compile(r"(?:return\s+|[\w\s.,*\[\]'\"]+=\s*)?(?P<name>[A-Za-z_][\w.]*)\([^()]*\)")
"""A line that is one call, and what it binds to its result."""
OTHER_PHASES = re.compile(r"\.(?:backward|step)\(")
"""A line whose time is that of the backward pass or of an update."""
NOBODYS = ("steptime.", "nn.Module: ")
"""Starts of names that are no call of the job's."""
OF_TORCH = (
    "torch.optim.",
    "torch.nn.modules.",
    "torch.autograd.",
    "torch._tensor.Tensor.backward",
    "torch.utils.data.",
)
"""Starts of names of calls that the rest of a report is about."""


@dataclass(frozen=True, slots=True)
class _Body:
    """User function. spent: ns per step in a step with stacks; calls: its own; lines: ns per step of each."""

    source: SourceLine
    spent: float
    calls: tuple[CallUse, ...]
    lines: Mapping[SourceLine, float]


def run_uses(
    functions: Iterable[FunctionUse],
    paths: Iterable[PathUse],
    lines: Iterable[LineUse],
    called: Mapping[tuple[str, int], Iterable[str]],
) -> tuple[RunUse, ...]:
    """Operators and functions that run in the user's functions and at their lines, the longest first. called: functions
    that each line was seen to call."""
    functions, lines = tuple(functions), tuple(lines)
    own = own_times(paths)  # a comprehension is a function of its own, on the same line
    at_place = summed((source.place, spent) for source, spent in own.items())
    found = [
        run if run.whole else replace(run, share=min(1.0, ratio(run.duration, at_place.get(run.source.place, 0.0))))
        for each in _functions(functions, own)
        for run in _of_function(each, called)
    ]
    found = [run for run in found if run.share >= LEAST_SHARE]
    loops, known = loop_functions(lines), {run.source.place for run in found}
    inside = _merged(use for use in functions if use.source is None and use.phase in ("rest", "input"))
    inside = tuple(call for call in inside if not call.name.startswith((*NOBODYS, "torch.")))
    for line in lines:
        in_loop = (line.source.file, line.source.function) in loops
        if in_loop and line.source.place not in known:
            names = called.get(line.source.place) or line.calls or None
            mine = [call for call in inside if _is_called(call.name, line.source.text, names)]
            found += _runs(line.source, mine, line.duration.value, line.duration.value)
    known |= {run.source.place for run in found}
    found += _alone(own, at_place, called, known)
    return tuple(sorted(found, key=lambda run: -run.duration))


def _alone(
    own: Iterable[SourceLine],
    spent: Mapping[tuple[str, int], float],
    called: Mapping[tuple[str, int], Iterable[str]],
    known: Container[tuple[str, int]],
) -> Iterator[RunUse]:
    """The only function that a line was seen to call, or calls by its text, if no step with stacks shows any. The
    line's own time is in no function of the job's."""
    jobs = {function_of(line)[1] for line in own}
    for line in own:
        place = line.place
        alone = CALL_ALONE.fullmatch(line.text) if place not in known and place not in called else None
        if alone is not None and alone["name"].rpartition(".")[2] not in jobs:
            yield RunUse(line, alone["name"], 1.0, spent[place], 0.0)
        names = [name for name in called.get(place, ()) if not name.startswith(("builtins.", "__main__."))]
        if place not in known and len(names) == 1 and not names[0].startswith(OF_TORCH):
            yield RunUse(line, names[0], 1.0, spent[place], 0.0)


def _functions(functions: Iterable[FunctionUse], own: Mapping[SourceLine, float]) -> Iterator[_Body]:
    """Functions with their lines. Backward counts for hooks only: else it is what autograd runs."""
    groups: dict[SourceLine, list[FunctionUse]] = defaultdict(list)
    for use in functions:
        if use.source is not None:
            groups[use.source].append(use)
    starts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for source in groups:
        starts[function_of(source)].append(source.line)
    lines: dict[SourceLine, dict[SourceLine, float]] = defaultdict(dict)
    for line, spent in own.items():
        name = function_of(line)
        before = [start for start in starts.get(name, ()) if start <= line.line]
        if before:
            source = next(each for each in groups if function_of(each) == name and each.line == max(before))
            lines[source][line] = spent
    for source, uses in groups.items():
        calls = _merged(uses)
        yield _Body(source, sum(call.duration for call in calls), calls, lines[source])


def _merged(uses: Iterable[FunctionUse]) -> tuple[CallUse, ...]:
    """Calls of several phases together, the longest first."""
    found: dict[str, list[CallUse]] = defaultdict(list)
    for use in uses:
        for call in use.called:
            found[_as_written(call.name)].append(call)
    merged = (
        CallUse(
            name,
            sum(each.calls for each in calls),
            sum(each.duration for each in calls),
            max(calls, key=lambda each: each.duration).shapes,
            max(each.depth for each in calls),
            min(each.shallow for each in calls),
        )
        for name, calls in found.items()
    )
    return tuple(sorted(merged, key=lambda call: -call.duration))


def _as_written(name: str) -> str:
    """Name of the function of torch that calls an operator, where that is another."""
    plain = plain_name(name) if "::" in name else ""
    return next((each for start, each in OTHER_NAMES.items() if plain.startswith(start)), name)


def _of_function(function: _Body, called: Mapping[tuple[str, int], Iterable[str]]) -> Iterator[RunUse]:
    """Runs of a function as a whole, and of its lines."""
    timed = sum(function.lines.values())
    scale = ratio(timed, function.spent) if timed else 1.0
    named = [call for call in function.calls if call.name and not call.name.startswith(NOBODYS)]
    yield from _runs(function.source, named, function.spent * scale, function.spent, scale, whole=True)
    at_line: dict[SourceLine, list[CallUse]] = defaultdict(list)
    left = {line: spent for line, spent in function.lines.items() if not OTHER_PHASES.search(line.text)}
    unnamed = []
    for call in named:
        calling = [line for line in function.lines if _is_called(call.name, line.text, called.get(line.place, ()))]
        if calling:
            line = max(calling, key=lambda each: function.lines[each])
            at_line[line].append(call)
            left[line] = left.get(line, 0.0) - scale * call.duration
        else:
            unnamed.append(call)
    for call in unnamed:
        longest, most = largest(left)
        if longest is not None and 2 * most >= scale * call.duration:
            at_line[longest].append(call)
            left[longest] -= scale * call.duration
    for line, calls in at_line.items():
        yield from _runs(line, calls, function.lines[line], function.lines[line], scale)


def _runs(
    source: SourceLine,
    calls: Iterable[CallUse],
    spent: float,
    whole_time: float,
    scale: float = 1.0,
    *,
    whole: bool = False,
) -> Iterator[RunUse]:
    """The longest calls of a place that takes `spent` ns per step."""
    for call in sorted(calls, key=lambda each: -each.duration)[:MOST_RUNS]:
        share = min(1.0, ratio(call.duration * (1.0 if whole else scale), whole_time))
        if share >= LEAST_SHARE:
            yield RunUse(
                source, call.name, share, share * spent, call.calls, call.shapes, call.depth, call.shallow, whole
            )


def _is_called(name: str, text: str, names: Iterable[str] | None) -> bool:
    """True if a line calls what has this name, by the functions that it was seen to call; where none was seen, by its
    text. names: those; an operator may be written as a sign."""
    if "::" not in name and name not in OTHER_NAMES.values():
        first, last = name.partition(".")[0], name.rpartition(".")[2]
        if names is None:
            return re.search(rf"\b{re.escape(last)}\(", text) is not None
        return any(
            each.endswith(f".{name}") or (each.partition(".")[0], each.rpartition(".")[2]) == (first, last)
            for each in names
        )
    own = plain_name(name)
    wanted = {own, f"{own}_", AS_CALLED.sub("", own), *(COPYING if own in COPIES else ())}
    if own in WRITTEN and re.search(WRITTEN[own], text):
        return True
    if names is None:
        return any(re.search(rf"\b{re.escape(each)}\(", text) for each in wanted if each)
    return not wanted.isdisjoint(each.rpartition(".")[2] for each in names if each.startswith("torch."))
