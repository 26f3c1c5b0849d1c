"""View of a case that a rule gets: the signals that it declared, and nothing else.

A rule that reads what it did not declare fails at once, so that "not examined" is always true.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from steptime.advice.evidence import (
    AllocationUse,
    Case,
    CategoryUse,
    CaughtUse,
    ChainUse,
    ChangeUse,
    CollectiveUse,
    CompilationUse,
    CompilerUse,
    Contention,
    CopyUse,
    FunctionUse,
    GapUse,
    GarbageUse,
    GpuUse,
    GradientUse,
    KernelUse,
    LineUse,
    LoaderUse,
    MachineUse,
    MemoryUse,
    OperatorUse,
    OptimizerUse,
    OutlierUse,
    PaddingFacts,
    PathUse,
    PeriodUse,
    RankUse,
    RecomputeUse,
    RepeatedForward,
    ReplayUse,
    RooflineUse,
    ScalingUse,
    SegmentUse,
    SettingsUse,
    Signal,
    SiteUse,
    StepSummary,
    Straggler,
    TopModuleUse,
    WrittenNormUse,
)
from steptime.analysis.modules import ModuleUse
from steptime.quantities import Estimate

Value = TypeVar("Value")


class UndeclaredSignalError(LookupError):
    """A rule read a signal that it had not declared: a fault of the rule."""


def measured(case: Case, signal: Signal) -> bool:
    """True if a case holds a signal: not None and not empty."""
    return getattr(case, signal.value) not in (None, ())


class Declared(Generic[Value]):
    """An attribute of `Signals`: what the case holds for the signal of its name."""

    def __set_name__(self, owner: type[Signals], name: str) -> None:
        self._signal = Signal[name.upper()]

    def __get__(self, signals: Signals, owner: type[Signals]) -> Value:
        value: Value | None = signals.read(self._signal)
        if value is None:
            raise LookupError(f"{self._signal.value} was not measured")
        return value


class Signals:
    """The declared signals of one case.

    An attribute raises UndeclaredSignalError for a signal that was not declared, and LookupError for an optional one
    that was not measured (ask `has` first). Optional signals that are tuples are empty instead.
    """

    __slots__ = ("_case", "_declared")

    step = Declared[StepSummary]()
    categories = Declared[tuple[CategoryUse, ...]]()
    phases = Declared[tuple[CategoryUse, ...]]()
    loader = Declared[LoaderUse]()
    lines = Declared[tuple[LineUse, ...]]()
    operators = Declared[tuple[OperatorUse, ...]]()
    settings = Declared[SettingsUse]()
    optimizers = Declared[tuple[OptimizerUse, ...]]()
    top_modules = Declared[tuple[TopModuleUse, ...]]()
    modules = Declared[tuple[ModuleUse, ...]]()
    compilations = Declared[tuple[CompilationUse, ...]]()
    compiler = Declared[CompilerUse]()
    sites = Declared[tuple[SiteUse, ...]]()
    garbage = Declared[GarbageUse]()
    segments = Declared[tuple[SegmentUse, ...]]()
    contention = Declared[Contention]()
    machine = Declared[MachineUse]()
    recompute = Declared[RecomputeUse]()
    backward_again = Declared[Estimate]()
    kernels = Declared[tuple[KernelUse, ...]]()
    gaps = Declared[tuple[GapUse, ...]]()
    copies = Declared[tuple[CopyUse, ...]]()
    collectives = Declared[tuple[CollectiveUse, ...]]()
    allocations = Declared[tuple[AllocationUse, ...]]()
    replay = Declared[ReplayUse]()
    roofline = Declared[RooflineUse]()
    chains = Declared[tuple[ChainUse, ...]]()
    scaling = Declared[ScalingUse]()
    written_norms = Declared[tuple[WrittenNormUse, ...]]()
    ranks = Declared[tuple[RankUse, ...]]()
    memory = Declared[MemoryUse]()
    straggler = Declared[Straggler]()
    gradients = Declared[GradientUse]()
    padding = Declared[PaddingFacts]()
    paths = Declared[tuple[PathUse, ...]]()
    repeated = Declared[RepeatedForward]()
    functions = Declared[tuple[FunctionUse, ...]]()
    change = Declared[ChangeUse]()
    period = Declared[PeriodUse]()
    outliers = Declared[OutlierUse]()
    caught = Declared[CaughtUse]()
    gpus = Declared[tuple[GpuUse, ...]]()

    def __init__(self, case: Case, declared: frozenset[Signal]) -> None:
        self._case = case
        self._declared = declared

    def has(self, signal: Signal) -> bool:
        """True if a declared signal was measured."""
        return self.read(signal) not in (None, ())

    def read(self, signal: Signal) -> Any:
        """Value that the case holds for a signal. Raises UndeclaredSignalError for one that was not declared."""
        if signal not in self._declared:
            raise UndeclaredSignalError(f"the rule reads {signal.value} without declaring Signal.{signal.name}")
        return getattr(self._case, signal.value)


def compiles(signals: Signals) -> bool:
    """True if torch.compile is at work already, by the recording or by the trace."""
    return signals.has(Signal.COMPILATIONS) or signals.step.compiled
