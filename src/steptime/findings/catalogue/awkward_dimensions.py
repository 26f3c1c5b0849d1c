"""ST404: matrix products whose dimensions do not fit the matrix units."""

from __future__ import annotations

from steptime.findings.case import KernelUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import first_source, longest, spent, told
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

MOST, SURE = 0.5, 0.1
"""Of what lies between the kernels and their roofline: padding removes the copies and the narrow loads of misaligned
rows, not what small sizes or a bad tile lose; how much is which, no name tells."""
HALF = frozenset({"float16", "bfloat16"})
"""Formats that go to the matrix units, where alignment counts most."""


@rule("ST404", "awkward-dimensions", needs={Signal.STEP, Signal.KERNELS}, instead_of=("dominant-operator",))
def awkward_dimensions(signals: Signals) -> Finding | None:
    """Dimensions of matrix products miss the tiles of the matrix units

    What it means
        A matrix unit works on tiles, and loads 16 bytes at once: dimensions that are no multiple of 8 numbers of 16
        bits (4 of 32 bits) fall back to slower kernels or to padding on the way.

    How we know
        The shapes of the products are in the trace. Products of formats that the matrix units take, with a dimension
        that is no multiple, are set against their roofline; part of the difference is at stake.

    What helps
        Round sizes up: a vocabulary of 50257 to 50304, classes of 1001 to 1008, hidden sizes to multiples of 64, the
        batch or the sequence to multiples of 8.

    When to ignore it
        When the dimension is the data's own and padding it would cost more products than it saves.
    """
    poor = [use for use in signals.kernels if use.dimensions and use.at_roofline is not None and _for_units(use)]
    lost = sum(max(0.0, use.duration - (use.at_roofline or 0.0)) for use in poor)
    if not lost:
        return None
    top = longest(poor)[0]
    share = format_share(ratio(spent(poor), signals.step.duration.value))
    summary = (
        f"{sum(use.calls for use in poor):.4g} matrix products with {', '.join(top.dimensions[:2])} take "
        f"{format_duration(spent(poor))} a step ({share})"
    )
    stake = modelled(MOST * lost, SURE * lost, lost, signals.step.steady)
    return awkward_dimensions.finding(
        summary,
        "Round these dimensions up to a multiple of 8 (64 for large ones).",
        stake,
        account="compute",
        source=first_source(poor),
        evidence=tuple(map(told, longest(poor))),
    )


def _for_units(use: KernelUse) -> bool:
    return use.number_format in HALF or use.matrix_unit is True
