"""ST601: autograd's anomaly detection is on."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled
from steptime.quantities import format_duration

SLOWDOWN = (1.2, 1.7, 5.0)
"""Least, usual and greatest factor by which it lengthens a step. Measured on a CPU with torch 2.13: 1.26
(convolutions), 1.31 (wide perceptron), 2.4 (encoder), 4.9 (two hundred small layers): the more operators for the same
work, the more."""


@rule("ST601", "detect-anomaly", needs={Signal.STEP, Signal.SETTINGS}, instead_of=("launch-bound",))
def detect_anomaly(signals: Signals) -> Finding | None:
    """Autograd's anomaly detection was left on

    What it means
        torch.autograd.set_detect_anomaly(True) notes a Python traceback for every forward operator and checks every
        gradient for NaN. It is meant for finding one fault, not for training.

    How we know
        The switch is read while backward runs. What it costs is estimated from measured slow-downs of other models, so
        the interval is wide.

    What helps
        Switch it off, and on again only when a NaN appears; torch.autograd.detect_anomaly() as a context manager
        around the suspicious steps is enough.

    When to ignore it
        While you are hunting a NaN.
    """
    if not signals.settings.detect_anomaly:
        return None
    step = signals.step.duration.value
    low, usual, high = (step * (1 - 1 / factor) for factor in SLOWDOWN)
    summary = f"Anomaly detection is on: it takes some {format_duration(usual)} of a step of {format_duration(step)}"
    return detect_anomaly.finding(
        summary, "Switch off torch.autograd.set_detect_anomaly.", modelled(usual, low, high, signals.step.steady)
    )
