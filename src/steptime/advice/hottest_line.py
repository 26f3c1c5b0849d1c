"""Hottest line of a finding: the user's line below the training loop with most of its time.

A finding knows a line of the loop, a function, or only that it is about the input. Its work may be anywhere in the
user's code."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import takewhile

from steptime.advice.evidence import Case, PathUse
from steptime.advice.line_evidence import function_around, function_of, is_same_line, loop_functions
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import summed
from steptime.quantities import SourceLine, format_source
from steptime.trace.links import is_user_file

INPUT = "input"
OF_MODELS = ("forward", "backward", "optimizer")
"""Parts of the step that are never input."""
ON_HOST = (INPUT, "python", "overhead", "rest")
"""Categories of CPU time, whatever device the job uses; for others, operators have already determined the function."""
PERIODIC = "periodic-steps"
"""Rule of lines that run in some steps only."""
LEAST_SHARE = 0.3
"""Least fraction of the finding's savings, and of all lines below its own, that a hotter line must hold to replace it.
If the finding's line does not run in steps (a function's first line, the construction of a loader), any line replaces
it, provided that all lines below it hold this fraction of the savings together."""
MOST, NEARLY_ALL = 0.5, 0.8
"""Fractions of the input's time: of lines that all take less than MOST, the one that calls NEARLY_ALL is named."""


def at_hottest_line(finding: Finding, case: Case) -> Finding:
    """The finding moved to the hottest line below its own, which becomes evidence. A straggler's line stays, because it
    is from that rank's own case, and this rank may never run it."""
    if finding.weight is Weight.CAVEAT or (finding.savings is None and finding.source is None):
        return finding
    known = finding.source
    if case.straggler is not None and known is not None and known == case.straggler.source:
        return finding
    if finding.spent_at != known:  # the rule names another line than where the time is
        return finding
    saved = finding.savings.value if finding.savings is not None else 0.0
    if finding.name == PERIODIC and known is not None and not _runs_through(known, case):
        return finding  # it was seen in slow steps only, and what is below it in none of the steps that were looked at
    on_host = finding.savings is not None and not finding.category and case.step.device == "cpu"
    line = hottest_line(known, "rest" if on_host else finding.category, saved, case)
    if line is None or line == known:
        return finding
    if known is None:
        return replace(finding, source=line)
    called = _runs_through(known, case)
    about = f"It is reached through {format_source(known)}." if called else f"It is about {format_source(known)}."
    return replace(finding, source=line, evidence=(*finding.evidence, about))


def hottest_line(known: SourceLine | None, category: str, saved: float, case: Case) -> SourceLine | None:
    """Line with most of a category's time, among the known line and the lines that it leads to; the known one if it
    runs itself and no other line dominates. saved: savings of the finding, ns per step."""
    below = _below(known, category, case)
    inside = [path for path in below if is_user_file(path.lines[0].file)] or below
    if not inside:
        return known
    line, spent = main_line(inside, case) if category == INPUT else longest_line(inside)
    everything = sum(path.duration for path in inside)
    is_outlier = spent >= LEAST_SHARE * max(saved, everything)
    runs = known is not None and _runs(known, case)
    elsewhere = known is not None and everything < LEAST_SHARE * saved
    if (runs and not is_outlier) or elsewhere or (known is not None and is_same_line(line, known)):
        return known
    return line


def main_line(paths: list[PathUse], case: Case) -> tuple[SourceLine, float]:
    """(line that explains the time of some paths, its ns): the line that by itself takes most, if that is most of it
    all; else the innermost line below the loop that takes nearly all, callees included."""
    line, spent = longest_line(paths)
    everything = sum(path.duration for path in paths)
    if spent >= MOST * everything:
        return line, spent
    loops = {function_of(SourceLine(file, 0, name)) for file, name in loop_functions(case.lines)}
    total, depth = Counter[SourceLine](), Counter[SourceLine]()
    for path in paths:
        below = [*takewhile(lambda line: function_of(line) not in loops, path.lines)]
        for each in set(below):
            total[each] += round(path.duration)
            depth[each] = max(depth[each], len(below) - below.index(each))
    whole = [each for each in total if total[each] >= NEARLY_ALL * everything]
    calling = max(whole, key=lambda each: depth[each], default=None)
    return (calling, total[calling]) if calling is not None else (line, spent)


def longest_line(paths: list[PathUse]) -> tuple[SourceLine, float]:
    """(line that by itself takes most of the time, its ns)."""
    lines = {path.lines[0].place: path.lines[0] for path in paths}  # a comprehension has a function of its own
    spent = summed((path.lines[0].place, path.duration) for path in paths)
    longest = max(spent, key=lambda each: spent[each])
    return lines[longest], spent[longest]


def _runs(known: SourceLine, case: Case) -> bool:
    """True if a line was timed in the steps."""
    timed = (*(line.source for line in case.lines), *(line for path in case.paths for line in path.lines))
    return any(is_same_line(line, known) for line in timed)


def _runs_through(known: SourceLine, case: Case) -> bool:
    return any(is_same_line(each, known) for path in case.paths for each in path.lines)


def _below(known: SourceLine | None, category: str, case: Case) -> list[PathUse]:
    """Paths through the known line; else, for the input, those of the loader; else those through its function. A
    function that is or calls the training loop does not count, because everything runs through it. Work of a model is
    never input, although a framework's loop may start at the known line. For categories that are not CPU time alone,
    only paths that end in the operators' function count."""
    paths = [path for path in case.paths if path.lines and not (category == INPUT and path.part in OF_MODELS)]
    through = [path for path in paths if known is not None and any(is_same_line(line, known) for line in path.lines)]
    around = function_around((line for path in paths for line in path.lines), known) if known is not None else None
    if category not in ON_HOST:
        return [] if through else [path for path in paths if known and _inside(path.lines[0], known, around)]
    if through:
        return through
    if category == INPUT and (loaded := [path for path in paths if path.part == INPUT]):
        return loaded
    loops = {function_of(SourceLine(file, 0, name)) for file, name in loop_functions(case.lines)}
    if known is None or known.function == "<module>" or function_of(known) in loops:
        return []
    # A function that calls the loop's has the whole step below it.
    below = [(path, takewhile(lambda line: function_of(line) not in loops, path.lines)) for path in paths]
    return [path for path, lines in below if any(_inside(line, known, around) for line in lines)]


def _inside(line: SourceLine, known: SourceLine, around: str | None) -> bool:
    return line.function == around and function_of(line) == function_of(known)
