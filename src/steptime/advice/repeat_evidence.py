"""Lines that compute again what they have computed before, as rules see them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from steptime.advice.run_uses import CategoryUse, RepeatUse, WorkUse
from steptime.advice.savings import modelled
from steptime.recording.recording import LineWork, Process, RepeatedLine

NEARLY_ALL = 0.9
"""Of the time of a line: a line below it that takes so much is what computes."""
OFF = 0.3
"""Of a time that was taken in a few traced steps."""
MOSTLY = 0.5
"""Of the evaluations of a line: what it gives then is what it gives."""
MOST_OF_A_LINE = 0.3
"""Of the time of a line: a function that takes so much is what the line does."""
PER_ENTRY = 3.0
"""ns per entry of a container: who passes over it takes as much at least, a list's index or a sample of it does not (a
loop over pointers takes five and more, CPython 3.11)."""
GOING_THROUGH = {
    "folder": re.compile(r"(?:.*\.)?(?:r?glob|_?iglob|glob[01]|listdir|scandir|iterdir|f?walk)"),
    "copy": re.compile(r"copy\.deepcopy"),
    "stack": re.compile(
        r"inspect\.(?:stack|trace|get(?:outer|inner)frames|getframeinfo)|traceback\.(?:extract|format)_stack"
    ),
}
"""Functions, by what they go through."""
READING = re.compile(r"(?:.*\.)?(?:load\w*|read\w*|open\w*|File|genfromtxt|fromfile|__getitem__|decode\w*|get_data)")
"""Functions that read a file."""
WRITES = re.compile(r"""open\([^)]*["'][rb+]*[wax]""")
"""A line that opens a file to write it."""


def repeat_uses(process: Process, phases: tuple[CategoryUse, ...], usual: float) -> tuple[RepeatUse, ...]:
    """The longest first; of lines that call each other the innermost that takes nearly all. None takes longer than its
    phase of a steady step, or such a step, `usual` ns."""
    facts = process.repeats
    if facts is None or facts.steps < 2:
        return ()
    whole = {phase.name: phase.duration.value for phase in phases}
    return tuple(
        RepeatUse(
            source=line.site,
            duration=modelled(
                amount := min(whole.get(line.part, usual), line.duration), (1 - OFF) * amount, (1 + OFF) * amount
            ),
            evaluations=line.evaluations,
            again=line.again,
            results=line.results,
            steps=facts.steps,
            part=line.part,
            outer=line.outer,
            called=line.called,
            first=line.first,
            asker=line.asker,
        )
        for line in _apart(facts.lines)
    )


def _apart(lines: Iterable[RepeatedLine]) -> list[RepeatedLine]:
    """One line of each group of lines that call each other."""
    left = sorted(lines, key=lambda line: -line.duration)
    found = []
    while left:
        group = [line for line in left if _is_below(line, left[0], left)]
        models = [line for line in group if _calls_of(line, left)]
        asking = [line for line in group if not any(_is_below(line, model, left) for model in models)]
        computing = [line for line in asking if line.duration >= NEARLY_ALL * group[0].duration]
        found.append(max(computing or _calls_of(left[0], left) or group[:1], key=lambda line: line.depth))
        left = [line for line in left if line not in group and not _is_below(left[0], line, left)]
    return found


def _calls_of(line: RepeatedLine, lines: list[RepeatedLine]) -> list[RepeatedLine]:
    """For a line of a model's forward, the line that calls the model, where most of that comes again: the call can be
    left out."""
    model = line.site.function.rpartition(".")[2] == "forward"
    return [each for each in lines if model and each.site == line.outer and 2 * each.duration >= line.duration]


def _is_below(line: RepeatedLine, top: RepeatedLine, lines: list[RepeatedLine]) -> bool:
    """Whether a line is the top one, or in a function that it calls, directly or by way of other lines."""
    at: RepeatedLine | None = line
    for _ in range(len(lines)):
        if at is None or at is top:
            break
        at = next((each for each in lines if at is not None and each.site == at.outer), None)
    return at is top


def work_uses(process: Process, phases: tuple[CategoryUse, ...], usual: float) -> tuple[WorkUse, ...]:
    """Lines that go through more than they need, the longest first. A comprehension is a function of its own on its
    line: the longer of the two counts."""
    facts = process.repeats
    if facts is None:
        return ()
    whole = {phase.name: phase.duration.value for phase in phases}
    called = {(fact.file, fact.line): fact.names for fact in process.called}
    found: dict[tuple[str, int, str], WorkUse] = {}
    for line in sorted(facts.works, key=lambda line: -line.duration):
        for kind, what, spent in _gone_through(line, called.get((line.site.file, line.site.line), ())):
            amount = min(whole.get(line.part, usual), spent)
            duration = modelled(amount, (1 - OFF) * amount, (1 + OFF) * amount)
            use = WorkUse(line.site, kind, what, duration, line.evaluations, line.part)
            found.setdefault((line.site.file, line.site.line, kind), use)
    return tuple(sorted(found.values(), key=lambda use: -use.duration.value))


def _gone_through(line: LineWork, names: Iterable[str]) -> Iterable[tuple[str, str, float]]:
    """(kind, what, ns per step) of what a line goes through. names: functions that it was seen to call, C functions
    too, whose time is the line's."""
    if line.double >= MOSTLY:
        yield "double", "", line.own
    if line.one_hot:
        yield "one-hot", " × ".join(map(str, line.one_hot)), line.own
    files = [read for read in line.read if read.kind == "file"]
    calls = [(call.name, call.duration, call.one_file) for call in line.calls]
    rest = line.duration - sum(spent for _, spent, _ in calls)
    calls += [(name, rest, bool(files)) for name in names if all(name != each.name for each in line.calls)]
    for name, spent, one_file in sorted(calls, key=lambda call: -call[1]):
        kind = next((kind for kind, pattern in GOING_THROUGH.items() if pattern.fullmatch(name)), "")
        if not kind and one_file and READING.fullmatch(name) and not WRITES.search(line.site.text):
            kind = "file"
        if kind and spent >= MOST_OF_A_LINE * line.duration:
            yield kind, name.removeprefix("builtins."), spent
    for read in line.read:
        if read.entries and line.duration >= PER_ENTRY * read.entries * line.evaluations:
            yield "container", f"the {read.kind} {read.name} ({read.entries:,} entries)", line.duration
