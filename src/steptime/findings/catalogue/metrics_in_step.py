"""ST205: metrics are computed in every step."""

from __future__ import annotations

from collections.abc import Iterator

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.line_kinds import LineKind, line_kind
from steptime.findings.line_time import LineTime, line_times
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio
from steptime.quantities import format_duration, format_share, format_source


@rule(
    "ST205",
    "metrics-in-step",
    needs={Signal.STEP, Signal.LINES},
    uses={Signal.PHASES},
    instead_of=("host-time", "dispatch-loop"),
    by_line=True,
)
def metrics_in_step(signals: Signals) -> Iterator[Finding]:
    """Metrics are computed in every step

    What it means
        Accuracy, scores or running statistics are taken from each batch in Python, element by element or by a library
        that works on the host.

    How we know
        The lines of the loop are timed exactly; the line is told from its text (item, tolist, numpy, metric,
        accuracy, a score). On an accelerator only its Python counts here: waiting for the device is the matter of
        ST303.

    What helps
        Compute them every n-th step or at evaluation; accumulate tensors with torch operations and read them once;
        replace loops over elements by one comparison of whole tensors.

    When to ignore it
        When the training itself depends on the value (early stopping within an epoch, curriculum).
    """
    for time in line_times(signals.lines, signals.phases):
        line = time.line
        if line.role == "host" and line_kind(line.source.text) is LineKind.METRICS:
            yield _line(signals, time)


def _line(signals: Signals, time: LineTime) -> Finding:
    line, stake = time.line, time.duration if signals.step.device == "cpu" else time.host
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = f"{format_source(line.source)} takes {format_duration(stake.value)} a step ({share}) for a metric"
    advice = "Compute it every n-th step, with whole-tensor operations, and read the value only when it is shown."
    return metrics_in_step.finding(summary, advice, stake, source=line.source, evidence=(line.source.text,))
