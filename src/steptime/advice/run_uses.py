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
    per step. graph: True if it also holds what autograd saved for them. entries: by which a container becomes
    longer per step; most: that it has room for, None without a limit."""

    kind: str
    name: str
    tensors: float
    bytes: float
    graph: bool = False
    source: SourceLine | None = None
    entries: float = 0.0
    most: int | None = None


def limit_of_cache(name: str) -> str:
    """Advice for a function whose results functools.lru_cache keeps."""
    return f"Give the cache of {name} a limit (functools.lru_cache(maxsize=…)), or call {name}.cache_clear()."


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory of a process, bytes. peak: reserved on a device, resident on a CPU. allocated_peak: of tensors on a
    device, by its allocator. capacity: of the device or the machine. retries: of the allocator, per steady step; None
    on a CPU. growth: per step; grows: True if it is significant; grown: in total. optimizer_state: from the optimizers'
    types and their elements."""

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
    """Norm of the gradients. before, after: medians of the first and the last third of its finite samples; 0 for too
    few. first, last: steps that were sampled. lost: number of samples at the end, from step lost_since on, that are not
    finite."""

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
    the trace says. scaled, skipped: updates by a gradient scaler after its first ones, and the skipped ones among them.
    norm: of the gradients, where it was sampled. graphs: of kernels, launched as one. behind: usual steps that the mean
    leaves out, because a device's tracer makes them longer. gpu_busy: share of the steady steps in which the driver saw
    a kernel run, 0 to 1, None where nobody looked. loss_divided: True if the value that backward starts from is divided
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
    """Time of a category or a phase. recoverable: what a perfect fix of it alone could save."""

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
    """The training loader as configured and as measured. item: ns per item (in whatever process reads it); collate: ns
    per batch; collector: ns per batch that Python's garbage collector takes in the training process while it makes one,
    which is in neither; start: ns per start of the workers, the end of those before them included; settling: ns by
    which the steps after one are longer. busy: share of the making of a batch in which it takes or wants a CPU, None
    where it was not measured. batches: of an epoch. length: of the dataset. items: of the first batches, if looked at.
    early: ns that each step waited at least before its lines were timed, None if unknown. made_anew: whether each
    iterator seen was that of another DataLoader object. iterated_at: the line that makes the iterators, where one alone
    was seen to.

    demand: batches per step. starts: iterators started during the measured steps; steps_per_start: steps between
    two."""

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
    """Process-wide switches of the job. packages: installed ones that a fix could use. allocator: value of
    PYTORCH_CUDA_ALLOC_CONF. matmul_precision: of float32 matmuls. debug_switches: those that are on, (variable,
    value). anomaly_site, deterministic_site: the line that switched it on, None if it was not found. threads_site: one
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
    """Python's garbage collection in the training thread. collections: per step. category: the one with most of its
    time, "input" if it runs while a batch is made."""

    duration: Estimate
    collections: float
    category: CategoryName = "python"


@dataclass(frozen=True, slots=True)
class SegmentLine:
    """Line of the work between steps. share: its fraction of that. within: the line of a called function that takes
    nearly all of its time; None if there is no such line. acts: False if what it calls was timed, and neither a model
    nor, by the text of a line, an environment is in it."""

    source: SourceLine
    share: float
    within: SourceLine | None = None
    acts: bool = True


@dataclass(frozen=True, slots=True)
class SmallBatches:
    """Batches of evaluations that are much smaller than training's. rows: of one; usual: of a training batch; calls:
    of the model in an evaluation; forward: ns of these calls; batched: ns that they would take in training batches, as
    long for each as in training. loader: construction of the loader that has this batch size, None for batches made by
    hand."""

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
    the warm-up included; 0 if there is only one. asked: line of the training loop that most of it is below. small: of
    evaluations in small batches. growth: ns of the first and the last segments, where they become longer. graphs:
    fraction of evaluations' forward with gradients on, though no backward follows."""

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
    """A line that computes what it has computed before. outer: the line that calls its function. evaluations: per step;
    again: of these, per step, with a result that was there before; results: different ones in `steps` steps. duration:
    ns per step of those that came again. part: of the step, as of `PathUse`. called: the package's function that gave
    them to the line, "" for the line itself. first, asker: two lines that ask for it one after the other. trained:
    backward goes to most of what came again."""

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
    """A line that goes through more than it needs. kind: "container" (read whole), "folder" (listed), "copy" (of an
    object and all below it), "file" (the same one, read again), "stack" (of Python, with its source), "list" (converted
    number by number), "rows" (made and not taken), "view" (loaded with all of the tensor that it is a part of),
    "unlogged" (made for a logger that drops it), "double" (arrays of that precision) or "one-hot" (gives such vectors).
    what: the container with its kind and entries, the shape of the vectors, what is taken of rows or used of a file,
    else the function that it calls. evaluations, duration (ns): per step."""

    source: SourceLine
    kind: str
    what: str
    duration: Estimate
    evaluations: float
    part: str = ""


@dataclass(frozen=True, slots=True)
class PeriodUse:
    """Periodically slow steps. every: steps per period; count: number of slow steps; extra: ns of one above a usual
    step; cost: ns per step. phase: the one with most of it. line: line that counts the steps, or takes most of that
    time; line_share: its fraction of it then. extras: operators that a slow step runs beyond others; alone: names of
    those that it alone runs, inner ones too. growth: extra ns of the first and the last ones, where they rise."""

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
    """Sizes, apart from the number of rows, that the model is given in `steps` profiled steps, whose time follows from
    them: the smallest and the largest matmul."""

    shortest: int
    longest: int
    steps: int


LONGER = 1.2
"""Least mean length of outliers worth reporting, as a multiple of the usual step."""


@dataclass(frozen=True, slots=True)
class PassUse:
    """Many backward passes of a step, by the line that starts them. count: per step; duration: ns per step. shared:
    they go through the same graph."""

    source: SourceLine
    count: float
    duration: Estimate
    shared: bool


@dataclass(frozen=True, slots=True)
class OutlierUse:
    """Steps that take far longer than the others. count: number of them among `steps` steady steps; left_out: those
    that the mean step excludes. duration: mean of them, ns; usual: median of the others, ns. part: phase (of a trace:
    category) that grew most, by growth ns; "" where the timers were off. share: their fraction of the steady steps'
    time; where the probe looked into them, `steps` and `share` are of all steps. numbers: of the first
    ones. optimizer: type of the one that takes most of that time, and steps in no usual step; "" for none. passes: many
    backward passes, None where they have as few as others. rise: ns of the first and the last ones, where they become
    longer. line: that takes most of one that was timed by line. at_segments: those that an evaluation or a checkpoint
    excludes already."""

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
        """True if the steps take notably longer as a whole. Steps that are excluded only for their model's time may
        have waited less for input."""
        return self.duration >= LONGER * self.usual


@dataclass(frozen=True, slots=True)
class CaughtUse:
    """Slow steps that were sampled while they lasted. duration: mean, ns; usual: usual step time then, ns. numbers: of
    the first ones. period: constant distance between them in steps, else 0. lines: user's lines, with their fractions
    of the sampled time. profiled: numbers of steps that were predicted to be slow, and profiled; as_usual: of those
    that then took no longer than others."""

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
    """Machine during the steady steps. other_cpu, job_cpu: in CPUs; pressure: percent of time in which some task waited
    for a CPU, None if unknown. spread: interquartile range of the step over its median. drift: relative growth from the
    first third of the steps to the last. together: work of all usable CPUs at once, in units of one CPU that runs
    alone; handover: ns to receive a batch from a loader's worker; None if not measured."""

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
    """Calls of an operator with equal arguments, without such calls inside of others. name: plain. shapes: of the
    arguments in their order, () for what is no tensor; dtypes: theirs, in C++; settings: the other arguments, as a
    trace prints them, "" for tensors, () if unknown. calls: per step; duration: ns in a steady step with all that runs
    inside, and what autograd runs for it. trains: a weight gets a gradient (of convolutions). source: user's function
    that calls most of them; module: class of the module around them."""

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
    """Tensors of all pairs that are summed up. kind: "distance" (of differences) or "product". shape: theirs. calls:
    per step that make one; duration: ns in a steady step of all operators on tensors of this shape, backward too.
    source: user's function that makes them."""

    kind: Literal["distance", "product"]
    shape: tuple[int, ...]
    calls: float
    duration: float
    source: SourceLine | None = None
