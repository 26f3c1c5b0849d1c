"""ST107: moving the batch to the device takes time."""

from __future__ import annotations

from steptime.findings.case import LineUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import capped, named, ratio
from steptime.quantities import Estimate, format_duration, format_share


@rule(
    "ST107",
    "slow-transfer",
    needs={Signal.STEP, Signal.PHASES},
    uses={Signal.LOADER, Signal.LINES, Signal.ACCOUNTS},
)
def slow_transfer(signals: Signals) -> Finding | None:
    """Moving the batch to the device takes time

    What it means
        The copy of each batch from the host's to the device's memory stands in the way of training: it is blocking,
        it comes from pageable memory, or it carries more bytes than the model needs.

    How we know
        The lines that move the batch are timed in the steps; where a device trace exists, the copies that no kernel
        hides are the ceiling. Not examined on a CPU: there is nothing to move.

    What helps
        Pinned memory in the loader together with non_blocking=True; sending bytes (uint8 pixels, int32 tokens) and
        converting on the device; one copy per batch in place of one per tensor.

    When to ignore it
        When the copy overlaps with kernels of the step before: then its duration is long and nothing is at stake.
    """
    phase = named(signals.phases, "transfer")
    if signals.step.device == "cpu" or phase is None:
        return None
    stake = _exposed(signals, phase.duration)
    line = max((use for use in signals.lines if use.role == "transfer"), key=_time, default=None)
    share = format_share(ratio(stake.value, signals.step.duration.value))
    summary = f"Moving the batch to the device costs {format_duration(stake.value)} a step ({share})"
    return slow_transfer.finding(
        summary, _advice(signals, line), stake, account="copy", source=line.source if line else None
    )


def _time(line: LineUse) -> float:
    return line.duration.value


def _exposed(signals: Signals, phase: Estimate) -> Estimate:
    """Copies that nothing hides, where the ledger has them; else the lines' own time."""
    copy = named(signals.accounts, "copy") if signals.has(Signal.ACCOUNTS) else None
    if copy is None:
        return phase
    return capped(copy.duration, copy.recoverable)


def _advice(signals: Signals, line: LineUse | None) -> str:
    pinned = signals.has(Signal.LOADER) and signals.loader.pin_memory
    overlapping = line is not None and "non_blocking=True" in line.source.text
    if pinned and overlapping:
        return "It is pinned and non_blocking already: send smaller types (uint8, bf16) and convert on the device."
    if pinned:
        return "The batches are pinned: add non_blocking=True to the copy."
    if signals.has(Signal.LOADER):
        return "Set pin_memory=True in the loader and non_blocking=True in the copy."
    return "Keep the batches in pinned memory that is reused, or keep the whole data set on the device if it fits."
