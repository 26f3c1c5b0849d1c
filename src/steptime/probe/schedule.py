"""Schedule of the probe: one generator, resumed at every step boundary, so that it reads from top to bottom.

untouched → discovery → line timeline → two profiled steps and one with stacks, for a job that ends soon → timers only →
profiler → profiler with stacks → timers off and on in turns → timers only to the end, with further windows on demand
and in long jobs.

All ranks profile the same step. They agree through the recording, without a message in the user's process groups. The
first ready rank names a step a little ahead, in a file that can be written only once, and the others read it. Ranks
that train together count their steps alike. A rank that reads it too late profiles at once and notes it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, repeat
from threading import get_ident
from types import CodeType
from typing import Any, TypeVar

from torch.optim.optimizer import register_optimizer_step_post_hook

from steptime.journal import EARLY_WINDOW, Kind
from steptime.probe import device, identity
from steptime.probe.allowance import DISCOVERED_CALL, LEAST, SECOND, SHARE, Form, graph_nodes
from steptime.probe.catching import LookingThread, Occurrences, SlowStepObserver, written_once
from steptime.probe.datasets import counted_length
from steptime.probe.deadline import Deadline
from steptime.probe.discovery import Discovery, Found
from steptime.probe.gradients import GradientNorm
from steptime.probe.identity import place, traces
from steptime.probe.inputs import InputCheck, RowsWithout
from steptime.probe.lines import LineTimeline, LoopFrame
from steptime.probe.loader import code_of
from steptime.probe.memory import exhausted
from steptime.probe.memory.searching import LEAST_FOR_LOOKS, EarlyLeakSearch, ReportedGrowth, search_growth
from steptime.probe.modules import MOST, module_facts, named_modules, without_update
from steptime.probe.objects import each_once, parameters_of, updated_by
from steptime.probe.ours import pass_on, suppressed
from steptime.probe.profiling import ProfilerWindow
from steptime.probe.repeats import RepeatObserver
from steptime.probe.sampling import LineSampler
from steptime.probe.session import Session, Stage, desertion, leave
from steptime.probe.sites import line_at, text_facts
from steptime.probe.step_metrics import StepMetrics
from steptime.probe.steps import OPTIMIZER, Slower
from steptime.probe.used import MOST_STEPS, UseObserver
from steptime.probe.weights import WrittenModels
from steptime.probe.writers import OpenLoggers

T = TypeVar("T")

UNTOUCHED_STEPS = 1
"""Steps without any measurement: the first one compiles, allocates and autotunes."""
DISCOVERY_STEPS, DISCOVERY_LIMIT = 2, 30 * SECOND
LINE_STEPS, LINE_LIMIT = 6, 2 * SECOND
"""Bounds of the line timeline, which slows a step by 1 to 19 % (Python <= 3.11): few steps suffice for an interval."""
LOOKED_STEPS, LOOKED_TIME, LOOKED_LIMIT = 2, SECOND, 4 * SECOND
"""Bounds of stack sampling: two hundred samples, 5 ms apart."""
SAMPLED_STEPS, SAMPLED_LIMIT = 3, 2 * SECOND
"""Steps in which all functions of the user's are timed line by line, one at least: they are slowed like those of the
line timeline."""
REPEAT_STEPS, REPEAT_LIMIT = 4, 2 * SECOND
"""Steps in which results are examined, two at least: a result of the first one may come again in the next ones."""
BETWEEN_LIMIT, BETWEEN_WAIT = 2 * SECOND, 1000
"""Most ns between steps that are timed by line, and most steps to wait for them."""
PLAIN_STEPS, PLAIN_TIME, PLAIN_LIMIT = 10, SECOND // 4, 5 * SECOND
"""Steady steps before anything more expensive."""
DEVICE_STEPS, SLOW_STARTS = 30, 2
"""Steady steps on a device: later ones are slowed, because its tracer stays attached (`analysis.tracer`). SLOW_STARTS:
first steps, which load kernels and choose algorithms and do not show the step time."""
TURNS, TURN_TIME, TURN_STEPS, TURN_LIMIT = 6, SECOND // 10, 20, SECOND // 2
"""Blocks of steps with timers off and on in turns: TURNS of each, about 0.1 s long. Steps over TURN_LIMIT have none, as
their overhead is far below the noise."""
APART_ON_DEVICE, APART_LONG = 20, 3
"""Steps from a plain window to the one with stacks on a CUDA device, so that the tracer settles; APART_LONG for steps
over LONG_STEP, each of which launches many kernels."""
LONG_STEP = 50_000_000
"""ns. A job of such steps may end after eight of them, so it is profiled before longer measurements."""
EARLY_STEPS = 2
"""Steps of the early window, for a job that ends before the usual one, which replaces it
(`steptime.journal.EARLY_WINDOW`)."""
STEADY_WINDOW = EARLY_WINDOW + 2
"""Number of the usual window; one with stacks has the number after its plain one's."""
PROFILE_STEPS, PROFILE_TIME, PROFILE_LIMIT = 5, 2 * SECOND, 10 * SECOND
"""Bounds of a window: five steps show a spread; two seconds limit the trace to about 2 million operators (0.5 GB of
JSON before compression)."""
PATIENCE, ATTEMPTS = 8, 2
"""A window may last PATIENCE times its expected duration, at least a second. Later work is not the step's: the
operators of an evaluation would fill the memory. ATTEMPTS: tries of a window."""
STACK_LIMIT = 10 * SECOND
"""Longest step that is profiled with stacks, ns."""
SLOW_WINDOW, SLOW_PATIENCE = 100, 10 * SECOND
"""First number of slow steps' windows, as ranks may have had different windows before. SLOW_PATIENCE: longest duration
of one, ns, because an evaluation would fill the memory with its operators."""
AGAIN_AFTER = 600 * SECOND
"""ns until a long job is profiled once more, as its steady state may have drifted."""
REQUEST_PERIOD = SECOND
FAST_PATH_TIME = SECOND // 2
"""Time of the fast path between two visits of schedule and housekeeping, ns. A visited step costs 200 to 400 µs more:
half for the journal's write, half for states that the timers read again."""
LONG_BREAK, LEAST_BREAK = 4, SECOND * 4 // 5
"""A step that ends LONG_BREAK times later than expected, and at least LEAST_BREAK ns later, shows other work of the
job: its lines are timed."""
LONGER = 1.2
"""Times the step when lines were timed first: a job of so much longer steps has its lines timed again."""
SINGLE_PERIOD = SECOND // 5
"""ns between two single steps that are compared with earlier ones; on devices too, where single steps are reported."""
LOG_SECONDS = 10.0
"""Between two times that numbers go to the job's own loggers."""
LEAVE = "leave-request"
"""File in the recording that asks the probe to leave a job that was attached to."""
REQUEST = "profile-request"
"""File in the recording that asks every process for one more window."""

now = time.perf_counter_ns


def run(session: Session) -> Stage:
    """Runs the whole schedule; every `yield` ends at the next boundary. Closed early when the kind of boundary
    changes."""
    exhausted.observe_device(session.recorder.folder)
    yield  # resumed at the first boundary
    stage = _stages(session)
    weights = WrittenModels(lambda number: session.recorder.fact("written", identity=number))
    try:
        for _ in chain(stage, repeat(None)):
            session.housekeeping.boundary()
            weights.look(now(), ((each.identity, each.module) for each in session.top_modules))
            yield
    finally:
        stage.close()
        session.housekeeping.write_compilations()
        session.housekeeping.bars.end(session.recorder.folder)


def _stages(session: Session) -> Stage:
    frames = LoopFrame()
    frames.mark(sys._getframe())
    yield from _steps(UNTOUCHED_STEPS)
    exhausted.observe_device(session.recorder.folder)
    if session.plan.get("variant"):
        # A process of a trial is timed at every boundary to its end, and nothing else: no window may slow its steps.
        yield
        session.recorder.fact("settings", **identity.settings_facts())
        while True:
            yield
    if session.plan.get("log") and not session.logging:
        StepMetrics(session, OpenLoggers(), LOG_SECONDS, None)
    profiles = session.plan.get("profile", True)
    if device.in_use():
        yield from _steps(SLOW_STARTS)
    for fields in identity.tracers():  # before ours: discovery and the timed lines use the same places
        session.recorder.fact("tracer", **fields)
    long = session.step_timer.usual() >= LONG_STEP
    discovered = 1 if long else DISCOVERY_STEPS
    found = yield from _unseen(session, _discover(session, frames, discovered))
    early = EarlyLeakSearch(session)
    if profiles and long:
        yield from _profiles(session, EARLY_WINDOW, EARLY_STEPS)
    yield from _unseen(session, _lines(session, frames, list(found.functions)))
    session.recorder.fact("settings", **identity.settings_facts(), autocast=found.autocast)
    if profiles and not device.in_use():  # on a device, what is steady comes before any profiler that can wait
        # torch 2.13 crashes where Dynamo compiles while stacks are recorded, as it may in these steps.
        stacks = session.step_timer.usual() < STACK_LIMIT and not session.housekeeping.compiled
        yield from _profiles(session, EARLY_WINDOW + long, 0 if long else EARLY_STEPS, stacks)
    early.look()
    first = session.step_timer.usual()
    hot = yield from _unseen(session, _sampled(session))
    yield from _unseen(session, _followed(session, frames, (*hot, *found.functions)))
    early.look()
    yield from _until(session, DEVICE_STEPS if device.in_use() else PLAIN_STEPS, PLAIN_TIME, PLAIN_LIMIT)
    duration = session.step_timer.usual()
    stacks = duration < STACK_LIMIT
    due = profiles and not (yield from _profiles(session, STEADY_WINDOW, PROFILE_STEPS, stacks))
    growth = None if early.found else (yield from search_growth(session))
    if session.untrained.latest:
        yield from _unseen(session, _between(session))
    first = yield from _sampled_if_longer(session, first)
    if profiles:
        yield from _turns(session, duration)
        first = yield from _sampled_if_longer(session, first)
    yield from _keep_timing(session, first or duration, stacks, due, growth)


def _sampled_if_longer(session: Session, before: int) -> Generator[None, None, int]:
    """Times lines once more where steps have become longer; returns the ns of the shortest steps since it was done
    last. before: ns of a step until now, 0 if unknown."""
    usual = session.step_timer.usual()
    if not before or usual < LONGER * before:
        return min(filter(None, (before, usual)), default=0)
    yield from _unseen(session, _sampled(session))
    return usual


def _steps(count: int) -> Stage:
    for _ in range(count):
        yield


def _until(session: Session, steps: int, at_least: int, limit: int) -> Stage:
    """Waits for `steps` steps and `at_least` ns, or for `limit` ns and three steps."""
    start, first = now(), session.steps
    while True:
        yield
        done, elapsed = session.steps - first, now() - start
        if (done >= steps and elapsed >= at_least) or (done >= 3 and elapsed >= limit):
            return


def _under(session: Session, give_up: Callable[[], None], patience: int, steps: range, limit: int) -> Stage:
    """Waits for `steps.stop` steps, or after `limit` ns for `steps.start`. Calls `give_up` after `patience` ns,
    wherever the job is then."""
    start, first = now(), session.steps
    with Deadline(patience, give_up, session.failed):
        while session.steps - first < steps.stop and (now() - start < limit or session.steps - first < steps.start):
            yield


def _discover(session: Session, frames: LoopFrame, steps: int) -> Generator[None, None, Found]:
    """Finds top modules, call sites and hot functions under Python's profile function, in so many steps."""
    start, nodes = now(), graph_nodes()
    discovery = Discovery(max(1, session.allowance.share() // DISCOVERED_CALL))
    if not discovery.start():
        session.recorder.note("another profiler holds sys.setprofile: top modules and call sites were not looked for")
        yield
        return Found()
    session.recorder.pause(start)
    start, first = now(), session.steps
    try:
        yield from _under(session, discovery.give_up, DISCOVERY_LIMIT, range(steps), DISCOVERY_LIMIT)
    finally:
        end = now()
        found = discovery.stop(session.steps - first)
        session.recorder.interval(int(Kind.DISCOVERY), 0, start, end)
    _expect(session, graph_nodes() - nodes, found, max(1, session.steps - first))
    frames.look(sys._getframe())
    for module in found.top_modules:
        session.add_top_module(module)
        if calls := found.without_gradients(module):
            same = [call for call in calls if call.same]
            site = line_at(same[0].place) if same and same[0].place is not None else None
            facts = {"identity": session.numbers.of(module)[0], "calls": len(calls), "same": len(same), "site": site}
            session.recorder.fact("without_gradients", **facts)
    for kind, fields in found.facts:
        session.recorder.fact(kind, **fields)
    identity.write_process(session.recorder.folder, *identity.device_of(found.top_modules))
    _note_inputs(session, found, session.steps - first)
    found.top_modules.clear()  # the script lives as long as the job, and would keep its models alive
    session.recorder.pause(end)
    return found


def _expect(session: Session, nodes: int, found: Found, steps: int) -> None:
    """Estimates the profiler's cost from the work of so many steps. On devices, optimizers update all parameters in one
    call by default."""
    updated = 0 if device.in_use() else sum(1 for each in session.optimizers.living() for _ in updated_by(each))
    session.allowance.expect(nodes // steps, found.torch_calls // steps, found.calls // steps, updated)


def _note_inputs(session: Session, found: Found, steps: int) -> None:
    """Writes the model's inputs per step and checks them from now on. steps: the examined ones."""
    inputs = found.inputs(len(list(session.optimizers.living())))
    module = inputs.module() if inputs is not None else None
    if inputs is None or module is None:
        return
    number, _ = session.numbers.of(module)
    facts = {"identity": number, "module": inputs.name, "rows": inputs.rows, "tokens": inputs.tokens, "steps": steps}
    session.recorder.fact("inputs", **facts)

    def changed() -> None:
        session.recorder.fact("inputs", changed=True, **facts)

    def evaluated(rows: int, larger: float) -> None:
        session.recorder.fact("evaluated", identity=number, rows=rows, larger=larger)

    for top_module in session.top_modules:
        if top_module.identity == number:
            top_module.check, top_module.check_without = InputCheck(inputs, changed), RowsWithout(inputs, evaluated)


def _sampled(session: Session) -> Generator[None, None, tuple[CodeType, ...]]:
    """Returns the functions that take a good part of the time."""
    sampler = LineSampler()
    if not session.allowance.share() or not sampler.start():
        return ()
    start, first = now(), session.steps
    # It need not last for whole steps: it costs no more than the time by which it outlasts a usual one.
    patience = session.step_timer.usual() + min(SAMPLED_LIMIT, session.allowance.share())
    try:
        yield from _under(session, sampler.give_up, patience, range(1, SAMPLED_STEPS), min(SAMPLED_LIMIT, patience))
    finally:
        end = now()
        found = sampler.stop(max(1, session.steps - first))
        session.recorder.interval(int(Kind.LINES), 0, start, end)
        session.recorder.fact("samples", start=start, **found)
        session.recorder.pause(end)
    return sampler.hot


def _followed(session: Session, frames: LoopFrame, hot: tuple[CodeType, ...]) -> Stage:
    """In the same steps: lines of the loop and of these functions that repeat a computation, gradients that no
    optimizer uses, and results of modules that nobody reads."""
    budget = min(REPEAT_LIMIT, max(session.allowance.share(), LEAST_FOR_LOOKS))
    uses = UseObserver(islice(named_modules(_modules(session)), MOST), budget)
    collates = (getattr(each, "_collate_fn", None) for each in session.iterators.living())
    codes = {*hot, *((frames.code,) if frames.code else ()), *chain.from_iterable(map(code_of, collates))}
    for text in filter(None, map(text_facts, codes)):
        session.recorder.fact("function", **text)
    repeats = RepeatObserver(codes, budget, lambda: session.recorder.held + uses.ours)
    yield from _together(_repeats(session, repeats, budget), _used(session, uses, budget))


def _together(*stages: Stage) -> Stage:
    """Runs stages in the same steps, each until it ends."""
    try:
        while stages := tuple(stage for stage in stages if next(stage, stages) is None):
            yield
    finally:
        for stage in stages:
            stage.close()


def _repeats(session: Session, observer: RepeatObserver, budget: int) -> Stage:
    if not observer.start(sys._getframe()):
        return
    start, lines = now(), list[dict[str, Any]]()
    patience = REPEAT_STEPS * session.step_timer.usual() + budget
    try:
        with Deadline(patience, observer.give_up, session.failed):
            for _ in range(REPEAT_STEPS):
                yield
                observer.boundary()
                if observer.ours > budget and observer.steps > 1:
                    break
    finally:
        end = now()
        lines = observer.stop(sys._getframe())
        session.recorder.interval(int(Kind.LINES), 0, start, end)
        seen = {"steps": observer.steps, "lines": lines, "works": observer.works, "single": observer.single}
        session.recorder.fact("repeats", start=start, end=end, held=observer.ours, **seen)
        session.recorder.pause(end)


def _used(session: Session, observer: UseObserver, budget: int) -> Stage:
    if session.counter.mode != OPTIMIZER:
        return
    start = now()
    session.update_observer = observer.gradients.update
    observer.start()
    session.recorder.pause(start)
    start, optimizers = now(), len(session.optimizers.living())
    try:
        with Deadline(MOST_STEPS * session.step_timer.usual() + budget, observer.give_up, session.failed):
            yield from observer.steps_of(optimizers)
    finally:
        end = now()
        session.update_observer = None
        session.recorder.fact("use", **observer.stop(session.optimizers.living()))
        session.recorder.interval(int(Kind.LINES), 0, start, end)
        session.recorder.pause(end)


def _between(session: Session) -> Stage:
    """Times the lines between two training steps, where the job evaluates or gathers experience, from the end of the
    step before."""
    yield from _steps(min(BETWEEN_WAIT, session.untrained.steps_to_next(session.steps)))
    first, limit = now(), min(BETWEEN_LIMIT, session.allowance.share())
    while now() - first < limit:
        start, sampler = now(), LineSampler()
        started = sampler.start(sys._getframe())
        session.recorder.pause(start)  # it measures itself first, which is none of the job's time
        if not started:
            return
        start = now()
        try:
            with Deadline(limit, sampler.give_up, session.failed):
                yield
        finally:
            end = now()
            found = sampler.stop(1)
            session.recorder.interval(int(Kind.LINES), 0, start, end)
        if session.untrained.latest == session.steps:
            session.recorder.fact("between", start=start, end=end, **found)
            session.recorder.pause(end)
            return


def _lines(session: Session, frames: LoopFrame, functions: list[Any]) -> Stage:
    start = now()
    timeline = LineTimeline(session.recorder.append, session.recorder.fact, session.recorder.note)
    started = timeline.start(frames.code, functions, sys._getframe())
    session.recorder.pause(start)
    if not started:
        return
    start = now()
    usual = session.step_timer.usual()
    patience = max(LINE_LIMIT, PATIENCE * LINE_STEPS * usual)
    limit = min(LINE_LIMIT, usual + session.allowance.share())
    try:
        yield from _under(session, timeline.give_up, patience, range(2, LINE_STEPS), limit)
    finally:
        end = now()
        timeline.stop()
        session.recorder.interval(int(Kind.LINES), 0, start, end)
        session.recorder.pause(end)
    if timeline.overflowed:
        yield from _looked(session)


def _looked(session: Session) -> Stage:
    """Samples the thread of a loop that runs too many lines to be timed, from another thread, which slows nothing."""
    start, first, looking = now(), session.steps, LookingThread()
    try:
        yield from _until(session, LOOKED_STEPS, LOOKED_TIME, LOOKED_LIMIT)
    finally:
        found, end = looking.stop(), now()
        session.recorder.fact("samples", start=start, steps=max(1, session.steps - first), paths=found)
        session.recorder.pause(end)


def _turns(session: Session, duration: int) -> Stage:
    """Runs blocks of steps with timers off and on in turns, to measure their overhead here. duration: ns of a step."""
    if duration > TURN_LIMIT or session.counter.mode != OPTIMIZER:
        return
    steps = max(2, min(TURN_STEPS, TURN_TIME // max(1, duration)))
    # One hook for all turns: it must not be removed while torch iterates over them, as it does at an untimed
    # boundary.
    hook = register_optimizer_step_post_hook(session.untimed_update)
    try:
        for _ in range(TURNS):
            start = now()
            session.uninstrument()
            try:
                yield from _steps(steps)
            finally:
                session.instrument()
                session.recorder.interval(int(Kind.UNTIMED), 0, start, now())
            until = session.steps + steps
            while session.steps < until:
                yield from _fast_path(session, now() + (until - session.steps) * duration)
    finally:
        hook.remove()


def _profiles(
    session: Session, number: int, plain: int, stacks: bool = False, *, asked: bool = False, late: bool = False
) -> Generator[None, None, bool]:
    """Profiles a window of up to `plain` steps, then one step with stacks, within the allowance; on all tracing ranks
    in the same steps. asked: by the user; late: at its second chance. Returns False if the window must wait until the
    run is longer."""
    asked = asked or bool(session.plan.get("profile_steps"))
    duration = session.step_timer.usual()
    wanted = plain and (session.plan.get("profile_steps") or max(1, min(plain, PROFILE_TIME // (duration or 1))))
    if not (wanted or stacks) or not traces(here := place(), session.plan.get("trace_ranks") or ()):
        return True
    soon = number <= STEADY_WINDOW and not late
    lead = AHEAD_STEPS if number < STEADY_WINDOW else ahead(duration, AHEAD_TIME if soon else ASKED_AHEAD)
    apart = (APART_LONG if duration >= LONG_STEP else APART_ON_DEVICE) if device.in_use() and wanted and stacks else 0
    plan = _affordable(session, Agreed(number, 0, wanted, stacks, apart, late=late), asked)
    room = plan.whole + (0 if here.alone else lead)
    loaders = session.iterators.living(), session.counter.backwards, session.ended.reported
    opening = steps_to_next(*loaders, room) if plan.whole else 0
    if here.alone:
        yield from _steps(opening)
    else:
        plan = agree(session.plan["recording"], replace(plan, step=session.steps + opening + lead))
        plan = _fitting(session, plan, asked)
        behind = session.steps - plan.step
        while plan.whole and session.steps < plan.step:
            yield
        if plan.whole and behind > 0:
            session.recorder.note(
                f"profiled {behind} steps after the other ranks, which had agreed before it was ready"
            )
    taken = plan
    if plan.steps:
        followed = plan.stacks or number < STEADY_WINDOW
        window = _window(session, number, stacks=False, followed=followed, detailed=plan.detailed)
        yield from _profile(session, window, plan.steps)
        number += 1
        if here.alone and stacks and not device.in_use():  # what a step costs is known now
            taken = _affordable(session, replace(plan, steps=0, stacks=True), asked)
    if taken.stacks:
        yield from _steps(taken.apart)
        yield from _profile(session, _window(session, number, stacks=True, detailed=taken.every), 1)
    _note_cut(session, replace(taken, steps=plan.steps, detailed=plan.detailed), wanted, stacks, asked)
    return bool(plan.steps) or not wanted


def _affordable(session: Session, wanted: Agreed, asked: bool) -> Agreed:
    """Returns the affordable part of the windows; nothing if the plain steps are too expensive."""
    allowance = session.allowance
    form = allowance.plain(wanted.steps, asked) if wanted.steps else Form(0, detailed=True)
    tall = allowance.stacked(asked) if wanted.stacks and form is not None else None
    steps, detailed = (form.steps, form.detailed) if form is not None else (0, False)
    return replace(wanted, steps=steps, detailed=detailed, stacks=tall is not None, every=tall is None or tall.detailed)


def _fitting(session: Session, agreed: Agreed, asked: bool) -> Agreed:
    """Part of the agreed window for which this rank has the memory."""
    allowance, room = session.allowance, session.allowance.room(asked)
    plain = allowance.bytes_of(Form(agreed.steps, agreed.detailed), stacks=False) <= room
    tall = allowance.bytes_of(Form(1, agreed.every), stacks=True) <= room
    return replace(agreed, steps=agreed.steps * plain, stacks=agreed.stacks and tall)


def _note_cut(session: Session, plan: Agreed, steps: int, stacks: bool, asked: bool) -> None:
    """Says once for each window what was left out of it, and why."""
    cut = []
    if steps and not plan.steps:
        cut.append(f"window {plan.number} waits until it may be taken")
    elif plan.steps < steps:
        cut.append(f"{plan.steps} step{'s' * (plan.steps > 1)} instead of {steps}")
    if plan.steps and not plan.detailed:
        cut.append("no shapes of tensors and no modules")
    if stacks and not plan.stacks and (plan.steps or not steps):
        cut.append("no stacks")
    elif plan.stacks and not plan.every:
        cut.append("stacks without shapes and allocations")
    if cut:
        allowance = session.allowance
        session.recorder.note(
            f"profiled less than usual ({', '.join(cut)}): a step has about {max(allowance.events, allowance.kept):,} "
            f"events of the profiler; measuring may take {LEAST // SECOND} s, or {SHARE:.0%} of a longer run, and a "
            f"window {allowance.room(asked) / 1e6:,.0f} MB of memory, of what is free"
        )


def _window(
    session: Session, number: int, *, stacks: bool, followed: bool = False, detailed: bool = True
) -> ProfilerWindow:
    start = now()
    named = list(islice(named_modules(_modules(session)), MOST)) if detailed else []
    if detailed and not stacks:
        left = without_update(named, session.optimizers.living())
        session.recorder.fact("modules", modules=module_facts(named), without_update=left)
    session.recorder.pause(start)
    trained = _trained(session) if detailed and stacks and number >= STEADY_WINDOW else None
    return ProfilerWindow(session.recorder, number, stacks, trained, named, followed=followed, shapes=detailed)


def _modules(session: Session) -> list[Any]:
    return [module for top_module in session.top_modules if (module := top_module.module) is not None]


def _trained(session: Session) -> Iterator[Any]:
    return each_once(*map(parameters_of, _modules(session)), *map(updated_by, session.optimizers.living()))


def _profile(session: Session, window: ProfilerWindow, wanted: int, patience: int = SECOND) -> Stage:
    """One window. Where the job leaves its rhythm in the first step of one, as for an evaluation, once more, unless it
    is for a step of a certain number. patience: ns that it may last at least, where there is memory for so long."""
    usual, form = session.step_timer.usual(), Form(wanted, window.shapes)
    longest = max(patience, PATIENCE * wanted * usual)
    asked = window.caught or bool(session.plan.get("profile_steps"))
    patience = session.allowance.patience(form, longest, usual, stacks=window.stacks, asked=asked)
    for _ in range(1 if window.caught else ATTEMPTS):
        start = now()
        if window.held and not session.allowance.share():
            return
        if obstacle := window.obstacle():
            session.recorder.note(f"the profiler stayed off: {obstacle}")
            return
        yield from _unseen(session, _recorded(session, window, start, wanted, patience))
        if window.steps:
            return


def _recorded(session: Session, window: ProfilerWindow, start: int, wanted: int, patience: int) -> Stage:
    first, limit = session.steps, session.plan.get("max_profile_seconds", 0) * SECOND or PROFILE_LIMIT
    usual, alone = session.step_timer.usual(), place().alone  # ranks profile the same steps, whatever they take
    try:
        window.start()
        session.recorder.pause(start)
        session.allowance.fixed += now() - start if device.in_use() else 0
        with Deadline(patience, lambda: window.stop(session.steps - first), session.failed):
            while window.on and session.steps - first < wanted and now() - window.opened <= limit:
                yield
                if alone and window.spoils(usual):
                    break
        window.stop(session.steps - first)
        if window.steps:
            form = Form(window.steps, window.shapes)
            session.allowance.learn(form, window.held, window.grown, stacks=window.stacks)
    except BaseException:  # of ours, or GeneratorExit: a profiler is never left on
        window.abandon()
        raise


def _keep_timing(
    session: Session, duration: int, stacks: bool, due: bool, growth: ReportedGrowth | None = None
) -> Stage:
    """Runs to the end of the job: takes a further window after ten minutes, and for each request. due: the usual window
    still has to be taken. growth: what may turn out to be bounded."""
    request = os.path.join(session.plan["recording"], REQUEST)
    gradients = GradientNorm(session.recorder, lambda: _trained(session))
    if (limits := session.plan.get("catch")) is not None and not isinstance(session.catching, SlowStepObserver):
        catching = SlowStepObserver(limits, get_ident(), session)
        session.catching = catching
        catching.start()
    number, again, look = STEADY_WINDOW + 2, now() + AGAIN_AFTER, 0
    slow = Occurrences(session.plan["recording"], getattr(session.catching, "numbers", ()))
    between, slower = not session.untrained.latest, Slower(duration)
    served, single, deserted = 0.0, 0, desertion(session.plan.get("attached", ""))
    while True:
        time_now = now()
        yield from _fast_path(session, 0 if _is_near(session, slow) else time_now + FAST_PATH_TIME)
        late = now() - time_now > FAST_PATH_TIME + max(LEAST_BREAK, LONG_BREAK * duration)
        if between and (late or session.untrained.latest):
            between = False
            yield from _unseen(session, _between(session))
            continue
        if slower.looking and time_now >= single:
            single, (start, end) = time_now + SINGLE_PERIOD, session.ended.step_before()
            if start and slower.step(end - start):
                yield from _unseen(session, _sampled(session))
                continue
        gradients.look()
        if growth is not None:
            growth.look()
        if slow.near(session.steps, 0):
            yield from _unseen(session, _slow_step(session, slow))
        if time_now < look:
            continue
        look = time_now + REQUEST_PERIOD
        if limits is not None:
            slow.look(session.steps, ahead(session.step_timer.usual(), ASKED_AHEAD))
        if _modified(os.path.join(session.plan["recording"], LEAVE)) or deserted():
            leave(session)
            return
        if due and (session.allowance.plain(1) is not None or _agreed(session, STEADY_WINDOW)):
            due = not (yield from _profiles(session, STEADY_WINDOW, PROFILE_STEPS, stacks, late=True))
            continue
        asked = _modified(request)
        if asked > served or (time_now > again and session.plan.get("profile", True)):
            yield from _profiles(session, number, PROFILE_STEPS, stacks, asked=asked > served)
            served, again = asked, time_now + (1 << 62)
            number += 2


def _fast_path(session: Session, until: int) -> Stage:
    """Stays on the fast path until the first boundary after `until`, ns; not at all if every n-th step is sampled."""
    session.fast_path.until = 0 if session.catching.every else until
    yield
    session.fast_path.until = 0


def _is_near(session: Session, slow: Occurrences) -> bool:
    """True if the named slow step comes soon, so that every step must be reported."""
    return slow.step > 0 and slow.near(session.steps, 2 * FAST_PATH_TIME // max(1, session.step_timer.usual()) + 1)


def _slow_step(session: Session, slow: Occurrences) -> Stage:
    """Profiles the named slow step, on all ranks that trace."""
    number, step = slow.number, slow.step
    slow.over()
    if not traces(place(), session.plan.get("trace_ranks") or ()) or not session.plan.get("profile", True):
        return
    if session.steps + 1 > step:
        session.recorder.note(f"the slow step {step} was over when this rank read that all should profile it")
        return
    if (form := session.allowance.plain(1, asked=True)) is None:
        session.recorder.note(f"the slow step {step} was not profiled: its window would have held the job for too long")
        return
    window = _window(session, SLOW_WINDOW + number, stacks=False, detailed=form.detailed)
    window.caught = True
    yield from _profile(session, window, 1, SLOW_PATIENCE)


def _unseen(session: Session, stage: Generator[None, None, T]) -> Generator[None, None, T]:
    """Runs a stage that makes steps longer, and marks them as slowed by the probe."""
    session.slowed = True
    usual, first, start = session.step_timer.usual(), session.steps, now() - session.recorder.held
    try:
        return (yield from stage)
    finally:
        session.slowed = False
        session.allowance.steps_took(session.steps - first, usual, now() - session.recorder.held - start)


def _modified(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError as error:
        pass_on(error)
        return 0.0


def steps_to_next(iterators: Iterable[Any], backwards: int, steps: int, wanted: int) -> int:
    """Returns the number of steps until the loader's next epoch, or 0 if this epoch has enough left for `wanted` steps.
    The epoch may be the last one: a window that the job ends in is lost, and disturbs the job's end. backwards: number
    in `steps` steps so far; each takes a batch."""
    left, batches = _batches_left(iterators), max(1, -(-backwards // max(1, steps)))
    return left + 1 if left is not None and left < wanted * batches else 0


def _batches_left(iterators: Iterable[Any]) -> int | None:
    """Returns the most batches that a loader in use still has in its epoch; None if unknown."""
    left = []
    for iterator in iterators:
        taken, total = getattr(iterator, "_num_yielded", 0), counted_length(getattr(iterator, "_index_sampler", None))
        if total is not None and 0 < taken <= total:
            left.append(total - taken)
    return max(left, default=None)


AHEAD_STEPS, AHEAD_TIME = 4, SECOND // 2
"""Distance of a named step, in steps and ns: for ranks that are ready later, and for slow shared file systems."""
ASKED_AHEAD = REQUEST_PERIOD + FAST_PATH_TIME + AHEAD_TIME
"""Distance of a named step, ns, for ranks that look for the file only now and then."""


@dataclass(frozen=True)
class Agreed:
    """Agreement of all ranks on a window. step: number of the step after which window `number` starts; steps: its
    length, 0 if it must wait; detailed: True with shapes and modules; stacks: True if one with stacks follows, `apart`
    steps later; every: True if that one has shapes and allocations; late: True if it missed its first chance."""

    number: int
    step: int
    steps: int
    stacks: bool
    apart: int
    detailed: bool = True
    every: bool = True
    late: bool = False

    @property
    def whole(self) -> int:
        """Number of steps from the first to the last one of the agreed windows."""
        return self.steps + self.stacks + (self.apart if self.steps and self.stacks else 0)

    @property
    def file_name(self) -> str:
        return f"profile-{self.number}{'-late' * self.late}.json"


def ahead(duration: int, time: int = AHEAD_TIME) -> int:
    """Returns the number of steps until one that ranks `time` ns apart can agree on. duration: ns of a step."""
    return max(AHEAD_STEPS, time // max(1, duration))


def agree(recording: str, mine: Agreed) -> Agreed:
    """Returns the window for all ranks. mine: this rank's proposal. Raises OSError if the file cannot be written."""
    path = os.path.join(recording, mine.file_name)
    if not written_once(path, asdict(mine)):
        strange = OSError, ValueError, KeyError, TypeError, OverflowError
        with suppressed(*strange), open(path, encoding="utf-8") as file:
            found = json.load(file)
            step, steps, apart = (int(found[each]) for each in ("step", "steps", "apart"))
            stacks, detailed, every = (bool(found[each]) for each in ("stacks", "detailed", "every"))
            return Agreed(mine.number, step, steps, stacks, apart, detailed, every, mine.late)
    return mine


def _agreed(session: Session, number: int) -> bool:
    """True if another rank has named the step of a late window."""
    path = os.path.join(session.plan["recording"], Agreed(number, 0, 0, False, 0, late=True).file_name)
    return not place().alone and os.path.exists(path)
