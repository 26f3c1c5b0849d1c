"""Recording: everything captured of one job, nothing derived."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from steptime.arrays import Int64
from steptime.quantities import SourceLine
from steptime.recording.fact_fields import fact, fact_fields
from steptime.recording.parity import Parity
from steptime.recording.rule_facts import RuleFacts


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
    """Content of process.json: identity of a process, written when it first trains. Times: ns; epoch_ns and
    monotonic_ns are read together. changes: kinds of a trial's changes."""

    pid: int
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
    """Device on which the process has a context. identity: torch's number of the device in this process. uuid: CUDA's,
    of the device or of the instance of a shared one (MIG), without NVML's "GPU-" or "MIG-"."""

    identity: int
    uuid: str


@dataclass(frozen=True, slots=True)
class OptimizerFacts:
    """Optimizer object of the job, made at `site`. parameters: number of tensors; elements: count of numbers in them.
    foreach, fused: options of the first group, None if torch chooses. groups: number of parameter groups;
    distinct_groups: number with different options; 0 if unknown. made: least number of such objects that replaced each
    other, of the types in `type`: "SGD or RMSprop"."""

    identity: int
    type: str
    parameters: int
    elements: int
    foreach: bool | None = None
    fused: bool | None = None
    site: SourceLine | None = None
    groups: int = 0
    distinct_groups: int = 0
    made: int = 1


@dataclass(frozen=True, slots=True)
class TopModuleFacts:
    """Module that the user's code calls itself. parameters: number of tensors; parameter_bytes: their size, with
    submodules. compiled: True if by torch.compile. dense_embedding_elements: numbers in embeddings with a dense
    gradient and an unshared table. own: True if its class is torch's."""

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
class WithoutGradientFacts:
    """Calls of a top module without gradients in the discovery steps. same: number of calls with a tensor that the
    module also got with gradients, or with none that could be compared. site: line of the first such call."""

    identity: int
    calls: int
    same: int
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class WrittenFacts:
    """Top module whose parameters have changed between two looks of the run."""

    identity: int


@dataclass(frozen=True, slots=True)
class ModuleFacts:
    """Modules at the start of a profiler window: path ("Net.layer1.0"), class, elements and bytes of the module's own
    parameters. without_update: path and elements of parameters with a gradient that are in no optimizer."""

    modules: tuple[tuple[str, str, int, int], ...]
    without_update: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """DataLoader iterator and its settings. `loader` is equal for iterators with one construction site and settings.
    in_memory_tensors: True if an item is only an index into tensors in memory. batched_fetch: True if one call reads a
    batch. collate: name of the function. item_site: definition of the dataset's item function. seed: the iterator's
    random base seed modulo 2**31; spawned workers write 2**31 + seed instead of the identity. made_by: number of the
    DataLoader object, None if unknown."""

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
    site: SourceLine | None = None
    item_site: SourceLine | None = None
    seed: int | None = None
    made_by: int | None = None


@dataclass(frozen=True, slots=True)
class CodeLine:
    """Line of a traced function: names that it binds (stores), and names that it reads or calls (loads). Attributes
    that are not called have a leading dot (".grad"), so that they are not taken for variables."""

    line: int
    text: str
    stores: tuple[str, ...] = ()
    loads: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CodeFacts:
    """Traced function. loop: True with the training loop. A LINE record's identity is `base` + (line - first_line)."""

    base: int
    file: str
    function: str
    first_line: int
    loop: bool
    lines: tuple[CodeLine, ...]


LONGEST_EVENT = 1_000_000_000
"""Most ns of a call or line in the tracer."""


@dataclass(frozen=True, slots=True)
class LineCostFacts:
    """Cost of timing lines. call: ns per call of an untimed function; line: ns per line. A LINE record's flags count
    the untimed calls in it (255 or more)."""

    call: int
    line: int

    def __post_init__(self) -> None:
        if not (0 <= self.call <= LONGEST_EVENT and 0 <= self.line <= LONGEST_EVENT):
            raise ValueError(f"timing a line takes no {self.line} ns, nor a call {self.call}")


@dataclass(frozen=True, slots=True)
class SiteFacts:
    """Calls of a tensor method at one line in the discovery steps: item, cpu, to, tolist, numpy, nonzero, copy_ …
    device: the tensor's. count: number of calls in `steps` steps, with `forwards` calls of top modules."""

    name: str
    device: str
    count: int
    steps: int
    site: SourceLine
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class SampledPath:
    """Path of calls with its time. duration: ns in the first line over all steps, without called user functions. part:
    part of the step that calls it, "input", "forward", "backward", "optimizer" or "". lines: the user's lines,
    innermost first. ran: number of executions of the first line, 0 if unknown."""

    duration: int
    part: str
    lines: tuple[SourceLine, ...]
    ran: int = 0


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """Line times in all user functions over a few steps; of frequent calls, estimated from some. start: monotonic ns.
    iterator: identity of the loader iterator, as in loader.bin, if a worker's batches were timed."""

    steps: int
    paths: tuple[SampledPath, ...]
    start: int = 0
    iterator: int | None = None


@dataclass(frozen=True, slots=True)
class RepeatedLine:
    """Line that computed again what it had computed before. evaluations: number per step; again: number per step, after
    the first step, with a repeated result, in `duration` ns, `with_graph` of it for results that backward goes to;
    results: number of different ones. outer: line that calls its function; depth: size of the stack. called: package
    function that made the result, "" for the line itself. first, asker: lines of one call that ask in one step."""

    site: SourceLine
    evaluations: float
    again: float
    results: int
    duration: float
    outer: SourceLine | None = None
    part: str = ""
    depth: int = 0
    with_graph: float = 0.0
    called: str = ""
    first: SourceLine | None = None
    asker: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class WholeRead:
    """Object that a line reads whole in each evaluation: the container of this name, or the file ("file") that it
    names."""

    name: str
    kind: str
    entries: int = 0


@dataclass(frozen=True, slots=True)
class OutsideCall:
    """Function outside of the job that a line calls. duration: ns per step. one_file: True if all name the same
    file."""

    name: str
    duration: float
    one_file: bool = False


@dataclass(frozen=True, slots=True)
class LineWork:
    """Line with the calls and reads that it makes. evaluations, duration (ns): per step; own: ns of that outside of
    watched functions. double: True if it makes arrays of double precision; one_hot: shape of the one-hot vectors that
    it makes; held: bytes of the memory behind the tensors of one evaluation, used: bytes of these tensors alone;
    dropped: ns spent on values that it bound in a generator, of which a fraction `unread` was never read; made: rows
    that a loader, or a filter before it, took from this line in `taken` ns; kept: fraction of a batch's items that are
    rows made by this function."""

    site: SourceLine
    evaluations: float
    duration: float
    part: str = ""
    own: float = 0.0
    double: bool = False
    one_hot: tuple[int, ...] = ()
    held: int = 0
    used: int = 0
    dropped: float = 0.0
    unread: float = 0.0
    made: float = 0.0
    taken: float = 0.0
    kept: float = 1.0
    read: tuple[WholeRead, ...] = ()
    calls: tuple[OutsideCall, ...] = ()


@dataclass(frozen=True, slots=True)
class RepeatFacts:
    """Repeated results within `steps` steps, and the work of lines. start, end: ns; held: ns of that for looking at
    results. single: True if lines also made arrays of single precision. iterator: identity of the loader iterator, as
    in loader.bin, if a worker was examined."""

    start: int
    end: int
    held: int
    steps: int
    lines: tuple[RepeatedLine, ...] = ()
    works: tuple[LineWork, ...] = ()
    single: bool = False
    iterator: int | None = None


@dataclass(frozen=True, slots=True)
class PickedFacts:
    """Nodes of a backward pass of whose rows the loss uses only a fraction, `kept`. nodes: numbers as in `PassFacts`.
    path: module that made them; made: line that called that module."""

    nodes: tuple[tuple[int, int], ...]
    kept: float
    path: str = ""
    made: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class PassFacts:
    """Backward passes that are alike. count: number of passes; site: line that calls backward. Graph nodes are given by
    sequence number, counted back from the newest, as (first, last) of each run. visited: all nodes; nothing: nodes that
    lead only to dropped gradients; partly: nodes that also lead to others. elements, shapes: of the dropped gradients;
    unowned: True if no optimizer has their parameters, else the gradients were set to nothing before an optimizer took
    them. path: module whose nodes are for nothing, called at `made`; passed: line that calls what goes on with its
    result. picked: nodes of which the loss uses some rows. For torch.autograd.grad, asked: number of gradients that it
    returns, and read: positions of those that its caller reads; 0 and none for backward()."""

    count: int
    site: SourceLine | None = None
    visited: tuple[tuple[int, int], ...] = ()
    nothing: tuple[tuple[int, int], ...] = ()
    partly: tuple[tuple[int, int], ...] = ()
    elements: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    unowned: bool = False
    path: str = ""
    made: SourceLine | None = None
    passed: SourceLine | None = None
    picked: tuple[PickedFacts, ...] = ()
    asked: int = 0
    read: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PassSiteFacts:
    """Line that started many backward passes in a step, one at `start` ns. shared: True if they had the same graph."""

    site: SourceLine
    start: int
    shared: bool


@dataclass(frozen=True, slots=True)
class UnreadFacts:
    """Results of a module that the calling line drops. results: their positions; calls: number per step."""

    path: str
    type: str
    site: SourceLine
    results: tuple[int, ...]
    calls: float


@dataclass(frozen=True, slots=True)
class UseFacts:
    """Use of gradients and of results of modules within `steps` steps."""

    steps: int
    passes: tuple[PassFacts, ...] = ()
    unread: tuple[UnreadFacts, ...] = ()


@dataclass(frozen=True, slots=True)
class BetweenFacts:
    """Line times of the job's work between two training steps, in the form of `SampleFacts`. start, end: of the
    measured interval, monotonic ns; it ends with the training step that follows."""

    start: int
    end: int
    steps: int
    paths: tuple[SampledPath, ...]


@dataclass(frozen=True, slots=True)
class CaughtFacts:
    """Slow step with stack samples. start: start of the step, ns; end: time of the last sample, ns. usual: usual
    duration of a step then, ns. paths: calls with their sampled time, the line that ran first."""

    start: int
    end: int
    usual: int
    paths: tuple[SampledPath, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end < 1 << 63 or not 0 <= self.usual < 1 << 63:
            raise ValueError(f"no step lasts from {self.start} to {self.end}")


@dataclass(frozen=True, slots=True)
class SettingsFacts:
    """Process-wide settings of torch and the machine, in an early step. usable_cpus: number that the process may run
    on. packages: installed packages that a fix could use. allocator: PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF).
    debug_switches: (name, value) of active environment variables for debugging. memory_limit: bytes of the device, else
    of the process. autocast: dtype of the autocast around modules that are trained, "off", None if unknown.
    anomaly_site, deterministic_site: line whose text switches it on; threads_site: line that calls
    torch.set_num_threads, if OMP_NUM_THREADS is set to as many. environments: True if gymnasium or such is imported."""

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
    environments: bool = False
    allocator: str = ""
    debug_switches: tuple[tuple[str, str], ...] = ()
    anomaly_site: SourceLine | None = None
    threads_site: SourceLine | None = None
    deterministic_site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class CompilationFacts:
    """Compilation by TorchDynamo. start: monotonic ns, if known. failed: reason why nothing was compiled, else ""."""

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
    """Graph break of TorchDynamo. site: its line; reason: in TorchDynamo's words."""

    site: SourceLine
    reason: str


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """Window of torch's profiler. path: relative to the process folder. start, end: monotonic ns. epoch_ns,
    monotonic_ns: one instant on both clocks, to align the trace (epoch) with the journal (monotonic). thread: the
    system's id of the training thread, as in the trace; 0 if unknown. memory: True with every allocation
    (profile_memory). caught: True for a predicted slow step (`steptime run --catch`). packages: paths of imported
    packages, of whose files a trace omits the folders above; with stacks only."""

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
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangeFacts:
    """Outcome of a trial's change in this process. identity: its index in the plan. applied: True if it was in force;
    exercised: True if a training step ran under it. detail: its extent, or the obstacle. seconds: preparation time."""

    identity: int
    kind: str
    target: str = ""
    applied: bool = False
    exercised: bool = False
    detail: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class InputFacts:
    """Inputs of a top module, in `steps` steps examined call by call. identity, module: its number and class. rows:
    first dimension of all its tensors, the batch. tokens: number per call; None if it reads none. changed: True if
    later sizes differed too often for these to hold.

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
class EvaluatedFacts:
    """Calls of the top module of `InputFacts` without gradients. rows: batch size of most of them; larger: elements per
    row, as a multiple of a training row's."""

    identity: int
    rows: int
    larger: float


@dataclass(frozen=True, slots=True)
class LossFacts:
    """Scaling of the first losses that backward started on. divided: True if divided or multiplied by a number."""

    divided: bool


@dataclass(frozen=True, slots=True)
class ItemFacts:
    """Items in the first `batches` batches of an iterator. drawn: True if making them took random numbers from a
    generator of torch, numpy or Python. bytes: size of an item, the largest mean of these batches; None for unknown
    types. available: bytes of free host memory then, None if unknown.

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
    """Objects that steps leave behind in Python, by holder. kind: "list", "dict", …, "cache" (of a function), "cycle"
    (of itertools), "variable", "attribute", "closure", "hook"; "" if unknown. tensors, bytes (of their storages),
    graphs (tensors with an autograd graph) and nodes (growth of the deepest graph): number per step, over `steps`
    steps. site: line at which the number grows."""

    kind: str
    name: str
    tensors: float
    bytes: float
    graphs: float
    nodes: float
    steps: int
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class GrowingFacts:
    """Container that became longer with every step. kind: its type, "cache" for results that functools.lru_cache keeps;
    name: the variable's or attribute's; entries: growth per step. site: line that makes it longer, if known. most:
    limit of a deque or cache, in entries."""

    kind: str
    name: str
    entries: float
    site: SourceLine | None = None
    most: int | None = None


@dataclass(frozen=True, slots=True)
class FreedFacts:
    """Leaks and containers that were emptied after they had been reported, so they are bounded. names: their names; ()
    for all that were reported so far, because other calls end a step from now on."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemoryFacts:
    """Out-of-memory error that ended the process. asked: requested bytes; None if the message lacks them. device:
    "cpu", "cuda". site: the user's innermost line. step: number of steps before. held: bytes by owner, as far as Python
    knows; resident: bytes of the process, 0 if unknown; limit: bytes available to it, None if unknown."""

    message: str
    device: str
    step: int
    held: dict[str, int]
    asked: int | None = None
    resident: int = 0
    limit: int | None = None
    site: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class DeviceSample:
    """Sample of a device of the job, by NVIDIA's driver; None for unavailable fields.

    uuid: NVML's, "GPU-" or "MIG-" before that of `DeviceFacts`; "" if unknown. index: nvidia-smi's. utilization:
    percentage of time with a kernel on it. throttle_reasons: nvmlClocksEventReason bits. other_processes: not the
    job's. link: lanes and generation of PCI Express, and the maxima for device and slot."""

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
        """nvidia-smi's name: "GPU 3 (GPU-085e383e)"; "GPU" if the sample has no device."""
        number = f" {self.index}" if self.index is not None else ""
        return f"GPU{number}" + (f" ({'-'.join(self.uuid.split('-')[:2])})" if self.uuid else "")

    def of(self, devices: Sequence[DeviceFacts]) -> bool:
        """True if the sample is of one of these devices, or of an unknown one."""
        return not self.uuid or self.uuid.partition("-")[2] in {device.uuid for device in devices}


@dataclass(frozen=True, slots=True)
class TelemetrySample:
    """Sample of the job's processes and the machine, by the supervisor, about once a second.

    monotonic_ns: time. job_cpu, other_cpu: CPU seconds per second of the job, and of everything else on the machine;
    together at most its `cpus` (None in older recordings). resident_bytes: the job's. pressure: /proc/pressure/cpu
    "some avg10", percent. steal: CPU seconds per second that a hypervisor took. devices: devices on this host on which
    the job's processes report a context."""

    monotonic_ns: int
    job_cpu: float
    other_cpu: float
    resident_bytes: int
    pressure: float | None = None
    steal: float | None = None
    devices: tuple[DeviceSample, ...] = ()
    cpus: int | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """Content of manifest.json. exit_status: in a shell's convention (128 + signal); None while the job runs, or if the
    supervisor was killed. commit: commit of the directory's working tree at the job's start, "" outside of one; dirty:
    True if tracked files differed from it, None if unknown. before_ns: delay of the job's start by the launcher;
    job_ns: from the job's start to its end; after_ns: work of the launcher after it; 0 if unknown."""

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
class Process(RuleFacts):
    """Process that trained (or inferred). workers: records of loader.bin; in_workers: line times in loader workers;
    freed: names that are left out of leaks and growing."""

    folder: Path
    facts: ProcessFacts
    intervals: IntervalTable
    workers: IntervalTable
    notes: tuple[str, ...] = ()
    parity: Parity | None = None
    devices: tuple[DeviceFacts, ...] = fact((), "device", "identity")
    optimizers: tuple[OptimizerFacts, ...] = fact((), "optimizer", "identity")
    top_modules: tuple[TopModuleFacts, ...] = fact((), "root", "identity")
    without_gradients: tuple[WithoutGradientFacts, ...] = fact((), "without_gradients", "identity")
    written: tuple[WrittenFacts, ...] = fact((), "written", "identity")
    loaders: tuple[LoaderFacts, ...] = fact((), "loader", "identity")
    codes: tuple[CodeFacts, ...] = fact((), "code", "base")
    sites: tuple[SiteFacts, ...] = fact((), "site", "name", "site", "device")
    settings: SettingsFacts | None = fact(None, "settings")
    compilations: tuple[CompilationFacts, ...] = fact((), "compilation")
    graph_breaks: tuple[GraphBreakFacts, ...] = fact((), "graph_break")
    traces: tuple[TraceFacts, ...] = fact((), "trace", "path")
    changes: tuple[ChangeFacts, ...] = fact((), "change", "identity")
    modules: ModuleFacts | None = fact(None, "modules")
    loss: LossFacts | None = fact(None, "loss")
    inputs: InputFacts | None = fact(None, "inputs")
    evaluated: EvaluatedFacts | None = fact(None, "evaluated")
    items: tuple[ItemFacts, ...] = fact((), "items", in_workers=True)
    sampled: tuple[SampleFacts, ...] = fact((), "samples")
    in_workers: tuple[SampleFacts, ...] = fact((), "worker_samples", in_workers=True)
    repeats: RepeatFacts | None = fact(None, "repeats")
    repeats_in_workers: tuple[RepeatFacts, ...] = fact((), "repeats", in_workers=True)
    pass_sites: tuple[PassSiteFacts, ...] = fact((), "passes")
    use: UseFacts | None = fact(None, "use")
    between: BetweenFacts | None = fact(None, "between")
    line_cost: LineCostFacts | None = fact(None, "line_cost")
    caught: tuple[CaughtFacts, ...] = fact((), "caught")
    leaks: tuple[LeakFacts, ...] = fact((), "leak")
    growing: tuple[GrowingFacts, ...] = fact((), "growing")
    freed: tuple[FreedFacts, ...] = fact((), "freed")
    out_of_memory: OutOfMemoryFacts | None = fact(None, "out_of_memory")


FACTS = fact_fields(Process)
"""All facts, in the order of the format's page."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Content of a folder written by `steptime run`. `problems`: one sentence for each damage."""

    path: Path
    manifest: Manifest
    processes: tuple[Process, ...]
    telemetry: tuple[TelemetrySample, ...]
    problems: tuple[str, ...]
