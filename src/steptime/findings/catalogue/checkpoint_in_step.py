"""ST204: a checkpoint is written inside the step."""

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
    "ST204",
    "checkpoint-in-step",
    needs={Signal.STEP, Signal.LINES},
    uses={Signal.PHASES},
    instead_of=("host-time", "logging-in-step"),
    by_line=True,
)
def checkpoint_in_step(signals: Signals) -> Iterator[Finding]:
    """A checkpoint is written while the model waits

    What it means
        torch.save serialises parameters and optimiser state in the training thread and writes them to disk, in every
        step or every few steps.

    How we know
        Each torch.save in the training thread is timed, and the line of the loop that it belongs to.

    What helps
        Save less often; copy the state to the host and write it from another thread or process
        (torch.distributed.checkpoint.async_save does both); save the optimiser's state less often than the parameters.

    When to ignore it
        When the machine may vanish at any time and a step is expensive.
    """
    for time in line_times(signals.lines, signals.phases):
        line = time.line
        saves = line.checkpoint > 0 or line_kind(line.source.text) is LineKind.CHECKPOINT
        if saves and line.role != "evaluation":
            yield _line(signals, time)


def _line(signals: Signals, time: LineTime) -> Finding:
    line, stake = time.line, time.duration
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = f"{format_source(line.source)} writes a checkpoint: {format_duration(stake.value)} a step ({share})"
    advice = "Save every few hundred steps, or from another thread (torch.distributed.checkpoint.async_save)."
    return checkpoint_in_step.finding(summary, advice, stake, source=line.source, evidence=(line.source.text,))
