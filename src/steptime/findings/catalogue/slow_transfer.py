"""ST107: moving the batch to the device takes time."""

from __future__ import annotations

from steptime.findings.case import CopyUse, LineUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.staging import staging_operators
from steptime.findings.stakes import capped, named, ratio, total
from steptime.quantities import Estimate, format_bytes, format_duration, format_share


@rule(
    "ST107",
    "slow-transfer",
    needs={Signal.STEP, Signal.ACCOUNTS},
    uses={Signal.LOADER, Signal.LINES, Signal.PHASES, Signal.COPIES, Signal.GAPS},
)
def slow_transfer(signals: Signals) -> Finding | None:
    """Moving the batch to the device takes time

    What it means
        The copy of each batch from the host's to the device's memory stands in the way of training: it is blocking,
        it comes from pageable memory, or it carries more bytes than the model needs.

    How we know
        The lines that move the batch are timed in the steps; where a device trace exists, the copies that no kernel
        hides are at stake, and the time that the device idles while the host stages pageable memory for it. On a CPU
        there is nothing to move.

    What helps
        Pinned memory in the loader together with non_blocking=True; sending bytes (uint8 pixels, int32 tokens) and
        converting on the device; one copy per batch in place of one per tensor.

    When to ignore it
        When the copy overlaps with kernels of the step before: then its duration is long and nothing is at stake.
    """
    copies = [copy for copy in signals.copies if copy.kind == "HtoD"]
    if signals.step.device != "cpu" and copies:
        return _from_copies(signals, copies)
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


def _from_copies(signals: Signals, copies: list[CopyUse]) -> Finding | None:
    """By the copies of a trace: what they leave exposed, and what staging pageable memory keeps the device from."""
    operators = staging_operators(signals.copies)
    staging = [gap.duration for gap in signals.gaps if gap.account == "sync" and gap.cause in operators]
    stake = total([*(copy.exposed for copy in copies), *staging])
    if not stake.value:
        return None
    line = max((use for use in signals.lines if use.role == "transfer"), key=_time, default=None)
    top = max(copies, key=lambda copy: copy.exposed.value)
    pageable = sum(copy.bytes for copy in copies if copy.memory == "pageable") > sum(copy.bytes for copy in copies) / 2
    share = format_share(ratio(stake.value, signals.step.duration.value))
    kind = "pageable " if pageable else "pinned " if top.memory == "pinned" else ""
    summary = (
        f"Copying {format_bytes(sum(copy.bytes for copy in copies))} from {kind}memory to the device costs "
        f"{format_duration(stake.value)} a step ({share})"
    )
    advice = _advice(signals, line) if pageable or top.memory != "pinned" else _PINNED
    source = line.source if line else top.source
    evidence = tuple(map(_told, sorted(copies, key=lambda copy: -copy.duration.value)[:3]))
    return slow_transfer.finding(
        summary, advice, stake, account="" if staging else "copy", source=source, evidence=evidence
    )


_PINNED = (
    "The memory is pinned: copy the next batch on a stream of its own while this one computes, or send fewer bytes."
)


def _told(copy: CopyUse) -> str:
    rate = f" at {format_bytes(ratio(copy.bytes, copy.duration.value) * 1e9)}/s" if copy.bytes else ""
    return (
        f"{copy.calls:.3g} {copy.memory} copies a step by {copy.operator or 'no operator'}: "
        f"{format_duration(copy.duration.value)}{rate}, {format_duration(copy.exposed.value)} exposed"
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
