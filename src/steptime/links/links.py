"""How the events of a trace hang together: who encloses, launched, computed or caused whom. The room's central type."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.arrays import Int32

UNKNOWN = -1
"""No such event in the trace."""


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """One value for each event of the table, in the table's order: the row of another event, or UNKNOWN. Read-only.

    launch: of a device activity (kernel, copy, memset), the runtime call with its correlation id. A graph launch owns
    all the kernels of the graph.
    parent: of a host event, the innermost operator, annotation or runtime call of its thread that encloses it.
    operator: the innermost operator: of a host event the enclosing one or itself, of a device activity the one around
    its launch (by "External id" where the trace holds no launch).
    annotation: the innermost annotation, alike (a module's, a user's, the optimiser's; not ProfilerStep).
    function: the innermost Python function of the user's (with_stack), alike; for what backward runs, that of the
    forward operator.
    forward: of an operator that the autograd engine runs, the operator of the forward pass with its sequence number.
    step: index of the step in which a host event begins, or a device activity was launched; UNKNOWN outside all steps.
    """

    launch: Int32
    parent: Int32
    operator: Int32
    annotation: Int32
    function: Int32
    forward: Int32
    step: Int32
