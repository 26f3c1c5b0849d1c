"""A machine: its peaks, measured or from a datasheet, against which a step is judged. The room's central type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from steptime.quantities import Estimate

AGREEING = 1.1
"""Factor of the best round on the median one above which the machine changed during the measurement."""
BUSY_CPUS = 0.2
"""CPUs of other programs above which a measurement counts as noisy. One busy program takes a whole CPU, an idle
desktop some hundredths."""
BUSY_PRESSURE = 0.25
"""Fraction of the measurement in which some task waited for a CPU, above which it counts as noisy. It reveals load
that is not visible as other programs (of other containers, or a limit of CPU time). The measurement itself may have
more threads than CPUs for 0.3 of its seconds, while a worker hands batches over."""
LARGEST = 1e18
"""FLOP/s, B/s or ns: a hundred times more than any machine has or needs. A larger figure is no measurement."""
NOISY_SPREAD = 1.5
"""Factor of a matmul's best block on the median one above which a measurement counts as noisy: half of the blocks
took that much longer or more."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Best rate of matmuls in one dtype. name: "float32", "tf32", "bfloat16", "float16" …. rate: FLOP/s; an interval of
    no width if from a datasheet. reached: True if a job reached more than was measured; `rate` is then the job's."""

    name: str
    rate: Estimate
    reached: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """Best rate of an in-place update of tensors of one total size. size: bytes; caches hold the smaller ones. rate:
    bytes read and written per second."""

    size: int
    rate: Estimate


@dataclass(frozen=True, slots=True)
class Link:
    """Best rate of an exchange between `ranks` processes of one machine. rate: bus bandwidth of a large all-reduce,
    B/s. other_cpus: mean number of CPUs that other programs kept busy meanwhile."""

    backend: str
    ranks: int
    rate: Estimate
    other_cpus: float = 0.0

    @property
    def under_load(self) -> bool:
        """True if other programs took so much of the machine that the real link is faster than measured."""
        return self.other_cpus > BUSY_CPUS


@dataclass(frozen=True, slots=True)
class Machine:
    """A device and its peaks.

    device: "cpu", "cuda", …; name: as the driver calls it. matrix: matmul rates by dtype, FLOP/s, multiply and add
    counted as two. copy: bytes read plus written by a large copy on the device, B/s. updates: the same for in-place
    updates on a CPU, the smallest first (empty if not measured). dispatch: CPU time of one tiny CPU operator, ns.
    launch: CPU time of one tiny device operator, kernel launch included, ns (None on a CPU). together: throughput of
    all usable CPUs at once, in CPUs that work alone; handover: time to receive a ready batch of two tensors from a
    loader's worker, ns (both None if not measured). measured: True if steptime measured it on this machine; otherwise
    `source` names the datasheet. other_cpus: CPUs that other programs, or other machines on the same host, used
    meanwhile. pressure: fraction of that time in which some task waited for a CPU. link: between processes of a job
    with several ranks (None if not measured). profiler: cost of one event in torch's profiler, for an operator with two
    arguments and shapes, ns (None if not measured). between_runs: fraction of a step by which unchanged runs of one job
    differ (None until `steptime env --between-runs`). spent_ns: time of the measurement after the recorded job, 0 if
    the peaks were known."""

    device: str
    name: str
    matrix: tuple[Rate, ...] = ()
    copy: Estimate | None = None
    dispatch: Estimate | None = None
    launch: Estimate | None = None
    measured: bool = False
    source: str = ""
    threads: int | None = None
    torch: str = ""
    python: str = ""
    other_cpus: float = 0.0
    pressure: float = 0.0
    together: Estimate | None = None
    handover: Estimate | None = None
    link: Link | None = None
    updates: tuple[MemoryRate, ...] = ()
    profiler: Estimate | None = None
    between_runs: float | None = None
    spent_ns: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a peak or a cost beyond all machines: files of others are read, too."""
        rates = (*(each.rate for each in self.matrix), *(each.rate for each in self.updates))
        link = self.link.rate if self.link is not None else None
        for each in (*rates, link, self.copy, self.dispatch, self.launch, self.together, self.handover, self.profiler):
            if each is not None and not -LARGEST <= each.low <= each.high <= LARGEST:
                raise ValueError(f"a machine has no {each.low:.3g} to {each.high:.3g} {each.unit}")

    @property
    def capacity(self) -> float | None:
        """Throughput of all usable CPUs at once, in CPUs that work alone; None if its rounds do not agree."""
        found = self.together
        agreed = found is not None and found.low > 0 and found.high <= AGREEING * found.low
        return found.low if found is not None and agreed and not self.under_load else None

    @property
    def handover_usual(self) -> float | None:
        """Median handover, ns; None if it was not measured or other programs disturbed it."""
        return self.handover.high if self.handover is not None and not self.under_load else None

    def matrix_rate(self, name: str = "float32") -> float | None:
        """Rate of a matmul in a dtype, FLOP/s; None if unknown."""
        return next((rate.rate.value for rate in self.matrix if rate.name == name), None)

    @property
    def under_load(self) -> bool:
        """True if other load took so much of the machine that its real peaks are higher than measured."""
        if not self.measured:
            return False
        loaded = self.other_cpus > BUSY_CPUS or self.pressure > BUSY_PRESSURE
        return loaded or any(each.rate.value > NOISY_SPREAD * each.rate.low > 0 for each in self.matrix)

    def at_least(self, reached: Mapping[str, float]) -> Machine:
        """Machine whose matmul peaks are raised to what a job has reached. reached: FLOP/s by dtype."""
        rates = [
            Rate(each.name, replace(each.rate, value=most, low=most, high=most, samples=1), reached=True)
            if (most := reached.get(each.name, 0.0)) > each.rate.value
            else each
            for each in self.matrix
        ]
        return replace(self, matrix=tuple(rates))
