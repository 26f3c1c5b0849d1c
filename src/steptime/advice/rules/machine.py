"""ST8xx: the machine and the measurement."""

from __future__ import annotations

from collections.abc import Sequence

from steptime.advice.device_uses import GpuUse
from steptime.advice.evidence import Case
from steptime.advice.line_evidence import profile_scale
from steptime.advice.loader_model import production
from steptime.advice.models import at_once, fitting_threads, how_to_record, idle_cpus
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.run_uses import CategoryUse, Contention, LengthUse, LoaderUse, SettingsUse, StepSummary
from steptime.advice.savings import in_step, named, partly, ratio, scaled, spent_in
from steptime.advice.step_evidence import others_took_cpus
from steptime.analysis.operators import OperatorUse
from steptime.quantities import format_count, format_duration, format_share

TOLERATED = 1.5
"""Threads per CPU: up to here the scheduler copes (workers sleep part of the time)."""
BUSY = 0.85
"""Fraction of the usable CPUs that other processes leave: below it, threads are more than CPUs but do not meet."""
BUSY_ALONE = 0.6
"""Where the threads of one operator exceed the CPUs: they wait for one another, asleep for a third of the time."""
WHOLE = 0.9
"""Fraction of its time: a worker that needs a CPU for less counts with its share, and that is reported."""
NEED_ONE = 0.5
"""CPUs that workers need together: from here on one is left to them."""
PRESSURE_BY_THREADS = 20.0
"""Percent of time that some task waited for a CPU: what one thread too many causes on a busy machine."""
SPREAD = 0.3
"""Interquartile range over median: on a quiet machine steps of equal work stay within 0.05, of padded text within
0.2."""
DRIFT = 0.2
"""Change of the step from the first to the last part of the run, over the median: growth beyond noise."""
LEAST_CAPTURING, LEAST_IN_GRAPHS = 0.1, 0.1
"""Fraction of the step, and of the kernels' time: below, a graph changes nothing that is reported."""
FEWEST = 8
"""Steady steps: the interval of a median from fewer spans nearly their whole range (binomial 95 % needs six at
least)."""
FEWEST_IN_TRACE = 2
"""In a bare trace: its steps were chosen, a few of a job that ran steadily, and there are no more to come; two have
an interval, as wide as two steps deserve (12.7 standard errors)."""
LEAST_UNRECORDED = LEAST_COPYING = 0.05
"""Fraction of the step."""
SPEEDUP = 2
"""So many times as many threads must fit, and so many must there be CPUs idle for: less is lost again at the boundaries
of each operator."""
SPREADING = ("compute", "memory")
"""Bounds of an operator that spreads over threads: one thread does not fill the memory's bandwidth. Those bound by
their own latency are too small to be shared."""
GRAIN, PRODUCT = 2 * 4 * 32_768, 1e6
"""Bytes, or FLOP, of one call from which on torch gives it to several threads: at::internal::GRAIN_SIZE is 32,768
elements (ATen/Parallel.h), in and out in float32; a matmul of less takes some ten microseconds."""
LIKELY, SURE = 0.5, 0.1
"""Fraction of the upper bound: how much threads without a CPU cost, and how well an operator spreads over threads, is
not known before it is tried."""


@rule("ST801", "thread-oversubscription")
def thread_oversubscription(
    step: StepSummary, settings: SettingsUse, contention: Contention, loader: LoaderUse | None = None
) -> Finding | None:
    """The job itself runs more threads than it has CPUs

    What it means: Each training process computes with its own threads, and the loader's workers are added to these.
    If there are more of them than CPUs, threads of one operator wait for each other while others run: steps become
    slow and irregular.

    How we know: The number of threads is intra-op threads x training processes on this host + workers. A worker
    counts with the share of its time in which it needs a CPU. That number is compared with the CPUs that the process
    may use (affinity and container limits included). The rule fires if there are more than 1.5 threads per CPU, and
    the CPUs were busy or tasks waited for one. The savings are at most the step times the share of the threads that
    have no CPU. Only a trial shows how much of that is real, so the interval is wide.

    What helps: OMP_NUM_THREADS (or torch.set_num_threads) = CPUs / training processes, minus what the workers need;
    fewer workers.

    When to ignore it: When a device computes and the CPU's threads mostly sleep.
    """
    loader = loader if loader is not None and loader.workers else None
    cpus, trainers = max(1, settings.usable_cpus), max(1, settings.trainers_on_host)
    workers = _working(loader, step.duration.value) if loader is not None else 0.0
    demand = (max(1, settings.intra_op_threads) * trainers + workers * trainers) / cpus
    enough = BUSY_ALONE if settings.intra_op_threads / cpus > TOLERATED else BUSY
    busy = contention.job_cpu >= enough * max(1.0, contention.usable_cpus - contention.other_cpu)
    pressed = contention.pressure is not None and contention.pressure >= PRESSURE_BY_THREADS
    if demand <= TOLERATED or not (busy or pressed):
        return None
    parts = f"{settings.intra_op_threads} {'thread' if settings.intra_op_threads == 1 else 'threads'}"
    if settings.trainers_on_host > 1:
        parts += f" x {settings.trainers_on_host} training processes"
    if loader is not None:
        parts += f" + {loader.workers} workers"
        at_work = ratio(workers, loader.workers)
        parts += f" at {format_share(at_work)}" if at_work < WHOLE else ""
    summary = f"{parts} on {settings.usable_cpus} usable CPUs: {demand:.1f} threads for each CPU"
    saving = partly(step.duration.value * (1 - 1 / demand), LIKELY, SURE, step)
    return thread_oversubscription.finding(summary, _advice(settings, loader if workers >= NEED_ONE else None), saving)


def _working(loader: LoaderUse, step: float) -> float:
    """CPUs that the workers need: they rest where their batches are made sooner than the step is done."""
    made = production(loader)
    return (loader.workers if made is None else min(loader.workers, ratio(made, step))) * _busy(loader)


def _busy(loader: LoaderUse) -> float:
    """CPUs that one worker needs while it makes a batch: a whole one where that was not measured."""
    return loader.busy if loader.busy is not None and loader.busy < WHOLE else 1.0


def _advice(settings: SettingsUse, loader: LoaderUse | None) -> str:
    best = fitting_threads(settings, loader)
    if best < settings.intra_op_threads:
        if settings.omp_num_threads not in (None, str(settings.intra_op_threads)):
            return f"The job sets its threads itself: torch.set_num_threads({best})."
        return f"Set OMP_NUM_THREADS={best}."
    if loader is not None:
        return f"Use fewer workers than {loader.workers}."
    return "Run fewer training processes on this host."


@rule("ST802", "background-load", weight=Weight.CAVEAT)
def background_load(contention: Contention) -> Finding | None:
    """Other processes used the CPUs while this was measured

    What it means: The machine was shared. Times of the CPU, of the loader and of CPU operators include waiting for
    a CPU. The largest category may be the one that suffered most, not the one to fix. The result is called likely
    if the steps stayed even all the same, and unclear if they did not.

    How we know: CPU time of the job's processes and of everything else is read once or twice a second, and the
    kernel's pressure figure if the kernel has one. The rule fires if other processes took a tenth of the CPUs or
    more, and CPUs were short.

    What helps: Measure again when the machine is quiet, or on CPUs of its own (taskset, a cgroup, an exclusive job in
    the queue).

    When to ignore it: When that load is always there in production, too.
    """
    pressure = contention.pressure
    if not others_took_cpus(contention):
        return None
    usable = max(1, contention.usable_cpus)
    pressed = "" if pressure is None else f", tasks waited for a CPU {pressure:.0f} % of the time"
    summary = (
        f"Other processes used {contention.other_cpu:.1f} of {usable} CPUs{pressed}; "
        f"steps vary by {format_share(contention.spread)} (IQR)"
    )
    return background_load.finding(summary, "Measure again on a quiet machine or on CPUs of its own.")


ALIKE = (
    "Draw items of like size together (sort a pool by length, then batch neighbours): each is padded to the longest "
    "of its batch."
)


@rule("ST803", "unstable-steps", weight=Weight.NOTE)
def unstable_steps(contention: Contention, lengths: LengthUse | None = None) -> Finding | None:
    """Steps vary more than equal work explains

    What it means: Some steps take much longer than others, or steps become slower over the run.
    Averages hide both.

    How we know: The spread is the interquartile range of the steady steps over their median; the drift compares the
    two ends of the run. Each profiled step's input sizes are compared with its time; if they correlate (from 0.8
    on), the rule says so.

    What helps: For spread, look at the series of steps in the report. The usual causes are variable shapes, a
    loader that delivers in bursts, and other load on the machine. For drift, something grows: a list of losses that
    keeps their graphs, a log, a replay buffer.

    When to ignore it: When batches differ in size by design.
    """
    if lengths is not None and contention.spread > SPREAD:
        sizes = f"{lengths.shortest:,} to {lengths.longest:,} in {lengths.steps} profiled steps"
        summary = f"Steps vary by {format_share(contention.spread)}, with the size of their batches: {sizes}"
        return unstable_steps.finding(summary, ALIKE)
    if others_took_cpus(contention):  # ST802 shows how far the steps vary, with what is behind it
        return None
    if contention.drift > DRIFT:
        summary = f"Steps grew by {format_share(contention.drift)} during the run"
        return unstable_steps.finding(summary, "Look for what grows with each step: lists, graphs, logs, buffers.")
    if contention.spread > SPREAD:
        summary = f"Steps vary by {format_share(contention.spread)} (interquartile range over median)"
        return unstable_steps.finding(summary, "Look at the series of steps in the report before trusting averages.")
    return None


@rule("ST804", "few-steps", weight=Weight.CAVEAT)
def few_steps(step: StepSummary) -> Finding | None:
    """Too few steady steps were measured

    What it means: The run ended before enough undisturbed steps were seen. The verdict is likely, not certain.

    How we know: Steps of the warm-up, and steps that the profiler or another measurement slowed, are left out. The
    rule fires if fewer than eight steps remain, in a bare trace fewer than two.

    What helps: Let the job run longer, or give it more batches. Thirty steps after the warm-up are enough as a rule.

    When to ignore it: Never; but the findings with a source line may still be worth a look.
    """
    if step.steady >= (FEWEST_IN_TRACE if step.mode == "trace" else FEWEST):
        return None
    if step.mode == "trace":
        return few_steps.finding(
            "One step was traced, so other steps may differ",
            "Trace more steps: torch.profiler.schedule(wait=5, warmup=2, active=5), and step() after each.",
        )
    summary = f"Only {step.steady} of {step.total} steps were steady ({step.warm_up} warm-up)"
    return few_steps.finding(summary, "Let the job run for at least 30 steps after the warm-up.")


@rule("ST807", "device-not-traced", weight=Weight.CAVEAT)
def device_not_traced(step: StepSummary) -> Finding | None:
    """The trace has kernel launches, but no kernels

    What it means: The job ran on a device, but the profiler recorded the CPU only. The apparent compute time is the
    CPU launching kernels; whether the device was busy meanwhile is not known.

    How we know: The trace has calls that launch kernels (cudaLaunchKernel, hipLaunchKernel, graphs), or collectives
    of a library for devices only (nccl:all_reduce), but no kernel, copy or fill.

    What helps: Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA] (also for AMD). If you did,
    the device's tracer did not start: another profiler or a monitoring daemon holds it (CUPTI serves one at a
    time), or the driver does not allow it.

    When to ignore it: When you meant to look at the CPU's side only.
    """
    if not step.untraced:
        return None
    calls = format_count(step.untraced, "call")
    return device_not_traced.finding(
        f"The trace has {calls} per step that launch device work, but no kernels: the device was not recorded",
        "Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].",
    )


@rule("ST816", "unrecorded-work", weight=Weight.CAVEAT)
def unrecorded_work(step: StepSummary, categories: tuple[CategoryUse, ...]) -> Finding | None:
    """The device was busy with work that the trace does not have

    What it means: For a part of the step the trace shows an idle device, although the CPU had already launched the
    next kernel. The device was busy with unrecorded work: kernels launched before the profiler started, events that
    its buffers lost, graphs or streams that it does not see, or another process on the device. The CPU did not
    cause that time, and what filled it is not known.

    How we know: Idle time of the device counts in two cases. In the first, the launch of the next kernel had returned
    more than 50 microseconds before that kernel started; a launch takes a tenth of that. In the second, the CPU
    waited for the device for more than a millisecond, while the device had no recorded work. The rule fires from 5 %
    of the step on.

    What helps: Record several whole steps (torch.profiler.schedule with a warm-up), or synchronise the device before
    the profiler starts; profile in the process that owns the device, alone on it.

    When to ignore it: When the idle time is the trace's first and the later steps are complete.
    """
    lost = named(categories, "unrecorded")
    if lost is None or ratio(lost.duration.value, step.duration.value) < LEAST_UNRECORDED:
        return None
    summary = f"The device did work that was not recorded: {in_step(lost.duration.value, step)}"
    return unrecorded_work.finding(summary, how_to_record(step))


@rule("ST820", "graph-capture", weight=Weight.CAVEAT)
def graph_capture(step: StepSummary) -> Finding | None:
    """The steps capture a graph: calls in it launch nothing

    What it means: A CUDA or HIP graph is recorded once and later launched as one (torch.cuda.graph, torch.compile
    with mode="reduce-overhead", an inference server that starts). During the capture the CPU runs operators and
    launches, but nothing executes: the device idles, and what looks like overhead is paid once.

    How we know: A capture is the time between cudaStreamBeginCapture and cudaStreamEndCapture (hipStream…) of one
    thread. The rule fires if captures take a tenth of the step or more.

    What helps: Trace steps after the capture, which launch the graph (torch.profiler.schedule with a warm-up).

    When to ignore it: When you want to speed up the capture itself, or each step captures a graph.
    """
    graphs = step.graphs
    if graphs is None or ratio(graphs.capturing, step.duration.value) < LEAST_CAPTURING:
        return None
    captured = format_count(graphs.captures, "graph")
    summary = f"{captured} captured here; its launches run nothing:  {in_step(graphs.capturing, step)}"
    return graph_capture.finding(summary, "Trace later steps, which launch the graph: a capture is paid once.")


@rule("ST821", "graph-launches", weight=Weight.NOTE)
def graph_launches(step: StepSummary) -> Finding | None:
    """Kernels of a graph have no operator of their own

    What it means: A CUDA or HIP graph is one launch of many kernels. The trace has no operator, shape or line for
    each of them: their cost is unknown, and findings can only name kernels. If a graph's kernels are not in the
    trace at all, the time in which it ran is unrecorded.

    How we know: Kernels of a graph have the correlation of a cudaGraphLaunch (hipGraphLaunch); their number and their
    time are added up. Launches of a graph without any kernel in the trace are counted, too. The rule fires if graphs
    have a tenth of the kernels' time, or if there are such empty launches.

    What helps: Trace the job once without graphs (torch.compile without mode="reduce-overhead", enforce_eager=True of
    vLLM, --disable-cuda-graph of SGLang): its kernels are the same and have operators, shapes and lines.

    When to ignore it: When the kernels' names say enough. The CPU's time for launches is correct without operators,
    too.
    """
    graphs = step.graphs
    if graphs is None or (graphs.share < LEAST_IN_GRAPHS and not graphs.empty):
        return None
    launched = f"{format_count(graphs.launches, 'replayed graph')}"
    kernels = f"{format_count(graphs.kernels, 'kernel')} ({format_share(graphs.share)} of their time)"
    lost = f"{graphs.empty:.3g} of {launched} left no kernel in the trace"
    reported = f"{kernels} came from {launched}" + (
        f"; {graphs.empty:.3g} left none in the trace" if graphs.empty else ""
    )
    advice = "Trace the job without graphs to see their operators, shapes and lines."
    return graph_launches.finding(reported if graphs.kernels else lost, advice)


@rule("ST808", "too-few-threads")
def too_few_threads(
    operators: tuple[OperatorUse, ...], settings: SettingsUse, contention: Contention, case: Case
) -> Finding | None:
    """Operators use fewer threads than there are idle CPUs

    What it means: OMP_NUM_THREADS limits the threads that one operator computes with. torchrun sets it to 1 for
    every process unless the user sets it. That suits training on devices; a job that computes on the CPU then
    leaves most CPUs idle.

    How we know: The rule fires under three conditions. The variable is set, and torch uses that number of threads.
    The CPUs that the process may use have room for at least twice as many threads; several training processes on this
    host share these CPUs, and one CPU is left to a loader's workers. At least half of the additional threads would
    have found an idle CPU. The savings concern operators that arithmetic or memory bounds, and whose calls are large
    enough for several threads. They are at most the part of these operators' time that the additional threads would
    save. Only a trial shows how much of it is real, so the interval is wide. The rule is silent if the job calls
    torch.set_num_threads itself.

    What helps: OMP_NUM_THREADS = CPUs / training processes.

    When to ignore it: When the idle CPUs belong to somebody else, or the step's operators are too small to share.
    """
    best, threads = fitting_threads(settings, case.loader), max(1, settings.intra_op_threads)
    if settings.omp_num_threads != str(threads) or best < SPEEDUP * threads or case.step.device != "cpu":
        return None
    if settings.threads_site is not None:  # the job's own choice, which the variable does not change
        return None
    if idle_cpus(contention) < (best - threads) / SPEEDUP:
        return None
    profiled = sum(operator.duration for operator in operators if operator.bound in SPREADING and _is_shared(operator))
    spent = profiled * profile_scale(operators, case.categories)
    upper_bound = spent * (1 - at_once(threads, contention) / at_once(best, contention))
    if not upper_bound:
        return None
    held = f"operators of {format_duration(spent)} per step to {threads} of {best} CPUs"
    saving = partly(upper_bound, LIKELY, SURE, case.step)
    summary = f"OMP_NUM_THREADS={threads} holds {held}"
    return too_few_threads.finding(summary, f"Set OMP_NUM_THREADS={best}.", saving, category="compute")


def _is_shared(use: OperatorUse) -> bool:
    """True if one call is large enough for several threads, or its size is not known."""
    if use.bytes is None and use.flops is None:
        return True
    return ratio(use.bytes or 0.0, use.calls) >= GRAIN or ratio(use.flops or 0.0, use.calls) >= PRODUCT


LEAST_HELD = 0.25
"""Fraction of the samples: a GPU touches its limits now and then."""
LEAST_SLOWER = 0.1
"""Fraction of its highest clock: what a lower clock must cost before it is worth a word. Boards seldom run at the
highest."""
LIKELY_CLOCK, SURE_CLOCK = 0.5, 0.1
"""Fraction of the computing that a full clock would save: what waits for memory does not follow the clock."""


def _too(held: Sequence[GpuUse], worst: GpuUse) -> str:
    """The process's other GPUs of which the same is so."""
    others = [use.name for use in held if use is not worst]
    return f"; the same holds for {' and '.join(others)}" if others else ""


def _part_of_link(use: GpuUse) -> float:
    """Link bandwidth as a fraction of what device and slot can do; 1 if unknown."""
    if not (use.width and use.max_width and use.generation and use.max_generation):
        return 1.0
    return use.width / use.max_width * 2.0 ** (use.generation - use.max_generation)


@rule("ST817", "gpu-slowed")
def gpu_slowed(step: StepSummary, categories: tuple[CategoryUse, ...], gpus: tuple[GpuUse, ...]) -> Finding | None:
    """The GPU lowers its clock for heat or its power supply

    What it means: The driver runs the GPU below its clock because it is too hot, or because the board does not get the
    power that it asks for. Everything that the device computes takes longer, today and not tomorrow.

    How we know: NVIDIA's driver reports about once a second why it lowers the clock. The reasons that count are
    hardware slowdown, heat and power brake. Only samples of steady steps in which the GPU was busy are used, and only
    GPUs of this process, each by itself. The rule fires if such a reason holds in a quarter of the samples, and the
    clock is a tenth below its highest. The upper bound of the savings is the computing time times the fraction by
    which the clock is lower. Memory-bound work does not follow the clock, so the interval is wide.

    What helps: Cooling (air flow, dust, the neighbouring card), the power cables and the supply; another node of the
    cluster. nvidia-smi -q -d PERFORMANCE,TEMPERATURE shows the state now.

    When to ignore it: When the machine's room is always that warm.
    """
    lost = {use: use.slowed * (1 - ratio(use.slowed_clock, use.max_clock)) for use in gpus}
    held = [use for use in lost if use.slowed >= LEAST_HELD and lost[use] >= LEAST_SLOWER * use.slowed]
    if not held:
        return None
    use = max(held, key=lost.__getitem__)
    whole = spent_in(categories, "compute") * lost[use]
    return gpu_slowed.finding(
        f"{use.name} lowers its clock for heat or supply in {format_share(use.slowed)} of the samples: "
        f"{use.slowed_clock:.0f} of {use.max_clock:.0f} MHz{_too(held, use)}",
        "Look at its cooling and its power cables (nvidia-smi -q -d PERFORMANCE,TEMPERATURE), or take another node.",
        partly(whole, LIKELY_CLOCK, SURE_CLOCK, step),
        category="compute",
    )


@rule("ST818", "gpu-power-capped", weight=Weight.NOTE)
def gpu_power_capped(gpus: tuple[GpuUse, ...]) -> Finding | None:
    """The GPU runs at the limit of its power

    What it means: The driver lowers the clock so that the GPU stays within its power limit. Large matmuls do
    that to most boards. It is how fast the device is, unless somebody has set the limit below the board's own.

    How we know: NVIDIA's driver reports about once a second why it lowers the clock. Only samples of steady steps in
    which the GPU was busy are used. The rule fires if the reason is the power cap in a quarter of them, and the clock
    is a tenth below its highest.

    What helps: nvidia-smi -q -d POWER shows the limit in force and the board's default; an administrator can raise it
    (nvidia-smi -pl). Fewer bytes moved and a lower precision take less power for the same step.

    When to ignore it: When the limit is the board's own.
    """
    lower = {use: 1 - ratio(use.capped_clock, use.max_clock) for use in gpus}
    held = [use for use in lower if use.capped >= LEAST_HELD and lower[use] >= LEAST_SLOWER]
    if not held:
        return None
    use = max(held, key=lambda use: use.capped * lower[use])
    watts = f" ({use.power:.0f} of {use.limit:.0f} W)" if use.power is not None and use.limit is not None else ""
    return gpu_power_capped.finding(
        f"{use.name} is at its power limit{watts} in {format_share(use.capped)} of the samples: "
        f"{use.capped_clock:.0f} of {use.max_clock:.0f} MHz{_too(held, use)}",
        "Compare the limit with the board's default: nvidia-smi -q -d POWER.",
    )


@rule("ST819", "narrow-link")
def narrow_link(step: StepSummary, gpus: tuple[GpuUse, ...], case: Case) -> Finding | None:
    """The GPU's link to the host is narrower or slower than it could be

    What it means: The GPU sits in a slot of fewer lanes, on a riser or behind a switch, or the link was trained down to
    an older generation. Copies between host and device take that much longer.

    How we know: NVIDIA's driver reports the lanes and the generation of the PCI Express link, and the most that
    device and slot can do together. An idle link is slowed down to save power, so the best sample of a busy GPU
    counts. The savings are the part of the exposed copies' time that the full bandwidth would save.

    What helps: Another slot; the card reseated; the slot's lanes and generation in the firmware; another node.

    When to ignore it: When hardly anything is copied: then it is reported as a note.
    """
    parts = {use: _part_of_link(use) for use in gpus}
    held = [use for use in parts if parts[use] < 1]
    if not held:
        return None
    use = min(held, key=parts.__getitem__)
    part = parts[use]
    copying = named(case.categories, "copy") if case.categories else None
    saving = scaled(copying.duration, 1 - part) if copying is not None else None
    matters = saving is not None and saving.value >= LEAST_COPYING * step.duration.value
    return narrow_link.finding(
        f"{use.name} has a link of {format_count(use.width or 0, 'lane')} of generation {use.generation}, of "
        f"{use.max_width} of generation {use.max_generation}: {format_share(part)} of its bandwidth{_too(held, use)}",
        "Try another slot or node, and look at the slot's settings in the firmware.",
        saving if matters else None,
        category="copy" if matters else "",
        weight=Weight.FINDING if matters else Weight.NOTE,
    )
