"""A case: all that a rule may look at, as plain numbers. Assembled by `diagnosis`, stored as JSON in the tests.

A rule sees only the signals that it declared; a signal that was not measured is None (or empty), never zero.
All times are nanoseconds per training step unless a name says otherwise.

With the records that a case is made of, those of the rooms below among them: each is imported under its own name, by
which others take it from here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from steptime.advice.device_uses import (
    AllocationUse as AllocationUse,
    ChainUse as ChainUse,
    CollectiveUse as CollectiveUse,
    CopyUse as CopyUse,
    GapUse as GapUse,
    GpuUse as GpuUse,
    GradientUse as GradientUse,
    KernelUse as KernelUse,
    MachineUse as MachineUse,
    RankUse as RankUse,
    ReplayUse as ReplayUse,
    RooflineUse as RooflineUse,
    ScalingUse as ScalingUse,
    WrittenNormUse as WrittenNormUse,
)
from steptime.advice.run_uses import (
    CategoryUse as CategoryUse,
    CaughtUse as CaughtUse,
    ChangeUse as ChangeUse,
    Contention as Contention,
    GarbageUse as GarbageUse,
    HolderUse as HolderUse,
    InputUse as InputUse,
    LoaderUse as LoaderUse,
    MemoryUse as MemoryUse,
    NormUse as NormUse,
    OutlierUse as OutlierUse,
    PeriodUse as PeriodUse,
    SegmentLine as SegmentLine,
    SegmentUse as SegmentUse,
    SettingsUse as SettingsUse,
    StepSummary as StepSummary,
)
from steptime.analysis.lines import LineRoleName
from steptime.analysis.modules import ModuleUse as ModuleUse
from steptime.analysis.operators import OperatorUse as OperatorUse
from steptime.analysis.stragglers.comparison import Straggler as Straggler
from steptime.analysis.user_code import FunctionUse as FunctionUse
from steptime.analysis.what_if.what_if import Prediction as Prediction
from steptime.quantities import BETWEEN_RUNS, Estimate, SourceLine, mean_of_series
from steptime.recording.recording import PaddingFacts as PaddingFacts


@dataclass(frozen=True, slots=True)
class LineUse:
    """A line of the user's code. role: "input", "transfer", "forward", "backward", "optimizer", "evaluation" or
    "python".

    duration: time of the line per step (lines inside it excluded when they are traced too); host: the part of it
    outside operators, the loader and the phases; hits: executions per step.
    collections: garbage collections per step inside it; checkpoint: ns in torch.save. calls: functions that it was seen
    to call, "logging.Logger.info", "torch.Tensor.item"."""

    source: SourceLine
    role: LineRoleName
    duration: Estimate
    host: Estimate
    hits: float
    garbage: float = 0.0
    checkpoint: float = 0.0
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepeatedForward:
    """Forwards without gradients, in training steps, of a model that trains in them. duration, calls: per step."""

    duration: Estimate
    calls: float
    source: SourceLine | None = None


@dataclass(frozen=True, slots=True)
class TopModuleUse:
    """A module that the job calls. type: its class; own: that is torch's (Sequential, …). device: its parameters'."""

    type: str
    parameters: int
    parameter_bytes: int
    device: str = "cpu"
    compiled: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimizer. duration: ns per step in its step(). dense_embedding_elements: elements of embedding weights whose
    gradient is dense and mostly zero. kernels: that it launches per step, where the duration is the device's, from its
    first kernel to the end of its last; None where it is the host's. parameters, elements: 0 where not known."""

    type: str
    duration: Estimate
    parameters: int
    elements: int
    foreach: bool | None = None
    fused: bool | None = None
    operators: float | None = None
    dense_embedding_elements: int = 0
    site: SourceLine | None = None
    kernels: float | None = None


@dataclass(frozen=True, slots=True)
class CompilationUse:
    """A compilation. after_warm_up: it fell into or between steps that should have been steady."""

    source: SourceLine
    duration: int
    after_warm_up: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CompiledKernelUse:
    """A kernel that torch.compile generated. duration: ns per step. lines: of the user's that it computes, in the order
    of the file. operators: of ATen, fused into it. code: its source in Triton or C++, "" for all but the longest."""

    name: str
    duration: float
    lines: tuple[SourceLine, ...]
    operators: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class CompilerEventUse:
    """A line that breaks a graph, or a function whose guard failed or that reached the limit: so often."""

    source: SourceLine
    reason: str
    count: int = 1
    hint: str = ""


@dataclass(frozen=True, slots=True)
class CompilerUse:
    """Folder of torch.compile's own records; "" where breaks and limits alone are known, as the job itself was seen
    to have them. limits: functions compiled too often, which run uncompiled."""

    folder: str
    kernels: tuple[CompiledKernelUse, ...] = ()
    breaks: tuple[CompilerEventUse, ...] = ()
    recompilations: tuple[CompilerEventUse, ...] = ()
    limits: tuple[CompilerEventUse, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteUse:
    """A call that can make the host wait for the device, so many times per step."""

    name: str
    device: str
    calls: float
    source: SourceLine


@dataclass(frozen=True, slots=True)
class RecomputeUse:
    """Forward operators that run again inside backward (activation checkpointing). duration: ns per step."""

    duration: Estimate
    memory_share: float | None = None


@dataclass(frozen=True, slots=True)
class PathUse:
    """A line below the training loop, by the path of calls that leads to it. duration: ns per step, without what it
    calls of the user's. part: of the step that calls it, "input", "forward", "backward", "optimizer" or "". lines: the
    user's, the innermost first."""

    duration: float
    part: str
    lines: tuple[SourceLine, ...]


Record = TypeVar("Record")


def record_of(record: Callable[..., Record], like: object, /, **given: Any) -> Record:
    """A record with the given fields and, by their names, those of another object.

    Of an array, which has one value for each step, it is the mean: with its interval where the record holds an
    estimate.
    """
    for name, parameter in signature(record).parameters.items():
        if name in given or not hasattr(like, name):
            continue
        value = getattr(like, name)
        if isinstance(value, np.ndarray):
            value = mean_of_series(value) if parameter.annotation == "Estimate" else float(value.mean())
        given[name] = value
    return record(**given)


class Signal(Enum):
    """Fields of a `Case` that a rule can declare, with why they may be missing.

    absent: what is said where a rule was not examined for it; not_in_trace: the same for a bare trace, where nobody
    watched the job.
    """

    absent: str
    not_in_trace: str

    def __new__(cls, field: str, absent: str, not_in_trace: str = "") -> Signal:
        """A member whose value is the name of the field."""
        member = object.__new__(cls)
        member._value_ = field
        member.absent, member.not_in_trace = absent, not_in_trace or absent
        return member

    STEP = "step", "no training step was measured"
    CATEGORIES = "categories", "no breakdown (no profile of the steady steps)"
    PHASES = (
        "phases",
        "the phases of the steps were not measured",
        "a trace does not show the phases of the steps (steptime run times them)",
    )
    LOADER = (
        "loader",
        "no DataLoader fed the training steps",
        "a trace does not show the parts of the loader (steptime run times them)",
    )
    LINES = (
        "lines",
        "the lines of the training loop were not timed",
        "a trace does not time the lines of the training loop (steptime run does)",
    )
    OPERATORS = "operators", "no operators (no profile of the steady steps)"
    SETTINGS = (
        "settings",
        "the settings of torch were not recorded",
        "a trace does not hold the settings of torch (steptime run reads them)",
    )
    OPTIMIZERS = "optimizers", "no torch optimizer took a step", "the trace marks no optimizer"
    TOP_MODULES = (
        "top_modules",
        "no model of the job was seen",
        "a trace does not tell the models (steptime run finds them)",
    )
    COMPILATIONS = (
        "compilations",
        "nothing was compiled, as far as was recorded",
        "a trace does not hold the reasons of compilations (steptime run keeps them)",
    )
    COMPILER = "compiler", "torch.compile's own records are not next to it (TORCH_TRACE, diagnose --compile-logs)"
    SITES = "sites", "no call that can wait for a device was seen"
    GARBAGE = (
        "garbage",
        "Python's garbage collector was not watched",
        "the trace holds no collections (torch.profiler records them with record_python_gc_info)",
    )
    SEGMENTS = (
        "segments",
        "nothing but training steps was seen",
        "a trace does not tell what lies between the steps",
    )
    CONTENTION = (
        "contention",
        "no telemetry of the machine",
        "a trace holds no telemetry of the machine (steptime run takes it)",
    )
    MACHINE = "machine", "no peaks of the machine (steptime env measures them)"
    RECOMPUTE = "recompute", "no forward operator ran again inside backward, as far as was recorded"
    BACKWARD_AGAIN = "backward_again", "no graph was gone through twice by backward, as far as was recorded"
    KERNELS = "kernels", "no kernels on a device"
    GAPS = "gaps", "the device was not traced, or never idle"
    COPIES = "copies", "no copy to or from a device was traced"
    COLLECTIVES = "collectives", "no collective was traced"
    ALLOCATIONS = "allocations", "no call to the driver's allocator fell into a step"
    REPLAY = "replay", "the step could not be replayed (no trace of a device)"
    ROOFLINE = "roofline", "no kernels on a device whose peaks are known"
    CHAINS = "chains", "no chain of pointwise kernels was seen (shapes must be recorded)"
    WRITTEN_NORMS = "written_norms", "no norm was seen that is written out (shapes must be recorded, on a device)"
    SCALING = "scaling", "no gradient scaler was traced on a device"
    RANKS = "ranks", "one rank alone, or no collectives that the ranks have in common"
    MEMORY = "memory", "no samples of memory (steptime run takes them)"
    STRAGGLER = "straggler", "no rank that the others wait for"
    GRADIENTS = "gradients", "no model in DistributedDataParallel was traced"
    PADDING = "padding", "no batch of tokens was seen"
    PATHS = (
        "paths",
        "the functions below the training loop were not timed",
        "a trace does not time lines (steptime run does)",
    )
    MODULES = "modules", "no module was seen in a profiled step"
    REPEATED = "repeated", "no model that trains ran without gradients in the steps"
    FUNCTIONS = "functions", "no step was profiled with Python stacks"
    CHANGE = "change", "the steps did not change for good within the run"
    PERIOD = "period", "no step is slow every so many steps"
    OUTLIERS = "outliers", "no step takes far longer than the others"
    CAUGHT = "caught", "no slow step was looked into (steptime run --catch does so)"
    GPUS = (
        "gpus",
        "no telemetry of a GPU (steptime run takes it from NVIDIA's driver)",
        "a trace holds no telemetry of the GPU (steptime run takes it)",
    )


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that rules may look at for one process. changing_work: whether the model runs other operators or
    shapes from one profiled step to the next; None where that is not known."""

    step: StepSummary
    categories: tuple[CategoryUse, ...] = ()
    phases: tuple[CategoryUse, ...] = ()
    loader: LoaderUse | None = None
    inputs: InputUse | None = None
    lines: tuple[LineUse, ...] = ()
    operators: tuple[OperatorUse, ...] = ()
    settings: SettingsUse | None = None
    optimizers: tuple[OptimizerUse, ...] = ()
    compilations: tuple[CompilationUse, ...] = ()
    sites: tuple[SiteUse, ...] = ()
    garbage: GarbageUse | None = None
    segments: tuple[SegmentUse, ...] = ()
    contention: Contention | None = None
    machine: MachineUse | None = None
    recompute: RecomputeUse | None = None
    backward_again: Estimate | None = None
    kernels: tuple[KernelUse, ...] = ()
    gaps: tuple[GapUse, ...] = ()
    copies: tuple[CopyUse, ...] = ()
    collectives: tuple[CollectiveUse, ...] = ()
    allocations: tuple[AllocationUse, ...] = ()
    replay: ReplayUse | None = None
    roofline: RooflineUse | None = None
    chains: tuple[ChainUse, ...] = ()
    written_norms: tuple[WrittenNormUse, ...] = ()
    scaling: ScalingUse | None = None
    ranks: tuple[RankUse, ...] = ()
    rank: int | None = None
    straggler: Straggler | None = None
    gradients: GradientUse | None = None
    memory: MemoryUse | None = None
    top_modules: tuple[TopModuleUse, ...] = ()
    paths: tuple[PathUse, ...] = ()
    functions: tuple[FunctionUse, ...] = ()
    repeated: RepeatedForward | None = None
    padding: PaddingFacts | None = None
    change: ChangeUse | None = None
    period: PeriodUse | None = None
    changing_work: bool | None = None
    modules: tuple[ModuleUse, ...] = ()
    outliers: OutlierUse | None = None
    caught: CaughtUse | None = None
    gpus: tuple[GpuUse, ...] = ()
    compiler: CompilerUse | None = None

    @property
    def compiled(self) -> bool:
        """True if torch.compile or a captured graph is in use already, by the recording or by its trace."""
        replays = self.step.graphs is not None and self.step.graphs.launches > 0
        return (
            bool(self.compilations)
            or any(model.compiled for model in self.top_modules)
            or self.step.compiled
            or replays
        )

    @property
    def between_runs(self) -> float:
        """Share of a step that runs of one job differ by on its machine: measured, else what is assumed of any."""
        measured = self.machine.between_runs if self.machine is not None else None
        return BETWEEN_RUNS if measured is None else measured
