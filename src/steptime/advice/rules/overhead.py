"""ST3xx: dispatch and launch overhead, synchronisation, compilation, the allocator."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from steptime.advice.device_uses import AllocationUse, GapUse, ScalingUse
from steptime.advice.evidence import Case, CompilationUse, CompilerUse, OptimizerUse, SiteUse
from steptime.advice.kernels import EMPTY_KERNEL, as_evidence, first_source, longest, plain_name, time_in
from steptime.advice.line_evidence import lines_around
from steptime.advice.loops import LARGEST_OPERATOR, Loop, by_rounds, loops, siblings
from steptime.advice.memory_evidence import has_room
from steptime.advice.models import REFUSED, or_compile, staging_operators
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.run_uses import CategoryUse, MemoryUse, StepSummary
from steptime.advice.savings import (
    NOTHING,
    capped,
    in_step,
    largest,
    less,
    modelled,
    named,
    partly,
    per_step,
    ratio,
    scaled,
    share_of_step,
    summed,
    total,
)
from steptime.advice.written_ways import is_in, loop_around, runs_again
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.what_if.calibrated import HOST
from steptime.quantities import Estimate, SourceLine, format_bytes, format_count, format_duration, format_source
from steptime.trace.compile_logs import CompilerEvent
from steptime.trace.links import is_user_file

LEAST_PART_OF_OPERATORS, LEAST_OF_STEP = 0.25, 0.1
"""Fractions of all operators of the step, and of its time: a loop with fewer, whose lines were not seen to take as much
either, is not worth the trouble."""
MOST_OF_OPERATORS = 0.5
"""A function that calls fewer is not where a step's dispatch is."""
FEWEST_MICRO_BATCHES = 2
"""A step: fewer, larger ones are to be had from here on."""
ON_A_LIST = "Use one operator on the whole tensor, or one for the whole list of tensors (torch._foreach_*){}."
"""Outside of the model a loop goes over parameters as often as over samples."""
LONGEST_HINT = 160
MOST_NAMED = 4
"""Operators outside of graphs that the advice names."""
LARGE_COMPILING = 0.1
"""Fraction of the run: compiling the same again and again that takes more is no price of a start."""
MOST_EVENTS = 5
"""Graph breaks and guards that are reported one by one: all are in the tables."""
MOST_SITES = 3
"""A fourth line would not be read."""
LEAST_OVERHEAD = 0.2
"""Fraction of the step: every eager model dispatches; from a fifth on it is worth the trouble of compiling or
batching."""
LEAST_OF_HOST_BOUND = 0.1
"""The same where the CPU decides the step: no change of the device's work saves anything then."""
FEWEST_KERNELS = 10.0
"""A step on a device: next to fewer launches idle time has another cause, and compiling has little to fuse. On a CPU
the same of operators."""
STALLED = 0.5
"""Fraction of the idle time: where a few long gaps are half of it, the CPU stalled, and did not dispatch slowly."""
STALL = 5e6
"""ns of such a gap: loading a library, allocating, tuning take milliseconds and more, launches never do."""
HARMLESS = frozenset({"to", "cuda", "copy_"})
"""Calls that only wait when they copy from the device, or from pageable memory: only a trace shows whether they do."""
READS = {"_local_scalar_dense": "item", "is_nonzero": "item", "_to_copy": "to", "masked_select": "masked_select"}
"""Operators of ATen, and the call in Python that runs them."""
READ_LESS = "Keep the value on the device and read it every n-th step."
TINY = 10_000.0
"""ns of a kernel: filling the device, starting and ending take 1 to 3 microseconds of every kernel, so that below ten
they are a considerable part of it."""
FEWEST_TINY = 100.0
"""A step: fewer kernels cost less than anybody will notice."""
LEAST_PART_TINY = 0.3
"""Fraction of the device's busy time: else the large kernels are what to look at."""
HELD_BACK = 0.2
"""Fraction of the step: from here on the CPU launches too slowly, and overhead-bound says so with what can be saved
there."""
FUSES_AT_LEAST, FUSES = 0.3, 0.6
"""Fraction of the kernels: every third is gone when pairs of a chain of pointwise operators are fused here and there;
compiling a whole model commonly leaves less than half of them."""
UNCACHED = 100.0
"""Calls per step: the caching allocator asks for large blocks, a few at a time; this many are one for each tensor."""
TAKEN_APART = frozenset({"select_backward", "slice_backward"})
"""Derivatives of x[i] and x[a:b]: zeros of x's size with the gradient in one place (torch's derivatives.yaml)."""
BEHIND = (frozenset({"fill", "zero"}), frozenset({"add"}))
"""Operators that come with each of them: new zeros, and a sum with the others."""
FEWEST_SLICES = 16
"""A step: below it, one pass over a few tensors is saved, not one for each round of a loop."""


@rule(
    "ST301",
    "dispatch-loop",
    supersedes=("overhead-bound", "python-time", "memory-bound-pointwise", "outside-model"),
    by_line=True,
)
def dispatch_loop(step: StepSummary, categories: tuple[CategoryUse, ...], case: Case) -> Iterator[Finding]:
    """A Python loop calls many tiny operators

    What it means: One line of Python calls hundreds of operators in each step: a loop over time steps, samples,
    parameters or heads. Each operator computes less than its dispatch costs, in forward and again in backward.

    How we know: The profile counts the operators of each function and their mean duration. If the function's lines
    are timed, its operators are divided among the lines by time, and a line counts if it runs several times per
    batch. In a bare trace the stacks must show a function that calls the same thing, or is called by the same one,
    eight times or more: a model that is called once is no loop. The savings are the share of the breakdown's overhead
    that belongs to the line or function. On a CPU, three more parts are added: the loop's own Python; the time of
    operators that are bound by latency, whose arithmetic takes no longer than their dispatch; and half of the time of
    small matmuls beyond the machine's rate, because one large matmul does the same arithmetic faster. The interval
    ends at all of these. In some loops no round needs the result of another (experts, heads, samples), so all rounds
    can be computed at once. There the interval starts at the dispatch of the loop's operators. It ends at everything
    that its forward and backward take beyond their arithmetic, including the update of its tensors one by one.

    What helps: One operator on the whole tensor: a matmul, einsum, cumsum, torch.nn.LSTM in place of a loop over
    cells, a torch._foreach operator over parameters. For modules called one by one, such as experts, torch.bmm over
    stacked weights, or torch.func.stack_module_state with vmap. Else torch.compile, which fuses the loop; on CUDA a
    graph (mode="reduce-overhead").

    When to ignore it: When each round of the loop depends on a decision that the CPU makes from the last.
    """
    launch, on_device = named(categories, "overhead"), step.device != "cpu"
    overhead = launch.recoverable if launch is not None else NOTHING
    compiled = or_compile(case.second_order, "the function that holds it")
    if case.compilations or step.compiled:
        compiled = "; the compiler has left this line as it is"
    advice = f"Vectorize: replace the loop by one operator on the whole tensor{compiled}."
    everything = sum(operator.calls for operator in case.operators)
    for site in sorted(loops(case), key=lambda site: site.calls, reverse=True)[:MOST_SITES]:
        part = ratio(site.calls, max(everything, site.calls))
        is_small = part < LEAST_PART_OF_OPERATORS and site.spent < LEAST_OF_STEP * step.duration.value
        if site.each > LARGEST_OPERATOR or is_small:
            continue
        saving, source = scaled(overhead, min(1.0, part)), site.source
        if not on_device:  # a device only waits for what the CPU cannot hide
            saving = capped(_with_updates(site.saving(saving), site, case), step.duration)
        where = format_source(source)
        where += f" ({source.function})" if source.function and not source.text else ""
        where = f"The lines around {where} call" if site.lines > 1 else f"{where} calls"
        outer = _looping_caller(source, case)
        where = f"{format_source(outer)} calls" if outer is not None else where
        whole = max(everything, site.calls)
        summary = f"{where} {site.calls:,.0f} of the step's {whole:,.0f} operators: "
        summary += in_step(saving.value, step)
        stacked = (
            f"{each.type} updates {each.parameters} tensors; stacked weights are few." for each in _updates(site, case)
        )
        text = (*((source.text,) if source.text else ()), *stacked)
        timed = [site.caller] if site.caller else [line for line in case.lines if line.source == source]
        companions = any(line.role == "python" for line in timed)
        on_a_list = ON_A_LIST.format(or_compile(case.second_order, "the function"))
        reported = on_a_list if companions and not (case.compilations or step.compiled) else advice
        reported = (
            _grouping(site, case)
            or by_rounds(case, site.rounds)
            or _of_rounds(case, outer or source, compiled)
            or reported
        )
        if outer is not None:
            text = (outer.text, f"Most of them around {format_source(source)}.", *text)
        yield dispatch_loop.finding(
            summary,
            reported,
            saving,
            category="overhead" if on_device else "",
            source=outer or source,
            evidence=text,
            below=source if outer is not None else None,
        )


def _looping_caller(source: SourceLine, case: Case) -> SourceLine | None:
    """The line whose loop runs a line that has none around it in its own function: the nearest of those that call it,
    without the training loop's own."""
    if not any(is_in(source, each) for each in case.texts):
        return None
    spent = Counter[SourceLine]()
    for path in case.paths:
        at = next((at for at, line in enumerate(path.lines) if is_same_function(line, source)), None)
        for line in path.lines[at:-1] if at is not None else ():
            function = next((each for each in case.texts if is_in(line, each)), None)
            if function is not None and runs_again(function, line.line):
                spent[line] += round(path.duration)
                break
    found = next((line for line, _ in spent.most_common(1)), None)
    return found if found is not None and not is_same_function(found, source) else None


def is_same_function(one: SourceLine, other: SourceLine) -> bool:
    """True for lines of one function of one class, by whole paths: a caller is often a `forward` of the same file."""
    return (one.file, one.function) == (other.file, other.function)


def _of_rounds(case: Case, source: SourceLine, compiled: str = "") -> str:
    """Advice by whether a round of the loop around a line needs another's result; "" where that is not known."""
    text = next((each for each in case.texts if is_in(source, each)), None)
    loop = loop_around(text, source.line) if text is not None else None
    if loop is None:
        return ""
    if loop.carried:
        return (
            f"Each round takes {loop.carried} from the one before: do all that does not depend on it once, for all "
            f"rounds, before the loop{compiled}."
        )
    return (
        "No round of the loop reads what another wrote: run its operators once for all rounds, on tensors with one "
        f"more dimension (torch.func.vmap does that to the loop's body){compiled}."
    )


def _grouping(site: Loop, case: Case) -> str:
    """Advice on rounds that do not depend on each other, each a module of its own; "" for other loops."""
    count, kind = siblings(case) if site.at_once is not None else (0, "")
    if not count:
        return ""
    stacked = "torch.func.stack_module_state" + (" with vmap" if not case.second_order else "")
    return f"Group the {count} modules {kind}: stack their weights, and multiply all at once (torch.bmm, or {stacked})."


def _updates(site: Loop, case: Case) -> tuple[OptimizerUse, ...]:
    """Optimizers that update the tensors of a loop's modules."""
    grouped = bool(_grouping(site, case))
    return tuple(each for each in case.optimizers if grouped and each.parameters >= siblings(case)[0])


def _with_updates(saving: Estimate, site: Loop, case: Case) -> Estimate:
    """Savings up to those of the optimizer, which has few tensors left; its own finding promises them."""
    return replace(saving, high=saving.high + sum(each.duration.value for each in _updates(site, case)))


@rule("ST302", "overhead-bound")
def overhead_bound(step: StepSummary, categories: tuple[CategoryUse, ...], case: Case) -> Finding | None:
    """The step is bound by dispatching its operators

    What it means: The CPU cannot dispatch the operators as fast as they are computed: Python, the dispatcher,
    autograd and (on CUDA) the launches take the time. Such a step takes as long with a larger batch or a faster
    device.

    How we know: The savings are the breakdown's overhead category. On a CPU this is the time of the training thread
    around and between small operators. On an accelerator it is the device's idle time while the CPU is dispatching;
    the evidence names the operators and modules that the CPU dispatched in the largest gaps. The rule fires from a
    fifth of the step on, and from a tenth if a replay of the trace shows that the CPU decides how long the step is.

    What helps: torch.compile; on CUDA its mode "reduce-overhead" (graphs); a larger batch, which carries more work
    per dispatch; fused optimizers; fewer, larger operators. If graphs are launched already, the operators outside
    of them are named: compile the loss with the model, and the optimizer's step by itself. AccumulateGrad runs once
    for each parameter; torch._dynamo.config.compiled_autograd includes it in the graph. A recurrent layer of torch
    runs a dozen operators for each time step on a CPU, and torch.compile does not change it: use a larger batch, or
    fewer time steps.

    When to ignore it: When the batch is small for a reason (online learning, reinforcement learning) and the step is
    fast enough.
    """
    launch = named(categories, "overhead")
    by_host = case.replay is not None and case.replay.decides == HOST
    least = LEAST_OF_HOST_BOUND if by_host else LEAST_OVERHEAD
    if launch is None or ratio(launch.recoverable.value, step.duration.value) < least:
        return None
    launched = [use for use in case.kernels if use.bound != "communication"]
    often, idle = sum(use.calls for use in launched), launch.duration.value
    if case.kernels and often < FEWEST_KERNELS:
        return None
    idlest = _gaps(case.gaps, "overhead")
    stalls = [gap for gap in idlest if gap.longest >= STALL]
    if stalls and sum(min(gap.longest, gap.duration.value) for gap in stalls) >= STALLED * idle:
        return _stall(step, stalls, launch.recoverable)
    calls = sum(operator.calls for operator in case.operators)
    if not often and 0 < calls < FEWEST_KERNELS and not (case.compilations or step.compiled):
        return None
    many = f" of {calls:,.0f} operators" if calls else ""
    summary = f"Dispatch{many} takes {in_step(idle, step)}"
    if often:
        summary = f"The device idles {in_step(idle, step)} while the CPU {_launches(step, often)}"
        if not _replays(step):
            summary += f", each of which runs for {format_duration(ratio(time_in(launched), often))}"
    graphs = ' (mode="reduce-overhead")' if step.device != "cpu" else ""
    larger = f"enlarge the batch{_free_memory(case.memory)}"
    if step.micro_batches >= FEWEST_MICRO_BATCHES:
        larger = f"accumulate over fewer, larger micro-batches ({step.micro_batches:.0f} per step now)"
    advice = f"Compile the model{graphs}, or {larger} so that each operator does more."
    if case.second_order:
        advice = f"{larger[:1].upper()}{larger[1:]} so that each operator does more: {REFUSED}."
    if case.compilations or step.compiled:
        advice = f"Part of the job is compiled: {_left_eager(case.compiler)}{graphs}; or {larger}."
    if _replays(step):
        advice = f"Graphs are in use already: {_outside_graphs(step)}; or {larger}."
    if calls and sum(operator.recurrent for operator in case.operators) >= MOST_OF_OPERATORS * calls:
        advice = by_rounds(case) or (
            "Enlarge the batch: most of them are in torch's recurrent layers, which no compiler takes apart."
        )
    # The longest gap alone may be the batch's, or a clipping's.
    behind = largest(summed((gap.source, gap.duration.value) for gap in idlest if gap.source is not None))[0]
    source = behind or _busiest(case.operators)
    evidence = tuple(
        f"{gap.cause or 'between operators'}: {format_duration(gap.duration.value)} idle per step "
        f"in {format_count(gap.count, 'gap')}"
        for gap in idlest[:5]
    )
    saving = launch.recoverable
    return overhead_bound.finding(summary, advice, saving, category="overhead", source=source, evidence=evidence)


def _free_memory(memory: MemoryUse | None) -> str:
    """Text on the used part of a device's memory, if a batch of twice the size has room."""
    if memory is None or not has_room(memory):
        return ""
    return f" ({format_bytes(memory.peak)} of {format_bytes(memory.capacity or 0)} is used)"


def _replays(step: StepSummary) -> bool:
    """True if the step launches kernels as graphs: then launches and kernels are two numbers."""
    return step.graphs is not None and step.graphs.launches > 0


def _launches(step: StepSummary, kernels: float) -> str:
    """Launches of the CPU: kernels, or graphs and the kernels next to them."""
    graphs = step.graphs
    if graphs is None or not graphs.launches:
        return f"launches {format_count(kernels, 'kernel')}"
    inside = f" of {format_count(graphs.kernels, 'kernel')}" if graphs.kernels else ""
    return f"launches {format_count(graphs.launches, 'graph')}{inside}, and {format_count(graphs.single, 'kernel')}"


def _outside_graphs(step: StepSummary) -> str:
    """Advice about the CPU's work next to the graphs, by its names."""
    eager = step.graphs.eager if step.graphs is not None else ()
    if not eager:
        return "put more of the step into them"
    names = (f"{use.name} ({use.calls:.0f} calls)" if use.calls >= 2 else use.name for use in eager[:MOST_NAMED])
    return f"take in what runs eagerly next to them, {', '.join(names)}"


def _busiest(operators: Sequence[OperatorUse]) -> SourceLine | None:
    """The function that calls at least half of the operators, where one does."""
    calls = summed((use.source, use.calls) for use in operators)
    source, most = largest(calls)
    return source if most >= MOST_OF_OPERATORS * sum(calls.values()) else None


def _left_eager(compiler: CompilerUse | None) -> str:
    """Advice about operators that the compiler has left: where it wrote down its breaks, they are known (ST308)."""
    if compiler is None:
        return "look for graph breaks and code that still runs eagerly"
    return (
        "fix its graph breaks (ST308) and compile the rest" if _breaks(compiler) else "compile what still runs eagerly"
    )


def _breaks(compiler: CompilerUse) -> list[CompilerEvent]:
    """Graph breaks at lines of the user's."""
    return [each for each in compiler.breaks if is_user_file(each.source.file)]


def _gaps(gaps: tuple[GapUse, ...], category: str) -> list[GapUse]:
    """The device's idle times of a category, the longest first."""
    chosen = (gap for gap in gaps if gap.category == category)
    return sorted(chosen, key=lambda gap: gap.duration.value, reverse=True)


def _stall(step: StepSummary, gaps: list[GapUse], launch: Estimate) -> Finding:
    """Long gaps, one of each cause, the longest first: compiling would not shorten them."""
    gap, stalled = gaps[0], total(each.duration for each in gaps)
    longest = format_duration(max(each.longest for each in gaps))
    running = [each.cause or "the CPU" for each in gaps[:3]] + ["others"] * (len(gaps) > 3)
    calls = " and ".join(filter(None, (", ".join(running[:-1]), running[-1])))
    runs = "runs" if len(running) == 1 else "run"
    idle = in_step(stalled.value, step)
    summary = f"The device idles {idle}, up to {longest} at a time, while {calls} {runs}"
    advice = "If that is the job's start (libraries, tuning, first allocations), trace later steps; "
    advice += "else take these calls out of the step."
    saving = capped(stalled, launch)
    return overhead_bound.finding(summary, advice, saving, category="overhead", source=gap.source)


@rule("ST303", "host-sync")
def host_sync(step: StepSummary, categories: tuple[CategoryUse, ...], case: Case) -> Iterator[Finding]:
    """The CPU waits for the device, and then the device for the CPU

    What it means: A value is read from the device (item, cpu, tolist, nonzero, a boolean mask, a print): the CPU
    waits until the queue is empty, and the device idles until the next operators arrive.

    How we know: The savings are the device's idle time from when its queue is empty to the next launch, not the
    duration of the call. A trace has that for each gap, with the operator that blocked the CPU's thread. Without a
    trace, the breakdown's sync category is the upper bound for all such calls together. In a few steps, calls that
    read from device tensors are recorded with their lines; the finding's line is one of these.

    What helps: Read values every n-th step. Keep running sums on the device (loss.detach()). Use where and masks of
    fixed size in place of nonzero and boolean indexing. Copy with non_blocking=True from pinned memory.

    When to ignore it: When the device has enough work queued: then no idle time follows and the rule does not fire.
    """
    staging = staging_operators(case.copies)  # the matter of ST107
    waits = (gap for gap in _gaps(case.gaps, "sync") if gap.cause and gap.cause not in staging)
    shorter = (_without_scaler(case.scaling, gap) for gap in waits)
    idle = [gap for gap in shorter if gap.duration.value > 0]
    yield from (_after_gap(step, case.sites, gap) for gap in idle[:MOST_SITES])
    if idle:
        return
    reading = (site for site in case.sites if site.device != "cpu" and site.calls > 0)
    suspects = [site for site in reading if site.name not in HARMLESS]
    sync = named(categories, "sync")
    if suspects and sync is not None:
        yield _at_site(step, max(suspects, key=lambda site: site.calls), sync.recoverable)


def _without_scaler(scaling: ScalingUse | None, gap: GapUse) -> GapUse:
    """The idle time after reads of one kind without that after a gradient scaler's, the matter of ST418."""
    if scaling is None or READS.get(plain_name(gap.cause), plain_name(gap.cause)) != "item":
        return gap
    return replace(gap, duration=less(gap.duration, scaling.waiting.value))


def _after_gap(step: StepSummary, sites: tuple[SiteUse, ...], gap: GapUse) -> Finding:
    """Idle time after a wait, with the line that waits where one call of that name was recorded."""
    call = READS.get(plain_name(gap.cause), plain_name(gap.cause))
    waiting = [site for site in sites if site.device != "cpu" and site.name == call]
    source = gap.source or (max(waiting, key=lambda site: site.calls).source if waiting else None)
    where = f" at {format_source(source)}" if source else ""
    summary = f"The device idles {in_step(gap.duration.value, step)} after {gap.cause}{where} waited for it"
    evidence = (f"{format_count(gap.count, 'gap')} per step, the longest {format_duration(gap.longest)}",)
    advice = _advice_on_call(call)
    return host_sync.finding(summary, advice, gap.duration, category="sync", source=source, evidence=evidence)


def _advice_on_call(call: str) -> str:
    if call in {"nonzero", "masked_select", "index", "unique"}:
        return "Its result has a size that only the device knows: use where(), or masks of fixed size."
    if call in HARMLESS or "emcpy" in call:
        return "To the device: pinned memory and non_blocking=True. From it: less often, or all values in one copy."
    if "Synchronize" in call:
        return "Use synchronize() for measurements only; a stream or an event waits without the CPU."
    return READ_LESS


def _at_site(step: StepSummary, site: SiteUse, saving: Estimate) -> Finding:
    source, idle, calls = site.source, in_step(saving.value, step), format_count(site.calls, "call")
    summary = f"{site.name}() at {format_source(source)} makes the device idle {idle}, {calls}"
    evidence = (source.text,) if source.text else ()
    return host_sync.finding(summary, READ_LESS, saving, category="sync", source=source, evidence=evidence)


@rule("ST304", "recompilation")
def recompilation(step: StepSummary, case: Case) -> Finding | None:
    """torch.compile compiles again in the middle of training

    What it means: A guard of the compiled code failed (another shape, another Python value, another set of
    gradients), so the function is traced and compiled again. After eight compilations torch.compile gives up, and
    the function runs uncompiled.

    How we know: TorchDynamo records each compilation with its time and the guard that failed. The savings are the
    time of the compilations after the warm-up, divided by the steps after it. The measured step does not contain that
    time: compilations fall between steps, or inside steps that statistics exclude. In a bare trace, the parts of a
    compilation are annotations. There the savings are the breakdown's compile category.

    What helps: Pad or bucket to a few shapes. Use torch._dynamo.mark_dynamic or dynamic=True for a dimension that
    varies. Keep Python numbers that change (step counters, schedules) out of compiled code, or make them tensors.
    Set drop_last=True.

    When to ignore it: When it happens once per stage (first evaluation, last batch of an epoch) in a long run.
    """
    if not case.compilations:
        return _compiling_in_trace(case) if step.mode == "trace" else None
    again = [compilation for compilation in case.compilations if compilation.after_warm_up]
    steps = max(1, step.total - step.warm_up)
    if not again:
        return _compiled_at_the_start(case)
    took = sum(compilation.duration for compilation in again)
    source = max(again, key=lambda compilation: compilation.duration).source
    forwards = [line for line in case.lines if line.role == "forward"]
    if forwards and not is_user_file(source.file):  # a module of torch's was compiled: the line that called it
        source = max(forwards, key=lambda line: line.duration.value).source
    reasons = Counter(compilation.reason for compilation in again if compilation.reason)
    times = "once" if len(again) == 1 else f"{len(again)} times"
    summary = f"Compiled again {times} after the warm-up, {format_duration(took)} in all ({format_source(source)})"
    advice, text = "Look at the guards that failed and keep what changes out of the compiled code.", " ".join(reasons)
    if any(word in text.lower() for word in ("size mismatch", "shape", "stride")):
        advice = "Shapes vary: pad or bucket them, or compile with dynamic=True."
    saving = modelled(took / steps, 0.5 * took / steps, took / steps, steps)
    evidence = (*(f"{count} x: {reason}" for reason, count in reasons.most_common(3)), *_by_function(again))
    return recompilation.finding(summary, advice, saving, source=source, evidence=evidence)


def _compiled_at_the_start(case: Case) -> Finding | None:
    """Recompilations that the warm-up hides, where they are a good part of the run; of a function that was given up
    ST309 shows."""
    given_up = {each.source for each in case.compiler.limits} if case.compiler is not None else set()
    again = [each for each in case.compilations if each.reason and each.source not in given_up]
    took = sum(each.duration for each in again)
    if not again or took < LARGE_COMPILING * case.step.run:
        return None
    source = max(again, key=lambda each: each.duration).source
    summary = (
        f"Compiled again {format_count(len(again), 'time')} in the first {format_count(case.step.warm_up, 'step')}, "
        f"{format_duration(took)} in all ({format_source(source)})"
    )
    advice = f"Keep what the guard names out of the compiled code, or compile with dynamic=True: {again[-1].reason}."
    found = recompilation.finding(summary, advice, category="compile", source=source, evidence=_by_function(again))
    return replace(found, weight=Weight.NOTE)  # steady steps save nothing


def _by_function(compilations: Sequence[CompilationUse]) -> tuple[str, ...]:
    """Functions that were compiled, with how often and how long, the longest first."""
    spent: dict[SourceLine, list[int]] = defaultdict(list)
    for each in compilations:
        spent[each.source].append(each.duration)
    ordered = sorted(spent.items(), key=lambda each: -sum(each[1]))[:MOST_EVENTS]
    return tuple(
        f"{source.function or 'a function'} ({format_source(source)}): {format_count(len(times), 'compilation')}, "
        f"{format_duration(sum(times))}"
        for source, times in ordered
    )


def _compiling_in_trace(case: Case) -> Finding | None:
    category = named(case.categories, "compile")
    if category is None:
        return None
    summary = f"Compiling takes {in_step(category.duration.value, case.step)}"
    advice = "If these are no first steps, look at the reasons: TORCH_LOGS=recompiles names the guard that failed."
    again = case.compiler.recompilations if case.compiler is not None else ()
    if again:
        advice = "Look at the guards that failed and keep what changes out of the compiled code."
    source = max(again, key=lambda each: each.count).source if again else None
    return recompilation.finding(
        summary, advice, category.recoverable, category="compile", source=source, evidence=_events(again)
    )


def _events(events: Sequence[CompilerEvent]) -> tuple[str, ...]:
    """Events of the compiler in words, those that came most often first."""
    most = sorted(events, key=lambda each: -each.count)[:MOST_EVENTS]
    return tuple(f"{each.count} x {format_source(each.source)}: {each.reason}" for each in most)


@rule("ST308", "graph-break", weight=Weight.NOTE)
def graph_break(compiler: CompilerUse) -> Finding | None:
    """Graph breaks: torch.compile cuts the model into pieces

    What it means: At a graph break the compiled code ends, the line runs in Python, and another graph starts after
    it. Nothing is fused across the break, results go through memory, and each piece has guards and a launch of its
    own.

    How we know: TorchDynamo records each break with its line and its reason, and steptime reads that while the job
    runs. A trace has no breaks; there the rule needs compile logs, which TORCH_TRACE writes on request. Breaks in
    torch's own code are excluded.

    What helps: Follow the compiler's hint: keep `.item()`, `print` and branches on values of tensors out of the
    model; use torch.where or torch.cond for such a branch. `fullgraph=True` makes a break an error, so that none
    returns.

    When to ignore it: When the pieces are long, so that a break between them costs little.
    """
    breaks = _breaks(compiler)
    if not breaks:
        return None
    first = max(breaks, key=lambda each: each.count)
    places = "1 line breaks" if len(breaks) == 1 else f"{len(breaks)} lines break"
    summary = f"{places} the compiled graph: {format_source(first.source)}, {first.reason}"
    advice = "Keep what the compiler cannot trace out of the model, or move it to its end."
    if first.hint and len(first.hint) <= LONGEST_HINT:
        advice = first.hint
    return graph_break.finding(summary, advice, category="compile", source=first.source, evidence=_events(breaks))


@rule("ST309", "recompile-limit", weight=Weight.NOTE)
def recompile_limit(compiler: CompilerUse, compilations: tuple[CompilationUse, ...] = ()) -> Finding | None:
    """A function was compiled too often, and runs uncompiled

    What it means: After torch._dynamo.config.recompile_limit compilations of one function (8 by default)
    torch.compile gives up. Calls that fit none of the compiled versions then run uncompiled, without a warning.

    How we know: TorchDynamo records each compilation with the guard that made it necessary, and each function that
    reached the limit. steptime reads that while the job runs. A trace does not have it; there the rule needs compile
    logs, which TORCH_TRACE writes on request.

    What helps: Keep constant what the guards name: pad or bucket sizes, use torch._dynamo.mark_dynamic or
    dynamic=True, make changing Python numbers tensors. Raise the limit only if few versions are really needed.

    When to ignore it: When the uncompiled calls are rare (a last batch, an evaluation).
    """
    limits = compiler.limits
    if not limits:
        return None
    source = limits[0].source
    own = [each for each in compilations if each.source == source]
    took = sum(each.duration for each in own)
    often = f"{len(own)} times in {format_duration(took)}" if took else "too often"
    summary = f"{source.function or 'A function'} ({format_source(source)}) was compiled {often} and runs uncompiled"
    guards = [each for each in compiler.recompilations if each.source == source]
    advice = "Keep what its guards name from changing: bucket sizes, dynamic=True, or tensors for Python numbers."
    if guards:
        advice = f"{advice[:-1]} ({guards[-1].reason})."
    return recompile_limit.finding(summary, advice, category="compile", source=source, evidence=_events(guards))


@rule("ST305", "tiny-kernels")
def tiny_kernels(step: StepSummary, kernels: tuple[KernelUse, ...], case: Case) -> Finding | None:
    """The device is busy with kernels that are too small for it

    What it means: Hundreds of kernels of a few microseconds each follow one another. Each one fills the device,
    works for a moment and drains it again. Starting and ending costs more than the work, and no larger device makes
    it faster.

    How we know: Kernels that take less than ten microseconds on average are added up. The rule fires from a hundred
    such kernels per step on. The cost of each is the time that an empty kernel takes. The savings are that cost for
    60 % of the kernels, as many as fusing usually removes; the interval starts at 30 %. The rule is silent if the CPU
    cannot launch the kernels fast enough anyway: then ST302 fires.

    What helps: torch.compile, which fuses neighbours; foreach and fused optimizers; one batched operator for a loop
    over small ones; a larger batch, which makes kernels longer but not more.

    When to ignore it: When the batch is small by design (inference for one request, reinforcement learning).
    """
    launch = named(case.categories, "overhead")
    if launch is not None and ratio(launch.duration.value, step.duration.value) >= HELD_BACK:
        return None
    tiny = [use for use in kernels if ratio(use.duration, use.calls) < TINY]
    calls, busy = sum(use.calls for use in tiny), time_in(tiny)
    if calls < FEWEST_TINY or ratio(busy, time_in(kernels)) < LEAST_PART_TINY:
        return None
    each = format_duration(ratio(busy, calls))
    empty = sum(use.calls * min(EMPTY_KERNEL, ratio(use.duration, use.calls)) for use in tiny)
    advice = "Compile the model, and use a fused or foreach optimizer, so that neighbours become one kernel."
    if case.second_order:
        advice = f"Use a fused or foreach optimizer, and batch small operators into one: {REFUSED}."
    if case.compilations or step.compiled:
        advice = "Part of the job is compiled: bring what runs eagerly into it, or batch small operators into one."
    return tiny_kernels.finding(
        f"{calls:.0f} kernels of {each} each take {in_step(busy, step)}",
        advice,
        partly(empty, FUSES, FUSES_AT_LEAST, step),
        category="compute",
        source=first_source(longest(tiny)),
        evidence=tuple(map(as_evidence, sorted(tiny, key=lambda use: use.calls, reverse=True)[:3])),
    )


@rule("ST306", "allocator-stalls", supersedes=("overhead-bound", "host-sync"))
def allocator_stalls(step: StepSummary, allocations: tuple[AllocationUse, ...]) -> Iterator[Finding]:
    """Device memory is allocated and freed in the middle of steps

    What it means: PyTorch caches the memory that it gets from the driver. If a steady step still calls cudaMalloc
    or cudaFree (hipMalloc, hipFree), the cache does not fit the job. Causes: shapes that change, fragmentation,
    memory that is nearly full (torch frees everything and tries again), or a call of empty_cache(). Freeing waits
    for the device to finish.

    How we know: The trace has the calls of the driver's allocator, with the time that the CPU spent in them. The
    savings are the time that the device idled during the calls, not their duration. If this idle time belongs to
    several categories of the breakdown, each is a finding of its own.

    What helps: Take torch.cuda.empty_cache() out of the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against
    fragmentation; a few shapes instead of many (padding, bucketing); less memory, so that no retry is needed.

    When to ignore it: In the first steps, and when the trace covers nothing else.
    """
    calls, host = sum(use.calls for use in allocations), format_duration(sum(use.duration.value for use in allocations))
    top, like = max(allocations, key=lambda use: use.idle.value), " and its like" if len(allocations) > 1 else ""
    evidence = [f"The CPU spends {host} {per_step(step)} in them."]
    evidence += [
        f"{use.name}: {format_count(use.calls, 'call')} {per_step(step)}, {format_duration(use.duration.value)}"
        for use in allocations[:3]
    ]
    if calls >= UNCACHED:
        advice = "So many calls mean that no memory is cached: look for PYTORCH_NO_CUDA_MEMORY_CACHING"
        advice += ", or empty_cache() in the loop."
    elif any("Free" in use.name for use in allocations):
        advice = "Take empty_cache() out of the loop; if there is none, memory is nearly full or fragmented: use less."
    else:
        advice = "Keep to a few shapes, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    for category in dict.fromkeys(name for use in allocations for name, _ in use.within):
        idle = total(spent for use in allocations for name, spent in use.within if name == category)
        yield allocator_stalls.finding(
            f"The device idles {in_step(idle.value, step)} in {format_count(calls, 'call')} of {top.name}{like}",
            advice,
            idle,
            category=category,
            source=top.source,
            evidence=tuple(evidence),
        )


@rule("ST307", "indexing-in-loop", supersedes=("memory-bound-pointwise", "dominant-operator", "outside-model"))
def indexing_in_loop(step: StepSummary, operators: tuple[OperatorUse, ...], case: Case) -> Finding | None:
    """A loop indexes a tensor, and backward pays for all of it in each round

    What it means: The loop takes x[:, t] (or x[a:b]) of a tensor that needs a gradient. The derivative of each
    slice is a tensor as large as x, with zeros outside of the slice, and these are added one by one. With T rounds
    that is T times the memory traffic of x, where one pass is enough.

    How we know: The rule works for jobs on a CPU, where operators are timed one by one. With n derivatives of slices
    in backward, n - 1 fills with zeros and n - 1 additions belong to them. Their share of the operators in backward is
    applied to the measured backward, less one pass, which is needed anyway. The interval starts without the fills and
    ends with all of them, because writing to new memory may take far longer in the profiled steps than in the others.
    Slices that torch's own recurrent layers take (of a packed batch) are not counted.

    What helps: Take the tensor apart once, before the loop: `parts = x.unbind(1)` (or x.split(size)), and use parts[t].
    Its derivative is one stack. The results are the same.

    When to ignore it: When one operator on the whole tensor can replace the loop itself: then do that.
    """
    slices = [use for use in operators if use.name.removeprefix("aten::") in TAKEN_APART]
    count = sum(use.calls - use.recurrent for use in slices)
    if step.device != "cpu" or count < FEWEST_SLICES:
        return None
    backward = [use for use in operators if use.phase == "backward"]
    filled, added = (_some(count - 1, [use for use in backward if plain_name(use.name) in names]) for names in BEHIND)
    phase, profiled = named(case.phases, "backward"), sum(use.duration for use in backward)
    scale = min(1.0, ratio(phase.duration.value, profiled)) if phase is not None else 1.0
    own = sum(use.duration * (1 - ratio(use.recurrent, use.calls)) for use in slices)
    most = scale * (own + filled + added)
    least = most - scale * filled
    taken, once, source = (least + most) / 2, 1 - 1 / count, _slicing_line(case, slices)
    return indexing_in_loop.finding(
        f"{count:.0f} slices per step are taken of tensors; backward fills and adds up a whole tensor for each: "
        f"{format_duration(taken)} ({share_of_step(taken, step)})",
        (_of_rounds(case, source) if source is not None else "")
        or "Take the tensor apart once before the loop, by unbind() or split(), and index what that returns.",
        modelled(once * taken, once * least, once * most, step.steady),
        category="compute",
        source=source,
    )


def _some(calls: float, uses: Sequence[OperatorUse]) -> float:
    """ns of so many calls of operators that are called more often."""
    return sum(use.duration for use in uses) * min(1.0, ratio(calls, sum(use.calls for use in uses)))


def _slicing_line(case: Case, slices: Sequence[OperatorUse]) -> SourceLine | None:
    """The line of the slicing function that runs most often, which is in its loop; the function where none is timed."""
    found = next((use.place for use in slices if use.place is not None), None)
    if found is None:
        return None
    timed = lines_around(case.lines, case.paths, found)
    repeated = [line for line in timed if "[" in line.source.text and line.hits >= FEWEST_SLICES / 2]
    return max(repeated, key=lambda line: line.duration.value).source if repeated else found
