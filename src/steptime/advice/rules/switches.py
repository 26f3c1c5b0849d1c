"""ST6xx: switches that were left on, and runs that go wrong."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.advice.device_uses import MachineUse
from steptime.advice.evidence import Case, SiteUse
from steptime.advice.kernels import plain_name
from steptime.advice.line_evidence import profile_scale
from steptime.advice.models import check_time, checks
from steptime.advice.rule import Finding, Weight, rule
from steptime.advice.run_uses import CategoryUse, SegmentUse, SettingsUse, StepSummary
from steptime.advice.savings import in_step, modelled, ratio, scaled
from steptime.analysis.operators import OperatorUse
from steptime.debug_switches import acting
from steptime.quantities import Estimate, format_count, format_duration, format_share, format_source
from steptime.recording.rule_facts import TracerFacts

SLOWDOWN_BY_ANOMALY_DETECTION = (1.2, 1.7, 5.0)
"""Least, usual and greatest factor by which it lengthens a step. Measured on a CPU with torch 2.13: 1.26
(convolutions), 1.31 (wide perceptron), 2.4 (encoder), 4.9 (two hundred small layers): the more operators for the same
work, the more."""
SLOWDOWN_BY_PROFILER = (1.05, 1.2, 1.9)
"""The same: torch.profiler made steps 1.05 to 1.9 times as long on four models on a CPU with torch 2.13, the more the
smaller their operators are and the more is recorded (shapes, stacks, memory)."""
SLOWER_IF_DETERMINISTIC = frozenset(
    {
        "fill", "index_add", "index_copy", "index_put", "_index_put_impl", "scatter", "scatter_add", "scatter_reduce",
        "put", "embedding_dense_backward", "cumsum", "histc", "_unsafe_index_put",
    }
)  # fmt: skip
"""Operators that take another, slower way under torch.use_deterministic_algorithms (its documentation lists them),
and the fill of uninitialised memory that comes with it."""
FILL = "fill"
"""Goes away whole, except fills of the job's own; of the slower ways a part remains."""
LEAST_SHARE_DETERMINISTIC = 0.03
"""Fraction of the step: less is not worth a finding, only a note."""
LEAST_SKIPPED, FEWEST_SKIPPED = 0.02, 2
"""Fraction of the updates behind the first ones. GradScaler doubles its scale every 2000 updates and so loses 0.05 % by
trying: forty times that is no trying. And a single one may be a batch."""
FEWEST_MICRO_BATCHES = 2
GREAT_GROWTH = 100.0
"""From the first third of the samples to the last. From batch to batch, and over a training that goes well, the norm
varies by a factor of a few: Pascanu, Mikolov & Bengio, "On the difficulty of training recurrent neural networks"
(2013), section 3.2, clip at half to ten times its average."""
FEWEST_NORMS, FEWEST_LOST = 9, 3
"""Samples. A single norm that is not finite may be an update that a gradient scaler leaves out."""


def _by_slowdown(step: StepSummary, factors: tuple[float, float, float]) -> Estimate:
    """Part that a switch takes of a step that it lengthens by these factors."""
    low, usual, high = (step.duration.value * (1 - 1 / factor) for factor in factors)
    return modelled(usual, low, high, step.steady)


@rule("ST601", "detect-anomaly", supersedes=("overhead-bound",), at_setting=True)
def detect_anomaly(step: StepSummary, settings: SettingsUse) -> Finding | None:
    """Autograd's anomaly detection was left on

    What it means: torch.autograd.set_detect_anomaly(True) records a Python traceback for every forward operator and
    checks every gradient for NaN. It is meant for finding one fault, not for training.

    How we know: steptime reads the switch while backward runs. The savings are estimated from slow-downs that were
    measured on other models, so the interval is wide.

    What helps: Switch it off, and on again only when a NaN appears; torch.autograd.detect_anomaly() as a context
    manager around the suspicious steps is enough.

    When to ignore it: While you are looking for a NaN.
    """
    if not settings.detect_anomaly:
        return None
    saving, whole = _by_slowdown(step, SLOWDOWN_BY_ANOMALY_DETECTION), format_duration(step.duration.value)
    summary = f"Anomaly detection is on: it takes about {format_duration(saving.value)} of a step of {whole}"
    advice = "Switch off torch.autograd.set_detect_anomaly."
    return detect_anomaly.finding(summary, advice, saving, source=settings.anomaly_site)


@rule("ST602", "profiler-left-on", supersedes=("overhead-bound",))
def profiler_left_on(step: StepSummary, settings: SettingsUse) -> Finding | None:
    """The job's own profiler records every step

    What it means: The script runs torch.profiler (or autograd.profiler) around its training without a schedule that
    ends it. Each operator is recorded, and memory grows until the recording is written.

    How we know: steptime sees that a profiler of the job's own is active while backward runs, in most of the steps.
    The savings are estimated from slow-downs that were measured on other models.

    What helps: Take it out, or give it a schedule (wait, warmup, active, repeat=1) so that it stops after a few steps.

    When to ignore it: When this run is the one that is being profiled.
    """
    if not settings.profiler:
        return None
    saving, whole = _by_slowdown(step, SLOWDOWN_BY_PROFILER), format_duration(step.duration.value)
    summary = f"The job profiles itself: about {format_duration(saving.value)} of a step of {whole}"
    advice = "Take the profiler out of the job, or give it a schedule with repeat=1."
    return profiler_left_on.finding(summary, advice, saving)


@rule("ST603", "deterministic-left-on")
def deterministic_left_on(step: StepSummary, settings: SettingsUse, case: Case) -> Finding | None:
    """Deterministic algorithms were left on

    What it means: torch.use_deterministic_algorithms(True) makes scatters, index writes and some convolutions use
    slower algorithms, and fills every new tensor (torch.utils.deterministic.fill_uninitialized_memory).

    How we know: steptime reads the switch while backward runs. The upper bound of the savings is the profiled time of
    the operators that the switch slows. Without a profile this is only a note.

    What helps: Switch it off when the run need not repeat bit for bit; or keep it and set
    torch.utils.deterministic.fill_uninitialized_memory = False.

    When to ignore it: When bit-equal repetition is required.
    """
    if not settings.deterministic:
        return None
    advice = "Switch torch.use_deterministic_algorithms off unless the run must repeat bit for bit."
    changed = [use for use in case.operators if plain_name(use.name) in SLOWER_IF_DETERMINISTIC]
    scale = profile_scale(case.operators, case.categories)
    spent = sum(use.duration for use in changed) * scale
    if ratio(spent, step.duration.value) < LEAST_SHARE_DETERMINISTIC:
        summary = "Deterministic algorithms are on; what they cost here is small or was not measured"
        return deterministic_left_on.finding(summary, advice, weight=Weight.NOTE, source=settings.deterministic_site)
    filling = sum(use.duration for use in changed if plain_name(use.name) == FILL) * scale
    slower = spent - filling
    likely, sure = 0.5 * slower + 0.9 * filling, 0.1 * slower + 0.5 * filling
    saving = modelled(likely, sure, spent, step.steady)
    top = max(changed, key=lambda use: use.duration)
    slowed = f"{in_step(saving.high, step)} in what they slow down, most in {plain_name(top.name)}"
    summary = f"Deterministic algorithms are on: {slowed}"
    site = settings.deterministic_site
    slow = (f"The longest is at {format_source(top.place)}.",) if site is not None and top.place is not None else ()
    return deterministic_left_on.finding(
        summary, advice, saving, category="compute", source=site or top.place, evidence=slow
    )


@rule("ST604", "overflow-skipped")
def overflow_skipped(step: StepSummary) -> Finding | None:
    """The gradient scaler skips updates

    What it means: torch.amp.GradScaler skips an update if a gradient has overflowed, and halves its scale. In the
    first steps that is how it finds its scale. Later, each skipped update is a step that was computed for nothing;
    many of them mean that gradients overflow at any scale.

    How we know: An update was skipped if the scaler's step had no optimizer's step inside of it. The first 24 updates
    do not count. The rule fires if at least two updates, and 2 % of them, were skipped. The savings are that share of
    the step. Skips of fused optimizers are not seen: torch calls these in any case, and they decide on the device.

    What helps: Train in bfloat16, which needs no scaler, where the device has it. Otherwise steptime nan names the
    operator that overflows; keep it out of autocast (torch.autocast(…, enabled=False)), or clip what goes in.

    When to ignore it: Where growth_interval was set to a few steps on purpose.
    """
    share = ratio(step.skipped, step.scaled)
    if share < LEAST_SKIPPED or step.skipped < FEWEST_SKIPPED:
        return None
    summary = f"The gradient scaler skipped {step.skipped} of {step.scaled} updates ({format_share(share)})"
    advice = "Train in bfloat16 without a scaler, or find the operator that overflows with steptime nan."
    return overflow_skipped.finding(summary, advice, scaled(step.duration, share))


@rule("ST605", "exploding-gradient", weight=Weight.NOTE)
def exploding_gradient(step: StepSummary) -> Finding | None:
    """The gradients explode

    What it means: The norm of the gradients is at least a hundred times as large as before, or no longer finite.
    Steps take no longer, but what they compute is useless: the loss is nan, or will be soon.

    How we know: In some steps, the norm of the gradients is computed at the end of the step; that takes 0.02 % of the
    time. At most a million elements are read, those of the smallest parameters first, which are in all layers. The
    median of the first third of these norms is compared with the median of the last third. Parameters on a device are
    not read, because that would wait for the device; steptime nan reads them, in a run of its own.

    What helps: torch.nn.utils.clip_grad_norm_ before the update; a lower learning rate, or one with a warm-up;
    check the sign of the loss. steptime nan names the step, the operator and the line of the first value that was
    not finite.

    When to ignore it: Where the loss is scaled up on purpose while it runs, and the update undoes that.
    """
    norm = step.norm
    if norm is None:
        return None
    if norm.lost >= FEWEST_LOST:
        return exploding_gradient.finding(
            f"The gradients are not finite since step {norm.lost_since} at the latest",
            "Run steptime nan with the same command: it names the first value that is not finite, and its line.",
        )
    if norm.samples < FEWEST_NORMS or norm.after < GREAT_GROWTH * norm.before or not norm.before:
        return None
    return exploding_gradient.finding(
        f"The gradients have grown {_plain(norm.after / norm.before)} times from step {norm.first} to {norm.last}: "
        f"norm {_plain(norm.before)}, then {_plain(norm.after)}",
        "Clip the gradients (torch.nn.utils.clip_grad_norm_), or lower the learning rate.",
    )


def _plain(value: float) -> str:
    """Two digits, and no power of ten where people read numbers without."""
    short = f"{value:.2g}"
    return f"{float(short):,g}" if value < 1e6 else short


@rule("ST606", "debug-switch", weight=Weight.NOTE)
def debug_switch(step: StepSummary, settings: SettingsUse) -> Finding | None:
    """A debugging variable was left on

    What it means: An environment variable makes every step do more than train. CUDA_LAUNCH_BLOCKING=1 waits for
    each kernel, TORCH_DISTRIBUTED_DEBUG=DETAIL checks each collective by further ones, ONEDNN_VERBOSE=1 prints each
    matmul. PYTHONDEVMODE=1 and PYTHONMALLOC=debug check the interpreter; NCCL_P2P_DISABLE=1 sends data between
    devices through the CPU. Such lines stay in scripts long after the fault is found.

    How we know: steptime reads the environment at the first steps. The finding names the variables that have an
    effect here: CUDA's in a job on a device, NCCL's if NCCL is the backend. The cost depends on the job, so this is a
    note; steptime try measures it.

    What helps: Remove the variable from the script, the launcher or the container. One that the script sets through
    os.environ must be removed there.

    When to ignore it: While you are looking for the fault, or if the switch works around one: NCCL_P2P_DISABLE on a
    host whose devices hang without it.
    """
    found = acting(settings.debug_switches, step.device, settings.distributed_backend)
    if not found:
        return None
    (switch, value), others = found[0], len(found) - 1
    summary = f"{switch.name}={value} is set{f' and {others} more like it' if others else ''}: {switch.what}"
    return debug_switch.finding(
        summary,
        "Take it out of the environment, unless you are looking for a fault; steptime try measures what it costs.",
        evidence=tuple(f"{switch.name}={value}: {switch.what}" for switch, value in found),
    )


TRACED = ("python", "overhead")
"""Categories that are slowed: Python of the job's and of torch's. Operators themselves are not. Without a loader, the
input is Python of the loop's, too; a loader's items may be decoded in C, or read from a disk."""
SLOWED_BY_TRACERS = {
    "trace": (0.1, 0.3, 0.8),
    "profile": (0.15, 0.25, 0.5),
    "memory": (0.35, 0.5, 0.8),
}
"""Sure, likely and greatest fraction of these categories that a tracer takes, by its kind. Measured in turns with steps
without one (torch 2.13, Python 3.11, one thread; two models of mostly Python and small operators): a debugger with a
breakpoint elsewhere 0.13 to 0.30 of the step, cProfile 0.22 and 0.28, tracemalloc 0.42 and 0.46 with one frame, 0.59
and 0.79 with 25 frames. A debugger that stops at each line takes more."""
TRACING = {
    "trace": ("A debugger or a coverage tool", "Run the training without it; debug a few steps alone."),
    "profile": ("A profiler of Python", "Run the training without it; steptime times lines without slowing the steps."),
    "memory": ("tracemalloc", "Call tracemalloc.stop() once the steps that leak are found, or do not start it."),
}
"""What is on, and what helps."""
OWN_NAMES = ("?", "__main__", "tracemalloc")
"""Modules of a tracer that say nothing more than its kind."""


@rule("ST609", "tracer-left-on", supersedes=("overhead-bound",), at_setting=True)
def tracer_left_on(
    step: StepSummary, tracers: tuple[TracerFacts, ...], categories: tuple[CategoryUse, ...], case: Case
) -> Iterator[Finding]:
    """A debugger, a coverage tool, Python's profiler or tracemalloc was left on

    What it means: Python calls a tool at every line (sys.settrace: pdb, an editor's debugger, coverage), at every call
    (sys.setprofile: cProfile), or at every block of its memory (tracemalloc). All Python in the step is slowed: the
    job's, the modules' and the optimizer's. Other findings then blame what the tool makes slow.

    How we know: Before an early step, steptime asks Python which tool it calls in the training thread. The savings
    are a fraction of the step's Python and overhead, and of its input if no DataLoader makes it. The fraction is
    estimated from slow-downs that were measured on other models. Debuggers and coverage tools that use sys.monitoring
    (Python 3.12 and later) are not reported, because Python calls them at few lines.

    What helps: Start the job without the tool ("Run" in place of "Debug", no python -m cProfile), or switch it off
    after a few steps.

    When to ignore it: While you debug, or look for a leak.
    """
    variables = {name for name, _ in case.settings.debug_switches} if case.settings is not None else set()
    traced = TRACED if case.loader is not None else (*TRACED, "input")
    spent = sum(use.duration.value for use in categories if use.name in traced)
    for tracer in tracers:
        if tracer.kind not in TRACING or (tracer.kind == "memory" and "PYTHONTRACEMALLOC" in variables):
            continue  # ST606 names the variable
        (what, advice), (sure, likely, most) = TRACING[tracer.kind], SLOWED_BY_TRACERS[tracer.kind]
        saving = modelled(likely * spent, sure * spent, most * spent, step.steady)
        named = f" ({tracer.tool})" if tracer.tool not in OWN_NAMES else ""
        summary = f"{what}{named} is on in every step: some {in_step(saving.value, step)}"
        yield tracer_left_on.finding(summary, advice, saving, source=tracer.site)


CHECKS_OFF = (
    "Once the job runs, switch the checks off: torch.distributions.Distribution.set_default_validate_args(False), "
    "which must be called (an assignment only replaces it), or validate_args=False where one is made."
)


@rule("ST608", "argument-checks")
def argument_checks(
    step: StepSummary,
    sites: tuple[SiteUse, ...],
    machine: MachineUse | None = None,
    segments: tuple[SegmentUse, ...] = (),
) -> Finding | None:
    """torch.distributions checks its arguments in every call

    What it means: Each new distribution, and each log_prob, first checks that all values are valid, and reads the
    outcome. That is a few small operators, and on a device a wait for it.

    How we know: In the first steps, reads of a truth value at lines that call torch.distributions are counted: each
    check makes one. A check of small tensors took 18 to 40 times as long as a small operator (EPYC, torch 2.13). The
    savings are the number of checks times twenty dispatches of this machine; if a dispatch was not measured, it
    counts as a microsecond. Checks between steps, while the job collects experience, are reported by ST903.

    What helps: Distribution.set_default_validate_args(False), or validate_args=False.

    When to ignore it: While the job is new: the checks find a NaN where it arises.
    """
    found, cost = checks(sites), check_time(machine)
    if not found or any(use.kind == "rollout" for use in segments):
        return None
    count = sum(each.calls for each in found)
    saving = modelled(count * cost, 0.5 * count * cost, 2 * count * cost, step.steady)
    summary = f"torch.distributions checks arguments {count:.3g} times per step: {in_step(saving.value, step)}"
    return argument_checks.finding(summary, CHECKS_OFF, saving, source=found[0].source)


BATCH_NORMS = frozenset({"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update"})
"""Operators of a batch normalisation that trains by the statistics of one process (SyncBatchNorm has others)."""


@rule("ST607", "accumulated-loss", weight=Weight.NOTE)
def accumulated_loss(step: StepSummary, operators: tuple[OperatorUse, ...] = ()) -> Iterator[Finding]:
    """Gradients are accumulated without the scale of one large batch

    What it means: backward() adds to the gradients. The sum over n micro-batches of mean losses is n times the
    gradient of the whole batch, as if the learning rate were n times as large. Adam's update hardly depends on this
    scale; clipping, and weight decay that is added to the gradient, do. Batch normalisation takes mean and variance
    of each micro-batch alone.

    How we know: The recording shows the number of backward passes per step. The autograd graph of the first losses
    has no node that divides or multiplies the loss. Batch normalisation is seen by its operators.

    What helps: loss = loss / n before backward(), or a sum of losses divided by all samples of the step. For batch
    normalisation: GroupNorm, LayerNorm, or fewer and larger micro-batches.

    When to ignore it: When the gradients or the learning rate are divided elsewhere, or these are losses of several
    models or tasks.
    """
    count = round(step.micro_batches)
    if count < FEWEST_MICRO_BATCHES:
        return
    passes = format_count(count, "backward pass")
    if step.loss_divided is False:
        summary = f"{passes} per step add up mean losses that nothing divides: the gradient is {count} times as large"
        yield accumulated_loss.finding(summary, f"Divide the loss by {count} before backward().")
    norms = [use for use in operators if plain_name(use.name) in BATCH_NORMS]
    if norms:
        summary = f"Batch normalisation sees one of {count} micro-batches at a time, not the batch of the step"
        advice = "Use GroupNorm or LayerNorm, or fewer and larger micro-batches."
        yield accumulated_loss.finding(summary, advice, source=norms[0].place)
