"""ST701: activations are computed twice."""

from __future__ import annotations

import re

from steptime.findings.case import Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import ratio
from steptime.quantities import SourceLine, format_duration, format_share

SPARE_MEMORY = 0.7
"""Of the device's memory at the peak: below it there is room to keep some of what is computed twice."""

CALL = re.compile(r"(?<!save_)(?<!load_)\bcheckpoint(_sequential)?\(")
"""A call of torch.utils.checkpoint by its usual name."""


@rule("ST701", "recompute", needs={Signal.STEP, Signal.RECOMPUTE}, uses={Signal.LINES})
def recompute(signals: Signals) -> Finding | None:
    """Activation checkpointing computes the forward twice though memory is to spare

    What it means
        torch.utils.checkpoint drops activations and computes them again in backward: less memory, about a third more
        time.

    How we know
        Forward operators that run again inside backward are summed, on a CPU with the Python around them. The rule
        fires when the peak of memory is not known or leaves at least 30 % of the device free.

    What helps
        Checkpoint fewer blocks (every second one), or only what is cheap to compute again (selective checkpointing),
        until memory is used; or use the free memory for a larger batch.

    When to ignore it
        When other runs of the same code need the memory (longer sequences, a larger batch).
    """
    use, step = signals.recompute, signals.step
    if use.memory_share is not None and use.memory_share >= SPARE_MEMORY:
        return None
    share = format_share(ratio(use.duration.value, step.duration.value))
    spare = "" if use.memory_share is None else f" while {format_share(1 - use.memory_share)} of the memory is free"
    summary = f"Backward computes {format_duration(use.duration.value)} of forward again ({share}){spare}"
    advice = "Checkpoint fewer blocks, or none, as far as the memory allows."
    return recompute.finding(summary, advice, use.duration, account="compute", source=use.source or _call(signals))


def _call(signals: Signals) -> SourceLine | None:
    """The line that asks for it, where the lines of that function were timed."""
    calls = [line for line in signals.lines if CALL.search(line.source.text)]
    return max(calls, key=lambda line: line.duration.value).source if calls else None
