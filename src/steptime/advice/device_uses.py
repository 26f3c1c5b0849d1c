"""Records of a case about the device and the ranks. All times are nanoseconds per training step unless a name says
otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.analysis.categories import CategoryName
from steptime.analysis.what_if.calibrated import Calibration
from steptime.analysis.what_if.elsewhere import Elsewhere
from steptime.analysis.what_if.what_if import Prediction
from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class GapUse:
    """Device-idle time of one category with one cause. duration: ns per step; count: number of gaps per step; longest:
    longest gap, ns. cause: operator, runtime call or annotation that held the launching thread for most of the time (""
    for none). inside: function that the loader ran for more than half of it ("" for other categories, or if unknown).
    functions: Python functions with more than a tenth of the time: (name, ns per step including callees)."""

    category: CategoryName
    cause: str
    duration: Estimate
    count: float
    longest: int
    source: SourceLine | None = None
    inside: str = ""
    functions: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Copies of one kind. kind: "HtoD", "DtoH", "DtoD", "PtoP" or "memset"; memory: "pageable", "pinned" or "". calls,
    duration, bytes: number, ns and bytes of these copies per step. exposed: ns per step in which nothing else ran."""

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
    """Collectives of one kind and process group. bytes: per step, None if the trace has none. exposed: ns per step in
    which only communication ran. size: number of ranks in the group, 0 if unknown. bus_bandwidth: B/s as NCCL-tests
    define it, including waits for other ranks, None without bytes or size. link: the link between the group's devices,
    from the datasheet, "" for several machines or if unknown; link_share: bus_bandwidth as a fraction of its rate in
    one direction, None if above 1 (a switch that reduces by itself)."""

    name: str
    group: str
    calls: float
    duration: Estimate
    exposed: Estimate
    bytes: float | None = None
    size: int = 0
    bus_bandwidth: float | None = None
    link: str = ""
    link_share: float | None = None


@dataclass(frozen=True, slots=True)
class AllocationUse:
    """Calls to the driver (cudaMalloc, cudaFree, hipMalloc, …) by the device's allocator. calls: number per step.
    duration: ns per step on the CPU. idle: ns per step in which the device is idle during these calls; within: the same
    by category."""

    name: str
    calls: float
    duration: Estimate
    idle: Estimate
    source: SourceLine | None = None
    within: tuple[tuple[CategoryName, Estimate], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """Replay of the step's dependency graph. error: median of |replayed / measured - 1| for the unchanged replay.
    critical_path: ns per step by kind of edge, longest first; sums to the replayed step. longest: (kind, name, ns per
    step) of its largest parts. steps: number of replayed steps. elsewhere: predictions for other hardware, if
    requested. calibration: the replay scaled to the steady step."""

    error: float
    steps: int
    critical_path: tuple[tuple[str, float], ...]
    predictions: tuple[Prediction, ...] = ()
    longest: tuple[tuple[str, str, float], ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    calibration: Calibration | None = None

    @property
    def decides(self) -> str:
        """Side that decides the step's length: "host", "device" or "both"; "" if unknown."""
        return self.calibration.decides if self.calibration is not None else ""


@dataclass(frozen=True, slots=True)
class RooflineUse:
    """Computing time by what bounds its kernels. compute, memory, latency, unmodelled: ns per step; they sum to the
    category. flops, bytes: per step, of kernels with a model. dtype: dtype of most FLOPs; peak: rate of a matmul in it,
    rated: the datasheet's; FLOP/s, None if unknown. tensor_cores: fraction of matmul time on Tensor Cores or matrix
    cores, None if the kernels' names do not show it. utilization: time of the FLOPs at their dtypes' peaks as a
    fraction of the step, None if a peak is unknown. mfu, hfu: the same by the device's datasheet, without and with
    recomputation for checkpointing. modelled: fraction of kernel time with a model."""

    compute: float
    memory: float
    latency: float
    unmodelled: float
    flops: float
    bytes: float
    dtype: str = ""
    peak: float | None = None
    tensor_cores: float | None = None
    utilization: float | None = None
    modelled: float = 1.0
    mfu: float | None = None
    hfu: float | None = None
    rated: float | None = None


@dataclass(frozen=True, slots=True)
class ChainUse:
    """Consecutive pointwise kernels on tensors of one size, which one kernel could replace. calls: number of such
    chains per step; kernels: number of kernels in them per step; duration: ns per step; bytes: bytes moved per step;
    saved: bytes per step of the intermediate tensors, written and read. operators: in order of execution."""

    operators: tuple[str, ...]
    calls: float
    kernels: float
    duration: float
    bytes: float
    saved: float
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class WrittenNormUse:
    """Norms over the last dimension, each computed by several operators on tensors of one shape. kind: "layer norm" or
    "RMS norm". calls: number per step. kernels, duration: number and ns of their kernels per step, including backward.
    bytes: per step, of one pass forward and one backward. operators: operators of one norm, in order."""

    kind: str
    shape: tuple[int, ...]
    calls: float
    kernels: float
    duration: float
    bytes: float
    operators: tuple[str, ...]
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class ScalingUse:
    """Cost of a gradient scaler, ns per step. kernels: kernels that check and unscale gradients; launching: device-idle
    time while the CPU launches them; waiting: device-idle time after the scaler has read whether a gradient
    overflowed."""

    kernels: Estimate
    launching: Estimate
    waiting: Estimate


@dataclass(frozen=True, slots=True)
class GradientUse:
    """Gradient exchange of DistributedDataParallel. micro_batches: number of forwards of the wrapped model per step;
    synchronised: number of those that an exchange follows. buckets: number per exchange. elements: number in all
    buckets, 0 without recorded shapes. search: ns per step in the search for unused parameters."""

    micro_batches: float
    synchronised: float
    buckets: float
    elements: float
    search: Estimate


@dataclass(frozen=True, slots=True)
class RankUse:
    """One rank of several. step, compute: ns per step. communication: ns per step in collectives; waiting: part of it
    before the last rank arrived. last: fraction of the waiting (of the first rank for the last) that is at collectives
    where this rank came last; 0 for all ranks if none comes last more often than by chance."""

    rank: int
    step: float
    communication: float
    waiting: float
    last: float
    compute: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuUse:
    """GPU of the process during the steady steps, from `samples` samples of the driver while it was busy. name: as in
    `DeviceSample`. slowed, capped: fractions of the samples in which the driver lowered the clock because of heat or
    the board's supply, and because of the power limit. slowed_clock, capped_clock: mean clock in these samples;
    max_clock: highest possible clock; MHz, 0 if unknown. power, limit: watts, None if unknown. width, generation: PCIe
    link to the host at its best in any sample; max_width, max_generation: what device and slot support; None if
    unknown."""

    name: str
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
    """Peaks of the machine. measured: True if steptime measured them on this machine, False if from a datasheet
    (`source`). rates: (dtype, FLOP/s) of a matmul; matrix_flops: the rate for float32. copy_bytes: rate of a copy, B/s.
    dispatch: ns per operator or kernel launch. updates: (bytes, B/s) of in-place updates, smallest first. under_load:
    True if other processes ran during the measurement. reached: dtypes whose rate the job itself has exceeded.
    between_runs: difference between runs of one job, as a fraction of a step, None if not measured."""

    name: str
    measured: bool
    matrix_flops: float | None
    copy_bytes: float | None
    dispatch: float | None
    rates: tuple[tuple[str, float], ...] = ()
    source: str = ""
    updates: tuple[tuple[int, float], ...] = ()
    under_load: bool = False
    reached: tuple[str, ...] = ()
    between_runs: float | None = None

    def balance(self, dtype: str) -> float | None:
        """FLOP per byte at which a matmul takes as long as moving its bytes; None if a peak is not known. Work with
        fewer FLOP per byte is bound by memory, other work by arithmetic (the ridge point of Williams, Waterman and
        Patterson, Roofline, 2009)."""
        rate = dict(self.rates).get(dtype)
        return rate / self.copy_bytes if rate and self.copy_bytes else None
