"""Construction of the case for the rules: from a recorded process, and from profiled steps of a recording or of a bare
trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from steptime.advice.device_evidence import machine_use, with_device, with_processor
from steptime.advice.evidence import (
    Case,
    CompilationUse,
    CompilerUse,
    OptimizerUse,
    PathUse,
    RecomputeUse,
    SiteUse,
    TopModuleUse,
    record_of,
)
from steptime.advice.length_evidence import length_use, padding_use
from steptime.advice.line_evidence import (
    at_calling_lines,
    forwards_without_gradients,
    in_steady_steps,
    line_uses,
    with_updates_by_hand,
)
from steptime.advice.loader_evidence import input_use, loader_use
from steptime.advice.memory_evidence import with_memory
from steptime.advice.models import changing_work, gradient_use
from steptime.advice.outliers import outliers_of, usual_steps
from steptime.advice.pattern_evidence import caught_use, change_use, pass_use, period_use, with_line, with_passes
from steptime.advice.repeat_evidence import looked_at, repeat_uses, work_uses
from steptime.advice.run_uses import CategoryUse, GarbageUse, LoaderUse, PeriodUse, SettingsUse
from steptime.advice.savings import named, ratio, scaled
from steptime.advice.segment_evidence import segment_uses
from steptime.advice.seldom_read import seldom_uses
from steptime.advice.shaped_evidence import shaped_uses
from steptime.advice.spread_evidence import spread_uses
from steptime.advice.step_evidence import (
    category_uses,
    contention_use,
    gpu_busy,
    gpu_uses,
    left_to,
    phase_uses,
    step_summary,
)
from steptime.advice.what_runs import run_uses
from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import CategoryName
from steptime.analysis.graph_launches import graph_use
from steptime.analysis.layout import Layout
from steptime.analysis.modules import module_uses
from steptime.analysis.operators import OperatorUse, step_at
from steptime.analysis.recorded_breakdown import RecordedBreakdown, operator_time
from steptime.analysis.steps import UPDATES
from steptime.analysis.timeline import Phase, Steps, counted
from steptime.analysis.tracer import without_tracer
from steptime.analysis.unused import picked_uses, unread_uses, unused_passes
from steptime.analysis.user_code import extra_calls
from steptime.arrays import Bool, Int64, unique
from steptime.intervals import EMPTY, contains, intersect, join, measure, subtract, union
from steptime.journal import Flag, Kind
from steptime.machine.machine import Machine
from steptime.quantities import Estimate, SourceLine, mean_of_series
from steptime.recording.recording import ModuleFacts, OptimizerFacts, Process, TelemetrySample
from steptime.recording.rule_facts import RuleFacts
from steptime.trace.compile_logs import CompilerEvent, is_limit, reason_and_hint
from steptime.trace.links import UNKNOWN
from steptime.trace.table import EventKind, Trace
from steptime.trace.vendors import is_compiled, matching, of_symbols


def assemble(
    process: Process,
    layout: Layout,
    recorded: RecordedBreakdown | None = None,
    *,
    telemetry: Sequence[TelemetrySample] = (),
    machine: Machine | None = None,
    trainers_on_host: int = 1,
    kept: Mapping[str, float] | None = None,
) -> Case:
    """Case of a process: all evidence for the rules. recorded: its breakdown, None if nothing was profiled. kept: bytes
    that each module keeps for backward, by path. Raises ValueError if no step is steady."""
    steps = layout.timeline.steps
    with_tracer = usual_steps(layout)
    usual = without_tracer(layout, with_tracer)
    if not len(usual):
        raise ValueError("a case needs a steady step")
    if of_another_training(layout, usual, steps.profiled):
        recorded = None
    contention = contention_use(process, steps, usual, telemetry, machine)
    breakdown, operators = (recorded.breakdown, recorded.operators) if recorded is not None else (None, ())
    categories = category_uses(breakdown, steps, usual, operators, machine, left_to(contention))
    loader = _one_wait(loader_use(process, layout, usual), categories)
    phases, peaks = phase_uses(steps, usual), machine_use(machine)
    if breakdown is not None and breakdown.device == "cpu":
        operators = in_steady_steps(operators, categories, phases, peaks)
    paths = (*_paths(process), *_worker_paths(process, layout, loader))
    operators = at_calling_lines(operators, process.called, paths)
    top_modules = tuple(record_of(TopModuleUse, model) for model in process.top_modules)
    step = step_summary(process, layout.timeline, usual, len(with_tracer) - len(usual))
    looked = looked_at(process, layout, loader, step.duration.value)
    lines = line_uses(process, layout, usual, operator_time(recorded) if recorded is not None else EMPTY)
    if of_another_training(layout, usual, steps.lined):
        lines = ()
    compiling, run = _compiling(process, steps)
    repeated, frozen = forwards_without_gradients(process, layout, usual)
    busy = gpu_busy(steps, usual, telemetry, process.devices)
    step = replace(step, gpu_busy=busy, compiling=compiling, run=run)
    outliers = outliers_of(layout, with_tracer, {each.identity: each.type for each in process.optimizers})
    if step.mode == "backward":
        operators = with_updates_by_hand(operators, top_modules)
    case = Case(
        step=step,
        categories=categories,
        phases=phases,
        loader=loader,
        inputs=input_use(process, layout, usual),
        lines=lines,
        operators=operators,
        settings=_settings(process, layout, usual, trainers_on_host),
        optimizers=_optimizers(process, layout, usual, operators),
        compilations=_compilations(process, steps),
        compiler=_compiler(process),
        sites=_site_uses(process, layout, usual),
        paths=paths,
        repeated=repeated,
        frozen=frozen,
        repeats=repeat_uses(looked, phases, step.duration.value),
        seldom=seldom_uses(process.codes, lines),
        works=work_uses(looked, process.callees, phases, step.duration.value, lines, paths),
        garbage=_garbage(layout),
        segments=segment_uses(process, layout),
        contention=contention,
        machine=peaks,
        top_modules=top_modules,
        change=change_use(process, layout),
        period=period_use(process, layout),
        passes=(passes := pass_use(process, layout, usual)),
        outliers=with_passes(with_line(outliers, process, layout), process, layout, passes),
        caught=caught_use(process, layout),
        gpus=gpu_uses(steps, usual, telemetry, process.devices),
        **{each.name: getattr(process, each.name) for each in fields(RuleFacts)},
    )
    if recorded is not None:
        case = with_profile(case, recorded, process, kept)
    return with_memory(case, process, layout.timeline)


def with_profile(
    case: Case, recorded: RecordedBreakdown, process: Process | None = None, kept: Mapping[str, float] | None = None
) -> Case:
    """The case with everything that its profiled steps show. Recordings, whose always-on timers cover the steady steps,
    and bare traces share this one place, so that no rule sees only one of them. process: None for a bare trace; kept:
    as in `assemble`."""
    steps = recorded.profiled
    functions = recorded.functions
    runs = run_uses(functions, case.paths, case.lines, case.callees)
    case = replace(
        case,
        runs=runs,
        recompute=RecomputeUse(_in_backward(case, recorded, recorded.recompute)) if recorded.recompute.any() else None,
        backward_again=_in_backward(case, recorded, recorded.backward_again) if recorded.backward_again.any() else None,
        functions=functions,
        second_order=recorded.second_order,
        period=_with_extras(case.period, recorded),
        lengths=length_use(recorded.windows),
        padding=case.padding or padding_use(recorded.windows, runs),
    )
    if steps is None:
        return case
    trace, graphs = steps.trace, graph_use(steps)
    forward = steps.phases.get(Phase.FORWARD, union(steps.boundaries[:, 0], steps.boundaries[:, 1]))
    known = (process.modules if process is not None else None) or ModuleFacts(())
    use = process.use if process is not None else None
    case = replace(
        case,
        step=replace(case.step, compiled=bool(of_symbols(trace, is_compiled).any()), graphs=graphs),
        gradients=gradient_use(trace, steps.boundaries),
        changing_work=changing_work(trace, steps.boundaries, forward),
        modules=module_uses(steps, known.modules, kept, known.without_update),
        garbage=case.garbage or traced_garbage(trace, steps.windows),
        dropped=unused_passes(steps, use.passes) if use is not None else (),
        picked=picked_uses(steps, use.passes) if use is not None else (),
        unread=unread_uses(steps, use.unread) if use is not None else (),
    )
    if case.step.untraced:
        return case
    if not steps.on_device:
        stacks = [window for window in recorded.windows if window.stacks]
        profiled = steps, stacks, recorded.operators, case.operators
        case = replace(case, shaped=shaped_uses(*profiled), spread=spread_uses(*profiled))
        return with_processor(case, steps)
    traced = recorded.breakdown if case.step.mode == "trace" else breakdown_of(steps)
    return with_device(case, steps, traced, recorded.sources)


def _in_backward(case: Case, recorded: RecordedBreakdown, spent: Int64) -> Estimate:
    """Time per step inside backward, ns, scaled to a steady step: on a CPU a profiled backward may take longer."""
    steps, backward = recorded.profiled, named(case.phases, "backward")
    mean = mean_of_series(spent)
    if steps is None or steps.on_device or backward is None or Phase.BACKWARD not in steps.phases:
        return mean
    profiled = measure(steps.phases[Phase.BACKWARD], steps.boundaries[:, 0], steps.boundaries[:, 1])
    return scaled(mean, min(1.0, ratio(backward.duration.value, float(profiled.mean())) or 1.0))


def _with_extras(period: PeriodUse | None, recorded: RecordedBreakdown) -> PeriodUse | None:
    """Period with the operators of its slow steps, where a profiled step was one."""
    if period is None:
        return None
    extras, alone = extra_calls(recorded.windows, period.extra)
    return replace(period, extras=extras, alone=alone)


NEARLY = 0.05
"""Fraction of the wait for the loader up to which the step's input category counts as the same quantity."""


def _one_wait(loader: LoaderUse | None, categories: Sequence[CategoryUse]) -> LoaderUse | None:
    """Loader whose wait is the step's input time if both are the same quantity, so that all findings report one
    number."""
    entry = next((use for use in categories if use.name == "input"), None)
    if loader is None or entry is None or abs(entry.duration.value - loader.wait.value) > NEARLY * loader.wait.value:
        return loader
    return replace(loader, wait=entry.duration)


def _settings(process: Process, layout: Layout, usual: Int64, trainers: int) -> SettingsUse | None:
    """Switches at the time of reading, or as any backward of the steady steps saw them. A profiler counts only if most
    of these backwards saw it: steptime's own profiling window may cover a few."""
    settings, steps = process.settings, layout.timeline.steps
    if settings is None:
        return None
    backwards = layout.records.of(Kind.BACKWARD)
    number = np.minimum(np.searchsorted(steps.end, backwards.start, side="right"), len(steps.end) - 1)
    backwards = backwards.where(np.isin(number, usual) & ~backwards.flagged(Flag.PARTIAL))
    return record_of(
        SettingsUse,
        settings,
        detect_anomaly=settings.detect_anomaly or bool(backwards.flagged(Flag.ANOMALY).any()),
        deterministic=settings.deterministic or bool(backwards.flagged(Flag.DETERMINISTIC).any()),
        profiler=2 * int(backwards.flagged(Flag.PROFILER).sum()) > len(backwards.start),
        trainers_on_host=trainers,
        matmul_precision=settings.float32_matmul_precision,
    )


def of_another_training(layout: Layout, usual: Int64, seen: Bool) -> bool:
    """True if the job trains a second model in a loop of its own: most of the usual steps' time is in steps whose
    optimizers updated nothing in the seen steps. What was seen of the first loop says nothing about it. seen: mask of
    the seen steps."""
    steps, updates = layout.timeline.steps, layout.records.of(*UPDATES)
    step = step_at(np.stack([steps.start, steps.end], axis=1), updates.start)
    step, identity = step[step != UNKNOWN], updates.identity[step != UNKNOWN]
    known = np.isin(identity, identity[seen[step]])
    other, spent = np.zeros(len(steps.start), np.bool_), steps.duration
    other[step], other[step[known]] = bool(known.any()), False
    return 2 * int(spent[usual][other[usual]].sum()) > int(spent[usual].sum())


def _optimizers(
    process: Process, layout: Layout, usual: Int64, operators: Sequence[OperatorUse]
) -> tuple[OptimizerUse, ...]:
    """Optimizers that stepped, longest first. The largest one is assumed to update the embeddings."""
    steps, work, updates = layout.timeline.steps, layout.work, layout.records.of(*UPDATES)
    known = {fact.identity: fact for fact in process.optimizers}
    embeddings = sum(model.dense_embedding_elements for model in process.top_modules)
    largest = max((fact.elements for fact in process.optimizers), default=0)
    numbers = unique(updates.identity).tolist()
    calls = None
    if operators and len(numbers) == 1:
        calls = sum(operator.calls for operator in operators if operator.phase == "optimizer")
    uses = []
    for number in numbers:
        facts = known.get(number) or OptimizerFacts(number, "", 0, 0)
        own = subtract(updates.where(updates.identity == number).intervals, work.forward)
        own = intersect(own, join(work.updates, work.updates_in_backward))  # without a closure and what is around it
        if not len(work.updates_in_backward):
            own = subtract(own, work.backward)  # a closure's
        use = record_of(
            OptimizerUse,
            facts,
            duration=mean_of_series(measure(own, steps.start, steps.end)[usual]),
            operators=calls if facts.made == 1 else None,  # others may have had more tensors
            dense_embedding_elements=min(embeddings, largest) if facts.elements == largest else 0,
        )
        uses.append(use)
    return tuple(sorted(uses, key=lambda use: -use.duration.value))


GARBAGE = "Python GC"
"""Name of a garbage collection in torch's profiler (record_python_gc_info)."""


def traced_garbage(trace: Trace, windows: Int64) -> GarbageUse | None:
    """Garbage collections that the profiler recorded; None if there are none, or if it did not record them."""
    events = trace.events
    rows = np.flatnonzero((events.event_kind == EventKind.PYTHON) & matching(trace, GARBAGE.__eq__))
    if not len(rows):
        return None
    spent = measure(union(events.start[rows], events.ends(rows)), windows[:, 0], windows[:, 1])
    return GarbageUse(mean_of_series(spent), len(rows) / len(windows))


def _compilations(process: Process, steps: Steps) -> tuple[CompilationUse, ...]:
    """Compilations. One with an unknown time counts as part of the warm-up."""
    warm_until = int(steps.end[steps.warm_up][-1]) if steps.warm_up.any() else 0
    return tuple(
        CompilationUse(
            SourceLine(fact.file, fact.line, fact.function),
            fact.duration_ns,
            fact.start is not None and fact.start > warm_until,
            fact.recompile_reason,
        )
        for fact in process.compilations
    )


def _compiling(process: Process, steps: Steps) -> tuple[int, int]:
    """(ns in which something was compiled, ns of the run). The run lasts from its first step, or the first compilation
    if that is earlier, to the end of the last step."""
    known = [(fact.start, fact.start + fact.duration_ns) for fact in process.compilations if fact.start is not None]
    last = int(steps.end[-1])
    first = min([int(steps.start[0]), *(start for start, _ in known)])
    busy = union([start for start, _ in known], [min(end, last) for _, end in known])
    return int(measure(busy, np.array([first]), np.array([last]))[0]), last - first


def _site_uses(process: Process, layout: Layout, usual: Int64) -> tuple[SiteUse, ...]:
    """Calls of tensor methods, per step. A site that each forward calls counts as often as forwards run in the usual
    steps: an episode may be short when the site is examined, and long later in training."""
    callees, starts, steps = process.callees, layout.activity.forwards.start, layout.timeline.steps
    forwards = float(counted(starts, steps.start, steps.end)[usual].mean())
    return tuple(
        SiteUse(
            each.name,
            each.device,
            each.count * (forwards / each.forwards if 0 < each.forwards <= each.count else 1 / max(1, each.steps)),
            each.site,
            each.count,
            callees.get(each.site.place, ()),
        )
        for each in process.sites
    )


def _compiler(process: Process) -> CompilerUse | None:
    """Graph breaks and recompile limits that the job itself showed; torch.compile writes the rest only on request."""
    message = [(SourceLine(fact.file, fact.line, fact.function), fact) for fact in process.compilations if fact.file]
    limits = tuple(
        CompilerEvent(source, reason_and_hint(fact.failed)[0]) for source, fact in message if is_limit(fact.failed)
    )
    given_up = {each.source for each in limits}
    guards = tuple(
        CompilerEvent(source, reason_and_hint(fact.recompile_reason)[0])
        for source, fact in message
        if fact.recompile_reason and source in given_up
    )
    seen = Counter((fact.site, *reason_and_hint(fact.reason)) for fact in process.graph_breaks)
    breaks = tuple(CompilerEvent(site, why, count, hint) for (site, why, hint), count in seen.items() if why)
    return CompilerUse("", breaks=breaks, recompilations=guards, limits=limits) if breaks or limits else None


def _paths(process: Process) -> tuple[PathUse, ...]:
    if not process.sampled:
        return ()
    first = process.sampled[0]
    steps = max(1, first.steps)
    return tuple(PathUse(path.duration / steps, path.part, path.lines, path.ran / steps) for path in first.paths)


def _worker_paths(process: Process, layout: Layout, loader: LoaderUse | None) -> tuple[PathUse, ...]:
    """Paths of lines that loader workers run for the training loader. Their times are scaled so that they sum to the
    steps' wait, because only that is time of the steps."""
    training = layout.timeline.training_loaders
    facts = next((each for each in reversed(process.in_workers) if each.iterator in training), None)
    if facts is None or loader is None:
        return ()
    share = ratio(loader.wait.value, sum(path.duration for path in facts.paths))
    often = loader.demand / max(1, facts.steps)
    return tuple(PathUse(path.duration * share, "input", path.lines, path.ran * often) for path in facts.paths)


def _garbage(layout: Layout) -> GarbageUse:
    """Garbage collections over all steps after the warm-up: the collector is always recorded, and the mean of rare
    collections must not depend on which steps were profiled. Those in evaluations and other segments do not count."""
    steps, segments = layout.timeline.steps, layout.timeline.segments
    collections = layout.records.of(Kind.GARBAGE)
    elsewhere = union([each.start for each in segments], [each.end for each in segments])
    collections = collections.where(~contains(elsewhere, collections.start))
    counts = counted(collections.start, steps.start, steps.end)
    seen = ~steps.warm_up
    spent = measure(collections.intervals, steps.start, steps.end)[seen]
    fetching = measure(intersect(collections.intervals, layout.work.loader), steps.start, steps.end)[seen]
    category: CategoryName = "input" if 2 * fetching.sum() > spent.sum() else "python"
    return GarbageUse(mean_of_series(spent), float(counts[seen].mean()), category)
