"""The user's code, models and optimisers, and what torch.compile made of them, as rules see them: records of a case.
All times are nanoseconds per training step unless a name says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import Estimate, SourceLine


@dataclass(frozen=True, slots=True)
class LineUse:
    """A line of the user's code. role: "input", "transfer", "forward", "backward", "optimizer", "evaluation" or
    "python".

    duration: time of the line per step (lines inside it excluded when they are traced too); host: the part of it
    outside operators, the loader and the phases; hits: executions per step.
    collections: garbage collections per step inside it; checkpoint: ns in torch.save. calls: functions that it was seen
    to call, "logging.Logger.info", "torch.Tensor.item"."""

    source: SourceLine
    role: str
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
class RootUse:
    """A module that the job calls. type: its class; own: that is torch's (Sequential, …). device: its parameters'."""

    type: str
    parameters: int
    parameter_bytes: int
    device: str = "cpu"
    compiled: bool = False
    own: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerUse:
    """An optimiser. duration: ns per step in its step(). dense_embedding_elements: elements of embedding weights whose
    gradient is dense and mostly zero. kernels: that it launches per step, None without a device trace; the duration is
    then the device's, from its first kernel to the end of its last. parameters, elements: 0 where not known."""

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
    """What torch.compile wrote down in a folder; "" where breaks and limits alone are known, as the job itself was seen
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
