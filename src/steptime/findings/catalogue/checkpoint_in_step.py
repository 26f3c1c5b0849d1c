"""ST204: checkpoints are written every few steps."""

from __future__ import annotations

from steptime.findings.case import LineUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.line_kinds import LineKind, line_kind
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio, scaled
from steptime.quantities import format_duration, format_share

OFTEN = 50
"""Steps between two checkpoints: when more lie between, saving is an event between steps (ST902), not part of them."""
ADVICE = "Save every few hundred steps, or from another thread (torch.distributed.checkpoint.async_save)."


@rule("ST204", "checkpoint-in-step", needs={Signal.STEP, Signal.SEGMENTS}, uses={Signal.LINES})
def checkpoint_in_step(signals: Signals) -> Finding | None:
    """A checkpoint is written every few steps

    What it means
        torch.save serialises parameters and optimiser state in the training thread and writes them to disk, so often
        that every step pays for it.

    How we know
        Each torch.save in the training thread is timed as a segment of its own; their total, spread over the steps, is
        at stake. Where every step saves, the time in torch.save of its line is. The line is the one of the loop that
        holds the call.

    What helps
        Save less often; copy the state to the host and write it from another thread or process
        (torch.distributed.checkpoint.async_save does both); save the optimiser's state less often than the parameters.

    When to ignore it
        When the machine may vanish at any time and a step is expensive.
    """
    use = next((use for use in signals.segments if use.kind == "checkpoint"), None)
    steps = max(1, signals.step.total - signals.step.warm_up)
    if use is None:
        return _each_step(signals)
    if use.count * OFTEN < steps:
        return None
    each, spread = use.duration / max(1, use.count), use.duration / steps
    line = max(signals.lines, key=_saving, default=None)
    source = line.source if line is not None and _saving(line) > 0 else None
    share = format_share(ratio(spread, signals.step.duration.value))
    summary = (
        f"A checkpoint every {steps / max(1, use.count):.0f} steps takes {format_duration(each)}: "
        f"{format_duration(spread)} for each step ({share} of it)"
    )
    stake = modelled(spread, 0.8 * spread, 1.2 * spread, use.count)
    return checkpoint_in_step.finding(summary, ADVICE, stake, source=source)


def _each_step(signals: Signals) -> Finding | None:
    """What belongs to every step is no segment: the lines know it."""
    line = max((line for line in signals.lines if line.role != "evaluation"), key=_saved, default=None)
    if line is None or not line.checkpoint:
        return None
    stake = scaled(line.duration, ratio(line.checkpoint, line.duration.value))
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = f"Every step writes a checkpoint, for {format_duration(stake.value)} ({share} of the step)"
    return checkpoint_in_step.finding(summary, ADVICE, stake, account="host", source=line.source)


def _saved(line: LineUse) -> float:
    return line.checkpoint


def _saving(line: LineUse) -> float:
    """Time in torch.save; a line that was timed in steps without one is told from its text."""
    if line.role == "evaluation":
        return 0.0
    return line.checkpoint or float(line_kind(line.source.text) is LineKind.CHECKPOINT)
