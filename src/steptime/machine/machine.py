"""A machine: its peaks, measured or from a datasheet, against which a step is judged. The room's central type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from steptime.quantities import Estimate

AGREEING = 1.1
"""The best round over the median one: beyond, the machine changed while it was measured."""
DISTURBING_CPUS = 0.2
"""One busy program is a whole CPU; an idle desktop takes some hundredths."""
DISTURBING_PRESSURE = 0.25
"""Share of the measuring in which some task waited for a CPU: what is not seen among other programs (those of other
containers, a limit of CPU time) shows here. The measuring itself may have more threads than CPUs while a worker hands
batches over, for 0.3 of its seconds."""
DISTURBED_SPREAD = 1.5
"""The best block of a matrix product over the median one: half of the blocks took half as long again, or longer."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Best rate of one kind of work. name: "float32", "tf32", "bfloat16", "float16".

    rate: FLOP/s; from a datasheet, an interval of no width. reached: it is what a job has done, which was more than was
    measured.
    """

    name: str
    rate: Estimate
    reached: bool = False


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """Best rate of an update in place, B/s read and written, where all that it goes through is of a size in
    bytes: a cache holds the smaller ones."""

    size: int
    rate: Estimate


@dataclass(frozen=True, slots=True)
class Link:
    """Best rate of an exchange between so many processes of one machine. rate: bus bandwidth of a large all-reduce,
    B/s. other_cpus: CPUs that other programs kept busy meanwhile, on average."""

    backend: str
    ranks: int
    rate: Estimate
    other_cpus: float = 0.0

    @property
    def under_load(self) -> bool:
        """True if other programs took so much of the machine that the link does more than what was measured."""
        return self.other_cpus > DISTURBING_CPUS


@dataclass(frozen=True, slots=True)
class Machine:
    """A device and its peaks.

    device: "cpu", "cuda", …; name: as the driver calls it. matrix: rate of a matrix product by dtype, FLOP/s,
    multiply and add counted as two. copy: bytes read plus bytes written per second by a large copy on the device.
    updates: of a CPU, the same of updates in place, the smallest first (empty where they were not measured).
    dispatch: ns of host time for one tiny operator on the CPU. launch: ns of host time for one tiny operator on the
    device, its kernel's launch included (None on a CPU). together: what all usable CPUs do at once, in CPUs of which
    one works alone; handover: ns to receive a batch of two tensors, ready, from a loader's worker (both None where they
    were not measured). measured: by steptime, on this machine; else the rates are a datasheet's and `source` names it.
    other_cpus: CPUs that other programs, or other machines on the same host, used meanwhile. pressure: share of that
    time in which some task waited for a CPU. link: between the processes of a job of several ranks (None where it was
    not measured). profiler: ns that torch's profiler takes for one event of an operator with two arguments, shapes
    included (None where it was not measured). between_runs: share of a step that runs of one job differ by though
    nothing changed (None until `steptime env --between-runs`). spent_ns: that measuring took after the job next to
    whose recording this lies, 0 where it was known."""

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

    @property
    def capacity(self) -> float | None:
        """CPUs' worth of work that all usable CPUs do at once, None where its rounds do not agree."""
        found = self.together
        agreed = found is not None and found.low > 0 and found.high <= AGREEING * found.low
        return found.low if found is not None and agreed and not self.under_load else None

    @property
    def handover_usual(self) -> float | None:
        """ns that the median handover takes, None where it was not measured or other programs disturbed it."""
        return self.handover.high if self.handover is not None and not self.under_load else None

    def matrix_rate(self, name: str = "float32") -> float | None:
        """FLOP/s of a matrix product in a dtype, None where it is unknown."""
        return next((rate.rate.value for rate in self.matrix if rate.name == name), None)

    @property
    def under_load(self) -> bool:
        """True if other load took so much of the machine that its peaks are higher than what was measured."""
        if not self.measured:
            return False
        loaded = self.other_cpus > DISTURBING_CPUS or self.pressure > DISTURBING_PRESSURE
        return loaded or any(each.rate.value > DISTURBED_SPREAD * each.rate.low > 0 for each in self.matrix)

    def at_least(self, reached: Mapping[str, float]) -> Machine:
        """With peaks of matrix products that are no lower than what a job has reached, FLOP/s by dtype."""
        rates = [
            Rate(each.name, replace(each.rate, value=most, low=most, high=most, samples=1), reached=True)
            if (most := reached.get(each.name, 0.0)) > each.rate.value
            else each
            for each in self.matrix
        ]
        return replace(self, matrix=tuple(rates))
