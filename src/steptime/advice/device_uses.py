"""Records about the device and the ranks, as rules see them: records of a case. All times are nanoseconds per training
step unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.analysis.categories import CategoryName
from steptime.analysis.what_if.calibrated import Calibration
from steptime.analysis.what_if.elsewhere import Elsewhere
from steptime.analysis.what_if.what_if import Prediction
from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class GapUse:
    """Device-idle time of one category with one cause. duration: ns per step; count: gaps per step; longest: ns.

    cause: the operator, runtime call or annotation that held the launching thread for most of it ("" for none).
    inside: what the loader was at for more than half of it ("" for other categories, or not known).
    functions: of Python, functions with more than a tenth of it: name, and ns per step with all that it calls."""

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
    """Collectives of one kind and process group. bytes per step (None: not in the trace); exposed: ns per step in which
    nothing but communication ran. size: ranks of the group, 0 where the trace does not say. bus_bandwidth: B/s as
    NCCL-tests define it, waiting for other ranks included, None without bytes or size. link: what joins the group's
    devices, by the datasheet, "" for ranks of several machines or where it is not known; link_share: of its rate in one
    direction, None where it is more (a switch that reduces by itself)."""

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
    """Calls in steps that make the device's allocator go to the driver (cudaMalloc, cudaFree, hipMalloc, …). duration:
    ns per step of the host; idle: device-idle ns per step meanwhile; within: the same by category."""

    name: str
    calls: float
    duration: Estimate
    idle: Estimate
    source: SourceLine | None = None
    within: tuple[tuple[CategoryName, Estimate], ...] = ()


@dataclass(frozen=True, slots=True)
class ReplayUse:
    """The step's dependency graph, run again. error: of the unchanged replay against the measured steps, median of
    |replayed / measured - 1|. critical_path: ns per step by kind of edge, longest first; sums to the replayed step.
    longest: (kind, name, ns per step) of what takes most of it. elsewhere: on other hardware, if that was asked for.
    calibration: who decides how long the step is."""

    error: float
    steps: int
    critical_path: tuple[tuple[str, float], ...]
    predictions: tuple[Prediction, ...] = ()
    longest: tuple[tuple[str, str, float], ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    calibration: Calibration | None = None

    @property
    def decides(self) -> str:
        """ "host", "device" or "both"; "" where that is not known."""
        return self.calibration.decides if self.calibration is not None else ""


@dataclass(frozen=True, slots=True)
class RooflineUse:
    """Computing by what bounds its kernels. compute, memory, latency, unmodelled: ns per step; they sum to it.

    flops and bytes: per step, of what has a model. number_format: the one with most of the FLOPs; peak: the upper bound
    of a matrix product in it, FLOP/s (None: unknown). matrix_unit: share of the matrix products' time on matrix units,
    None where names do not say. utilization: of the step, what the FLOPs would take at the peaks of their formats, None
    where an upper bound is unknown. mfu, hfu: the same by the device's datasheet, without and with what checkpointing
    computes again; rated: the datasheet's rate of that format, FLOP/s. modelled: share of the kernels' time that has a
    model."""

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
    mfu: float | None = None
    hfu: float | None = None
    rated: float | None = None


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
class WrittenNormUse:
    """Norms over the last dimension that several operators compute, on tensors of one shape. kind: "layer norm" or "RMS
    norm". Per step: calls; kernels and duration, ns, with those that backward runs for them; bytes that one pass
    forward and one backward move. operators: of one of them, in their order."""

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
    """Cost of a gradient scaler, ns per step: kernels that look through the gradients and scale them back;
    launching: the device idles while the host launches these; waiting: it idles after the scaler has read whether a
    gradient overflowed."""

    kernels: Estimate
    launching: Estimate
    waiting: Estimate


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
class GpuUse:
    """A GPU of the process during the steady steps, by so many samples of the driver in which it was at work. name: as
    of `DeviceSample`. slowed, capped: shares of the samples in which the driver lowered the clock for heat or the
    board's supply, and for the limit of its power. slowed_clock, capped_clock: mean clock then, and max_clock: that it
    can reach, MHz; 0 where it is not told. power, limit: watts, None where they are not told. width, generation: of the
    link to the host at its best in any sample, and what device and slot can do; None likewise."""

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
    under_load: bool = False
    reached: tuple[str, ...] = ()
    between_runs: float | None = None

    def balance(self, dtype: str) -> float | None:
        """FLOP per byte at which a matmul takes as long as its bytes: below it memory is the bound, above it arithmetic
        (the ridge point of Williams, Waterman and Patterson, Roofline, 2009); None where a peak is not known."""
        rate = dict(self.rates).get(dtype)
        return rate / self.copy_bytes if rate and self.copy_bytes else None
