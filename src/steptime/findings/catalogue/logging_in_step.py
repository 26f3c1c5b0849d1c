"""ST203: logging inside the step."""

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
    "ST203",
    "logging-in-step",
    needs={Signal.STEP, Signal.LINES},
    uses={Signal.PHASES},
    instead_of=("host-time", "metrics-in-step"),
    by_line=True,
)
def logging_in_step(signals: Signals) -> Iterator[Finding]:
    """Logging takes part of every step

    What it means
        Printing, writing to a file or sending to a tracker happens in the training thread, in every step or nearly so.

    How we know
        The lines of the loop are timed exactly; the line is told from its text (print, logging, a writer, a tracker,
        a file).

    What helps
        Log every n-th step; keep running sums on the device and read them only when they are logged; let the
        handler write from a queue in another thread; do not flush each line.

    When to ignore it
        When steps are so rare that each of them is worth a line.
    """
    for time in line_times(signals.lines, signals.phases):
        line = time.line
        if line.role != "evaluation" and line_kind(line.source.text) is LineKind.LOGGING:
            yield _line(signals, time)


def _line(signals: Signals, time: LineTime) -> Finding:
    line, stake = time.line, time.duration if signals.step.device == "cpu" else time.host
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = f"{format_source(line.source)} logs for {format_duration(stake.value)} a step ({share})"
    return logging_in_step.finding(
        summary, "Log every n-th step, or from another thread.", stake, source=line.source, evidence=(line.source.text,)
    )
