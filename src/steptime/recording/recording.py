"""A recording: what was captured of one job, nothing derived. The room's central type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptime.arrays import Bool, Float64, Int64
from steptime.quantities import SourceLine


@dataclass(frozen=True, slots=True)
class IntervalTable:
    """Columns of a journal, sorted by (start, -end): parents before their children. All arrays are read-only.

    kind: uint8 (`journal.Kind`), flags: uint8, thread: uint16, identity: uint32, start and end: int64 ns."""

    kind: npt.NDArray[np.uint8]
    flags: npt.NDArray[np.uint8]
    thread: npt.NDArray[np.uint16]
    identity: npt.NDArray[np.uint32]
    start: Int64
    end: Int64


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """process.json: what a process is, written when it first trains. Times: ns; epoch and monotonic clock pairs."""

    pid: int
    parent_pid: int
    argv: tuple[str, ...]
    executable: str
    python: str
    torch: str
    host: str
    epoch_ns: int
    monotonic_ns: int
    process_started_epoch_ns: int
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    device: str = "cpu"
    device_name: str = ""
    changes: tuple[str, ...] = ()

    @property
    def system_number(self) -> tuple[str, int]:
        """Host and pid: two programs that one process ran one after another share it."""
        return self.host, self.pid


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """A device on which the process has a context. identity: the number that torch knows it by in this process. uuid:
    of the device, or of the instance of a shared one (MIG), as CUDA tells it: without NVML's "GPU-" or "MIG-"."""

    identity: int
    uuid: str


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """One optimizer object. parameters: tensors; elements: numbers in them."""

    identity: int
    type: str
    parameters: int
    elements: int
    foreach: bool | None = None
    fused: bool | None = None
    sparse_candidates: int = 0
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class TopModuleFacts:
    """A module that the user's code calls itself. parameter_bytes: of its own tree. dense_embedding_elements: of the
    embeddings in it whose gradient is dense and whose table no other module shares. own: its class is torch's."""

    identity: int
    type: str
    parameters: int
    parameter_bytes: int
    device: str = "cpu"
    compiled: bool = False
    site: SourceLine | None = None
    dense_embedding_elements: int = 0
    own: bool = False


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """The modules when a window of the profiler began: path ("Net.layer1.0"), class, numbers and bytes of the
    parameters that are the module's own. without_update: path and numbers of those with a gradient in no optimizer."""

    modules: tuple[tuple[str, str, int, int], ...]
    without_update: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """One DataLoader iterator and the configuration in force. `loader` is equal for iterators of one DataLoader
    configuration (construction site and settings). item_site: definition of the dataset's item function. seed: the
    iterator's random base seed modulo 2**31; what spawned workers, who know no identity, are known by. made_by: number
    of the DataLoader object, None where it is not known."""

    identity: int
    loader: int
    dataset: str
    dataset_length: int | None = None
    iterable: bool = False
    in_memory_tensors: bool = False
    batched_fetch: bool = False
    batch_size: int | None = None
    workers: int = 0
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory: bool = False
    collate: str = ""
    start_method: str = ""
    site: SourceLine | None = None
    item_site: SourceLine | None = None
    seed: int | None = None
    made_by: int | None = None


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of a traced function: the names that it binds and reads, and the names that it calls. Attributes that are
    not called have a dot before them (".grad"), so that they are not taken for variables."""

    line: int
    text: str
    stores: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """A traced function. A LINE record's identity is `base` + (line - first_line)."""

    base: int
    file: str
    function: str
    first_line: int
    loop: bool
    lines: tuple[CodeLine, ...]


LONGEST_EVENT = 1_000_000_000
"""ns: no tracer takes a second for a call."""


@dataclass(frozen=True, slots=True)
class LineCostFacts:
    """Cost of timing the lines: ns for a call of a function that is not timed, and for a line. A LINE record's flags
    are such calls in it (255 stands for more)."""

    call: int
    line: int

    def __post_init__(self) -> None:
        if not (0 <= self.call <= LONGEST_EVENT and 0 <= self.line <= LONGEST_EVENT):
            raise ValueError(f"timing a line takes no {self.line} ns, nor a call {self.call}")


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """A call of a tensor method seen in the discovery steps: item, cpu, to, tolist, numpy, nonzero, copy_ …
    device: of the tensor. count: calls in `steps` steps."""

    name: str
    device: str
    count: int
    steps: int
    site: SourceLine


@dataclass(frozen=True, slots=True)
class CalledFacts:
    """Functions that a line of the user's called in the discovery steps, C functions too: "builtins.print"."""

    file: str
    line: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SampledPath:
    """duration: ns of the first line, of all steps together, without those of functions that it calls. part: of the
    step that calls it, "input", "forward", "backward", "optimizer" or "". lines: the user's, the innermost first."""

    duration: int
    part: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """Times of lines in all functions of the user's, in a few steps: an estimate, of one that is called often from some
    of its calls. start: monotonic ns."""

    steps: int
    paths: tuple[SampledPath, ...]
    start: int = 0


@dataclass(frozen=True, slots=True)
class WorkerSampleFacts:
    """The same, of a few batches that a worker of a loader made. iterator: as in loader.bin. steps: batches."""

    iterator: int
    steps: int
    paths: tuple[SampledPath, ...]


@dataclass(frozen=True, slots=True)
class BetweenFacts:
    """The same, of what lies between two training steps. start, end: ns; the step that follows lies in it, too."""

    start: int
    end: int
    steps: int
    paths: tuple[SampledPath, ...]


@dataclass(frozen=True, slots=True)
class CaughtFacts:
    """A slow step that was looked into while it lasted: where its thread was, at looks some ms apart. start, ns: of the
    step; end: of the last look. usual: ns of a step then. paths: of the time looked at; the first line ran."""

    start: int
    end: int
    usual: int
    paths: tuple[SampledPath, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end < 1 << 63 or not 0 <= self.usual < 1 << 63:
            raise ValueError(f"no step lasts from {self.start} to {self.end}")


@dataclass(frozen=True, slots=True)
class SettingsFacts:
    """Process-wide settings of torch and of the machine as the job saw them at its first step. packages: of those that
    a fix could use, which are installed. allocator: PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF). debug_switches:
    variables of the environment that help to find faults (name, value), of those that are on.
    memory_limit: bytes of the device; on a CPU what the process may have."""

    intra_op_threads: int
    inter_op_threads: int
    usable_cpus: int
    logical_cpus: int
    omp_num_threads: str | None = None
    detect_anomaly: bool = False
    deterministic: bool = False
    cudnn_benchmark: bool | None = None
    cudnn_deterministic: bool | None = None
    float32_matmul_precision: str = "highest"
    autocast: str | None = None
    denormals_flushed: bool | None = None
    distributed_backend: str | None = None
    memory_limit: int | None = None
    packages: tuple[str, ...] = ()
    allocator: str = ""
    debug_switches: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class CompilationFacts:
    """One compilation by TorchDynamo. start: monotonic ns where known. failed: why nothing was compiled."""

    function: str
    file: str
    line: int
    duration_ns: int
    start: int | None = None
    recompile_reason: str = ""
    graph_breaks: int = 0
    failed: str = ""


@dataclass(frozen=True, slots=True)
class GraphBreakFacts:
    """A line at which TorchDynamo ended a graph, once, and why, in its words."""

    site: SourceLine
    reason: str


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """One window of torch's profiler. path: relative to the process folder. epoch_ns and monotonic_ns: one clock pair
    read together, to lay the trace (epoch) next to the journal (monotonic). thread: the system's id of the training
    thread, as the trace has it; 0 when unknown. memory: with every allocation (profile_memory). caught: of one step
    that was to be a slow one (`steptime run --catch`), which says nothing of the usual step."""

    number: int
    path: str
    start: int
    end: int
    steps: int
    stacks: bool
    epoch_ns: int
    monotonic_ns: int
    thread: int = 0
    memory: bool = False
    caught: bool = False


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Outcome of a trial's change in this process. identity: its place in the plan. applied: it was put in force;
    exercised: a training step ran under it. detail: how much, or why not. seconds: of preparation (compilation)."""

    identity: int
    kind: str
    target: str = ""
    applied: bool = False
    exercised: bool = False
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class InputFacts:
    """Inputs of a top module, in `steps` steps that were looked at call by call. identity, module: the root and its
    class. rows: the first dimension of all its tensors, which is the batch's. tokens: of a call; None where it reads
    none. changed: other sizes were seen later, often enough that these hold no more.

    Raises ValueError for sizes that no call has."""

    identity: int
    module: str
    rows: int
    tokens: int | None = None
    steps: int = 0
    changed: bool = False

    def __post_init__(self) -> None:
        if self.rows < 1 or (self.tokens is not None and self.tokens < 1):
            raise ValueError("inputs without a row, or without a token")


@dataclass(frozen=True, slots=True)
class PaddingFacts:
    """The mean share of the numbers in `batches` batches of tokens that only filled them up. tokens: numbers in a
    batch, mean; 0 where a recording does not say it.

    Raises ValueError for what is no share."""

    share: float
    batches: int
    tokens: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"a share lies between 0 and 1, not at {self.share}")


@dataclass(frozen=True, slots=True)
class ItemFacts:
    """The items of the first `batches` batches of an iterator, which has that number. drawn: making them took random
    numbers from a generator of torch, numpy or Python. bytes: of an item, the largest mean of these batches; None where
    its types are not known. available: bytes of the host's memory that were to be had then, None where unknown.

    Raises ValueError for a negative size."""

    iterator: int
    batches: int
    drawn: bool
    bytes: float | None = None
    available: int | None = None

    def __post_init__(self) -> None:
        if (self.bytes or 0) < 0 or (self.available or 0) < 0:
            raise ValueError("a size is not negative")


@dataclass(frozen=True, slots=True)
class LeakFacts:
    """Objects that steps leave behind in Python, by who keeps them. kind: "list", "dict", …, "variable", "attribute",
    "closure", "hook"; "" where nobody was found. tensors, bytes (of their storages), graphs (tensors with a graph of
    autograd) and nodes (by which the deepest graph grew): per step, over `steps` steps. site: the line that makes it
    grow."""

    kind: str
    name: str
    tensors: float
    bytes: float
    graphs: float
    nodes: float
    steps: int
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class OutOfMemoryFacts:
    """The error that ended the process because memory ran out. asked: bytes; None where the message does not say.
    device: "cpu", "cuda". site: the user's innermost line. step: steps taken before. held: bytes by owner, of what
    Python knew; resident: of the process, 0 where unknown; limit: what it may have, None where unknown."""

    message: str
    device: str
    step: int
    held: dict[str, int]
    asked: int | None = None
    resident: int = 0
    limit: int | None = None
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work of a step of a variant. Tensors are told by sketches: sums of all their numbers with fixed signs.

    inputs: shapes of what a root module got, of each call with gradients. batches: the sketches of it, in the steps
    that are looked at. evaluated: shapes without their first dimension, and how many of them went through a root
    without gradients. dropped: sum of the probabilities of the dropouts, where they are switched off. still:
    parameters that have not moved since the last look. weights: name, size and sketch of the parameters that were
    first seen here. updates: how each parameter moved in the step before. directions: each parameter's gradient.
    iterators: of loaders, that were begun until the step's end. without: parameters that have no gradient, or one of
    zero, in the steps that are looked at.

    In the steps that are looked at: options: of each group of an optimizer that has updated, what it was told, as JSON,
    and of how many numbers. samples: a number for each sample that a root got. dropout: sum of the probabilities of the
    dropouts in training mode, and training: share of modules in that mode, at the first forward. drew: whether the
    forwards drew random numbers. moving, in some steps of a timed run: numbers in the carried tensors that changed in
    it. Facts of a rehearsal's last step. ways: name and format of each parameter, the length of its first weights'
    sketch, and the sketch of how far it has moved. carried: shape and sketch of each other tensor, as large as a
    parameter, that has changed since the first step."""

    inputs: tuple[str, ...] = ()
    batches: tuple[tuple[tuple[float, ...], ...], ...] = ()
    evaluated: tuple[tuple[str, int], ...] = ()
    dropped: float = 0.0
    still: tuple[str, ...] = ()
    weights: tuple[tuple[str, int, tuple[float, ...]], ...] = ()
    updates: tuple[tuple[str, tuple[float, ...]], ...] = ()
    directions: tuple[tuple[str, tuple[float, ...]], ...] = ()
    iterators: int = 0
    without: tuple[str, ...] = ()
    options: tuple[tuple[str, int], ...] = ()
    samples: tuple[float, ...] = ()
    dropout: float | None = None
    training: float | None = None
    drew: bool | None = None
    moving: int | None = None
    ways: tuple[tuple[str, str, float, tuple[float, ...]], ...] = ()
    carried: tuple[tuple[str, tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Parity:
    """Numbers that a variant of a trial computed, by step, in order. All arrays are read-only and of one length.

    step: int64, from 1. loss: float64, the mean over the step's backwards as they were called (before a scaler). norm:
    float64, the 2-norm of all gradients behind the last backward, before clipping. Both may be infinite or not a number
    because the job's were; where none was seen or taken, `backwards` is 0 and `normed` is False. peak_bytes: int64, of
    the step on a device, of the process so far on a CPU. end: int64, when the step had ended, and
    began_ns: when torch had been imported, monotonic ns.

    gradients: of each of the first steps the 2-norm of every parameter's gradient by name, None where it has none."""

    step: Int64
    loss: Float64
    norm: Float64
    normed: Bool
    backwards: Int64
    peak_bytes: Int64
    end: Int64
    began_ns: int = 0
    gradients: tuple[tuple[tuple[str, float | None], ...], ...] = ()
    work: tuple[StepWork, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """One look at a device that the job works on, by NVIDIA's driver; None what the device does not tell.

    uuid: as NVML has it, "GPU-" or "MIG-" before the one of `DeviceFacts`; "" for all devices of the machine in one, as
    old recordings have it. index: as nvidia-smi counts. utilization: percent of time with a kernel on it.
    throttle_reasons: nvmlClocksEventReason bits. other_processes: that are not the job's. link: lanes and generation of
    PCI Express, and what device and slot can do."""

    uuid: str = ""
    index: int | None = None
    utilization: float | None = None
    memory_bytes: int | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    throttle_reasons: int | None = None
    other_processes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    link_width: int | None = None
    link_max_width: int | None = None
    link_generation: int | None = None
    link_max_generation: int | None = None

    @property
    def name(self) -> str:
        """As nvidia-smi knows it: "GPU 3 (GPU-085e383e)"; "GPU" where the sample does not say which it is of."""
        number = f" {self.index}" if self.index is not None else ""
        return f"GPU{number}" + (f" ({'-'.join(self.uuid.split('-')[:2])})" if self.uuid else "")

    def of(self, devices: Sequence[DeviceFacts]) -> bool:
        """True if it is of one of a process's own; an old sample, of which nobody knows it, is."""
        return not self.uuid or self.uuid.partition("-")[2] in {device.uuid for device in devices}


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """One look at the job's processes and the machine, by the supervisor, about once a second.

    times: monotonic ns. cpu: seconds of CPU per second, of the job and of everything else on the machine.
    pressure: /proc/pressure/cpu "some avg10", percent. bytes: resident set of the job. steal: CPU seconds per second.
    devices: those on which the job's processes on this host have told that they have a context."""

    monotonic_ns: int
    job_cpu: float
    other_cpu: float
    resident_bytes: int
    pressure: float | None = None
    steal: float | None = None
    devices: tuple[DeviceSample, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """manifest.json of a recording. exit_status: as a shell has it (128 + signal); None while the job runs or when the
    supervisor was killed too. commit: that the directory's working tree had checked out when the job started, ""
    outside of one; dirty: whether tracked files differed from it, None where that is not known. before_ns, after_ns:
    for which the launcher has put off the job's start, and has worked on the recording after its end; job_ns: from the
    start of the job to its end; 0 where that is not known."""

    format_version: int
    steptime: str
    command: tuple[str, ...]
    directory: str
    host: str
    started_epoch_ns: int
    ended_epoch_ns: int | None = None
    exit_status: int | None = None
    ended_by_signal: int | None = None
    torch_imported: bool | None = None
    options: dict[str, str] = field(default_factory=dict)
    commit: str = ""
    dirty: bool | None = None
    before_ns: int = 0
    job_ns: int = 0
    after_ns: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """One process that trained (or inferred)."""

    folder: Path
    facts: ProcessFacts
    intervals: IntervalTable
    workers: IntervalTable
    settings: SettingsFacts | None
    top_modules: tuple[TopModuleFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    loaders: tuple[LoaderFacts, ...]
    codes: tuple[CodeFacts, ...]
    sites: tuple[SiteFacts, ...]
    compilations: tuple[CompilationFacts, ...]
    traces: tuple[TraceFacts, ...]
    notes: tuple[str, ...]
    changes: tuple[ChangeFacts, ...] = ()
    parity: Parity | None = None
    leaks: tuple[LeakFacts, ...] = ()
    out_of_memory: OutOfMemoryFacts | None = None
    padding: PaddingFacts | None = None
    inputs: InputFacts | None = None
    sampled: tuple[SampleFacts, ...] = ()
    called: tuple[CalledFacts, ...] = ()
    modules: tuple[tuple[str, str, int, int], ...] = ()
    without_update: tuple[tuple[str, int], ...] = ()
    between: BetweenFacts | None = None
    in_workers: tuple[WorkerSampleFacts, ...] = ()
    items: tuple[ItemFacts, ...] = ()
    caught: tuple[CaughtFacts, ...] = ()
    line_cost: LineCostFacts | None = None
    graph_breaks: tuple[GraphBreakFacts, ...] = ()
    devices: tuple[DeviceFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """A folder written by `steptime run`. `problems` says, a sentence each, what was damaged and left out."""

    path: Path
    manifest: Manifest
    processes: tuple[Process, ...]
    telemetry: tuple[TelemetrySample, ...]
    problems: tuple[str, ...]
