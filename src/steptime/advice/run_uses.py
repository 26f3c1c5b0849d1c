"""The steps of a run, its input, its settings and its machine, as rules see them: records of a case. All times are
nanoseconds per training step unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.analysis.categories import CategoryName
from steptime.analysis.graph_launches import GraphUse
from steptime.analysis.timeline import PhaseName
from steptime.quantities import Estimate, SourceLine
from steptime.recording.recording import ItemFacts


@dataclass(frozen=True, slots=True)
class HolderUse:
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
    of tensors on a device, by its allocator. capacity: of the device or the machine. retries: of the allocator, per
    steady step; None on a CPU. growth: per step, `grows` where it is beyond doubt, `grown` in all. optimizer_state: by
    the optimizers' types and their elements."""

    device: str
    peak: int
    capacity: int | None = None
    allocated_peak: int | None = None
    retries: float | None = None
    growth: Estimate | None = None
    grows: bool = False
    grown: int = 0
    optimizer_state: int = 0
    holders: tuple[HolderUse, ...] = ()


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
    out. norm: of the gradients, where it was sampled. graphs: of kernels, launched as one. behind: usual steps that the
    mean leaves out, because a device's tracer makes them longer. gpu_busy: share of the steady steps in which the
    driver saw a kernel run, 0 to 1, None where nobody looked.
    compiling: ns in which TorchDynamo traced and compiled, of `run` ns from the first step to the end of the last."""

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
    behind: int = 0
    gpu_busy: float | None = None
    compiling: int = 0
    run: int = 0


@dataclass(frozen=True, slots=True)
class CategoryUse:
    """A category's or a phase's share of the step. recoverable: what a perfect fix of it alone could save."""

    name: str
    duration: Estimate
    recoverable: Estimate


@dataclass(frozen=True, slots=True)
class InputUse:
    """Training data of a step, from the inputs of its model: `steps` steps were looked at call by call. module: the
    model's class. samples: rows of the first dimension of its inputs, in a step; tokens likewise, None where it reads
    none."""

    module: str
    steps: int
    samples: float
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class LoaderUse:
    """The training loader as configured and as measured. item: ns per item (in whatever process reads it); collate: ns
    per batch; collector: ns per batch that Python's garbage collector takes in the training process while it makes one,
    which is in neither; start: ns per start of the workers, the end of those before them included; settling: ns by
    which the steps behind one are longer. busy: share of the making of a batch in which it takes or wants a CPU, None
    where it was not measured. batches: of an epoch. length: of the dataset. items: of the first batches, if looked at.
    made_anew: whether each iterator seen was that of another DataLoader object. iterated_at: the line that makes the
    iterators, where one alone was seen to.

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
    length: int | None = None
    items: ItemFacts | None = None
    made_anew: bool = False
    iterated_at: SourceLine | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where it has less than nothing: a report's file may be anybody's."""
        if min(self.workers, self.demand, self.collector, self.starts) < 0:
            raise ValueError("a loader has less than nothing")


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
class GarbageUse:
    """Python's garbage collector in the training thread. account: that category which has most of it, "input" where
    it runs while a batch is made."""

    duration: Estimate
    collections: float
    category: CategoryName = "python"


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """A line of what lies between the steps, and its share of that. within: the line, in a function that it calls, to
    which nearly all of its time goes; None where that is the line itself, or many."""

    source: SourceLine
    share: float
    within: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """Time that is no training step. kind: "evaluation", "checkpoint", "rollout", … duration: total ns; share: of the
    run after warm-up, without what steptime held it for. forward: share of it in which models that the job calls run.
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
class RepeatUse:
    """A line that computes what it has computed before. outer: the line that calls its function. evaluations: per step;
    again: of these, per step, with a result that was there before; results: different ones in `steps` steps. duration:
    ns per step of those that came again. part: of the step, as of `PathUse`."""

    source: SourceLine
    duration: Estimate
    evaluations: float
    again: float
    results: int
    steps: int
    part: str = ""
    outer: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class PeriodUse:
    """Steps that are slow every so many steps. count: of them; extra: ns that one takes more than a usual step; cost:
    ns per step. phase: with most of it. line: that counts the steps, or takes most of that time; line_share: then its
    part of it."""

    every: int
    count: int
    extra: float
    cost: Estimate
    phase: PhaseName
    line: SourceLine | None = None
    line_share: float = 1.0


LONGER = 1.2
"""Times the usual step, in the mean, from which on there is something to tell of steps far out."""


@dataclass(frozen=True, slots=True)
class OutlierUse:
    """Steps that take far longer than the others. count: of them, of so many steady steps; left_out: of them that are
    not in the mean step. duration: ns of one in the mean; usual: median of the others. part: phase (of a trace:
    category) that grew most, by growth ns. share: of the time of the steady steps. numbers: of the first ones.
    optimizer: type of the one that takes most of that time, and steps in no usual step; "" for none."""

    count: int
    steps: int
    duration: float
    usual: float
    part: str
    growth: float
    share: float
    left_out: int
    numbers: tuple[int, ...] = ()
    optimizer: str = ""

    @property
    def longer(self) -> bool:
        """True if they take notably longer as a whole: steps that are left out for their model's time alone may have
        waited so much less for input."""
        return self.duration >= LONGER * self.usual


@dataclass(frozen=True, slots=True)
class CaughtUse:
    """Steps that were looked into while they lasted. duration: mean, ns; usual: of a step then. numbers: of the first
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
