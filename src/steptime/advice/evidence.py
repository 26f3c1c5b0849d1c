"""A case: all that a rule may look at, as plain numbers. Assembled by `diagnosis`, stored as JSON in the tests.

A rule sees only the signals that it declared; a signal that was not measured is None (or empty), never zero.
All times are nanoseconds per training step unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from steptime.analysis.graph_launches import GraphUse
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.stragglers.comparison import LateRank
from steptime.analysis.user_code import FunctionUse
from steptime.analysis.what_if.elsewhere import Elsewhere
from steptime.analysis.what_if.what_if import Prediction
from steptime.quantities import BETWEEN_RUNS, Estimate, SourceLine, mean_of_series
from steptime.recording.recording import PaddingFacts
from steptime.trace.nsight_compute import KernelCounters

__all__ = ["FunctionUse", "LateRank", "ModuleUse", "OperatorUse", "PaddingFacts", "Prediction"]
"""Records of the rooms below that are part of a case as they are."""

Record = TypeVar("Record")


def record_of(record: Callable[..., Record], like: object, /, **given: Any) -> Record:
    """A record with the given fields and, by their names, those of another object.

    Of an array, which has one value for each step, it is the mean: with its interval where the record holds an
    estimate.
    """
    for name, parameter in signature(record).parameters.items():
        if name in given or not hasattr(like, name):
            continue
        value = getattr(like, name)
        if isinstance(value, np.ndarray):
            value = mean_of_series(value) if parameter.annotation == "Estimate" else float(value.mean())
        given[name] = value
    return record(**given)


class Signal(Enum):
    """Fields of a `Case` that a rule can declare, with why they may be missing.

    absent: what is said where a rule was not examined for it; not_in_trace: the same for a bare trace, where nobody
    watched the job.
    """

    absent: str
    not_in_trace: str

    def __new__(cls, field: str, absent: str, not_in_trace: str = "") -> Signal:
        """A member whose value is the name of the field."""
        member = object.__new__(cls)
        member._value_ = field
        member.absent, member.not_in_trace = absent, not_in_trace or absent
        return member

    STEP = "step", "no training step was measured"
    CATEGORIES = "categories", "no breakdown (no profile of the steady steps)"
    PHASES = (
        "phases",
        "the phases of the steps were not measured",
        "a trace does not show the phases of the steps (steptime run times them)",
    )
    LOADER = (
        "loader",
        "no DataLoader fed the training steps",
        "a trace does not show the parts of the loader (steptime run times them)",
    )
    LINES = (
        "lines",
        "the lines of the training loop were not timed",
        "a trace does not time the lines of the training loop (steptime run does)",
    )
    OPERATORS = "operators", "no operators (no profile of the steady steps)"
    SETTINGS = (
        "settings",
        "the settings of torch were not recorded",
        "a trace does not hold the settings of torch (steptime run reads them)",
    )
    OPTIMIZERS = "optimizers", "no torch optimiser took a step", "the trace marks no optimiser"
    ROOTS = "roots", "no model of the job was seen", "a trace does not tell the models (steptime run finds them)"
    COMPILATIONS = (
        "compilations",
        "nothing was compiled, as far as was recorded",
        "a trace does not hold the reasons of compilations (steptime run keeps them)",
    )
    COMPILER = "compiler", "torch.compile's own records are not beside it (TORCH_TRACE, diagnose --compile-logs)"
    SITES = "sites", "no call that can wait for a device was seen"
    GARBAGE = (
        "garbage",
        "Python's garbage collector was not watched",
        "the trace holds no collections (torch.profiler records them with record_python_gc_info)",
    )
    SEGMENTS = (
        "segments",
        "nothing but training steps was seen",
        "a trace does not tell what lies between the steps",
    )
    CONTENTION = (
        "contention",
        "no telemetry of the machine",
        "a trace holds no telemetry of the machine (steptime run takes it)",
    )
    MACHINE = "machine", "no peaks of the machine (steptime env measures them)"
    RECOMPUTE = "recompute", "no forward operator ran again inside backward, as far as was recorded"
    BACKWARD_AGAIN = "backward_again", "no graph was gone through twice by backward, as far as was recorded"
    KERNELS = "kernels", "no kernels on a device"
    GAPS = "gaps", "the device was not traced, or never idle"
    COPIES = "copies", "no copy to or from a device was traced"
    COLLECTIVES = "collectives", "no collective was traced"
    ALLOCATIONS = "allocations", "no call to the driver's allocator fell into a step"
    REPLAY = "replay", "the step could not be replayed (no trace of a device)"
    ROOFLINE = "roofline", "no kernels on a device whose peaks are known"
    CHAINS = "chains", "no chain of pointwise kernels was seen (shapes must be recorded)"
    RANKS = "ranks", "one rank alone, or no collectives that the ranks have in common"
    MEMORY = "memory", "no samples of memory (steptime run takes them)"
    LATENESS = "lateness", "no rank that the others wait for"
    GRADIENTS = "gradients", "no model in DistributedDataParallel was traced"
    PADDING = "padding", "no batch of tokens was seen"
    PATHS = (
        "paths",
        "the functions below the training loop were not timed",
        "a trace does not time lines (steptime run does)",
    )
    MODULES = "modules", "no module was seen in a profiled step"
    REPEATED = "repeated", "no model that trains ran without gradients in the steps"
    FUNCTIONS = "functions", "no step was profiled with Python stacks"
    CHANGE = "change", "the steps did not change for good within the run"
    PERIOD = "period", "no step is slow every so many steps"
    OUTLIERS = "outliers", "no step takes far longer than the others"
    CAUGHT = "caught", "no slow step was looked into (steptime run --catch does so)"
    GPU = (
        "gpu",
        "no telemetry of a GPU (steptime run takes it from NVIDIA's driver)",
        "a trace holds no telemetry of the GPU (steptime run takes it)",
    )


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Kernels of one name that one operator launched with arguments of one kind. calls and duration: per step, ns.

    bound: "compute", "memory", "latency", "communication" or "unmodelled". flops, bytes: per step, None without
    a model. at_roofline: ns per step at the machine's peaks, None without a model or peaks. matrix_unit: whether
    it ran on tensor cores or their like, None where the name does not say. dimensions: of a matrix product that miss
    the matrix units' tile ("k = 1003"). shapes: the arguments' shapes, raw. blocks: of the longest one's grid, 0 where
    unknown. counters: what Nsight Compute measured of it."""

    name: str
    operator: str
    calls: float
    duration: float
    bound: str
    shapes: str = ""
    dtype: str = ""
    flops: float | None = None
    bytes: float | None = None
    at_roofline: float | None = None
    matrix_unit: bool | None = None
    dimensions: tuple[str, ...] = ()
    source: SourceLine | None = None
    blocks: int = 0
    counters: KernelCounters | None = None


@dataclass(frozen=True, slots=True)
class GapUse:
    """Device-idle time of one category with one cause. duration: ns per step; count: gaps per step; longest: ns.

    cause: the operator, runtime call or annotation that held the launching thread for most of it ("" for none).
    inside: what the loader was at for more than half of it ("" for other categories, or not known).
    functions: of Python, functions with more than a tenth of it: name, and ns per step with all that it calls."""

    category: str
    cause: str
    duration: Estimate
    count: float
    longest: int
    source: SourceLine | None = None
    inside: str = ""
    functions: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Copies of one kind. kind: "HtoD", "DtoH", "DtoD", "PtoP" or "memset"; memory: "pageable", "pinned" or "".

    duration, exposed (nothing else ran): ns per step; bytes per step; calls per step."""

    kind: str
    memory: str
    calls: float
    duration: Estimate
    exposed: Estimate
    bytes: float
    operator: str = ""
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """Collectives of one kind and process group. bytes per step (None: not in the trace); exposed: ns a step alone."""

    name: str
    group: str
    calls: float
    duration: Estimate
    exposed: Estimate
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class AllocationUse:
    """Calls in steps that make the device's allocator go to the driver (cudaMalloc, cudaFree, hipMalloc, …). duration:
    ns per step of the host; idle: device-idle ns per step meanwhile; within: the same by category."""

    name: str
    calls: float
    duration: Estimate
    idle: Estimate
    source: SourceLine | None = None
    within: tuple[tuple[str, Estimate], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """The step's dependency graph, run again. error: of the unchanged replay against the measured steps, median of
    |replayed / measured - 1|. critical_path: ns per step by kind of edge, longest first; sums to the replayed step.
    longest: (kind, name, ns per step) of what takes most of it. elsewhere: on other hardware, if that was asked for."""

    error: float
    steps: int
    critical_path: tuple[tuple[str, float], ...]
    predictions: tuple[Prediction, ...] = ()
    longest: tuple[tuple[str, str, float], ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()


@dataclass(frozen=True, slots=True)
class RooflineUse:
    """Computing by what bounds its kernels. compute, memory, latency, unmodelled: ns per step; they sum to it.

    flops and bytes: per step, of what has a model. number_format: the one with most of the FLOPs; peak: the upper bound
    of a matrix product in it, FLOP/s (None: unknown). matrix_unit: share of the matrix products' time on matrix units,
    None where names do not say. utilization: of the step, what the FLOPs would take at the peaks of their formats
    (MFU), None where an upper bound is unknown. modelled: share of the kernels' time that has a model."""

    compute: float
    memory: float
    latency: float
    unmodelled: float
    flops: float
    bytes: float
    dtype: str = ""
    peak: float | None = None
    matrix_unit: float | None = None
    utilization: float | None = None
    modelled: float = 1.0


@dataclass(frozen=True, slots=True)
class ChainUse:
    """Pointwise kernels that follow one another on tensors of one size, so that one kernel could do them all.

    calls: such chains per step; kernels: in all of them, per step; duration: ns per step; bytes: that they move per
    step; saved: bytes of them that are tensors in between, written and read again. operators: in their order."""

    operators: tuple[str, ...]
    calls: float
    kernels: float
    duration: float
    bytes: float
    saved: float
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class GradientUse:
    """How DistributedDataParallel exchanges gradients. micro_batches: forwards of the wrapped model per step;
    synchronised: those behind which gradients were exchanged; buckets: per exchange; elements: in all of them, 0 where
    shapes were not recorded. search: ns per step of looking for unused parameters."""

    micro_batches: float
    synchronised: float
    buckets: float
    elements: float
    search: Estimate


@dataclass(frozen=True, slots=True)
class RankUse:
    """One rank among several. step: ns. communication: ns per step in collectives; waiting: the part of it before the
    last rank arrived. last: share of the waiting (of the first rank for the last one) at collectives where this rank
    was the last one, 0 for all where no rank is that more often than by chance. compute: ns per step."""

    rank: int
    step: float
    communication: float
    waiting: float
    last: float
    compute: float = 0.0


@dataclass(frozen=True, slots=True)
class KeeperUse:
    """Something in Python that grew with every step that was looked at. kind: "list", "variable", "closure", "hook", …;
    tensors, bytes: per step. graph: with what autograd saved for them."""

    kind: str
    name: str
    tensors: float
    bytes: float
    graph: bool = False
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of a process. peak: the most that was held: reserved on a device, resident on a CPU. allocated_peak:
    of tensors on a device. capacity: of device or machine. retries: of the allocator, per steady step; None on a CPU.
    growth: per step, `grows` where it is beyond doubt, `grown` in all. optimizer_state: by types and their elements."""

    device: str
    peak: int
    capacity: int | None = None
    allocated_peak: int | None = None
    retries: float | None = None
    growth: Estimate | None = None
    grows: bool = False
    grown: int = 0
    optimizer_state: int = 0
    keepers: tuple[KeeperUse, ...] = ()


@dataclass(frozen=True, slots=True)
class NormUse:
    """The norm of the gradients. before, after: medians of the first third of its finite samples and of the last; 0
    where there are too few. first, last: steps that were sampled. lost: so many samples at the end, from step
    lost_since on, are not finite."""

    before: float
    after: float
    first: int
    last: int
    samples: int
    lost: int = 0
    lost_since: int | None = None


@dataclass(frozen=True, slots=True)
class StepSummary:
    """duration: the mean of the steady steps; shortest, longest: of them, ns. mode: "optimizer", "backward" or
    "forward" (what boundaries were found from), "trace" without a recording. device: "cpu", "cuda", … how: what the
    steps of a bare trace were found by, in words ("" for a recording). untraced: calls per step that launch work on a
    device, where the trace holds nothing that a device did. compiled: code that torch.compile generated ran in it, as
    the trace says. scaled, skipped: updates by a gradient scaler behind its first ones, and those of them that it left
    out. norm: of the gradients, where it was sampled. graphs: of kernels, launched as one."""

    duration: Estimate
    total: int
    steady: int
    warm_up: int
    mode: str
    device: str
    micro_batches: float = 1.0
    how: str = ""
    untraced: float = 0.0
    compiled: bool = False
    scaled: int = 0
    skipped: int = 0
    norm: NormUse | None = None
    shortest: int = 0
    longest: int = 0
    graphs: GraphUse | None = None


@dataclass(frozen=True, slots=True)
class CategoryUse:
    """A category's share of the step. recoverable: what a perfect fix of this category alone could save."""

    name: str
    duration: Estimate
    recoverable: Estimate


@dataclass(frozen=True, slots=True)
class LoaderUse:
    """The training loader as configured and as measured. item: ns per item (in whatever process reads it); collate: ns
    per batch; collector: ns per batch that Python's garbage collector takes in the training process while it makes one,
    which is in neither; start: ns per start of the workers, the end of those before them included; settling: ns by
    which the steps behind one are longer. busy: share of the making of a batch in which it takes or wants a CPU, None
    where it was not measured. batches: of an epoch.

    demand: batches per step. starts: iterators begun during the measured steps; steps_per_start likewise."""

    dataset: str
    batch_size: int | None
    workers: int
    wait: Estimate
    item: Estimate | None = None
    collate: Estimate | None = None
    collector: float = 0.0
    demand: float = 1.0
    in_memory_tensors: bool = False
    batched_fetch: bool = False
    iterable: bool = False
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    collate_name: str = ""
    start: Estimate | None = None
    starts: int = 0
    steps_per_start: float | None = None
    settling: float = 0.0
    busy: float | None = None
    batches: int | None = None
    usable_cpus: int = 1
    site: SourceLine | None = None
    item_site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class LineUse:
    """A line of the user's code. role: "input", "transfer", "forward", "backward", "optimizer", "evaluation" or
    "python".

    duration: time of the line per step (lines inside it excluded when they are traced too); host: the part of it
    outside operators, the loader and the phases; hits: executions per step.
    collections: garbage collections per step inside it; checkpoint: ns in torch.save. calls: functions that it was seen
    to call, "logging.Logger.info", "torch.Tensor.item"."""

    source: SourceLine
    role: str
    duration: Estimate
    host: Estimate
    hits: float
    garbage: float = 0.0
    checkpoint: float = 0.0
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepeatedForward:
    """Forwards without gradients, in training steps, of a model that trains in them. duration, calls: per step."""

    duration: Estimate
    calls: float
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class SettingsUse:
    """Process-wide switches as the job had them. packages: installed ones that a fix could use. allocator: what
    PYTORCH_CUDA_ALLOC_CONF says. matmul_precision: of float32 products. debug_switches: those on, (variable, value)."""

    intra_op_threads: int
    usable_cpus: int
    logical_cpus: int
    detect_anomaly: bool = False
    deterministic: bool = False
    profiler: bool = False
    omp_num_threads: str | None = None
    trainers_on_host: int = 1
    cudnn_benchmark: bool | None = None
    matmul_precision: str = "highest"
    denormals_flushed: bool | None = None
    distributed_backend: str | None = None
    packages: tuple[str, ...] = ()
    allocator: str = ""
    debug_switches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RootUse:
    """A module that the job calls. type: its class; own: that is torch's (Sequential, …). device: its parameters'."""

    type: str
    parameters: int
    parameter_bytes: int
    device: str = "cpu"
    compiled: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimiser. duration: ns per step in its step(). dense_embedding_elements: elements of embedding weights whose
    gradient is dense and mostly zero. kernels: that it launches per step, None without a device trace; the duration is
    then the device's, from its first kernel to the end of its last. parameters, elements: 0 where not known."""

    type: str
    duration: Estimate
    parameters: int
    elements: int
    foreach: bool | None = None
    fused: bool | None = None
    operators: float | None = None
    dense_embedding_elements: int = 0
    site: SourceLine | None = None
    kernels: float | None = None


@dataclass(frozen=True, slots=True)
class CompilationUse:
    """A compilation. after_warm_up: it fell into or between steps that should have been steady."""

    source: SourceLine
    duration: int
    after_warm_up: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CompiledKernelUse:
    """A kernel that torch.compile generated. duration: ns per step. lines: of the user's that it computes, in the order
    of the file. operators: of ATen, fused into it. code: its source in Triton or C++, "" for all but the longest."""

    name: str
    duration: float
    lines: tuple[SourceLine, ...]
    operators: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class CompilerEventUse:
    """A line that breaks a graph, or a function whose guard failed or that reached the limit: so often."""

    source: SourceLine
    reason: str
    count: int = 1
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CompilerUse:
    """What torch.compile wrote down in a folder. limits: functions compiled too often, which run uncompiled."""

    folder: str
    kernels: tuple[CompiledKernelUse, ...] = ()
    breaks: tuple[CompilerEventUse, ...] = ()
    recompilations: tuple[CompilerEventUse, ...] = ()
    limits: tuple[CompilerEventUse, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteUse:
    """A call that can make the host wait for the device, so many times per step."""

    name: str
    device: str
    calls: float
    source: SourceLine


@dataclass(frozen=True, slots=True)
class GarbageUse:
    """Python's garbage collector in the training thread. account: that category which has most of it, "input" where
    it runs while a batch is made."""

    duration: Estimate
    collections: float
    category: str = "python"


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A line of what lies between the steps, and its share of that."""

    source: SourceLine
    share: float


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """What is no training step. kind: "evaluation", "checkpoint", "rollout", … duration: total ns; share: of the run
    after warm-up, without what steptime held it for. forward: share of it in which models that the job calls run.
    lines: of the user's, with the share of it that each takes, what it calls included; the longest first, all at one
    level of calls; where they were timed, which slowed it so many times. every: steps from one to the next, in the
    median; 0 where there is one."""

    kind: str
    count: int
    duration: int
    share: float
    forward: float = 0.0
    lines: tuple[SegmentLine, ...] = ()
    every: float = 0.0
    slowed: float = 1.0


@dataclass(frozen=True, slots=True)
class ChangeUse:
    """A level of the steps that changed for good. step: the first of the new level, from 1, of `steps` in all; epoch:
    that it lies in, None where no loader tells. before, now: medians of the step, ns; phase: that grew, by `growth` ns.
    share: of the growth, what the mean step bears. line: that takes more than before, by line_growth ns. gradual: the
    steps grew bit by bit; before and now are the first and the last fifth of the run."""

    step: int
    steps: int
    epoch: int | None
    phase: str
    before: float
    now: float
    growth: float
    share: float
    line: SourceLine | None = None
    line_growth: float = 0.0
    gradual: bool = False


@dataclass(frozen=True, slots=True)
class PeriodUse:
    """Steps that are slow every so many steps. count: of them; extra: ns that one takes more than a usual step; cost:
    ns per step. phase: with most of it. line: that counts the steps."""

    every: int
    count: int
    extra: float
    cost: Estimate
    phase: str
    line: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class OutlierUse:
    """Steps that take far longer than the others. count: of them, of so many steady steps; left_out: of them that are
    not in the mean step. duration: ns of one in the mean; usual: median of the others. part: phase (of a trace:
    category) that grew most, by growth ns. share: of the time of the steady steps. numbers: of the first ones."""

    count: int
    steps: int
    duration: float
    usual: float
    part: str
    growth: float
    share: float
    left_out: int
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CaughtUse:
    """Steps that were looked into while they lasted. duration: median, ns; usual: of a step then. numbers: of the first
    ones. period: steps from each to the next, where that is always the same, else 0. lines: of the user's, with their
    share of the time that was looked at. profiled: numbers of steps that were named in advance as slow ones, and
    profiled; as_usual: of those that then took no longer than others."""

    count: int
    duration: float
    usual: float
    numbers: tuple[int, ...]
    period: int
    lines: tuple[SegmentLine, ...]
    profiled: tuple[int, ...] = ()
    as_usual: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Contention:
    """The machine during the steady steps. other_cpu and job_cpu: in CPUs; pressure: percent of time that some task
    waited for a CPU; involuntary: involuntary context switches per second of the training process, None if unknown.
    spread: interquartile range of the step over its median. together: what the usable CPUs do at once, in CPUs of which
    one works alone. handover: ns to receive a batch from a loader's worker. None where they were not measured."""

    other_cpu: float
    job_cpu: float
    usable_cpus: int
    pressure: float | None
    spread: float
    drift: float = 0.0
    together: float | None = None
    handover: float | None = None


@dataclass(frozen=True, slots=True)
class GpuUse:
    """The GPUs during the steady steps, by so many samples of the driver. slowed, capped: shares of the samples in
    which the driver lowered the clock for heat or the board's supply, and for the limit of its power. slowed_clock,
    capped_clock: mean clock then, and max_clock: that it can reach, MHz. power, limit: watts, None where they are not
    told. width, generation: of the link to the host at its best in any sample, what device and slot can do, or None."""

    samples: int
    slowed: float
    capped: float
    slowed_clock: float
    capped_clock: float
    max_clock: float
    power: float | None = None
    limit: float | None = None
    width: int | None = None
    max_width: int | None = None
    generation: int | None = None
    max_generation: int | None = None


@dataclass(frozen=True, slots=True)
class MachineUse:
    """Peaks in force. measured: by steptime on this machine; else from a datasheet table, source. rates: of a matrix
    product by dtype, FLOP/s; matrix_flops: the one of float32. copy_bytes: B/s. dispatch: ns. updates: (bytes
    gone through, B/s) of updates in place, the smallest first. disturbed: by other load when it was measured. reached:
    formats whose rate the job itself has done, more than was known. between_runs: share of a step that runs of one job
    differ by, None where it was not measured."""

    name: str
    measured: bool
    matrix_flops: float | None
    copy_bytes: float | None
    dispatch: float | None
    rates: tuple[tuple[str, float], ...] = ()
    source: str = ""
    updates: tuple[tuple[int, float], ...] = ()
    disturbed: bool = False
    reached: tuple[str, ...] = ()
    between_runs: float | None = None


@dataclass(frozen=True, slots=True)
class RecomputeUse:
    """Forward operators that run again inside backward (activation checkpointing). duration: ns per step."""

    duration: Estimate
    memory_share: float | None = None


@dataclass(frozen=True, slots=True)
class PathUse:
    """A line below the training loop, by the path of calls that leads to it. duration: ns per step, without what it
    calls of the user's. part: of the step that calls it, "input", "forward", "backward", "optimizer" or "". lines: the
    user's, the innermost first."""

    duration: float
    part: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that rules may look at for one process. changing_work: whether the model runs other operators or
    shapes from one profiled step to the next; None where that is not known."""

    step: StepSummary
    categories: tuple[CategoryUse, ...] = ()
    phases: tuple[CategoryUse, ...] = ()
    loader: LoaderUse | None = None
    lines: tuple[LineUse, ...] = ()
    operators: tuple[OperatorUse, ...] = ()
    settings: SettingsUse | None = None
    optimizers: tuple[OptimizerUse, ...] = ()
    compilations: tuple[CompilationUse, ...] = ()
    sites: tuple[SiteUse, ...] = ()
    garbage: GarbageUse | None = None
    segments: tuple[SegmentUse, ...] = ()
    contention: Contention | None = None
    machine: MachineUse | None = None
    recompute: RecomputeUse | None = None
    backward_again: Estimate | None = None
    kernels: tuple[KernelUse, ...] = ()
    gaps: tuple[GapUse, ...] = ()
    copies: tuple[CopyUse, ...] = ()
    collectives: tuple[CollectiveUse, ...] = ()
    allocations: tuple[AllocationUse, ...] = ()
    replay: ReplayUse | None = None
    roofline: RooflineUse | None = None
    chains: tuple[ChainUse, ...] = ()
    ranks: tuple[RankUse, ...] = ()
    rank: int | None = None
    lateness: LateRank | None = None
    gradients: GradientUse | None = None
    memory: MemoryUse | None = None
    roots: tuple[RootUse, ...] = ()
    paths: tuple[PathUse, ...] = ()
    functions: tuple[FunctionUse, ...] = ()
    repeated: RepeatedForward | None = None
    padding: PaddingFacts | None = None
    change: ChangeUse | None = None
    period: PeriodUse | None = None
    changing_work: bool | None = None
    modules: tuple[ModuleUse, ...] = ()

    @property
    def between_runs(self) -> float:
        """Share of a step that runs of one job differ by on its machine: measured, else what is assumed of any."""
        measured = self.machine.between_runs if self.machine is not None else None
        return BETWEEN_RUNS if measured is None else measured

    outliers: OutlierUse | None = None
    caught: CaughtUse | None = None
    gpu: GpuUse | None = None
    compiler: CompilerUse | None = None
