"""ST503: the optimiser works tensor by tensor."""

from __future__ import annotations

from steptime.findings.case import OptimizerUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.optimizer_model import FOREACH, FUSABLE, floor
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio, scaled
from steptime.quantities import format_duration, format_share

FEWEST_TENSORS = 20
"""With fewer parameters there is little to batch."""
LEAST_SHARE = 0.05
"""Of the step: below this the optimiser is not what to look at."""
LEAST_AT_STAKE = 0.03
"""Of the step: a trial takes no smaller gain. Many small tensors cost Python as much in one pass."""


@rule(
    "ST503",
    "single-tensor-optimizer",
    needs={Signal.STEP, Signal.OPTIMIZERS},
    uses={Signal.MACHINE},
    instead_of=("optimizer-share", "launch-bound"),
)
def single_tensor_optimizer(signals: Signals) -> Finding | None:
    """The optimiser updates its parameters one tensor at a time

    What it means
        Each parameter tensor is updated by a dozen small operators of its own. With hundreds of tensors that is
        thousands of dispatches a step, and several passes over memory where one would do.

    How we know
        The optimiser was made with foreach=False, or on a CPU, where torch does not choose foreach by itself, and
        without fused. Its step() is timed; one pass over parameters, gradients and state at the machine's bandwidth
        is what would remain, and on a CPU what Python spends on each tensor all the same. A trace shows it by the
        operators inside the optimiser's annotation (none of foreach, none fused); there its time is the device's, from
        its first kernel to the end of its last.

    What helps
        fused=True where the optimiser has it (Adam, AdamW, SGD, Adagrad), else foreach=True on CUDA. The numbers
        change in the last bits.

    When to ignore it
        When memory is short on CUDA: foreach needs a temporary copy of the gradients' size.
    """
    slow = [use for use in signals.optimizers if _single_tensor(use, signals.step.device)]
    if not slow:
        return None
    use = max(slow, key=lambda optimizer: optimizer.duration.value)
    share = ratio(use.duration.value, signals.step.duration.value)
    best = floor(use, signals.machine if signals.has(Signal.MACHINE) else None)
    stake = scaled(use.duration, 1 - min(1.0, ratio(best, use.duration.value)))
    if share < LEAST_SHARE or ratio(stake.value, signals.step.duration.value) < LEAST_AT_STAKE:
        return None
    operators = f" with {use.operators:.0f} operators" if use.operators else ""
    operators = f" with {use.kernels:.0f} kernels" if use.kernels else operators
    summary = (
        f"{use.type} updates {use.parameters} tensors one by one{operators}: "
        f"{format_duration(use.duration.value)} a step ({format_share(share)})"
    )
    how = "fused=True" if use.type in FUSABLE else "foreach=True"
    return single_tensor_optimizer.finding(summary, f"Make it with {how}.", stake, source=use.site)


def _single_tensor(use: OptimizerUse, device: str) -> bool:
    """Whether it works tensor by tensor though torch offers something better for this device."""
    if use.fused or use.foreach or use.parameters < FEWEST_TENSORS:
        return False
    if use.kernels is not None and use.foreach is None:
        return False  # a trace that does not show how it works
    if device == "cpu":
        return use.type in FUSABLE
    return use.foreach is False and use.type in FUSABLE | FOREACH
