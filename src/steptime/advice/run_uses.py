"""Records of a case about the steps of a run, its input, its settings and its machine. All times are nanoseconds per
training step unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from steptime.analysis.categories import CategoryName
from steptime.analysis.graph_launches import GraphUse
from steptime.analysis.timeline import PhaseName
from steptime.analysis.user_code import CallUse
from steptime.quantities import Estimate, SourceLine
from steptime.recording.recording import ItemFacts


@dataclass(frozen=True, slots=True)
class HolderUse:
    """Python object that grew with every examined step. kind: "list", "variable", "closure", "hook", …; tensors, bytes:
    per step. graph: True if it also holds what autograd saved for them. entries: number of entries that a container
    gains per step; most: number that it has room for, None without a limit."""

    kind: str
    name: str
    tensors: float
    bytes: float
    graph: bool = False
    source: SourceLine | None = None
    entries: float = 0.0
    most: int | None = None


def limit_of_cache(name: str) -> str:
    """Advice to limit the cache of a function that functools.lru_cache decorates."""
    return f"Give the cache of {name} a limit (functools.lru_cache(maxsize=…)), or call {name}.cache_clear()."


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a process, bytes. peak: most memory reserved on a device, or resident on a CPU. allocated_peak: most
    memory of tensors on a device, by its allocator. capacity: size of the device's or the machine's memory. retries:
    number of the allocator's retries per steady step, None on a CPU. growth: bytes per step; grows: True if it is
    significant; grown: bytes in total. optimizer_state: bytes, from the optimizers' types and elements."""

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
    """Norm of the gradients over the run. before, after: medians of the first and the last third of its finite samples;
    0 for too few. first, last: first and last step that was sampled. samples: number of samples; lost: number of them
    at the end, from step lost_since on, that are not finite."""

    before: float
    after: float
    first: int
    last: int
    samples: int
    lost: int = 0
    lost_since: int | None = None


@dataclass(frozen=True, slots=True)
class StepSummary:
    """The step of a job and how it was measured. duration: mean of the steady steps; shortest, longest: of these, ns.
    mode: "optimizer", "backward" or "forward" (what boundaries were found from), "trace" without a recording. device:
    "cpu", "cuda", … how: source of a bare trace's steps, in words ("" for a recording). untraced: number of calls per
    step that launch device work, if the trace holds no device work. compiled: True if code that torch.compile generated
    ran in the trace. scaled, skipped: number of updates by a gradient scaler after its first ones, and of those skipped
    among them. norm: norm of the gradients, if sampled. graphs: use of CUDA graphs. behind: number of usual steps that
    the mean leaves out because a device's tracer slows them. gpu_busy: fraction of the steady steps in which the driver
    saw a kernel run, 0 to 1, None if not sampled. loss_divided: True if the value that backward starts from is divided
    or multiplied by something, None where its graph does not say. compiling: ns in which TorchDynamo traced and
    compiled, of `run` ns from the first step to the end of the last."""

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
    loss_divided: bool | None = None
    compiling: int = 0
    run: int = 0


@dataclass(frozen=True, slots=True)
class CategoryUse:
    """Time of a category or a phase. recoverable: time that a perfect fix of this category alone could save."""

    name: str
    duration: Estimate
    recoverable: Estimate


@dataclass(frozen=True, slots=True)
class InputUse:
    """Training data of a step, from the inputs of its model in `steps` examined steps. module: the model's class.
    samples: rows of its inputs' first dimension per step; tokens: per step, None if it reads none."""

    module: str
    steps: int
    samples: float
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class LoaderUse:
    """The training loader as configured and as measured. wait: ns per step. item: ns per item, in the process that
    reads it; collate: ns per batch; collector: ns per batch in Python's garbage collector while the training process
    makes the batch, in neither of the two. start: ns per start of the workers, with the end of those before; settling:
    ns by which steps after a start are longer. busy: fraction of batch-preparation time spent running or runnable on a
    CPU, None if not measured. batches: number per epoch. length: number of items in the dataset. items: facts on items
    of the first batches, if examined. early: ns that each step waited at least before its lines were timed, None if
    unknown. made_anew: True if each iterator was of another DataLoader object. iterated_at: line that makes the
    iterators, if only one does.

    demand: number of batches per step. starts: number of iterators started during the measured steps; steps_per_start:
    number of steps between two starts."""

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
    early: float | None = None
    made_anew: bool = False
    iterated_at: SourceLine | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for negative counts: a report's file may come from anybody."""
        if min(self.workers, self.demand, self.collector, self.starts) < 0:
            raise ValueError("a loader has less than nothing")


@dataclass(frozen=True, slots=True)
class SettingsUse:
    """Process-wide switches of the job. packages: installed packages that a fix could use. allocator: value of
    PYTORCH_CUDA_ALLOC_CONF. matmul_precision: precision of float32 matmuls. debug_switches: (variable, value) of each
    that is on. anomaly_site, deterministic_site: line that turns the setting on, None if not found. threads_site: line
    that calls torch.set_num_threads."""

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
    anomaly_site: SourceLine | None = None
    threads_site: SourceLine | None = None
    deterministic_site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class GarbageUse:
    """Python's garbage collection in the training thread. collections: number per step. category: category with most of
    its time, "input" if it runs while a batch is made."""

    duration: Estimate
    collections: float
    category: CategoryName = "python"


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """Line of the work between steps. share: its fraction of that work's time. within: line of a called function that
    takes nearly all of this time; None if there is none. acts: False if all that the line calls was timed and contains
    neither a model nor, by the lines' texts, an environment."""

    source: SourceLine
    share: float
    within: SourceLine | None = None
    acts: bool = True


@dataclass(frozen=True, slots=True)
class SmallBatches:
    """Batches of evaluations that are much smaller than training's. rows: number of rows in one of them; usual: number
    of rows in a training batch; calls: number of calls of the model per evaluation; forward: ns of these calls;
    batched: ns that they would take in batches as large as training's. loader: line that constructs the loader with
    this batch size, None for batches made by hand."""

    rows: int
    usual: int
    calls: float
    forward: float
    batched: float
    loader: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class SegmentUse:
    """Time outside of training steps. kind: "evaluation", "checkpoint", "rollout", … duration: total ns; share:
    fraction of the run after warm-up, without steptime's own pauses. forward: fraction of it in which the job's models
    run. lines: user's lines with their fractions of it, including callees; longest first, all at one level of calls.
    slowed: factor by which timing these lines slowed it. every: median number of steps from one to the next, those of
    the warm-up included; 0 if there is only one. asked: line of the training loop that leads to most of it. small:
    facts on evaluations in small batches. growth: ns of the first and of the last segments, if they become longer.
    graphs: fraction of evaluations' forward with gradients on, though no backward follows."""

    kind: str
    count: int
    duration: int
    share: float
    forward: float = 0.0
    lines: tuple[SegmentLine, ...] = ()
    every: float = 0.0
    slowed: float = 1.0
    asked: SourceLine | None = None
    small: SmallBatches | None = None
    growth: tuple[float, float] | None = None
    graphs: float = 0.0


@dataclass(frozen=True, slots=True)
class RepeatUse:
    """A line that computes what it has computed before. outer: line that calls its function. evaluations: number per
    step; again: number of these whose result was there before; results: number of different results in `steps` steps.
    duration: ns per step of the repeated evaluations. part: part of the step, as in `PathUse`. called: function of a
    package that returned the results to the line, "" if the line computes them itself. first, asker: two lines that
    request the result one after the other. trained: True if backward goes through most repeated results."""

    source: SourceLine
    duration: Estimate
    evaluations: float
    again: float
    results: int
    steps: int
    part: str = ""
    outer: SourceLine | None = None
    called: str = ""
    first: SourceLine | None = None
    asker: SourceLine | None = None
    trained: bool = False


@dataclass(frozen=True, slots=True)
class WorkUse:
    """A line that processes more data than it needs. kind: "container" (read whole), "folder" (listed), "copy" (of an
    object and all below it), "file" (the same one, read again), "stack" (of Python, with its source), "list" (converted
    number by number), "rows" (made and not taken), "view" (loaded with all of the tensor that it is a part of),
    "unlogged" (made for a logger that drops it), "double" (arrays of that precision) or "one-hot" (gives such vectors).
    what: the container with its kind and entries, the shape of the vectors, what is taken of rows or used of a file,
    else the function that it calls. evaluations, duration: number and ns per step."""

    source: SourceLine
    kind: str
    what: str
    duration: Estimate
    evaluations: float
    part: str = ""


@dataclass(frozen=True, slots=True)
class PeriodUse:
    """Periodically slow steps. every: number of steps per period; count: number of slow steps; extra: ns by which a
    slow step is longer than a usual one; cost: the same averaged over all steps, ns. phase: phase with most of the
    extra time. line: line that counts the steps or takes most of the extra time; line_share: its fraction of it.
    extras: operators that a slow step runs beyond others; alone: names of operators, inner ones too, that only slow
    steps run. growth: extra ns of the first and of the last slow steps, if it rises."""

    every: int
    count: int
    extra: float
    cost: Estimate
    phase: PhaseName
    line: SourceLine | None = None
    line_share: float = 1.0
    extras: tuple[CallUse, ...] = ()
    alone: tuple[str, ...] = ()
    growth: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class LengthUse:
    """Range of input sizes in `steps` profiled steps whose time follows from these sizes. shortest, longest: smallest
    and largest product of the sizes that differ between the steps (the number of rows does not count)."""

    shortest: int
    longest: int
    steps: int


LONGER = 1.2
"""Least mean length of outliers worth reporting, as a multiple of the usual step."""


@dataclass(frozen=True, slots=True)
class PassUse:
    """Many backward passes within a step, at the line that starts them. count: number per step; duration: ns per step.
    shared: True if they go through the same graph."""

    source: SourceLine
    count: float
    duration: Estimate
    shared: bool


@dataclass(frozen=True, slots=True)
class OutlierUse:
    """Steps that take far longer than the others. count: number of outliers among `steps` steady steps. left_out:
    number of outliers that the mean step does not include; at_segments: those of them in which an evaluation or a
    checkpoint ran. duration: mean of the outliers, ns; usual: median of the other steps, ns. part: phase (in a bare
    trace: category) that grew most, by `growth` ns; "" if the timers were off. share: fraction of the steady steps'
    time that outliers take; if the probe sampled the outliers, `steps` and `share` refer to all steps. numbers: of the
    first outliers. optimizer: type of the optimizer that takes most of their time and runs in no usual step; "" for
    none. passes: backward passes of the outliers; None unless usual steps have fewer. rise: durations of the first and
    of the last outliers, ns; None unless outliers become longer over the run. line: line that takes most of an
    outlier."""

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
    passes: PassUse | None = None
    rise: tuple[float, float] | None = None
    line: SourceLine | None = None
    at_segments: int = 0

    @property
    def longer(self) -> bool:
        """True if the outliers take notably longer as a whole. Steps that are excluded only for their model's time may
        have waited less for input."""
        return self.duration >= LONGER * self.usual


@dataclass(frozen=True, slots=True)
class CaughtUse:
    """Slow steps that were sampled while they lasted. duration: mean, ns; usual: usual step time then, ns. numbers:
    numbers of the first ones. period: constant distance between them in steps, else 0. lines: user's lines, with their
    fractions of the sampled time. profiled: numbers of steps that were predicted to be slow, and profiled; as_usual:
    numbers of those that then took no longer than others."""

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
    """Machine during the steady steps. other_cpu, job_cpu: number of CPUs that other programs and the job used;
    pressure: percent of time in which some task waited for a CPU, None if unknown. spread: interquartile range of the
    step over its median. drift: relative growth from the first third of the steps to the last. together: work of all
    usable CPUs at once, in units of one CPU that runs alone; handover: ns to receive a batch from a loader's worker;
    None if not measured."""

    other_cpu: float
    job_cpu: float
    usable_cpus: int
    pressure: float | None
    spread: float
    drift: float = 0.0
    together: float | None = None
    handover: float | None = None


@dataclass(frozen=True, slots=True)
class ShapedUse:
    """Calls of one operator with equal arguments, except calls that it makes itself. name: without namespace. shapes:
    shapes of the arguments in their order, () for an argument that is no tensor; dtypes: their C++ types; settings: the
    other arguments as a trace prints them, "" for tensors, () if unknown. calls: number per step; duration: ns in a
    steady step, with inner operators and what autograd runs for it. trains: True if a weight gets a gradient (of
    convolutions). source: user's function that makes most calls; module: class of the module around them."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    settings: tuple[str, ...]
    calls: float
    duration: float
    trains: bool = False
    source: SourceLine | None = None
    module: str = ""


@dataclass(frozen=True, slots=True)
class SpreadUse:
    """Tensors of all pairs that are then summed. kind: "distance" (of differences) or "product". shape: shape of these
    tensors. calls: number of calls per step that make one; duration: ns in a steady step of all operators on tensors of
    this shape, backward included. source: user's function that makes them."""

    kind: Literal["distance", "product"]
    shape: tuple[int, ...]
    calls: float
    duration: float
    source: SourceLine | None = None
