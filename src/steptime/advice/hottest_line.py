"""The hottest line behind a finding: where its time goes below the training loop.

A finding knows a line of the loop, a function, or only that it is about the input. The work below may be anywhere in
the user's code; the line that holds most of the time in there is the one to look at.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from steptime.advice.evidence import Case, PathUse
from steptime.advice.line_evidence import function_around, function_of, loop_functions
from steptime.advice.rule import Finding, Weight
from steptime.quantities import SourceLine, format_source
from steptime.trace.links import is_user_file

INPUT = "input"
OF_MODELS = ("forward", "backward", "optimizer")
"""Parts of the step that are none of the input's."""
ON_HOST = (INPUT, "python", "overhead", "rest")
"""Categories that are time of the host wherever it runs; of others, operators have told the function."""
LEAST_SHARE = 0.3
"""Fraction of what the finding could save, and of all lines below the line that it knows: another one does not stand
out otherwise. A line that does not run in a step (a function's first one, where a loader is made) gives way to any, as
long as the lines below it hold so much of the saving together."""


def at_hottest_line(finding: Finding, case: Case) -> Finding:
    """The finding with the hottest line below the one that it knows, which then is in its evidence. A straggler's
    line is known from its own case: this rank may never run it."""
    if finding.weight is Weight.CAVEAT or (finding.savings is None and finding.source is None):
        return finding
    known = finding.source
    if case.straggler is not None and known is not None and known == case.straggler.source:
        return finding
    saved = finding.savings.value if finding.savings is not None else 0.0
    on_host = finding.savings is not None and not finding.category and case.step.device == "cpu"
    line = hottest_line(known, "rest" if on_host else finding.category, saved, case)
    if line is None or line == known:
        return finding
    if known is None:
        return replace(finding, source=line)
    called = any(_same_line(each, known) for path in case.paths for each in path.lines)
    about = f"It is reached through {format_source(known)}." if called else f"It is about {format_source(known)}."
    return replace(finding, source=line, evidence=(*finding.evidence, about))


def hottest_line(known: SourceLine | None, category: str, saved: float, case: Case) -> SourceLine | None:
    """The line that holds most of a category's time below the known one; the known one where it runs itself and no
    other stands out. saved: ns per step, what a finding about it could save."""
    below = _below(known, category, case)
    inside = [path for path in below if is_user_file(path.lines[0].file)] or below
    spent: dict[tuple[str, int], float] = {}
    lines: dict[tuple[str, int], SourceLine] = {}
    for path in inside:
        hottest = path.lines[0]  # a comprehension is a function of its own, on the same line
        spent[hottest.file, hottest.line] = spent.get((hottest.file, hottest.line), 0.0) + path.duration
        lines[hottest.file, hottest.line] = hottest
    if not spent:
        return known
    place = max(spent, key=lambda each: spent[each])
    line = lines[place]
    is_outlier = spent[place] >= LEAST_SHARE * max(saved, sum(spent.values()))
    runs = known is not None and _runs(known, case)
    elsewhere = known is not None and sum(spent.values()) < LEAST_SHARE * saved
    if (runs and not is_outlier) or elsewhere or (known is not None and _same_line(line, known)):
        return known
    return line


def _runs(known: SourceLine, case: Case) -> bool:
    """True if a line was timed in the steps."""
    timed = (*(line.source for line in case.lines), *(line for path in case.paths for line in path.lines))
    return any(_same_line(line, known) for line in timed)


def _below(known: SourceLine | None, category: str, case: Case) -> list[PathUse]:
    """The paths through the known line, else those that the loader runs where it is about the input, else those through
    its function, unless that is the training loop, or calls it: everything runs through that. Work of a model is no
    input, though a framework's loop may start at the known line. Time that is not the host's alone stays in the
    function that its operators have named."""
    paths = [path for path in case.paths if path.lines and not (category == INPUT and path.part in OF_MODELS)]
    through = [path for path in paths if known is not None and any(_same_line(line, known) for line in path.lines)]
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


def _same_line(one: SourceLine, other: SourceLine) -> bool:
    return one.line == other.line and function_of(one)[0] == function_of(other)[0]
