"""What a rule may look at of a device and of the ranks beside it: parts of a `Case`, from traces only.

All times are nanoseconds per training step unless a name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Kernels of one name that one operator launched with arguments of one kind. calls and duration: per step, ns.

    bound: "compute", "memory", "latency", "communication" or "unmodelled". flops, bytes: per step, None without
    a model. at_roofline: ns per step at the machine's ceilings, None without a model or ceilings. matrix_unit: whether
    it ran on tensor cores or their like, None where the name does not say. dimensions: of a matrix product that miss
    the matrix units' tile ("k = 1003"). shapes: the arguments' shapes, raw.
    """

    name: str
    operator: str
    calls: float
    duration: float
    bound: str
    shapes: str = ""
    number_format: str = ""
    flops: float | None = None
    bytes: float | None = None
    at_roofline: float | None = None
    matrix_unit: bool | None = None
    dimensions: tuple[str, ...] = ()
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class GapUse:
    """Device-idle time of one account with one cause. duration: ns per step; count: gaps per step; longest: ns.

    cause: the operator, runtime call or annotation that held the launching thread for most of it ("" for none).
    inside: what the loader was at for more than half of it ("" for other accounts, or not known).
    """

    account: str
    cause: str
    duration: Estimate
    count: float
    longest: int
    source: SourceLine | None = None
    inside: str = ""


@dataclass(frozen=True, slots=True)
class CopyUse:
    """Copies of one kind. kind: "HtoD", "DtoH", "DtoD", "PtoP" or "memset"; memory: "pageable", "pinned" or "".

    duration, exposed (nothing else ran): ns per step; bytes per step; calls per step.
    """

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
    """Collectives of one kind and process group. bytes per step (None: not in the trace); exposed: ns per step in which
    nothing but communication ran."""

    name: str
    group: str
    calls: float
    duration: Estimate
    exposed: Estimate
    bytes: float | None = None


@dataclass(frozen=True, slots=True)
class AllocationUse:
    """Calls in steps that make the device's allocator go to the driver (cudaMalloc, cudaFree, hipMalloc, …). duration:
    ns per step of the host; idle: device-idle ns per step meanwhile."""

    name: str
    calls: float
    duration: Estimate
    idle: Estimate
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class PredictionUse:
    """What a change would save by the replay. change: "input free", "syncs free", "one launch", "roofline: <kernel>",
    "communication overlapped". saved: ns per step, never above cap, the share of the account that it relieves."""

    change: str
    saved: Estimate
    cap: float


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """The step's dependency graph, run again. error: of the unchanged replay against the measured steps, median of
    |replayed / measured - 1|. critical_path: ns per step by kind of edge, longest first; sums to the replayed step.
    longest: (kind, name of the kernel, operator or function, ns per step) of what takes most of it."""

    error: float
    steps: int
    critical_path: tuple[tuple[str, float], ...]
    predictions: tuple[PredictionUse, ...] = ()
    longest: tuple[tuple[str, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class RooflineUse:
    """The compute account by what bounds its kernels. compute, memory, latency, unmodelled: ns per step; they sum to
    the account.

    flops and bytes: per step, of what has a model. number_format: the one with most of the FLOPs; peak: the ceiling of
    a matrix product in it, FLOP/s (None: unknown). matrix_unit: share of the matrix products' time on matrix units,
    None where names do not say. utilization: of the step, what the FLOPs would take at the peaks of their formats
    (model FLOP utilisation), None where a ceiling is unknown. modelled: share of the kernels' time that has a model.
    """

    compute: float
    memory: float
    latency: float
    unmodelled: float
    flops: float
    bytes: float
    number_format: str = ""
    peak: float | None = None
    matrix_unit: float | None = None
    utilization: float | None = None
    modelled: float = 1.0


@dataclass(frozen=True, slots=True)
class ChainUse:
    """Pointwise kernels that follow one another on tensors of one size, so that one kernel could do them all.

    calls: such chains per step; kernels: in all of them, per step; duration: ns per step; bytes: that they move per
    step; saved: bytes of them that are tensors in between, written and read again. operators: in their order.
    """

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
