"""Lines that compute again what they have computed before, as rules see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from steptime.advice.evidence import LineUse, PathUse
from steptime.advice.line_ways import UNLOGGED, joins_itself
from steptime.advice.loader_model import production
from steptime.advice.run_uses import CategoryUse, LoaderUse, RepeatUse, WorkUse
from steptime.advice.savings import modelled, ratio, summed
from steptime.analysis.layout import Layout
from steptime.quantities import Estimate, format_bytes, format_share
from steptime.recording.recording import LineWork, Process, RepeatedLine, RepeatFacts

NEARLY_ALL = 0.9
"""Of the time of a line: a line below it that takes so much is what computes."""
TWICE, MOST_KEPT, ARRAYS = 1.5, 0.9, "arrays"
"""Rows that are made for each that is taken, and fraction of items that a batch keeps, from which on it is reported;
kind of a list of arrays that is read."""
CONVERTS = re.compile(r"(?P<name>\btorch\.(?:as_tensor|tensor|\w*Tensor))\(\s*(?P<list>\[)?")
"""A line that makes a tensor of something, perhaps of a list that stands there: numpy takes an array of a list whole,
torch 2.13 reads it number by number."""
OFF = 0.3
"""Of a time that was taken in a few traced steps."""
MOST_BACKWARD = 2.0
"""Times as long as forward: of a product, the gradients of both factors."""
MOST_OF_A_LINE = 0.3
"""Of the time of a line: a function that takes so much is what the line does."""
PER_ENTRY = 3.0
"""ns per entry of a container: who passes over it takes as much at least, a list's index or a sample of it does not (a
loop over pointers takes five and more, CPython 3.11)."""
GOING_THROUGH = {
    # By module: a job's own function may walk, too.
    "folder": re.compile(
        r"(?:os|posix|nt|glob|pathlib(?:\.\w+)*)\.(?:r?glob|_?iglob|glob[01]|listdir|scandir|iterdir|_?f?walk)"
    ),
    "copy": re.compile(r"copy\.deepcopy"),
    "stack": re.compile(
        r"inspect\.(?:stack|trace|get(?:outer|inner)frames|getframeinfo)|traceback\.(?:extract|format)_stack"
    ),
}
"""Functions, by what they go through."""
READING = re.compile(r"(?:.*\.)?(?:load\w*|read\w*|open\w*|File|genfromtxt|fromfile|__getitem__|decode\w*|get_data)")
"""Functions that read a file."""
READS = re.compile(r"\b(?:load\w*|read\w*|open\w*|parse\w*|genfromtxt|fromfile|fromstring|decode\w*)\(")
"""A line that reads a file or text by its words: compiled functions of packages are not seen to be called."""
LOGS, SILENT = re.compile(r"logging\.(?:Logger\.)?(?:debug|info|log)"), 20_000
"""Logging of what may be below the level, and ns per call of a traced line up to which it writes nothing: below its
level it took 5 microseconds, one that writes to a file 100 and more (torch 2.13, CPython 3.11)."""
INLINE = re.compile(r"<(?!module)\w+>$")
"""What a line has inside of it, such as a comprehension: what the line itself calls is not called there."""
LOADS = re.compile(r"(?:.*\breturn\s+|.*[^=]=\s*)?torch\.load\((?!.*mmap=True)[^()]*(?:\([^()]*\)[^()]*)*\)")
LITTLE = 0.5
"""A line that gives what a file holds, and fraction of the memory that it lies in: a file of which less is used was
saved with a view's whole tensor."""
WRITES = re.compile(r"""open\([^()]*["'][rb+]*[wax]""")
"""A line that opens a file to write it."""


@dataclass(frozen=True, slots=True)
class Looked:
    """Steps, or a worker's batches, whose lines were examined for repeated work. share: fraction of a line's time in
    them that a step may save. often: number of such steps or batches per step. items: number of items that a loader
    took in one of them, in `read` ns; 0 if unknown."""

    facts: RepeatFacts
    share: float = 1.0
    often: float = 1.0
    items: float = 0.0
    read: float = 0.0

    @property
    def fits(self) -> float:
        """Factor on the time of rows that a generator made, since reading may have taken longer in these steps."""
        taken = sum(line.taken for line in self.facts.works)
        return min(1.0, ratio(self.read, taken)) if taken else 1.0


def looked_at(process: Process, layout: Layout, loader: LoaderUse | None, usual: float) -> tuple[Looked, ...]:
    """What was examined: steps of the training process, and batches of the training loader's worker. usual: ns of a
    step. A step lasts as long as its workers need, so a line has the same fraction of the workers' time and of the
    step, and at most that of the wait."""
    size, demand = (loader.batch_size or 1, loader.demand) if loader is not None else (0, 0.0)
    read = size * loader.item.value if loader is not None and loader.item is not None else 0.0
    found = [Looked(process.repeats, 1.0, 1.0, size * demand, read * demand)] if process.repeats is not None else []
    made, training = production(loader) if loader is not None else None, layout.timeline.training_loaders
    for facts in reversed(process.repeats_in_workers):
        if loader is not None and made and facts.iterator in training:
            share = demand * min(1.0, ratio(usual, made))
            return (*found, Looked(facts, share, demand, size, read))
    return tuple(found)


def repeat_uses(looked: Iterable[Looked], phases: tuple[CategoryUse, ...], usual: float) -> tuple[RepeatUse, ...]:
    """Lines that compute the same again, the longest first; of lines that call each other, the innermost that takes
    nearly all. None takes longer than its phase of a steady step, or such a step, `usual` ns; backward through it is
    added (`_with_backward`)."""
    whole = {phase.name: phase.duration.value for phase in phases}
    found = [
        RepeatUse(
            source=line.site,
            duration=_with_backward(
                line, min(_most(line.part, whole, usual), each.share * line.duration), whole, each.facts.steps
            ),
            evaluations=line.evaluations * each.often,
            again=line.again * each.often,
            results=line.results,
            steps=each.facts.steps,
            part=line.part,
            outer=line.outer,
            called=line.called,
            first=line.first,
            asker=line.asker,
            trained=_graph_share(line) > 0.5,
        )
        for each in looked
        for line in (_apart(each.facts.lines) if each.facts.steps >= 2 else ())
    ]
    return tuple(sorted(found, key=lambda use: -use.duration.value))


def _most(part: str, whole: Mapping[str, float], usual: float) -> float:
    """ns per steady step that a part has at most: of modules' calls, those of a loss are in the rest of the step."""
    return whole["forward"] + whole.get("rest", 0.0) if part == "forward" and part in whole else whole.get(part, usual)


def _with_backward(line: RepeatedLine, forward: float, whole: Mapping[str, float], steps: int) -> Estimate:
    """Saving of these ns of forward, and of backward through the same operators, which takes the same multiple of it as
    in the whole step. The interval starts without backward, because a result may be detached. If two lines ask for
    a result, one may need no gradient, and backward does not count."""
    graph = _graph_share(line) if line.first is None and line.part != "input" else 0.0
    spent = whole.get("backward", 0.0)
    backward = min(spent, graph * forward * min(MOST_BACKWARD, ratio(spent, whole.get("forward", 0.0))))
    amount = forward + backward
    return modelled(amount, (1 - OFF) * forward, (1 + OFF) * amount, steps)


def _graph_share(line: RepeatedLine) -> float:
    """Fraction of the repeated time with results that backward goes to."""
    return min(1.0, max(0.0, ratio(line.with_graph, line.duration)))


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
    """True for the top line, and for a line in a function that it calls, directly or through other lines."""
    at: RepeatedLine | None = line
    for _ in range(len(lines)):
        if at is None or at is top:
            break
        at = next((each for each in lines if at is not None and each.site == at.outer), None)
    return at is top


def work_uses(
    looked: Iterable[Looked],
    callees: Mapping[tuple[str, int], tuple[str, ...]],
    phases: tuple[CategoryUse, ...],
    usual: float,
    lines: Iterable[LineUse] = (),
    paths: Iterable[PathUse] = (),
) -> tuple[WorkUse, ...]:
    """Lines that process more data than they need, the longest first. A comprehension is a function of its own on its
    line: the longer of the two counts. lines, paths: as timed in steps without watched library functions, which slow
    them: a line that calls no function of the user's takes no longer than that."""
    timed = summed((use.source.place, round(use.duration.value)) for use in lines)
    calling = {below.place for path in paths for below in path.lines[1:] if below.place != path.lines[0].place}
    whole = {phase.name: phase.duration.value for phase in phases}
    found: dict[tuple[str, int, str], WorkUse] = {}
    for each in looked:
        for line in sorted(each.facts.works, key=lambda line: -line.duration):
            for kind, what, spent in _found(line, each, callees.get(line.site.place, ())):
                place = line.site.place
                most = timed[place] if place in timed and place not in calling else usual
                amount = min(_most(line.part, whole, usual), each.share * spent, most)
                about = modelled(amount, (1 - OFF) * amount, (1 + OFF) * amount, each.facts.steps)
                use = WorkUse(line.site, kind, what, about, line.evaluations * each.often, line.part)
                found.setdefault((line.site.file, line.site.line, kind), use)
    return tuple(sorted(found.values(), key=lambda use: -use.duration.value))


def _found(line: LineWork, looked: Looked, names: Iterable[str]) -> Iterator[tuple[str, str, float]]:
    """(kind, what, ns) of what a line goes through, or makes for nothing."""
    yield from _gone_through(line, names, round(line.evaluations * looked.facts.steps))
    logged = sum(call.duration for call in line.calls if LOGS.fullmatch(call.name))  # short ones are not kept
    if LOADS.fullmatch(line.site.text) and 0 < line.used <= LITTLE * line.held:
        what = f"{format_bytes(line.used)} of each {format_bytes(line.held)}"
        yield "view", what, line.duration * (1 - line.used / line.held)
    logs = any(map(LOGS.fullmatch, (*names, *(call.name for call in line.calls))))
    if logs and logged <= SILENT * line.evaluations and not INLINE.search(line.site.function):
        yield UNLOGGED, "", line.own
    reads = READS.search(line.site.text) or any(map(READING.fullmatch, (*names, *(call.name for call in line.calls))))
    grows = joins_itself(line.site.text)  # it copies all, of whatever precision
    if line.double and looked.facts.single and line.part in ("", "input") and not reads and not grows:
        yield "double", "", line.own
    if line.dropped and line.part == "input":
        yield "rows", f"{format_share(min(1.0, line.unread))} of them", looked.fits * line.dropped
    times = ratio(line.made, looked.items)
    if times >= TWICE:
        yield "rows", f"one of {times:.3g} is taken", looked.fits * line.taken * (1 - 1 / times)
    if line.kept <= MOST_KEPT:
        yield "rows", f"{format_share(1 - line.kept)} of the items, which it leaves out", looked.read * (1 - line.kept)
    converts = CONVERTS.search(line.site.text)
    alone = not line.calls and all(CONVERTS.match(f"{name}(") for name in names)  # else who knows which takes long
    if converts and ((converts["list"] and alone) or any(read.kind == ARRAYS for read in line.read)):
        yield "list", converts["name"], line.own


def _gone_through(line: LineWork, names: Iterable[str], long: int) -> Iterable[tuple[str, str, float]]:
    """(kind, what, ns per step) of what a line goes through. names: functions that it was seen to call, C functions
    too, whose time is the line's. long: evaluations that took long; a single one may have waited for a CPU."""
    if line.one_hot:
        yield "one-hot", " × ".join(map(str, line.one_hot)), line.own
    files = [read for read in line.read if read.kind == "file"]
    calls = [(call.name, call.duration, call.one_file) for call in line.calls]
    rest = (line.own or line.duration) - sum(spent for _, spent, _ in calls)
    calls += [(name, rest, bool(files)) for name in names if all(name != each.name for each in line.calls)]
    for name, spent, one_file in sorted(calls, key=lambda call: -call[1]):
        kind = next((kind for kind, pattern in GOING_THROUGH.items() if pattern.fullmatch(name)), "")
        if not kind and one_file and READING.fullmatch(name) and not WRITES.search(line.site.text):
            kind = "file"
        if kind and spent >= MOST_OF_A_LINE * line.duration:
            yield kind, name.removeprefix("builtins."), spent
    for read in line.read if long > 1 else ():
        if read.entries and read.kind != ARRAYS and line.duration >= PER_ENTRY * read.entries * line.evaluations:
            yield "container", f"the {read.kind} {read.name} ({read.entries:,} entries)", line.duration
