"""What a rule gets to see of a case: the signals that it declared, and nothing else.

One law: a rule that reads what it did not declare fails at once, so that "not examined" is always true.
"""

from __future__ import annotations

from typing import Any

from steptime.advice.evidence import (
    AllocationUse,
    Case,
    CategoryUse,
    ChainUse,
    CollectiveUse,
    CompilationUse,
    Contention,
    CopyUse,
    GapUse,
    GarbageUse,
    GradientUse,
    KernelUse,
    LineUse,
    LoaderUse,
    MachineUse,
    MemoryUse,
    OperatorUse,
    OptimizerUse,
    PaddingUse,
    RankUse,
    RecomputeUse,
    ReplayUse,
    RooflineUse,
    SegmentUse,
    SettingsUse,
    Signal,
    SiteUse,
    StepSummary,
)
from steptime.analysis.stragglers.comparison import LateRank

ABSENCE: dict[Signal, str] = {
    Signal.STEP: "no training step was measured",
    Signal.CATEGORIES: "no breakdown (no profile of the steady steps)",
    Signal.PHASES: "the phases of the steps were not measured",
    Signal.LOADER: "no DataLoader fed the training steps",
    Signal.LINES: "the lines of the training loop were not timed",
    Signal.OPERATORS: "no operators (no profile of the steady steps)",
    Signal.SETTINGS: "the settings of torch were not recorded",
    Signal.OPTIMIZERS: "no torch optimiser took a step",
    Signal.COMPILATIONS: "nothing was compiled, as far as was recorded",
    Signal.SITES: "no call that can wait for a device was seen",
    Signal.GARBAGE: "Python's garbage collector was not watched",
    Signal.SEGMENTS: "nothing but training steps was seen",
    Signal.CONTENTION: "no telemetry of the machine",
    Signal.MACHINE: "no peaks of the machine (steptime env measures them)",
    Signal.RECOMPUTE: "no forward operator ran again inside backward, as far as was recorded",
    Signal.KERNELS: "no kernels on a device",
    Signal.GAPS: "the device was not traced, or never idle",
    Signal.COPIES: "no copy to or from a device was traced",
    Signal.COLLECTIVES: "no collective was traced",
    Signal.ALLOCATIONS: "no call to the driver's allocator fell into a step",
    Signal.REPLAY: "the step could not be replayed (no trace of a device)",
    Signal.ROOFLINE: "no kernels on a device whose peaks are known",
    Signal.CHAINS: "no chain of pointwise kernels was seen (shapes must be recorded)",
    Signal.GRADIENTS: "no model in DistributedDataParallel was traced",
    Signal.LATENESS: "no rank that the others wait for",
    Signal.MEMORY: "no samples of memory (steptime run takes them)",
    Signal.PADDING: "no batch of tokens was seen",
    Signal.RANKS: "one rank alone, or no collectives that the ranks have in common",
}
"""Why a rule was not examined, by the signal that is missing."""

NOT_IN_TRACES: dict[Signal, str] = {
    Signal.LOADER: "a trace does not show the parts of the loader (steptime run times them)",
    Signal.PHASES: "a trace does not show the phases of the steps (steptime run times them)",
    Signal.LINES: "a trace does not time the lines of the training loop (steptime run does)",
    Signal.SETTINGS: "a trace does not hold the settings of torch (steptime run reads them)",
    Signal.CONTENTION: "a trace holds no telemetry of the machine (steptime run takes it)",
    Signal.SEGMENTS: "a trace does not tell what lies between the steps",
    Signal.GARBAGE: "the trace holds no collections (torch.profiler records them with record_python_gc_info)",
    Signal.OPTIMIZERS: "the trace marks no optimiser",
    Signal.COMPILATIONS: "a trace does not hold the reasons of compilations (steptime run keeps them)",
}
"""The same for a bare trace, where nobody watched the job."""


class UndeclaredSignalError(LookupError):
    """A rule read a signal that it had not declared: a fault of the rule."""


def measured(case: Case, signal: Signal) -> bool:
    """Whether a case holds a signal: not None and not empty."""
    value = getattr(case, signal.value)
    return value is not None and value != ()


class Signals:
    """The declared signals of one case.

    A property raises UndeclaredSignalError for a signal that was not declared, and LookupError for an optional one that
    was not measured (ask `has` first). Optional signals that are tuples are empty instead.
    """

    __slots__ = ("_case", "_declared")

    def __init__(self, case: Case, declared: frozenset[Signal]) -> None:
        self._case = case
        self._declared = declared

    def has(self, signal: Signal) -> bool:
        """Whether a declared signal was measured."""
        self._check(signal)
        return measured(self._case, signal)

    def _check(self, signal: Signal) -> None:
        if signal not in self._declared:
            raise UndeclaredSignalError(f"the rule reads {signal.value} without declaring Signal.{signal.name}")

    def _read(self, signal: Signal) -> Any:
        self._check(signal)
        value = getattr(self._case, signal.value)
        if value is None:
            raise LookupError(f"{signal.value} was not measured")
        return value

    @property
    def step(self) -> StepSummary:
        """The step."""
        step: StepSummary = self._read(Signal.STEP)
        return step

    @property
    def categories(self) -> tuple[CategoryUse, ...]:
        """The breakdown, summed over the steps."""
        categories: tuple[CategoryUse, ...] = self._read(Signal.CATEGORIES)
        return categories

    @property
    def phases(self) -> tuple[CategoryUse, ...]:
        """The phases of the step."""
        phases: tuple[CategoryUse, ...] = self._read(Signal.PHASES)
        return phases

    @property
    def loader(self) -> LoaderUse:
        """The training loader."""
        loader: LoaderUse = self._read(Signal.LOADER)
        return loader

    @property
    def lines(self) -> tuple[LineUse, ...]:
        """The lines of the user's loop."""
        lines: tuple[LineUse, ...] = self._read(Signal.LINES)
        return lines

    @property
    def operators(self) -> tuple[OperatorUse, ...]:
        """The leaf operators of a step."""
        operators: tuple[OperatorUse, ...] = self._read(Signal.OPERATORS)
        return operators

    @property
    def settings(self) -> SettingsUse:
        """Process-wide switches."""
        settings: SettingsUse = self._read(Signal.SETTINGS)
        return settings

    @property
    def optimizers(self) -> tuple[OptimizerUse, ...]:
        """The optimisers that stepped."""
        optimizers: tuple[OptimizerUse, ...] = self._read(Signal.OPTIMIZERS)
        return optimizers

    @property
    def compilations(self) -> tuple[CompilationUse, ...]:
        """What TorchDynamo compiled."""
        compilations: tuple[CompilationUse, ...] = self._read(Signal.COMPILATIONS)
        return compilations

    @property
    def sites(self) -> tuple[SiteUse, ...]:
        """Calls that can wait for a device."""
        sites: tuple[SiteUse, ...] = self._read(Signal.SITES)
        return sites

    @property
    def garbage(self) -> GarbageUse:
        """Python's garbage collector."""
        garbage: GarbageUse = self._read(Signal.GARBAGE)
        return garbage

    @property
    def segments(self) -> tuple[SegmentUse, ...]:
        """What is no training step."""
        segments: tuple[SegmentUse, ...] = self._read(Signal.SEGMENTS)
        return segments

    @property
    def contention(self) -> Contention:
        """The machine while the steps ran."""
        contention: Contention = self._read(Signal.CONTENTION)
        return contention

    @property
    def machine(self) -> MachineUse:
        """Peaks of the machine."""
        machine: MachineUse = self._read(Signal.MACHINE)
        return machine

    @property
    def recompute(self) -> RecomputeUse:
        """Activation checkpointing."""
        recompute: RecomputeUse = self._read(Signal.RECOMPUTE)
        return recompute

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The kernels of a step, grouped."""
        kernels: tuple[KernelUse, ...] = self._read(Signal.KERNELS)
        return kernels

    @property
    def gaps(self) -> tuple[GapUse, ...]:
        """Why the device idled."""
        gaps: tuple[GapUse, ...] = self._read(Signal.GAPS)
        return gaps

    @property
    def copies(self) -> tuple[CopyUse, ...]:
        """Copies of the device."""
        copies: tuple[CopyUse, ...] = self._read(Signal.COPIES)
        return copies

    @property
    def collectives(self) -> tuple[CollectiveUse, ...]:
        """Collectives, by kind and group."""
        collectives: tuple[CollectiveUse, ...] = self._read(Signal.COLLECTIVES)
        return collectives

    @property
    def allocations(self) -> tuple[AllocationUse, ...]:
        """Calls to the driver's allocator."""
        allocations: tuple[AllocationUse, ...] = self._read(Signal.ALLOCATIONS)
        return allocations

    @property
    def replay(self) -> ReplayUse:
        """The dependency graph, run again."""
        replay: ReplayUse = self._read(Signal.REPLAY)
        return replay

    @property
    def roofline(self) -> RooflineUse:
        """What bounds the kernels."""
        roofline: RooflineUse = self._read(Signal.ROOFLINE)
        return roofline

    @property
    def chains(self) -> tuple[ChainUse, ...]:
        """Pointwise kernels in a row."""
        chains: tuple[ChainUse, ...] = self._read(Signal.CHAINS)
        return chains

    @property
    def ranks(self) -> tuple[RankUse, ...]:
        """All ranks of the job, in order."""
        ranks: tuple[RankUse, ...] = self._read(Signal.RANKS)
        return ranks

    @property
    def lateness(self) -> LateRank:
        """The late rank, with the reason."""
        lateness: LateRank = self._read(Signal.LATENESS)
        return lateness

    @property
    def gradients(self) -> GradientUse:
        """The exchange of gradients."""
        gradients: GradientUse = self._read(Signal.GRADIENTS)
        return gradients

    @property
    def padding(self) -> PaddingUse:
        """How much of a batch only fills it up."""
        padding: PaddingUse = self._read(Signal.PADDING)
        return padding

    @property
    def memory(self) -> MemoryUse:
        """What was sampled of memory."""
        memory: MemoryUse = self._read(Signal.MEMORY)
        return memory
