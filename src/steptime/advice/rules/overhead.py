"""ST3xx: dispatch and launch overhead, synchronisation, compilation, the allocator."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from steptime.advice.evidence import AllocationUse, GapUse, KernelUse, LineUse, OperatorUse, Signal, SiteUse
from steptime.advice.kernels import first_source, longest, plain_name, spent, told
from steptime.advice.line_evidence import function_of
from steptime.advice.models import staging_operators
from steptime.advice.rule import Finding, rule
from steptime.advice.savings import capped, modelled, named, ratio, scaled, total
from steptime.advice.signals import Signals
from steptime.quantities import Estimate, SourceLine, format_duration, format_share, format_source
from steptime.trace.links import is_user_file

FEWEST_OPERATORS = 100
"""From one line or function per step: below it, it is no loop over elements."""
LARGEST_OPERATOR = 15_000.0
"""ns: an operator that takes longer on a CPU does enough work to be worth its dispatch (3 to 10 µs in eager mode)."""
LEAST_PART_DISPATCH_LOOP = 0.25
"""Of all operators of the step: one line that calls fewer is not why the step is bound by dispatch."""
FEWEST_ROUNDS = 8
"""Executions of a line per step: a line that runs once, or once per block of a model, is no loop over elements."""
CALLERS = frozenset({"forward", "python"})
"""Roles of lines that call the operators of a loop themselves."""
MOST_SITES = 3
"""A fourth line would not be read."""


@dataclass(frozen=True, slots=True)
class _Site:
    """Operators that one line or function calls in a step. each: mean ns of one. idle: ns of those whose work takes no
    longer than their dispatch. host: ns of Python in the loop."""

    source: SourceLine
    calls: float
    each: float
    idle: float = 0.0
    host: float = 0.0


@rule(
    "ST301",
    "dispatch-loop",
    needs={Signal.STEP, Signal.CATEGORIES},
    uses={Signal.LINES, Signal.OPERATORS, Signal.COMPILATIONS},
    instead_of=("overhead-bound", "python-time", "memory-bound-pointwise"),
    by_line=True,
)
def dispatch_loop(signals: Signals) -> Iterator[Finding]:
    """A Python loop calls many tiny operators

    What it means
        One line of Python calls hundreds of operators in each step (a loop over time steps, samples, parameters or
        heads), each too small to be worth the microseconds that its dispatch costs, forward and again in backward.

    How we know
        The profile counts the operators of each line of the loop that runs several times a step, and of each function
        that the loop calls, and their mean duration. To be saved is the part of the line or function of all operators,
        of the breakdown's launch account; on a CPU the loop's own Python, too, and the time of operators whose
        arithmetic takes no longer than their dispatch (bound by latency), which is where the interval ends. The work of
        larger operators is not.

    What helps
        One operator on the whole tensor (a matrix product, einsum, cumsum, torch.nn.LSTM in place of a loop over
        cells, a torch._foreach operator over parameters); else torch.compile, which fuses the loop; on CUDA a graph
        (mode="reduce-overhead").

    When to ignore it
        When each round of the loop depends on a decision taken on the host from the last.
    """
    launch = named(signals.categories, "overhead")
    if launch is None:
        return
    everything = sum(operator.calls for operator in signals.operators)
    for site in sorted(_sites(signals), key=_calls_dispatch_loop, reverse=True)[:MOST_SITES]:
        part = ratio(site.calls, max(everything, site.calls))
        if site.each <= LARGEST_OPERATOR and part >= LEAST_PART_DISPATCH_LOOP:
            dispatch = capped(scaled(launch.recoverable, part), launch.recoverable)
            on_device = signals.step.device != "cpu"  # which only waits for what the host cannot hide
            saving = dispatch if on_device else capped(_with_the_loop(dispatch, site), signals.step.duration)
            share = format_share(ratio(saving.value, signals.step.duration.value))
            summary = (
                f"{_place(site.source)} calls {site.calls:.0f} operators a step, "
                f"{format_duration(site.each)} each: {format_duration(saving.value)} ({share}) of dispatch"
            )
            evidence = (site.source.text,) if site.source.text else ()
            category = "overhead" if on_device else ""
            yield dispatch_loop.finding(
                summary,
                _advice_dispatch_loop(signals),
                saving,
                category=category,
                source=site.source,
                evidence=evidence,
            )


def _with_the_loop(dispatch: Estimate, site: _Site) -> Estimate:
    """With what else one operator would save: the loop's Python, and at most all of the small operators."""
    sure = Estimate(site.host, site.host, site.host, dispatch.samples)
    return total((dispatch, sure, modelled(site.idle, 0.0, site.idle, dispatch.samples)))


def _place(source: SourceLine) -> str:
    function = f" ({source.function})" if source.function and not source.text else ""
    return f"{format_source(source)}{function}"


def _calls_dispatch_loop(site: _Site) -> float:
    return site.calls


def _sites(signals: Signals) -> Iterator[_Site]:
    """Lines that run in a loop within the step, and functions whose lines were not timed."""
    lines: dict[tuple[str, str], list[LineUse]] = {}
    for line in signals.lines:
        lines.setdefault(function_of(line.source), []).append(line)
        if line.operators is not None and line.hits >= FEWEST_ROUNDS and line.operators >= FEWEST_OPERATORS:
            each = ratio(line.duration.value - line.host.value, line.operators)
            yield _Site(line.source, line.operators, each, host=line.host.value)
    for source, uses in _by_function(signals.operators).items():
        calls = sum(use.calls for use in uses)
        each = ratio(sum(use.duration for use in uses), calls)
        timed = lines.get(function_of(source))
        if timed is not None:
            yield from _looping(timed, [use for use in uses if use.duration <= LARGEST_OPERATOR * use.calls])
        elif calls >= FEWEST_OPERATORS and source.function != "<module>":
            call = re.compile(rf"\b{re.escape(function_of(source)[1])}\(")
            callers = [use for use in signals.lines if use.role in CALLERS and call.search(use.source.text)]
            if len(callers) == 1:  # its own lines are not timed, the call of it is
                yield _Site(callers[0].source, calls, each, _idle_dispatch_loop(uses), callers[0].host.value)
            else:
                yield _Site(source, calls, each, _idle_dispatch_loop(uses))


def _idle_dispatch_loop(uses: Iterable[OperatorUse]) -> float:
    return sum(use.duration for use in uses if use.bound == "latency")


def _looping(lines: list[LineUse], uses: list[OperatorUse]) -> Iterator[_Site]:
    """The longest line of a function that runs in a loop, with the part of the function's operators that loops take.

    Operators, those of backward with them, are shared out by the time of the lines that can call them: the profile
    knows their function only.
    """
    calls = sum(use.calls for use in uses)
    lines = [line for line in lines if line.role in CALLERS]
    rounds = [line for line in lines if line.hits >= FEWEST_ROUNDS and line.operators is None]
    part = ratio(sum(line.duration.value for line in rounds), sum(line.duration.value for line in lines))
    if rounds and calls * part >= FEWEST_OPERATORS:
        longest = max(rounds, key=lambda line: line.duration.value)
        each = ratio(sum(use.duration for use in uses), calls)
        yield _Site(
            longest.source,
            calls * part,
            each,
            part * _idle_dispatch_loop(uses),
            sum(line.host.value for line in rounds),
        )


def _by_function(operators: tuple[OperatorUse, ...]) -> dict[SourceLine, list[OperatorUse]]:
    """Operators by the function that calls them; not the optimiser's."""
    found: dict[SourceLine, list[OperatorUse]] = {}
    for use in operators:
        if use.source is not None and use.phase != "optimizer":
            found.setdefault(use.source, []).append(use)
    return found


def _advice_dispatch_loop(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return "Replace the loop by one operator on the whole tensor; the compiler has left this line as it is."
    return "Replace the loop by one operator on the whole tensor, or compile the function that holds it."


LEAST_SHARE = 0.2
"""Of the step: every eager model dispatches; from a fifth on it is worth the trouble of compiling or batching."""


FEWEST_KERNELS = 10.0
"""A step on a device: beside fewer launches idle time has another cause, and compiling has little to fuse."""
ONE_GAP = 0.5
"""Of the idle time: a single gap that is half of it is no dispatch but one stall."""
STALL = 5e6
"""ns of that gap: loading a library, allocating, tuning take milliseconds and more, launches never do."""


@rule(
    "ST302",
    "overhead-bound",
    needs={Signal.STEP, Signal.CATEGORIES},
    uses={Signal.OPERATORS, Signal.COMPILATIONS, Signal.KERNELS, Signal.GAPS},
)
def overhead_bound(signals: Signals) -> Finding | None:
    """The step is bound by dispatching its operators

    What it means
        The host cannot hand out the operators as fast as they are computed: Python, the dispatcher, autograd and (on
        CUDA) the launches take the time. Such a step stays as long with a larger batch or a faster device.

    How we know
        The breakdown's launch account: on a CPU the time of the training thread around and between small operators; on
        an accelerator the time that it idles while the host is dispatching, with the operators and modules that it was
        dispatching in the largest gaps.

    What helps
        torch.compile; on CUDA its mode "reduce-overhead" (graphs); a larger batch, which carries more work per
        dispatch; fused optimisers; fewer, larger operators.

    When to ignore it
        When the batch is small for a reason (online learning, reinforcement learning) and the step is fast enough.
    """
    launch, step = named(signals.categories, "overhead"), signals.step
    if launch is None or ratio(launch.recoverable.value, step.duration.value) < LEAST_SHARE:
        return None
    kernels = sum(use.calls for use in signals.kernels if use.bound != "communication")
    calls = sum(operator.calls for operator in signals.operators)
    gaps = sorted((gap for gap in signals.gaps if gap.category == "overhead"), key=_idle_overhead_bound, reverse=True)
    busiest = max((use for use in signals.operators if use.source), key=_calls_overhead_bound, default=None)
    share = format_share(ratio(launch.duration.value, step.duration.value))
    many = f" of {calls:.0f} operators" if calls else ""
    summary = f"Dispatch{many} takes {format_duration(launch.duration.value)} a step ({share})"
    if signals.has(Signal.KERNELS) and kernels < FEWEST_KERNELS:
        return None
    if gaps and gaps[0].longest >= max(STALL, ONE_GAP * launch.duration.value):
        return _stall(signals, gaps[0], launch.recoverable)
    if kernels:
        spent = sum(use.duration for use in signals.kernels if use.bound != "communication")
        each = ratio(spent, kernels)
        summary = (
            f"The device idles {format_duration(launch.duration.value)} a step ({share}) while the host launches "
            f"{kernels:.0f} kernels of {format_duration(each)}"
        )
    source = next((gap.source for gap in gaps if gap.source), busiest.source if busiest else None)
    evidence = tuple(f"{gap.cause or 'between operators'}: {_told_overhead_bound(gap)}" for gap in gaps[:5])
    return overhead_bound.finding(
        summary,
        _advice_overhead_bound(signals),
        launch.recoverable,
        category="overhead",
        source=source,
        evidence=evidence,
    )


def _stall(signals: Signals, gap: GapUse, launch: Estimate) -> Finding:
    """One long gap: compiling would not shorten it."""
    share = format_share(ratio(gap.duration.value, signals.step.duration.value))
    longest = format_duration(gap.longest)
    summary = f"The device idles {longest} at once ({share} of a step) while {gap.cause or 'the host'} runs"
    advice = "If that is the job's start (libraries, tuning, first allocations), trace later steps; else look at it."
    saving = capped(gap.duration, launch)
    return overhead_bound.finding(summary, advice, saving, category="overhead", source=gap.source)


def _told_overhead_bound(gap: GapUse) -> str:
    return f"{format_duration(gap.duration.value)} idle a step in {gap.count:.3g} gaps"


def _idle_overhead_bound(gap: GapUse) -> float:
    return gap.duration.value


def _calls_overhead_bound(operator: OperatorUse) -> float:
    return operator.calls


def _advice_overhead_bound(signals: Signals) -> str:
    graphs = ' (mode="reduce-overhead")' if signals.step.device != "cpu" else ""
    if signals.has(Signal.COMPILATIONS):
        return (
            f"Part of the job is compiled: look for graph breaks and what is left eager{graphs}; or enlarge the batch."
        )
    return f"Compile the model{graphs}, or enlarge the batch so that each operator does more."


HARMLESS = frozenset({"to", "cuda", "copy_"})
"""Calls that only wait when they copy from the device, or from pageable memory: they count only with measured idle
time."""


READS = {"_local_scalar_dense": "item", "is_nonzero": "item", "_to_copy": "to", "masked_select": "masked_select"}
"""Operators of ATen, and the call in Python that runs them."""


@rule(
    "ST303",
    "host-sync",
    needs={Signal.STEP, Signal.CATEGORIES},
    uses={Signal.SITES, Signal.GAPS, Signal.COPIES},
)
def host_sync(signals: Signals) -> Iterator[Finding]:
    """The host waits for the device, and then the device for the host

    What it means
        A value is read from the device (item, cpu, tolist, nonzero, a boolean mask, a print): the host stands until
        the queue is empty, and the device idles until the next operators arrive.

    How we know
        The price is not the duration of the call but the device's idle time from the moment it ran dry to the next
        launch. A trace has that for each gap, with the operator that held the thread; the calls on device tensors are
        recorded with their lines in a few steps. Without a trace the breakdown's sync account is the upper bound of all
        of them together.

    What helps
        Read values every n-th step; keep running sums on the device (loss.detach()); use where and masks of fixed size
        in place of nonzero and boolean indexing; copy with non_blocking=True from pinned memory.

    When to ignore it
        When the device has enough work queued: then no idle time follows and the rule does not fire.
    """
    staging = staging_operators(signals.copies)  # the matter of ST107
    gaps = [gap for gap in signals.gaps if gap.category == "sync" and gap.cause and gap.cause not in staging]
    for gap in sorted(gaps, key=_gap_idle, reverse=True)[:MOST_SITES]:
        yield _gap(signals, gap)
    if gaps:
        return
    sites = [site for site in signals.sites if site.device != "cpu" and site.calls > 0]
    upper_bound = _upper_bound(signals)
    known = sorted((site for site in sites if site.idle), key=_idle_host_sync, reverse=True)
    for site in known[:MOST_SITES]:
        idle = site.idle or 0.0
        yield _site(signals, site, modelled(idle, 0.8 * idle, 1.2 * idle, signals.step.steady))
    suspects = [site for site in sites if site.idle is None and site.name not in HARMLESS]
    if suspects and not known and upper_bound is not None:
        yield _site(signals, max(suspects, key=_calls_host_sync), upper_bound)


def _gap_idle(gap: GapUse) -> float:
    return gap.duration.value


def _gap(signals: Signals, gap: GapUse) -> Finding:
    """Idle time after a wait, with the line that waits where one call of that name was recorded."""
    call = READS.get(plain_name(gap.cause), plain_name(gap.cause))
    sites = [site for site in signals.sites if site.device != "cpu" and site.name == call]
    source = gap.source or (max(sites, key=_calls_host_sync).source if sites else None)
    share = format_share(ratio(gap.duration.value, signals.step.duration.value))
    where = f" at {format_source(source)}" if source else ""
    idle = format_duration(gap.duration.value)
    summary = f"The device idles {idle} a step ({share}) after {gap.cause}{where} waited for it"
    evidence = (f"{gap.count:.3g} gaps a step, the longest {format_duration(gap.longest)}",)
    return host_sync.finding(
        summary, _advice_host_sync(call), gap.duration, category="sync", source=source, evidence=evidence
    )


def _advice_host_sync(call: str) -> str:
    if call in {"nonzero", "masked_select", "index", "unique"}:
        return "Its result has a size that only the device knows: use where(), or masks of fixed size."
    if call in HARMLESS or "emcpy" in call:
        return "To the device: pinned memory and non_blocking=True. From it: less often, or all values in one copy."
    if "Synchronize" in call:
        return "Leave synchronize() to measurements; a stream or an event waits without the host."
    return "Keep the value on the device and read it every n-th step."


def _idle_host_sync(site: SiteUse) -> float:
    return site.idle or 0.0


def _calls_host_sync(site: SiteUse) -> float:
    return site.calls


def _upper_bound(signals: Signals) -> Estimate | None:
    sync = named(signals.categories, "sync") if signals.has(Signal.CATEGORIES) else None
    return sync.recoverable if sync is not None else None


def _site(signals: Signals, site: SiteUse, saving: Estimate) -> Finding:
    share = format_share(ratio(saving.value, signals.step.duration.value))
    summary = (
        f"{site.name}() at {format_source(site.source)} makes the device idle "
        f"{format_duration(saving.value)} a step ({share}), {site.calls:.3g} calls"
    )
    advice = "Keep the value on the device and read it every n-th step."
    evidence = (site.source.text,) if site.source.text else ()
    return host_sync.finding(summary, advice, saving, category="sync", source=site.source, evidence=evidence)


@rule("ST304", "recompilation", needs={Signal.STEP}, uses={Signal.COMPILATIONS, Signal.CATEGORIES, Signal.LINES})
def recompilation(signals: Signals) -> Finding | None:
    """torch.compile compiles again in the middle of training

    What it means
        A guard of the compiled code failed (another shape, another Python value, another set of gradients), so the
        function is traced and compiled anew. After eight times it is given up and runs uncompiled.

    How we know
        TorchDynamo records each compilation with its time and the guard that failed. Those after the warm-up count,
        spread over the steps of the run; the time lies between or inside steps that statistics leave out. A bare trace
        shows the parts of a compilation as annotations: there the breakdown's compile account is to be saved.

    What helps
        Pad or bucket to a few shapes; torch._dynamo.mark_dynamic or dynamic=True for a dimension that varies; keep
        Python numbers that change (step counters, schedules) out of compiled code or make them tensors; drop_last=True.

    When to ignore it
        When it happens once per stage (first evaluation, last batch of an epoch) in a long run.
    """
    if not signals.has(Signal.COMPILATIONS):
        return _from_trace(signals) if signals.step.mode == "trace" else None
    again = [compilation for compilation in signals.compilations if compilation.after_warm_up]
    steps = max(1, signals.step.total - signals.step.warm_up)
    if not again:
        return None
    spent = sum(compilation.duration for compilation in again)
    worst = max(again, key=lambda compilation: compilation.duration)
    reasons = Counter(compilation.reason for compilation in again if compilation.reason)
    times = "once" if len(again) == 1 else f"{len(again)} times"
    source = _called(signals, worst.source)
    summary = f"Compiled again {times} after the warm-up, {format_duration(spent)} in all ({format_source(source)})"
    saving = modelled(spent / steps, 0.5 * spent / steps, spent / steps, steps)
    evidence = tuple(f"{count} x: {reason}" for reason, count in reasons.most_common(3))
    return recompilation.finding(summary, _advice_recompilation(reasons), saving, source=source, evidence=evidence)


def _called(signals: Signals, compiled: SourceLine) -> SourceLine:
    """What was compiled; where that is torch's own code (a module of torch's was compiled), the line that called it."""
    forwards = [line for line in signals.lines if line.role == "forward"] if signals.has(Signal.LINES) else []
    if is_user_file(compiled.file) or not forwards:
        return compiled
    return max(forwards, key=lambda line: line.duration.value).source


def _from_trace(signals: Signals) -> Finding | None:
    category = named(signals.categories, "compile")
    if category is None:
        return None
    share = format_share(ratio(category.duration.value, signals.step.duration.value))
    summary = (
        f"Compiling takes {format_duration(category.duration.value)} of a step ({share}), in steps that were traced"
    )
    advice = "If these are no first steps, look at the reasons: TORCH_LOGS=recompiles names the guard that failed."
    return recompilation.finding(summary, advice, category.recoverable, category="compile")


def _advice_recompilation(reasons: Counter[str]) -> str:
    text = " ".join(reasons).lower()
    if "size mismatch" in text or "shape" in text or "stride" in text:
        return "Shapes vary: pad or bucket them, or compile with dynamic=True."
    return "Look at the guards that failed and keep what changes out of the compiled code."


TINY = 10_000.0
"""ns of a kernel: filling the device, starting and ending take 1 to 3 microseconds of every kernel, so that below ten
they are a considerable part of it."""
EMPTY_KERNEL = 1_500.0
"""ns that a kernel without work lasts by the device's own clock (1.2 to 2.2 microseconds on V100 to H100 traces: the
shortest fills of one number in them)."""
FEWEST = 100.0
"""A step: fewer kernels cost less than anybody will notice."""
LEAST_PART_TINY_KERNELS = 0.3
"""Of the device's busy time: else the large kernels are what to look at."""
HELD_BACK = 0.2
"""Of the step: from here on the host launches too slowly, and overhead-bound says so with what is to be saved there."""
FUSES_AT_LEAST, FUSES = 0.3, 0.6
"""Of the kernels: every third is gone when pairs of a chain of pointwise operators are fused here and there; compiling
a whole model commonly leaves less than half of them."""


@rule("ST305", "tiny-kernels", needs={Signal.STEP, Signal.KERNELS}, uses={Signal.CATEGORIES, Signal.COMPILATIONS})
def tiny_kernels(signals: Signals) -> Finding | None:
    """The device is busy with kernels that are too small for it

    What it means
        Hundreds of kernels of a few microseconds each follow one another. Each one fills the device, works for a
        moment and drains it again; starting and ending costs more than the work, and no larger device makes it faster.

    How we know
        Kernels that take less than ten microseconds on average are added up. To be saved is the part that a kernel
        without any work takes too, for as many kernels as fusing usually removes. The rule is silent where the host
        cannot launch them fast enough anyhow, which is ST302.

    What helps
        torch.compile, which fuses neighbours; foreach and fused optimisers; one batched operator for a loop over
        small ones; a larger batch, which makes kernels longer and not more.

    When to ignore it
        When the batch is small by design (inference for one request, reinforcement learning).
    """
    launch = named(signals.categories, "overhead")
    if launch is not None and ratio(launch.duration.value, signals.step.duration.value) >= HELD_BACK:
        return None
    tiny = [use for use in signals.kernels if ratio(use.duration, use.calls) < TINY]
    calls, busy = sum(use.calls for use in tiny), spent(tiny)
    if calls < FEWEST or ratio(busy, spent(signals.kernels)) < LEAST_PART_TINY_KERNELS:
        return None
    empty = sum(use.calls * min(EMPTY_KERNEL, ratio(use.duration, use.calls)) for use in tiny)
    summary = (
        f"{calls:.0f} kernels of {format_duration(ratio(busy, calls))} each take {format_duration(busy)} a step "
        f"({format_share(ratio(busy, signals.step.duration.value))})"
    )
    saving = modelled(FUSES * empty, FUSES_AT_LEAST * empty, empty, signals.step.steady)
    evidence = tuple(map(told, sorted(tiny, key=_calls_tiny_kernels, reverse=True)[:3]))
    return tiny_kernels.finding(
        summary,
        _advice_tiny_kernels(signals),
        saving,
        category="compute",
        source=first_source(longest(tiny)),
        evidence=evidence,
    )


def _calls_tiny_kernels(use: KernelUse) -> float:
    return use.calls


def _advice_tiny_kernels(signals: Signals) -> str:
    if signals.has(Signal.COMPILATIONS):
        return "Part of the job is compiled: bring what runs eagerly into it, or batch small operators into one."
    return "Compile the model, and use a fused or foreach optimiser, so that neighbours become one kernel."


UNCACHED = 100.0
"""Calls a step: the caching allocator asks for large blocks, a few at a time; this many are one for each tensor."""


@rule("ST306", "allocator-stalls", needs={Signal.STEP, Signal.ALLOCATIONS}, instead_of=("overhead-bound", "host-sync"))
def allocator_stalls(signals: Signals) -> Finding:
    """The device's memory is asked for and given back in the middle of steps

    What it means
        PyTorch keeps the memory that it once got from the driver. When a steady step still calls cudaMalloc or
        cudaFree (hipMalloc, hipFree), the cache does not fit the job: shapes that change, fragmentation, memory that is
        nearly full (it frees everything and tries again), or a call of empty_cache(). Freeing waits for the
        device to finish.

    How we know
        The calls are in the trace, with the time that the host spent in them. To be saved is the time that the
        device idled meanwhile, not the duration of the calls.

    What helps
        Take torch.cuda.empty_cache() out of the loop; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against
        fragmentation; a few shapes instead of many (padding, bucketing); less memory, so that no retry is needed.

    When to ignore it
        In the first steps, and when the trace covers nothing else.
    """
    calls = signals.allocations
    idle = total(use.idle for use in calls)
    top = max(calls, key=_saving)
    host = sum(use.duration.value for use in calls)
    share = format_share(ratio(idle.value, signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in calls):.3g} calls of {top.name} and its like a step leave the device idle for "
        f"{format_duration(idle.value)} ({share})"
    )
    evidence = (f"The host spends {format_duration(host)} a step in them.", *map(_told_allocator_stalls, calls[:3]))
    return allocator_stalls.finding(
        summary, _advice_allocator_stalls(calls), idle, source=top.source, evidence=evidence
    )


def _saving(use: AllocationUse) -> float:
    return use.idle.value


def _told_allocator_stalls(use: AllocationUse) -> str:
    return f"{use.name}: {use.calls:.3g} calls a step, {format_duration(use.duration.value)}"


def _advice_allocator_stalls(calls: tuple[AllocationUse, ...]) -> str:
    if sum(use.calls for use in calls) >= UNCACHED:
        return (
            "So many mean that nothing is kept: look for PYTORCH_NO_CUDA_MEMORY_CACHING, or empty_cache() in the loop."
        )
    if any("Free" in use.name for use in calls):
        return "Take empty_cache() out of the loop; if there is none, memory is nearly full or fragmented: use less."
    return "Keep to a few shapes, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."


TAKEN_APART = frozenset({"select_backward", "slice_backward"})
"""Derivatives of x[i] and x[a:b]: zeros of x's size with the gradient in one place (torch's derivatives.yaml)."""
BEHIND = (frozenset({"fill", "zero"}), frozenset({"add"}))
"""What comes with each of them: new zeros, and a sum with the others."""
FEWEST_SLICES = 16
"""A step: below it, one pass over a few tensors is saved, not one for each round of a loop."""


@rule(
    "ST307",
    "indexing-in-loop",
    needs={Signal.STEP, Signal.OPERATORS},
    uses={Signal.PHASES, Signal.LINES},
    instead_of=("memory-bound-pointwise", "dominant-operator"),
)
def indexing_in_loop(signals: Signals) -> Finding | None:
    """A loop indexes a tensor, and backward pays for all of it in each round

    What it means
        The loop takes x[:, t] (or x[a:b]) of a tensor that needs a gradient. The derivative of each such slice is a
        tensor as large as x, all zeros but for the slice, and these are added up one by one: with T rounds, T times
        the memory traffic of x, where one pass would do.

    How we know
        The profile counts the derivatives of slices in backward, and as many operators there that fill with zeros and
        that add (one fewer), and times them. Their part of all operators in backward is the part of the measured
        backward that is to be saved, but for one pass; on a CPU, where operators are timed one by one. The interval is
        from none to all of the filling: new memory may take far longer in the profiled steps than in the others.

    What helps
        Take the tensor apart once, before the loop: `parts = x.unbind(1)` (or x.split(size)), and use parts[t]. Its
        derivative is one stack. The results are the same.

    When to ignore it
        When the loop itself can be replaced by one operator on the whole tensor: then do that.
    """
    if signals.step.device != "cpu":
        return None
    slices = [use for use in signals.operators if use.name.removeprefix("aten::") in TAKEN_APART]
    count = sum(use.calls for use in slices)
    if count < FEWEST_SLICES:
        return None
    backward = [use for use in signals.operators if use.phase == "backward"]
    filled, added = (_some(count - 1, [use for use in backward if plain_name(use.name) in names]) for names in BEHIND)
    phase = named(signals.phases, "backward") if signals.has(Signal.PHASES) else None
    profiled = sum(use.duration for use in backward)
    scale = min(1.0, ratio(phase.duration.value, profiled)) if phase is not None else 1.0
    most = scale * (sum(use.duration for use in slices) + filled + added)
    least = most - scale * filled
    taken = (least + most) / 2
    once = 1 - 1 / count
    source = _source(signals.lines if signals.has(Signal.LINES) else (), slices)
    summary = (
        f"{count:.0f} slices a step are taken of tensors; backward fills and adds up a whole tensor for each: "
        f"{format_duration(taken)} ({format_share(ratio(taken, signals.step.duration.value))})"
    )
    return indexing_in_loop.finding(
        summary,
        "Take the tensor apart once before the loop, by unbind() or split(), and index what that returns.",
        modelled(once * taken, once * least, once * most, signals.step.steady),
        category="compute",
        source=source,
    )


def _some(calls: float, uses: Sequence[OperatorUse]) -> float:
    """ns of so many calls of operators that are called more often."""
    return sum(use.duration for use in uses) * min(1.0, ratio(calls, sum(use.calls for use in uses)))


def _source(lines: Sequence[LineUse], slices: Sequence[OperatorUse]) -> SourceLine | None:
    """The line of the slicing function that runs most often, which is in its loop; the function where none is timed."""
    found = next((use.source for use in slices if use.source is not None), None)
    if found is None:
        return None
    inside = [line for line in lines if function_of(line.source) == function_of(found)]
    repeated = [line for line in inside if "[" in line.source.text and line.hits >= FEWEST_SLICES / 2]
    return max(repeated, key=lambda line: line.duration.value).source if repeated else found
