"""What an optimiser's step costs at best: a model from the size of its parameters and the machine's bandwidth."""

from __future__ import annotations

from steptime.findings.case import MachineUse, OptimizerUse
from steptime.findings.memory_rate import memory_rate

BYTES_PER_ELEMENT = 4
"""Parameters, gradients and state in single precision, which is the rule; lower precision would make the floor
lower."""
STREAMS = {
    "SGD": 3,
    "Adam": 7,
    "AdamW": 7,
    "NAdam": 7,
    "RAdam": 7,
    "Adamax": 7,
    "RMSprop": 5,
    "Adagrad": 5,
    "Adadelta": 7,
}
"""Reads and writes of one number per element and update, by the update rules: SGD reads parameter and gradient and
writes the parameter; Adam does so with two moments as well (4 reads, 3 writes)."""
USUAL_STREAMS = 5
"""For an optimiser that is not in STREAMS: one state besides parameter and gradient."""
BYTES_PER_SECOND = 5e9
"""Copy bandwidth assumed where the machine was not measured: a slow CPU's, so that the floor is high and the promise
small."""
ITERATIVE = frozenset({"LBFGS"})
"""Optimisers of torch whose update is no pass over memory: LBFGS goes through up to `history_size` pairs of vectors
twice in each of its iterations (Nocedal, Mathematics of Computation 35, 1980), so nothing says how long that may take
at best."""
HOST_CALLS = {"SGD": 2.0}
USUAL_HOST_CALLS = 4.0
"""Tiny operators' worth of a CPU's time for each tensor, which Python collects with its gradient and state, also for a
fused update. By hand (torch 2.13, where a tiny operator takes 0.9 µs) a fused step takes 0.7 µs a tensor with SGD and
2.9 with Adam and AdamW where nothing else runs, 3.2 and 3.6 between two backwards. A device works meanwhile."""
FUSABLE = frozenset({"Adam", "AdamW", "SGD", "Adagrad"})
"""Optimisers of torch with a fused implementation on CPU and CUDA (torch 2.4 to 2.13)."""
FOREACH = frozenset({"Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"})
"""Optimisers of torch with a foreach implementation but no fused one."""


def floor(use: OptimizerUse, machine: MachineUse | None) -> float:
    """ns that a single pass over parameters, gradients and state takes: at the rate of updates in place of as many
    bytes where it was measured, else of a large copy. All but the gradient are read and written. On a CPU with what
    each tensor costs beside its memory."""
    streams = STREAMS.get(use.type, USUAL_STREAMS)
    each = use.elements * BYTES_PER_ELEMENT
    copying = machine.copy_bytes if machine is not None and machine.copy_bytes else BYTES_PER_SECOND
    bandwidth = memory_rate(machine, each * (streams + 1) / 2) or copying
    return each * streams / bandwidth * 1e9 + _collecting(use, machine)


def _collecting(use: OptimizerUse, machine: MachineUse | None) -> float:
    """ns of the host for all tensors, where the updates run on it; 0 where that was not measured."""
    if machine is None or not machine.updates or not machine.dispatch:
        return 0.0
    return HOST_CALLS.get(use.type, USUAL_HOST_CALLS) * machine.dispatch * use.parameters
