"""Lines and operators of the user's code for the rules: time per step, role, and contents.

The line timeline and the profile give shares; the always-on timers give times. Timing a line costs up to a microsecond
per execution, and a profiled step is slower than a real one. So the times of lines and operators are scaled down to the
phases and the breakdown of the steady steps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import LineUse, PathUse, RepeatedForward, TopModuleUse
from steptime.advice.kernels import COPIES, plain_name
from steptime.advice.loss_path import on_loss_path
from steptime.advice.memory_evidence import memory_rate
from steptime.advice.run_uses import CategoryUse
from steptime.advice.savings import named, ratio, scaled, summed, total
from steptime.analysis.layout import Layout
from steptime.analysis.lines import (
    GAPS,
    LineRole,
    find_gaps,
    line_table,
    lined_turns,
    own_time,
    sources_of,
    usual_spent,
    without_stalls,
)
from steptime.analysis.operators import OperatorUse
from steptime.analysis.timeline import Phase, RecordTable, SegmentKind, counted
from steptime.arrays import Float64, Int64, unique
from steptime.intervals import EMPTY, Intervals, contains, measure, subtract
from steptime.journal import Flag, Kind
from steptime.quantities import Estimate, SourceLine, mean_of_series
from steptime.recording.recording import Process, SampledPath
from steptime.recording.rule_facts import CalledFacts


def function_of(source: SourceLine) -> tuple[str, str]:
    """(file name, function name) of a source: traces shorten paths and omit classes."""
    return source.file.replace("\\", "/").rsplit("/", 1)[-1], source.function.rsplit(".", 1)[-1]


def is_same_line(one: SourceLine, other: SourceLine) -> bool:
    """True if two sources are one line of one file name; traces shorten paths, so folders are ignored."""
    return one.line == other.line and function_of(one)[0] == function_of(other)[0]


def function_around(lines: Iterable[SourceLine], source: SourceLine) -> str | None:
    """Qualified name of the function that a source means: the function of that name in its file, else the first with
    the same plain name at or after its line; None if there is none. A trace has only a function's plain name and first
    line, and many classes of a file may have a forward()."""
    same = [line for line in lines if function_of(line) == function_of(source)]
    if any(line.function == source.function for line in same):
        return source.function
    below = [line for line in same if line.line >= source.line]
    return min(below, key=lambda line: line.line).function if below else None


def lines_around(lines: Sequence[LineUse], paths: Iterable[PathUse], source: SourceLine) -> list[LineUse]:
    """Timed lines of the function that a source means; [] if only its sampled paths are known."""
    known = (*(line.source for line in lines), *(path.lines[0] for path in paths if path.lines))
    around = function_around(known, source)
    same = (line for line in lines if function_of(line.source) == function_of(source))
    return [line for line in same if line.source.function == around]


def sampled_lines(paths: Iterable[PathUse], source: SourceLine) -> dict[SourceLine, float]:
    """Time of each line of the function that a source means, from sampled paths, ns per step."""
    own = own_times(paths).items()
    spent = {line: duration for line, duration in own if function_of(line) == function_of(source)}
    around = function_around(spent, source)
    return {line: duration for line, duration in spent.items() if line.function == around}


def own_times(paths: Iterable[PathUse | SampledPath]) -> dict[SourceLine, float]:
    """Time of each line without what it calls, ns as in the paths."""
    return summed((path.lines[0], path.duration) for path in paths if path.lines)


def own_share(paths: Iterable[PathUse], line: SourceLine) -> float:
    """Fraction of the time sampled through a line in which no other user line below it ran; 1 if it was not sampled."""
    place = line.place
    through = [path for path in paths if any(each.place == place for each in path.lines)]
    own = sum(path.duration for path in through if (path.lines[0].file, path.lines[0].line) == place)
    return ratio(own, sum(path.duration for path in through)) if through else 1.0


COPYING = frozenset(
    {"to", "type", "double", "float", "half", "bfloat16", "contiguous", "clone", "copy", "reshape", "flatten"}
)
"""Last names of functions that run one of the copying operators."""


def at_calling_lines(
    operators: Iterable[OperatorUse], called: Iterable[CalledFacts], paths: Iterable[PathUse]
) -> tuple[OperatorUse, ...]:
    """Operators with the line that calls each. A trace with stacks has only the function. Its line is the one that was
    seen to call a function of the operator's name; the longest if there are several."""
    operators, paths = tuple(operators), tuple(paths)
    sampled = {source: sampled_lines(paths, source) for source in {use.source for use in operators} if source}
    names = {(fact.file, fact.line): {name.rpartition(".")[2] for name in fact.names} for fact in called}

    def at_line(use: OperatorUse) -> OperatorUse:
        name = plain_name(use.name).removesuffix("_data").removesuffix("_backward").lstrip("_")
        wanted = COPYING if plain_name(use.name) in COPIES else {name, f"{name}_"}
        spent = sampled[use.source] if use.source is not None else {}
        calling = [line for line in spent if not wanted.isdisjoint(names.get(line.place, ()))]
        return replace(use, line=max(calling, key=lambda line: spent[line])) if calling else use

    return tuple(map(at_line, operators))


UPDATED = 0.8
"""Fraction of a model's parameter bytes that an update by hand must cover: some layers may be frozen."""


def with_updates_by_hand(
    operators: Iterable[OperatorUse], top_modules: Iterable[TopModuleUse]
) -> tuple[OperatorUse, ...]:
    """Operators with updates by hand in the phase "optimizer": those outside the model that pass over all its
    parameters, if one of them modifies as many bytes in place."""
    model = max(top_modules, key=lambda top_module: top_module.parameter_bytes, default=None)
    operators = tuple(operators)
    if model is None or not model.parameters:
        return operators
    least = UPDATED * model.parameter_bytes
    passing = {id(use) for use in operators if use.phase == "rest" and (use.bytes or 0.0) >= least}
    changing = (use for use in operators if id(use) in passing and use.name.partition(".")[0].endswith("_"))
    if not any((use.bytes or 0.0) >= 2 * least for use in changing):
        return operators
    return tuple(replace(use, phase="optimizer") if id(use) in passing else use for use in operators)


PHASE_OF = {"input": "input", "transfer": "transfer", "python": "rest"}
"""Phase whose time the lines of a role make up. Lines of other roles hold operators that cannot be attributed to a
line."""


@dataclass(frozen=True, slots=True)
class LineTime:
    """A line with its time in a steady step, without torch.save, which is a segment outside of all steps. python: the
    part outside the loader and the model."""

    line: LineUse
    duration: Estimate
    python: Estimate


def line_times(lines: Iterable[LineUse], phases: tuple[CategoryUse, ...]) -> tuple[LineTime, ...]:
    """Timed lines with their times in a steady step, scaled down so that the lines of a role take no longer than their
    phase. A comprehension is a function of its own to Python: its time is added to its line's."""
    own = [_own(group) for group in _by_place(lines).values()]
    scales = {role: _scale(own, role, named(phases, phase)) for role, phase in PHASE_OF.items()}
    return tuple(
        LineTime(
            each.line,
            scaled(each.duration, scales.get(each.line.role, 1.0)),
            scaled(each.python, scales.get(each.line.role, scales["python"])),
        )
        for each in own
    )


def _by_place(lines: Iterable[LineUse]) -> dict[tuple[str, int], list[LineUse]]:
    """Lines by (file, number); within each, comprehensions and lambdas last."""
    found: dict[tuple[str, int], list[LineUse]] = {}
    for line in sorted(lines, key=lambda line: line.source.function.rsplit(".", 1)[-1].startswith("<")):
        found.setdefault(line.source.place, []).append(line)
    return found


def _own(group: list[LineUse]) -> LineTime:
    saving = sum(line.checkpoint for line in group)
    duration, python = total(line.duration for line in group), total(line.python for line in group)
    return LineTime(
        group[0],
        scaled(duration, 1 - ratio(saving, duration.value)),
        scaled(python, 1 - ratio(min(saving, python.value), python.value)),
    )


def _scale(own: list[LineTime], role: str, phase: CategoryUse | None) -> float:
    spent = sum(each.duration.value for each in own if each.line.role == role)
    if phase is None or spent <= phase.duration.value:
        return 1.0
    return ratio(phase.duration.value, spent)


def loop_functions(lines: Iterable[LineUse]) -> frozenset[tuple[str, str]]:
    """(file, function) of each training loop: each function with lines that run the model's backward or update."""
    return frozenset(
        (line.source.file, line.source.function) for line in lines if line.role in ("backward", "optimizer")
    )


class LineKind(Enum):
    """Purpose of a line, by the functions that it calls (not by its text), the most certain kind first."""

    CHECKPOINT = re.compile(
        r"torch\.serialization\.save|_?pickle\.(?:\w+\.)?dump|(?:.*\.)?(?:save_pretrained|save_checkpoint|save_state)"
    )
    LOGGING = re.compile(
        r"builtins\.print|logging\.\w.*|loguru\..*|(?:wandb|mlflow|comet_ml|neptune|clearml|matplotlib|rich)\..*"
        r"|(?:.*\.)?(?:log_metrics?|log_dict|add_(?:scalar|histogram|image|figure|text)s?)"
        r"|(?:lightning|pytorch_lightning|lightning_fabric|accelerate)\..*\.log|(?:.*\.)?\w*(?:Logger|Tracker)\.log"
        r"|tqdm\..*\.(?:write|set_postfix\w*|set_description\w*)|json\.dump|_?csv\..*write\w*"
        r"|(?:_io|codecs)\.\w+\.(?:write|writelines|flush)"
    )
    COLLECT = re.compile(r"gc\.collect")
    GRADIENTS = re.compile(r"torch\.nn\.utils\.clip_grad\..*|(?:.*\.)?(?:clip_grad_(?:norm|value)_|clip_gradients)")
    ARRAYS = re.compile(r"torch\.(?:as_)?tensor")
    METRICS = re.compile(
        r"torch\.Tensor\.(?:item|tolist|numpy|cpu|__float__|__int__)|(?:torchmetrics|torcheval|evaluate)\..*"
        r"|sklearn\.metrics\..*|.*[._](?:metrics?|accuracy|auc|f1|precision|recall|bleu|rouge|confusion)(?:_\w+)?"
    )
    OTHER = re.compile(r".*")


def line_kind(calls: Iterable[str]) -> LineKind:
    """Kind of a line that calls these functions."""
    names = tuple(calls)
    return next((kind for kind in LineKind if any(map(kind.value.fullmatch, names))), LineKind.OTHER)


def calls_function(calls: Iterable[str], *names: str) -> bool:
    """True if one of the called functions has one of these names. Modules of the called functions are ignored."""
    return any(each.rpartition(".")[2] in names for each in calls)


def converts_lists(calls: Iterable[str]) -> bool:
    """True if a line makes a tensor from data that no NumPy function called on that line has made, such as a list."""
    names = tuple(calls)
    return line_kind(names) is LineKind.ARRAYS and not any(each.startswith("numpy.") for each in names)


MOST_LINES = 200
"""Most lines that are kept, longest first; the others are negligible together."""


WRAPPED = (LineRole.INPUT, LineRole.FORWARD, LineRole.BACKWARD, LineRole.OPTIMIZER)
"""Roles of lines with a call that the probe wraps."""


def line_uses(process: Process, layout: Layout, usual: Int64, in_operators: Intervals = EMPTY) -> tuple[LineUse, ...]:
    """Lines that were timed, longest first, with their times scaled to the usual steps. usual: indices of the steps
    that define the step time. The few traced steps are slower, because of the tracing and other load, but shares of a
    step stay the same. in_operators: intervals of the profiled steps in which the training thread was inside operators.
    Lines are not traced there, but the gaps between the instrumented parts are the same. If operators take a fraction
    of a profiled gap, the same fraction of a line's time in that gap is not Python's."""
    steps, times = layout.timeline.steps, layout.lines.times
    lined = np.flatnonzero(steps.lined)
    if not len(lined) or not len(times.identity):
        return ()
    table = line_table(steps, layout.lines, layout.claims, layout.work)
    identities, pieces = table.identities, table.pieces
    roles = [layout.lines.roles[each] for each in identities.tolist()]
    wrapped = np.array([role in WRAPPED for role in roles])
    turns = lined_turns(steps)
    spent, scales = usual_spent(table, steps.phases[lined], steps.phases[usual], wrapped, turns)
    scale = scales[np.arange(len(roles)), [GAPS.get(role, Phase.REST) for role in roles]]
    # Preparing a batch with operators is preparing it all the same: only lines of no other role are split.
    plain = np.array([role is LineRole.PYTHON for role in roles])
    pauses = layout.claims.sets[SegmentKind.PAUSE]
    busy = _busy_share(layout, in_operators, pauses, pieces.start) * plain[pieces.row]
    saved = subtract(layout.records.of(Kind.CHECKPOINT).intervals, layout.claims.all)

    def by_line(amounts: Float64) -> Float64:
        """Sums of the pieces' amounts, (lines, steps)."""
        cell = pieces.row * len(lined) + pieces.step
        summed: Float64 = np.bincount(cell, amounts, len(identities) * len(lined)).astype(np.float64)
        return summed.reshape(len(identities), len(lined))

    def counted(identity: Int64, start: Int64, value: Int64) -> Float64:
        in_step = _by_line(identities, steps.start[lined], steps.end[lined], identity, start, value)
        return in_step * turns.weights

    python = without_stalls(by_line(pieces.rest * (1 - busy)) * own_time(table) * scale[:, None], turns) * turns.weights
    checkpoint = by_line(measure(saved, pieces.start, pieces.end).astype(np.float64)) * scale[:, None] * turns.weights
    hits = counted(times.hit_identity, times.hit_start, np.ones(len(times.hit_start), np.int64))
    collections = layout.records.of(Kind.GARBAGE).start
    inside = np.searchsorted(collections, times.end) - np.searchsorted(collections, times.start)
    garbage = counted(times.identity, times.start, inside)
    sources = sources_of(process)
    callees = process.callees
    trained = {each for code in process.codes if code.loop for each in on_loss_path(code, layout.lines.roles)}
    duration = spent.sum(axis=2)
    known = [row for row, each in enumerate(identities.tolist()) if each in sources and duration[row].any()]
    return tuple(
        LineUse(
            source=(source := sources[int(identities[row])]),
            role=roles[row].title,
            duration=mean_of_series(turns.levelled(duration[row])),
            python=mean_of_series(turns.levelled(np.minimum(python[row], duration[row]))),
            hits=float(hits[row].mean()),
            garbage=float(garbage[row].mean()),
            checkpoint=float(checkpoint[row].mean()),
            calls=callees.get(source.place, ()),
            trained=int(identities[row]) in trained,
        )
        for row in sorted(known, key=lambda row: -duration[row].sum())[:MOST_LINES]
    )


def grown_line(process: Process, layout: Layout) -> tuple[SourceLine, float] | None:
    """(line with most of the extra time of periodically slow steps, its fraction of that time), from line-timed steps;
    None if no slow or no other step was timed, or no line takes most of the extra time."""
    steps = layout.timeline.steps
    turns = lined_turns(steps)
    chosen, period = turns.slow, turns.period
    if period is None or not chosen.any() or chosen.all() or not len(layout.lines.times.identity):
        return None
    table = line_table(steps, layout.lines, layout.claims, layout.work)
    spent, whole = table.spent[:, :, period.phase], steps.phases[np.flatnonzero(steps.lined), period.phase]
    grown = np.median(spent[:, chosen], axis=1) - np.median(spent[:, ~chosen], axis=1)
    most, extra = int(grown.argmax()), float(np.median(whole[chosen]) - np.median(whole[~chosen]))
    line = sources_of(process).get(int(table.identities[most]))
    if line is None or grown[most] < (extra if period.growth is not None else period.extra) / 2:
        return None
    return line, min(1.0, ratio(grown[most], extra))


def forwards_without_gradients(
    process: Process, layout: Layout, usual: Int64
) -> tuple[RepeatedForward | None, RepeatedForward | None]:
    """Forwards without gradients in the usual steps, as a pair. First: those of models that also run with gradients, as
    far as they repeat an input of a forward with gradients. Second: those of models that never run with gradients and
    whose weights do not change. None for a kind that does not occur."""
    forwards = layout.activity.forwards
    gradient = forwards.flagged(Flag.GRADIENT)
    trained = np.isin(forwards.identity, forwards.identity[gradient])
    written = [each.identity for each in process.written]
    kinds = forwards.where(~gradient & trained), forwards.where(~trained & ~np.isin(forwards.identity, written))
    again, frozen = (_without_gradients(process, layout, usual, kind, forwards.start[gradient]) for kind in kinds)
    seen = [each for each in process.without_gradients if each.identity in kinds[0].identity]
    if again is not None and any(each.same < each.calls for each in seen):
        part = max(0.0, min(1.0, ratio(sum(each.same for each in seen), sum(each.calls for each in seen))))
        line = next((each.site for each in seen if each.same), None)
        again = replace(again, duration=scaled(again.duration, part), calls=part * again.calls, source=line)
    return again if again is not None and again.calls else None, frozen


def _without_gradients(
    process: Process, layout: Layout, usual: Int64, chosen: RecordTable, others: Int64
) -> RepeatedForward | None:
    steps = layout.timeline.steps
    spent = measure(chosen.intervals, steps.start, steps.end)[usual]
    if not spent.any():
        return None
    calls = counted(chosen.start, steps.start, steps.end)[usual]
    source = _calling(process, layout, chosen.start, others)
    return RepeatedForward(mean_of_series(spent), float(calls.mean()), source, float((calls > 0).mean()))


def _calling(process: Process, layout: Layout, start: Int64, others: Int64) -> SourceLine | None:
    """Timed line that was running at most of these times: the innermost one, but rather one that does not run at other
    times; None without one."""
    records, ranked = layout.records.of(Kind.LINE), list[tuple[bool, int, int, int]]()
    for identity in unique(records.identity).tolist():
        own = records.where(records.identity == identity).intervals
        if times := int(contains(own, start).sum()):
            length = int((own.end - own.start).sum())
            ranked.append((not contains(own, others).any(), times, -length, identity))
    return sources_of(process).get(max(ranked)[-1]) if ranked else None


def _by_line(lines: Int64, starts: Int64, ends: Int64, identity: Int64, start: Int64, value: Int64) -> Int64:
    """Values summed by line and by the step, from `starts` to `ends`, in which they start: (lines, steps)."""
    step = np.minimum(np.searchsorted(ends, start, side="right"), len(ends) - 1)
    inside = (start >= starts[step]) & (start < ends[step])
    cell = np.searchsorted(lines, identity[inside]) * len(ends) + step[inside]
    summed = np.bincount(cell, weights=value[inside], minlength=len(lines) * len(ends))
    return np.rint(summed).astype(np.int64).reshape(len(lines), len(ends))


def _busy_share(layout: Layout, in_operators: Intervals, pauses: Intervals, start: Int64) -> Float64:
    """Fraction of the gap around each time that is in operators, by the kinds of its neighbours; 0 if unknown."""
    gaps = find_gaps(layout.work.top, layout.timeline.steps.start, layout.timeline.steps.end)
    share = np.zeros(len(start))
    if not len(in_operators) or not len(gaps.start):
        return share
    seen = (gaps.start >= in_operators.start[0]) & (gaps.end <= in_operators.end[-1])
    seen &= layout.timeline.steps.profiled[gaps.step]
    length = gaps.end - gaps.start - measure(pauses, gaps.start, gaps.end)
    inside = measure(in_operators, gaps.start, gaps.end)
    found = np.searchsorted(gaps.start, start, side="right") - 1
    held = (found >= 0) & (start < gaps.end[np.maximum(found, 0)])
    kind = np.where(held, gaps.neighbours[np.maximum(found, 0)], -1)
    for each in unique(gaps.neighbours[seen]):
        same = seen & (gaps.neighbours == each)
        share[kind == each] = min(1.0, inside[same].sum() / max(1, length[same].sum()))
    return share


AT_WORK = ("compute", "communication", "copy", "overhead")
"""Categories that hold the time inside operators (small operators count as overhead on a CPU)."""


def profile_scale(operators: Iterable[OperatorUse], categories: Iterable[CategoryUse]) -> float:
    """Time inside operators in a steady step divided by that in a profiled one, at most 1; 1 without categories."""
    profiled = sum(use.duration for use in operators)
    steady = _at_work(categories)
    return min(1.0, ratio(steady, profiled)) if steady > 0 and profiled > 0 else 1.0


def steady_time(
    chosen: Iterable[OperatorUse],
    operators: Sequence[OperatorUse],
    categories: Sequence[CategoryUse],
    machine: MachineUse | None,
) -> float:
    """Time of the chosen operators in a steady step, ns. Nothing is scaled below its roofline (Williams, Waterman and
    Patterson, Communications of the ACM 52, 2009) if the machine's rates are known: a profiled step's extra time is
    above it. As measured (torch 2.13, two processors), operators that write large new tensors took two to four times as
    long while profiled; matmuls took a tenth longer."""
    profiled = sum(use.duration for use in operators)
    steady = _at_work(categories)
    if not 0 < steady < profiled:
        return sum(use.duration for use in chosen)
    least = sum(_roofline(use, machine) for use in operators)
    if steady <= least:
        return sum(_roofline(use, machine) for use in chosen) * steady / least
    scale = (steady - least) / (profiled - least)
    return sum(_roofline(use, machine) + scale * (use.duration - _roofline(use, machine)) for use in chosen)


def in_steady_steps(
    operators: Sequence[OperatorUse],
    categories: Sequence[CategoryUse],
    phases: Sequence[CategoryUse],
    machine: MachineUse | None,
) -> tuple[OperatorUse, ...]:
    """Operators of profiled steps on a CPU, with their times in a steady step: together at most the categories that
    hold them, and in each phase at most the phase."""
    steady = [replace(use, duration=steady_time([use], operators, categories, machine)) for use in operators]
    spent = {phase.name: sum(use.duration for use in steady if use.phase == phase.name) for phase in phases}
    held: dict[str, float] = {
        phase.name: min(1.0, ratio(phase.duration.value, spent[phase.name]) or 1.0) for phase in phases
    }
    return tuple(
        _scaled(before, ratio(held.get(use.phase, 1.0) * use.duration, before.duration))
        for use, before in zip(steady, operators, strict=True)
    )


def _scaled(use: OperatorUse, factor: float) -> OperatorUse:
    usual = use.usual * factor if use.usual is not None else None
    return replace(use, duration=use.duration * factor, usual=usual)


def _at_work(categories: Iterable[CategoryUse]) -> float:
    return sum(category.duration.value for category in categories if category.name in AT_WORK)


def _roofline(use: OperatorUse, machine: MachineUse | None) -> float:
    """Lower bound on an operator's time by its arithmetic and its bytes, ns; 0 if unknown, and at most its own time."""
    rate = memory_rate(machine, ratio(use.bytes or 0.0, use.calls))
    if machine is None or rate is None:
        return 0.0
    least = max(ratio(use.flops or 0.0, machine.matrix_flops or 0.0), ratio(use.bytes or 0.0, rate)) * 1e9
    return min(least, use.duration)
