"""Case: the evidence for rules and fixes, as plain numbers. `assemble` constructs it.

Rules and fixes name the fields that they need as their parameters (`Evidence`). A field that was not measured is None
or empty, never zero. All times are nanoseconds per training step unless a name says otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from inspect import signature
from typing import Any, TypeVar

import numpy as np

from steptime.advice.device_uses import (
    AllocationUse,
    ChainUse,
    CollectiveUse,
    CopyUse,
    GapUse,
    GpuUse,
    GradientUse,
    MachineUse,
    RankUse,
    ReplayUse,
    RooflineUse,
    ScalingUse,
    WrittenNormUse,
)
from steptime.advice.run_uses import (
    CategoryUse,
    CaughtUse,
    Contention,
    GarbageUse,
    InputUse,
    LengthUse,
    LoaderUse,
    MemoryUse,
    OutlierUse,
    PassUse,
    PeriodUse,
    RepeatUse,
    SegmentUse,
    SettingsUse,
    ShapedUse,
    SpreadUse,
    StepSummary,
    WorkUse,
)
from steptime.analysis.lines import LineRoleName
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.step_patterns import LastingChange
from steptime.analysis.stragglers.comparison import Straggler
from steptime.analysis.unused import PickedUse, UnreadUse, UnusedPass
from steptime.analysis.user_code import FunctionUse
from steptime.quantities import BETWEEN_RUNS, Estimate, SourceLine, mean_of_series
from steptime.recording.rule_facts import RuleFacts
from steptime.trace.compile_logs import CompilerEvent


@dataclass(frozen=True, slots=True)
class LineUse:
    """A timed line of the user's code. role: "input", "transfer", "forward", "backward", "optimizer", "evaluation" or
    "python". duration: ns per step (without lines inside it that are traced too); python: ns of these outside
    operators, the loader and the phases; hits: number of executions per step. garbage: number of garbage collections
    per step in the line; checkpoint: ns per step in torch.save. calls: functions that it was seen to call, such as
    "logging.Logger.info", "torch.Tensor.item". trained: True if the loss is made from its result, as far as the names
    in the loop show."""

    source: SourceLine
    role: LineRoleName
    duration: Estimate
    python: Estimate
    hits: float
    garbage: float = 0.0
    checkpoint: float = 0.0
    calls: tuple[str, ...] = ()
    trained: bool = False


@dataclass(frozen=True, slots=True)
class SeldomUse:
    """Line of the training loop whose result is made in each step and read in few. name: variable that holds the
    result. reader: line that reads it."""

    source: SourceLine
    name: str
    reader: SourceLine


@dataclass(frozen=True, slots=True)
class RepeatedForward:
    """Forward passes without gradients in training steps. duration, calls: ns and number of these passes per step.
    source: line that calls the model. steps: fraction of the steps that have one."""

    duration: Estimate
    calls: float
    source: SourceLine | None = None
    steps: float = 1.0


@dataclass(frozen=True, slots=True)
class TopModuleUse:
    """Module that the job calls. type: its class; own: True for a class of torch's (Sequential, …). device: device of
    its parameters. parameters: number of them."""

    type: str
    parameters: int
    parameter_bytes: int
    device: str = "cpu"
    compiled: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimizer. duration: ns per step in its step(). dense_embedding_elements: number of elements of embedding
    weights whose gradient is dense and mostly zero. kernels: number that it launches per step if the duration is the
    device's (from its first kernel to the end of its last), None if it is the CPU's. groups: number of parameter
    groups; distinct_groups: number of those with different options. made: least number of such optimizers that were
    made, each replacing the one before. parameters, elements, groups: 0 if unknown."""

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
    groups: int = 0
    distinct_groups: int = 0
    made: int = 1


@dataclass(frozen=True, slots=True)
class CompilationUse:
    """A compilation. duration: ns. after_warm_up: True if it ran in or between steps that should have been steady.
    reason: cause of a recompilation."""

    source: SourceLine
    duration: int
    after_warm_up: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CompiledKernelUse:
    """Kernel that torch.compile generated. duration: ns per step. lines: user's lines that it computes, in file order.
    operators: ATen operators fused into it. code: Triton or C++ source, only for the longest kernels, else ""."""

    name: str
    duration: float
    lines: tuple[SourceLine, ...]
    operators: tuple[str, ...] = ()
    code: str = ""


@dataclass(frozen=True, slots=True)
class CompilerUse:
    """What torch.compile reported about the job. folder: folder of its logs; "" if only the breaks and limits are known
    that the job itself showed. limits: functions that hit the recompile limit and run uncompiled."""

    folder: str
    kernels: tuple[CompiledKernelUse, ...] = ()
    breaks: tuple[CompilerEvent, ...] = ()
    recompilations: tuple[CompilerEvent, ...] = ()
    limits: tuple[CompilerEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class SiteUse:
    """Call that can make the CPU wait for the device. calls: number per step; seen: number in all. functions: what its
    line calls."""

    name: str
    device: str
    calls: float
    source: SourceLine
    seen: int = 0
    functions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecomputeUse:
    """Forward operators that run again inside backward (activation checkpointing). duration: ns per step. memory_share:
    peak memory as a fraction of the capacity."""

    duration: Estimate
    memory_share: float | None = None


@dataclass(frozen=True, slots=True)
class PathUse:
    """Line below the training loop, with the calls that lead to it. duration: ns per step, without the user's functions
    that it calls. part: the part of the step that calls it, "input", "forward", "backward", "optimizer" or "". lines:
    user's lines, innermost first. ran: executions of the first line per step, 0 if unknown."""

    duration: float
    part: str
    lines: tuple[SourceLine, ...]
    ran: float = 0.0


@dataclass(frozen=True, slots=True)
class RunUse:
    """Operator or function that runs at a line, or in a function as a whole (`whole`; source: its first line). share:
    fraction of the time there; duration: ns per step, as the lines were timed. calls: per step. shapes: input shapes of
    most calls, as a trace has them; depth, shallow: as in `CallUse`."""

    source: SourceLine
    name: str
    share: float
    duration: float
    calls: float
    shapes: str = ""
    depth: float = 1.0
    shallow: float = 1.0
    whole: bool = False


Record = TypeVar("Record")


def record_of(record: Callable[..., Record], like: object, /, **given: Any) -> Record:
    """Record of the class `record`, filled from the given fields and from those of `like` with the same names. An array
    with one value per step becomes its mean, or an estimate with an interval if the field is one."""
    for name, parameter in signature(record).parameters.items():
        if name in given or not hasattr(like, name):
            continue
        value = getattr(like, name)
        if isinstance(value, np.ndarray):
            value = mean_of_series(value) if parameter.annotation == "Estimate" else float(value.mean())
        given[name] = value
    return record(**given)


Value = TypeVar("Value")


def absent(default: Value, reason: str, in_trace: str = "") -> Value:
    """Field of `Case` that may be missing. default: its value then, None or (). reason: sentence for a report on why it
    is missing; in_trace: such a sentence for a bare trace of a job that steptime did not run."""
    metadata = {"reason": reason, "in_trace": in_trace or reason}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Case(RuleFacts):
    """All evidence on one process that rules may look at. changing_work: True if the model runs other operators or
    shapes from one profiled step to the next, None if unknown. second_order: True if gradients are taken of gradients
    in the profiled steps."""

    step: StepSummary
    categories: tuple[CategoryUse, ...] = absent((), "no breakdown (no profile of the steady steps)")
    phases: tuple[CategoryUse, ...] = absent(
        (),
        "the phases of the steps were not measured",
        "a trace does not show the phases of the steps (steptime run times them)",
    )
    loader: LoaderUse | None = absent(
        None,
        "no DataLoader fed the training steps",
        "a trace does not show the parts of the loader (steptime run times them)",
    )
    inputs: InputUse | None = absent(None, "the model's inputs were not recorded")
    lines: tuple[LineUse, ...] = absent(
        (),
        "the lines of the training loop were not timed",
        "a trace does not time the lines of the training loop (steptime run does)",
    )
    operators: tuple[OperatorUse, ...] = absent((), "no operators (no profile of the steady steps)")
    settings: SettingsUse | None = absent(
        None,
        "the settings of torch were not recorded",
        "a trace does not contain torch's settings (steptime run reads them)",
    )
    optimizers: tuple[OptimizerUse, ...] = absent((), "no torch optimizer took a step", "the trace marks no optimizer")
    compilations: tuple[CompilationUse, ...] = absent(
        (),
        "no recorded compilation",
        "a trace does not contain the reasons of compilations (steptime run keeps them)",
    )
    sites: tuple[SiteUse, ...] = absent((), "no recorded call waits for a device")
    garbage: GarbageUse | None = absent(
        None,
        "Python's garbage collector was not recorded",
        "the trace has no garbage collections (torch.profiler records them with record_python_gc_info)",
    )
    segments: tuple[SegmentUse, ...] = absent(
        (), "only training steps were recorded", "a trace does not show the time between steps"
    )
    contention: Contention | None = absent(
        None, "no telemetry of the machine", "a trace has no telemetry of the machine (steptime run records it)"
    )
    machine: MachineUse | None = absent(None, "no peaks of the machine (steptime env measures them)")
    recompute: RecomputeUse | None = absent(None, "no recorded forward operator ran again inside backward")
    backward_again: Estimate | None = absent(None, "no recorded graph went through backward twice")
    dropped: tuple[UnusedPass, ...] = absent(
        (),
        "no gradient was seen to be dropped in a profiled step",
        "a trace does not show who uses gradients (steptime run looks at it)",
    )
    picked: tuple[PickedUse, ...] = absent(
        (),
        "the loss was seen to use all rows of what is computed",
        "a trace does not show which rows a loss uses (steptime run looks at it)",
    )
    unread: tuple[UnreadUse, ...] = absent(
        (),
        "no line was seen to drop a result of a module",
        "a trace does not show what lines do with results (steptime run looks at it)",
    )
    kernels: tuple[KernelUse, ...] = absent((), "no kernels on a device")
    gaps: tuple[GapUse, ...] = absent((), "the device was not traced, or never idle")
    copies: tuple[CopyUse, ...] = absent((), "no copy to or from a device was traced")
    collectives: tuple[CollectiveUse, ...] = absent((), "no collective was traced")
    allocations: tuple[AllocationUse, ...] = absent((), "no step called the driver's allocator")
    replay: ReplayUse | None = absent(None, "the step could not be replayed (no trace of a device)")
    roofline: RooflineUse | None = absent(None, "no kernels on a device whose peaks are known")
    chains: tuple[ChainUse, ...] = absent((), "no chain of pointwise kernels found (shapes must be recorded)")
    written_norms: tuple[WrittenNormUse, ...] = absent(
        (), "no hand-written norm found (shapes must be recorded, on a device)"
    )
    scaling: ScalingUse | None = absent(None, "no gradient scaler was traced on a device")
    ranks: tuple[RankUse, ...] = absent((), "one rank alone, or no collectives that the ranks have in common")
    rank: int | None = absent(None, "the rank is unknown")
    straggler: Straggler | None = absent(None, "no straggler")
    gradients: GradientUse | None = absent(None, "no model in DistributedDataParallel was traced")
    memory: MemoryUse | None = absent(None, "no memory samples (steptime run takes them)")
    top_modules: tuple[TopModuleUse, ...] = absent(
        (), "no model found in the job", "a trace does not show the models (steptime run finds them)"
    )
    paths: tuple[PathUse, ...] = absent(
        (), "the functions below the training loop were not timed", "a trace does not time lines (steptime run does)"
    )
    functions: tuple[FunctionUse, ...] = absent((), "no step was profiled with Python stacks")
    runs: tuple[RunUse, ...] = absent((), "no step was profiled with Python stacks")
    shaped: tuple[ShapedUse, ...] = absent((), "no operator with a faster way was profiled on a CPU")
    spread: tuple[SpreadUse, ...] = absent((), "no tensors of all pairs were seen to be summed up on a CPU")
    repeated: RepeatedForward | None = absent(None, "no model that trains ran without gradients in the steps")
    frozen: RepeatedForward | None = absent(None, "no model that never has gradients ran in the steps")
    works: tuple[WorkUse, ...] = absent((), "no line was seen to go through all of a container, a folder or a file")
    seldom: tuple[SeldomUse, ...] = absent((), "every result of the timed lines is read in most of their steps")
    repeats: tuple[RepeatUse, ...] = absent(
        (),
        "no line computed again what it had computed before",
        "a trace does not hold what lines give (steptime run looks at it)",
    )
    lengths: LengthUse | None = absent(None, "the profiled steps do not last as long as their batches are large")
    change: LastingChange | None = absent(None, "the steps did not change permanently within the run")
    period: PeriodUse | None = absent(None, "no slow steps at equal distances")
    changing_work: bool | None = absent(None, "fewer than two steps were profiled")
    modules: tuple[ModuleUse, ...] = absent((), "no module found in a profiled step")
    passes: PassUse | None = absent(None, "no line starts many backward passes in a step")
    outliers: OutlierUse | None = absent(None, "no step takes far longer than the others")
    caught: CaughtUse | None = absent(None, "no slow step was sampled (steptime run --catch does so)")
    gpus: tuple[GpuUse, ...] = absent(
        (),
        "no GPU telemetry (steptime run reads it from NVIDIA's driver)",
        "a trace has no GPU telemetry (steptime run records it)",
    )
    compiler: CompilerUse | None = absent(None, "no logs of torch.compile (TORCH_TRACE, diagnose --compile-logs)")

    second_order: bool | None = absent(None, "no step was profiled")

    @property
    def compiled(self) -> bool:
        """True if torch.compile or a captured graph is already in use, according to the recording or its trace."""
        replays = self.step.graphs is not None and self.step.graphs.launches > 0
        return (
            bool(self.compilations)
            or any(model.compiled for model in self.top_modules)
            or self.step.compiled
            or replays
        )

    @property
    def compilable(self) -> bool:
        """True if torch.compile is not in use yet and would work: code that AOTAutograd compiles cannot be
        differentiated twice (torch 2.13, torch/_functorch/_aot_autograd/runtime_wrappers.py)."""
        return not (self.compiled or self.second_order)

    @property
    def between_runs(self) -> float:
        """Difference between runs of one job as a fraction of a step: measured on its machine, else the default."""
        measured = self.machine.between_runs if self.machine is not None else None
        return BETWEEN_RUNS if measured is None else measured

    def has(self, name: str) -> bool:
        """True if a field was measured, i.e. neither None nor empty."""
        return getattr(self, name) not in (None, ())

    def why_absent(self, name: str) -> str:
        """Sentence on why a field that may be missing is missing here."""
        return ABSENT[name]["in_trace" if self.step.mode == "trace" else "reason"]


ABSENT: Mapping[str, Mapping[str, str]] = {
    each.name: each.metadata for each in fields(Case) if "reason" in each.metadata
}
"""Fields that may be missing, with the sentences for that."""
PARAMETERS = frozenset({each.name for each in fields(Case)} | {"compiled", "compilable", "between_runs", "case"})
"""Evidence that a rule or a fix may ask for: fields of a case, values derived from several of them, and the case
itself, for rules that look at much that may be missing."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Names of the fields of a case that a function takes as parameters. needed: parameters without a default, without
    which the function is not called. names: all parameters."""

    needed: frozenset[str]
    names: tuple[str, ...]

    def missing_in(self, case: Case) -> tuple[str, ...]:
        """Names of the needed fields that a case lacks."""
        return tuple(name for name in sorted(self.needed) if name in ABSENT and not case.has(name))

    def of(self, case: Case) -> dict[str, Any]:
        """Arguments for the function, taken from a case, by name."""
        return {name: case if name == "case" else getattr(case, name) for name in self.names}


def evidence_of(function: Callable[..., object], owner: str) -> Evidence:
    """Evidence that a function requests. owner: text for the error ("rule input-wait"). Raises ValueError for a
    parameter that no case has."""
    parameters = signature(function).parameters
    unknown = sorted(set(parameters) - PARAMETERS)
    if unknown:
        raise ValueError(f"{owner} asks for {', '.join(unknown)}, where a case has {', '.join(sorted(PARAMETERS))}")
    needed = frozenset(name for name, each in parameters.items() if each.default is each.empty)
    return Evidence(needed, tuple(parameters))
