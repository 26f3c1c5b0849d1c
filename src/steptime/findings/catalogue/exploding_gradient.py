"""ST605: the norm of the gradients grows without end, or is not finite any more."""

from __future__ import annotations

from steptime.findings.case import NormUse, Signal
from steptime.findings.finding import Finding, Weight
from steptime.findings.rule import rule
from steptime.findings.signals import Signals

GREAT_GROWTH = 100.0
"""From the first third of the samples to the last. From batch to batch, and over a training that goes well, the norm
varies by a factor of a few: Pascanu, Mikolov & Bengio, "On the difficulty of training recurrent neural networks"
(2013), section 3.2, clip at half to ten times its average."""
FEWEST, FEWEST_LOST = 9, 3
"""Samples. A single norm that is not finite may be an update that a gradient scaler leaves out."""


@rule("ST605", "exploding-gradient", needs={Signal.STEP}, weight=Weight.NOTE)
def exploding_gradient(signals: Signals) -> Finding | None:
    """The gradients explode

    What it means
        The norm of the gradients is a hundred times and more what it was, or it is not finite any more. The steps are
        as fast as ever, and what they compute is lost: the loss soon is nan, if it is not yet.

    How we know
        Now and then, for 0.02 % of the time, the norm of the gradients that an update has used is taken at the
        end of a step, of up to a million elements, the smallest parameters first, which lie in all layers. The median
        of the first third of the samples is compared with that of the last. Parameters on a device are not read, as
        that would wait for it; steptime nan does so, in a run of its own.

    What helps
        torch.nn.utils.clip_grad_norm_ before the update; a lower learning rate, or one that is warmed up; the sign of
        the loss. steptime nan names the step, the operator and the line at which the first value was not finite.

    When to ignore it
        Where the loss is scaled up on purpose while it runs, and the update undoes that.
    """
    norm = signals.step.norm
    if norm is None:
        return None
    if norm.lost >= FEWEST_LOST:
        return exploding_gradient.finding(
            f"The gradients are not finite since step {norm.lost_since} at the latest",
            "Run steptime nan with the same command: it names the first value that is not finite, and its line.",
        )
    if norm.samples < FEWEST or norm.after < GREAT_GROWTH * norm.before or not norm.before:
        return None
    return exploding_gradient.finding(
        _grown(norm), "Clip the gradients (torch.nn.utils.clip_grad_norm_), or lower the learning rate."
    )


def _grown(norm: NormUse) -> str:
    return (
        f"The gradients have grown {_plain(norm.after / norm.before)} times from step {norm.first} to {norm.last}: "
        f"norm {_plain(norm.before)}, then {_plain(norm.after)}"
    )


def _plain(value: float) -> str:
    """Two digits, and no power of ten where people read numbers without."""
    short = f"{value:.2g}"
    return f"{float(short):,g}" if value < 1e6 else short
