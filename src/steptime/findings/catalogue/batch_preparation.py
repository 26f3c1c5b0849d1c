"""ST108: the user's own batch preparation."""

from __future__ import annotations

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.line_time import LineTime, line_times
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import named, ratio, total
from steptime.quantities import format_duration, format_share

OWN = 0.5
"""Of a line's time outside of the loader: what reads less waits for a DataLoader, or runs inside one."""


@rule("ST108", "batch-preparation", needs={Signal.STEP, Signal.PHASES}, uses={Signal.LINES, Signal.LOADER})
def batch_preparation(signals: Signals) -> Finding | None:
    """The training loop prepares its batches itself

    What it means
        Lines of the loop make the next batch (slicing, tokenising, augmenting, converting) while the model waits.

    How we know
        The lines of the loop that make what the model is then called with are timed one by one, in a few
        steps. Their sum is at stake; where the lines were too many to time, the step's input phase is.

    What helps
        Do once, before the loop, what is the same in every step; prepare whole batches with one array operation; move
        the work into a Dataset and let workers do it during the step; on a device, do it there.

    When to ignore it
        When the batch depends on the model's last output (reinforcement learning, self-play).
    """
    times = line_times(signals.lines, signals.phases)
    lines = sorted((time for time in times if time.line.role == "input" and _is_own(time)), key=_spent, reverse=True)
    stake = total(time.host for time in lines)
    phase = named(signals.phases, "input")
    if phase is not None and not signals.has(Signal.LOADER) and stake.value < OWN * phase.duration.value:
        stake = phase.duration
    if not stake.value:
        return None
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = f"The loop's own batch preparation takes {format_duration(stake.value)} a step ({share})"
    return batch_preparation.finding(
        summary,
        "Prepare batches ahead of the step (once, with whole-array operations, or in a worker process).",
        stake,
        account="input",
        source=lines[0].line.source if lines else None,
        evidence=tuple(_evidence(time) for time in lines[:3]),
    )


def _is_own(time: LineTime) -> bool:
    return time.line.host.value >= OWN * time.line.duration.value


def _spent(time: LineTime) -> float:
    return time.host.value


def _evidence(time: LineTime) -> str:
    return f"{format_duration(time.host.value)} a step: {time.line.source.text or time.line.source.line}"
