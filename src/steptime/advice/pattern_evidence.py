"""Changes within a run for the rules: since when, what grew, by which line; and periodically slow steps."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np

from steptime.advice.line_evidence import grown_line, own_times
from steptime.advice.run_uses import LONGER, CaughtUse, OutlierUse, PassUse, PeriodUse
from steptime.advice.savings import largest, modelled
from steptime.advice.segment_evidence import segment_lines
from steptime.advice.what_runs import OTHER_PHASES
from steptime.analysis.layout import Layout
from steptime.analysis.lines import LineRole, identity_of, source_at, sources_of
from steptime.analysis.step_patterns import LastingChange, find_change, find_period
from steptime.analysis.steps import UPDATES
from steptime.analysis.timeline import Phase, RecordTable, Steps, counted
from steptime.analysis.tracer import starts_with_tracer
from steptime.arrays import Int64, unique
from steptime.intervals import measure
from steptime.journal import Flag, Kind
from steptime.quantities import SourceLine, mean_of_series
from steptime.recording.recording import BetweenFacts, Process, SampleFacts

FEWEST_PASSES, MORE_PASSES = 16, 4.0
"""Backward passes of a step that are many, and times those of a usual step."""
LEAST_OF_GROWTH = 0.3
"""Least fraction of the lines' total growth for a line to be named."""
REGISTERS = re.compile(r"\.register_\w*hook\w*$")
"""Functions of torch's that add a hook."""
LEAST_READ = 0.1
"""Least fraction of a phase that lines around a container take for it to be what makes the phase grow."""
HALF = 0.5
"""Fraction of the outliers' time that makes a line the one to look at, and of their length that makes a step one."""
LEAST_SLOW = 1.5
"""Least length of a step that was profiled because it should be slow, as a multiple of the usual step."""
MOST_NUMBERS = 8
"""Most slow steps that are listed one by one."""
PARTS_OF = {"rest": ("",), "forward": ("forward",), "backward": ("backward",), "optimizer": ("optimizer",)}
"""Parts of the step whose lines run in a phase."""
NEARLY_ALL = 0.9
"""Fraction of the steps that counts as all: a few are misassigned where the always-on timers start or end."""


def change_use(process: Process, layout: Layout) -> LastingChange | None:
    """Lasting change of the steps' level, with its epoch and its line; None if there is none."""
    steps = layout.timeline.steps
    change = find_change(steps)
    if change is None or starts_with_tracer(layout, change.step - 1):
        return None
    start, end = int(steps.start[change.step - 1]), int(steps.end[change.step - 1])
    if change.gradual and process.sampled:
        start = process.sampled[-1].start
    line, grown = _line(process, start, change)
    carried = ""
    if change.phase == "backward" and (carrier := _carrier(process, layout)) is not None:
        carried, line = carrier
    change = replace(change, epoch=_epoch(process, layout, end), line=line, line_growth=grown, carried=carried)
    return change if carried else _with_container(change, process)


def _with_container(change: LastingChange, process: Process) -> LastingChange:
    """Change with a container that becomes longer with every step: one that its line names, or whose class the line is
    in. Without a line, it is the fastest growing container that a good part of the time is spent on, at the line that
    reads it; most jobs have a list of losses somewhere."""
    line, kept = change.line, [each for each in process.leaks if each.name and each.tensors >= 1]
    growing = [
        *((f"the {each.kind} {each.name}", each.name, each.entries, each.site) for each in process.growing),
        *((each.name, each.name, each.tensors, each.site) for each in kept if each.kind == "attribute"),
        *((f"the {each.kind} {each.name}", each.name, each.tensors, each.site) for each in kept if each.kind == "list"),
    ]
    timed = _of_rest(_by_line(process.sampled[-1], PARTS_OF.get(change.phase, ()))) if process.sampled else {}
    for each in process.growing:
        if each.name.endswith("hooks"):
            owner, line = each.name.partition(".")[0], _registering(process) or line
            return replace(change, line=line, longer=f"the hooks of {owner}", entries=each.entries)
    for longer, name, entries, site in growing if change.gradual else ():
        near = sum(spent for each, spent in timed.items() if each != site and _is_about(each, name))
        if _is_about(line, name) if line is not None else near >= LEAST_READ * sum(timed.values()) > 0:
            line = line or _reading(timed, name, site)
            return replace(change, line=line, longer=longer, entries=entries, filled=site if site != line else None)
    return change


def _registering(process: Process) -> SourceLine | None:
    """The line of the user's that registers hooks in the steps, if there is one."""
    found = [each for each in process.called if any(map(REGISTERS.search, each.names))]
    if len(found) != 1:
        return None
    alone = SourceLine(found[0].file, found[0].line)
    return {line.place: line for line in sources_of(process).values()}.get(alone.place, alone)


def _is_about(line: SourceLine, name: str) -> bool:
    """True if a line names a container, or is in the class whose attribute that is."""
    owner, _, own = name.rpartition(".")
    return re.search(rf"\b{re.escape(own)}\b", line.text) is not None or owner == line.function.rpartition(".")[0] != ""


def _reading(timed: dict[SourceLine, float], name: str, site: SourceLine | None) -> SourceLine | None:
    """The longest line that names a container, apart from the one that fills it; that one if no other was timed."""
    own = re.compile(rf"\b{re.escape(name.rpartition('.')[2])}\b")
    read = {line: spent for line, spent in timed.items() if line != site and own.search(line.text)}
    return max(read, key=lambda line: read[line]) if read else site


def _carrier(process: Process, layout: Layout) -> tuple[str, SourceLine] | None:
    """The variable that carries the graph of each step into the next, as the search for leaks found it. Else, if the
    graph is retained, the only variable that a line of the loop with a forward pass both reads and binds. With its
    line."""
    for leak in process.leaks:
        if leak.nodes and leak.name and leak.site is not None:
            return leak.name, leak.site
    if not any("retain_graph" in line.text for code in process.codes for line in code.lines):
        return None
    forward = {number for number, role in layout.lines.roles.items() if role is LineRole.FORWARD}
    found = [
        (name, source_at(code, line))
        for code in process.codes
        if code.loop
        for line in code.lines
        if identity_of(code, line) in forward
        for name in sorted(set(line.stores) & set(line.loads))
    ]
    return found[0] if len({name for name, _ in found}) == 1 else None


def caught_use(process: Process, layout: Layout) -> CaughtUse | None:
    """Slow steps that were sampled while they lasted; None without any."""
    caught, steps = sorted(process.caught, key=lambda each: each.start), layout.timeline.steps
    if not caught:
        return None
    numbers = (np.searchsorted(steps.end, [each.start for each in caught], side="right") + 1).tolist()
    apart = {later - earlier for earlier, later in pairwise(numbers)}
    named = [each for each in process.traces if each.caught]
    usual = float(np.median([each.usual for each in caught]))
    profiled: tuple[list[int], list[int]] = [], []
    for place, window in zip(
        np.searchsorted(steps.end, [each.start for each in named], side="right"), named, strict=True
    ):
        profiled[window.end - window.start < LEAST_SLOW * usual].append(int(place) + 1)
    return CaughtUse(
        count=len(caught),
        duration=float(np.mean([each.end - each.start for each in caught])),
        usual=usual,
        profiled=tuple(profiled[0]),
        as_usual=tuple(profiled[1]),
        numbers=tuple(numbers[:MOST_NUMBERS]),
        period=apart.pop() if len(apart) == 1 and len(numbers) > 2 else 0,
        lines=segment_lines([path for each in caught for path in each.paths]),
    )


def _epoch(process: Process, layout: Layout, until: int) -> int | None:
    """Number of passes over the training loader so far, if there is a single loader and more than one pass; else
    None."""
    training = layout.activity.training_loaders
    asked = layout.records.of(Kind.LOADER_NEXT)
    asked = asked.where(np.isin(asked.identity, training))
    if len({each.loader for each in process.loaders if each.identity in training}) != 1:
        return None
    passes = max(len(np.unique(asked.identity)), int(asked.flagged(Flag.EXHAUSTED).sum()))
    begun = asked.where(asked.start < until)
    persistent = int(begun.flagged(Flag.EXHAUSTED).sum()) + 1
    return max(len(np.unique(begun.identity)), persistent) if passes > 1 else None


def _line(process: Process, start: int, change: LastingChange) -> tuple[SourceLine | None, float]:
    """(line that takes more time than before, its growth); (None, 0.0) unless lines were timed on both sides of the
    change."""
    before = [facts for facts in process.sampled if facts.start < start]
    after = [facts for facts in process.sampled if facts.start >= start]
    if not before or not after:
        return None, 0.0
    parts = PARTS_OF.get(change.phase, ("", change.phase))
    early = _by_line(before[0 if change.gradual else -1], parts)
    grown = {line: spent - early.get(line, 0.0) for line, spent in _by_line(after[-1], parts).items()}
    grown = _of_rest(grown) if change.phase == "rest" else grown
    whole = sum(amount for amount in grown.values() if amount > 0)
    line = max(grown, key=lambda each: grown[each], default=None)
    if line is None or not grown[line] >= LEAST_OF_GROWTH * whole > 0:
        return None, 0.0
    return line, grown[line] / whole * change.growth  # lines that are timed take longer: their shares hold


def _of_rest(timed: dict[SourceLine, float]) -> dict[SourceLine, float]:
    """Times of lines without those that call backward or the optimizer, which are in phases of their own."""
    return {line: spent for line, spent in timed.items() if not OTHER_PHASES.search(line.text)}


def _by_line(facts: SampleFacts, parts: tuple[str, ...] = ()) -> dict[SourceLine, float]:
    """Time per step of each line by itself, ns; of some parts of the step, or of all."""
    spent = own_times(path for path in facts.paths if not parts or path.part in parts)
    return {line: duration / max(1, facts.steps) for line, duration in spent.items()}


def period_use(process: Process, layout: Layout) -> PeriodUse | None:
    """Periodically slow steps; None without them, or if an optimizer steps in these alone: then models take turns, as
    the networks of a GAN do."""
    period = find_period(layout.timeline.steps)
    if period is None or take_turns(layout.timeline.steps, layout.records.of(*UPDATES), period.slow):
        return None
    slow = mean_of_series(layout.timeline.steps.phases[period.slow, period.phase])
    reach, saved = (slow.high - slow.value) / period.every, period.cost
    cost = modelled(saved, saved - reach, saved + reach, slow.samples)
    use = PeriodUse(period.every, len(period.slow), period.extra, cost, period.phase.title, growth=period.growth)
    if (grown := grown_line(process, layout)) is not None:
        return replace(use, line=grown[0], line_share=grown[1])
    line = _turn(process, period.every) or (_only_call(process) if period.phase is Phase.REST else None)
    return replace(use, line=line)


def take_turns(steps: Steps, updates: RecordTable, slow: Int64) -> bool:
    """True if an optimizer steps in almost all of the slow steps and almost none of the others. Only steady steps with
    always-on timers count, as updates are not recorded in others."""
    number = np.minimum(np.searchsorted(steps.end, updates.start, side="right"), len(steps.end) - 1)
    chosen = np.zeros(len(steps.end), np.bool_)
    chosen[slow] = True
    seen = steps.timed & steps.steady
    for optimizer in unique(updates.identity).tolist():
        stepped = np.zeros(len(steps.end), np.bool_)
        stepped[number[updates.identity == optimizer]] = True
        inside, outside = stepped[chosen & seen], stepped[~chosen & seen]
        if len(inside) and len(outside) and inside.mean() >= NEARLY_ALL and outside.mean() <= 1 - NEARLY_ALL:
            return True
    return False


def _turn(process: Process, every: int) -> SourceLine | None:
    """Line that counts the steps, if exactly one does so, by this number or by a name. It is for periods so long that
    no slow step was timed by line."""
    lines = sources_of(process).values()
    for pattern in (rf"\bif\b.*%\s*{every}\b", r"\bif\b.*[\w\])]\s*%\s*[^\W\d]"):
        found = {line for line in lines if re.search(pattern, line.text)}
        if len(found) == 1:
            return found.pop()
    return None


def _only_call(process: Process) -> SourceLine | None:
    """Line of the loop that calls anything but torch and builtins, if exactly one was seen to: a callback that counts
    the steps itself, in a function too fast to be timed."""
    calling = {
        (fact.file, fact.line)
        for fact in process.called
        if any(not name.startswith(("torch.", "builtins.")) for name in fact.names)
    }
    lines = [
        source_at(code, line)
        for code in process.codes
        if code.loop
        for line in code.lines
        if (code.file, line.line) in calling
    ]
    return lines[0] if len(lines) == 1 else None


def pass_use(process: Process, layout: Layout, chosen: Int64) -> PassUse | None:
    """Backward passes of the chosen steps, if they are many; None if few, or if the line that starts them is
    unknown."""
    steps, backwards = layout.timeline.steps, layout.records.of(Kind.BACKWARD).outermost()
    counts = counted(backwards.start, steps.start, steps.end)
    often = np.median(counts[chosen])
    seen = [each for each in process.pass_sites if _passes_at(each.start, steps, counts) >= often / MORE_PASSES]
    if often < FEWEST_PASSES or not seen:
        return None
    spent = measure(backwards.intervals, steps.start, steps.end)[chosen]
    return PassUse(seen[0].site, float(often), mean_of_series(spent), seen[0].shared)


def _passes_at(time: int, steps: Steps, counts: Int64) -> int:
    """Passes of the step that ran at a time."""
    return int(counts[min(int(np.searchsorted(steps.end, time)), len(counts) - 1)])


def with_line(use: OutlierUse | None, process: Process, layout: Layout) -> OutlierUse | None:
    """Outliers with the line that takes most of their time, from outliers in which all functions were timed. Time
    between the steps, such as an evaluation, is timed, too; none of it counts as the outliers'."""
    if use is None:
        return None
    steps = layout.timeline.steps
    least = max(LONGER * use.usual, (use.rise[0] if use.rise is not None else use.duration) * HALF)
    timed: list[BetweenFacts | SampleFacts] = [] if process.between is None else [process.between]
    for facts in [*timed, *process.sampled]:
        first = int(np.searchsorted(steps.end, facts.start, side="right"))
        inside = slice(first, first + facts.steps)
        lasted, between = steps.duration[inside], (steps.end - steps.start - steps.duration)[inside]
        line, amount = largest(own_times(facts.paths))
        if amount - int(between.sum()) >= HALF * int(lasted[lasted >= least].sum()) > 0:
            return replace(use, line=line)
    return use


def with_passes(use: OutlierUse | None, process: Process, layout: Layout, usual: PassUse | None) -> OutlierUse | None:
    """Outliers with their backward passes, if these are more than a usual step has."""
    found = pass_use(process, layout, np.array(use.numbers, np.int64) - 1) if use is not None and use.numbers else None
    more = found is not None and (usual is None or found.count >= MORE_PASSES * usual.count)
    return replace(use, passes=found) if use is not None and more else use
