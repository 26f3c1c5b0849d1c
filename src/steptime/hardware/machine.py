"""A machine: its ceilings, measured or from a datasheet, against which a step is judged. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import Estimate

AGREEING = 1.1
"""The best round over the median one: beyond, the machine changed while it was measured."""
DISTURBING_CPUS = 0.2
"""One busy program is a whole CPU; an idle desktop takes some hundredths."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one kind of work reaches at best. name: "float32", "tf32", "bfloat16", "float16".

    rate: FLOP/s; from a datasheet, an interval of no width.
    """

    name: str
    rate: Estimate


@dataclass(frozen=True, slots=True)
class MemoryRate:
    """What an update in place reaches at best, B/s read and written, where all that it goes through is of a size in
    bytes: a cache holds the smaller ones."""

    size: int
    rate: Estimate


@dataclass(frozen=True, slots=True)
class Link:
    """What so many processes of one machine exchange at best. rate: bus bandwidth of a large all-reduce, B/s.
    other_cpus: CPUs that other programs kept busy meanwhile, on average."""

    backend: str
    ranks: int
    rate: Estimate
    other_cpus: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much of the machine that the link does more than what was measured."""
        return self.other_cpus > DISTURBING_CPUS


@dataclass(frozen=True, slots=True)
class Machine:
    """A device and its ceilings.

    device: "cpu", "cuda", …; name: as the driver calls it. matrix: rate of a matrix product by number format, FLOP/s,
    multiply and add counted as two. copy: bytes read plus bytes written per second by a large copy on the device.
    updates: of a CPU, the same of updates in place, the smallest first (empty where they were not measured).
    dispatch: ns of host time for one tiny operator on the CPU. launch: ns of host time for one tiny operator on the
    device, its kernel's launch included (None on a CPU). together: what all usable CPUs do at once, in CPUs of which
    one works alone; handover: ns to receive a batch of two tensors, ready, from a loader's worker (both None where they
    were not measured). measured: by steptime, on this machine; else the rates are a datasheet's and `source` names it.
    other_cpus: CPUs that other programs used meanwhile. link: between the processes of a job of several ranks (None
    where it was not measured).
    """

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
    together: Estimate | None = None
    handover: Estimate | None = None
    link: Link | None = None
    updates: tuple[MemoryRate, ...] = ()

    @property
    def capacity(self) -> float | None:
        """CPUs' worth of work that all usable CPUs do at once, None where its rounds do not agree."""
        found = self.together
        agreed = found is not None and found.low > 0 and found.high <= AGREEING * found.low
        return found.low if found is not None and agreed and not self.disturbed else None

    @property
    def handover_usual(self) -> float | None:
        """ns that the median handover takes, None where it was not measured or other programs disturbed it."""
        return self.handover.high if self.handover is not None and not self.disturbed else None

    def matrix_rate(self, name: str = "float32") -> float | None:
        """FLOP/s of a matrix product in a number format, None where it is unknown."""
        return next((rate.rate.value for rate in self.matrix if rate.name == name), None)

    @property
    def disturbed(self) -> bool:
        """Whether other programs took so much of the machine that its ceilings are higher than what was measured."""
        return self.other_cpus > DISTURBING_CPUS
