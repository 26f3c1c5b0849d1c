"""Numbers that a variant of a trial computed, by step: the content of parity.jsonl."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.arrays import Float64, Int64


@dataclass(frozen=True, slots=True)
class StepWork:
    """Work that a variant did in one step. Tensors are given as sketches: sums of all their numbers with fixed signs.

    inputs: shapes of a top module's inputs, per call with gradients. batches: sketches of these inputs, in examined
    steps. evaluated: (input shape without the first dimension, number of such inputs of top modules without gradients).
    dropped: sum of the probabilities of switched-off dropouts. still: names of parameters that have not moved since the
    last look. weights: name, size and sketch of parameters first seen here. updates: name of each parameter and sketch
    of its movement in the step before. directions: the same of its gradient. iterators: number of loader iterators
    started until the step's end. without: parameters without a gradient, or with a zero one, in examined steps.

    Fields of examined steps: options: (options as JSON, count of numbers) of each optimizer group with an update.
    samples: a number for each sample of a top module. dropout: sum of the probabilities of dropouts in training mode,
    and training: fraction of modules in that mode, at the first forward. drew: True if the forwards drew random
    numbers. low: True if the first forward computed in a 16-bit dtype. updated: 2-norm of all gradients after the last
    backward, and as the optimizers got them; () if unknown. moving, in some steps of a timed run: count of changed
    numbers in the carried tensors. Fields of a rehearsal's last step: ways: name and dtype of each parameter, norm of
    its first weights' sketch, and sketch of its movement. carried: shape and sketch of each other tensor, as large as a
    parameter, that has changed since the first step. buffers: the same of the buffers of all modules. kernels,
    launches: number of device kernels, and of the calls that launch them (a graph is one). operators: number of
    outermost operators."""

    inputs: tuple[str, ...] = ()
    batches: tuple[tuple[tuple[float, ...], ...], ...] = ()
    evaluated: tuple[tuple[str, int], ...] = ()
    dropped: float = 0.0
    still: tuple[str, ...] = ()
    weights: tuple[tuple[str, int, tuple[float, ...]], ...] = ()
    updates: tuple[tuple[str, tuple[float, ...]], ...] = ()
    directions: tuple[tuple[str, tuple[float, ...]], ...] = ()
    iterators: int = 0
    without: tuple[str, ...] = ()
    options: tuple[tuple[str, int], ...] = ()
    samples: tuple[float, ...] = ()
    dropout: float | None = None
    training: float | None = None
    drew: bool | None = None
    low: bool = False
    updated: tuple[float, ...] = ()
    moving: int | None = None
    ways: tuple[tuple[str, str, float, tuple[float, ...]], ...] = ()
    carried: tuple[tuple[str, tuple[float, ...]], ...] = ()
    kernels: int | None = None
    launches: int | None = None
    operators: int | None = None
    buffers: tuple[tuple[str, tuple[float, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Parity:
    """Numbers that a variant of a trial computed, by step, in order. All arrays are read-only and of one length.

    step: int64, from 1. loss: float64, mean over the step's backwards, before a scaler. norm: float64, 2-norm of all
    gradients after the last backward, before clipping. Both may be infinite or NaN because the job's are, and are NaN
    if missing. peak_bytes: int64, of the step on a device, of the process so far on a CPU. end: int64,
    end of the step, and began_ns: start of the recorder at torch's import, monotonic ns.

    gradients: of each of the first steps, the 2-norm of every parameter's gradient by name, None without a gradient."""

    step: Int64
    loss: Float64
    norm: Float64
    backwards: Int64
    peak_bytes: Int64
    end: Int64
    began_ns: int = 0
    gradients: tuple[tuple[tuple[str, float | None], ...], ...] = ()
    work: tuple[StepWork, ...] = ()
