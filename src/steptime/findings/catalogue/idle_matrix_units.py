"""ST403: matrix products in full single precision on a device with matrix units."""

from __future__ import annotations

from steptime.findings.case import KernelUse, MachineUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import first_source, is_matrix_product, longest, spent, told
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import format_duration, format_share

LIKELY, SURE = 0.75, 0.4
"""Of the saving by the ratio of the ceilings: products reach less of a higher ceiling, small ones much less (three
times as fast where eight would be the ratio, which is three quarters of that saving)."""
FORMATS = (
    ("tf32", 'torch.set_float32_matmul_precision("high")', "10 bits of mantissa in the products, same range"),
    ("bfloat16", "torch.autocast with bfloat16", "8 bits of mantissa, same range"),
    ("float16", "torch.autocast with float16 and a GradScaler", "11 bits of mantissa, a small range"),
)
"""What a matrix unit takes in place of float32: the gentlest first, with what it does to the numbers."""


@rule(
    "ST403",
    "idle-matrix-units",
    needs={Signal.STEP, Signal.KERNELS, Signal.MACHINE},
    instead_of=("dominant-operator",),
)
def idle_matrix_units(signals: Signals) -> Finding | None:
    """Matrix products run in single precision beside idle matrix units

    What it means
        The device has units that multiply matrices eight to sixteen times as fast as its ordinary ones do, but they
        take other number formats than float32; products in float32 leave them idle.

    How we know
        The kernels of matrix products and convolutions with float32 arguments, whose names are those of kernels that
        do not use the matrix units; kernels whose names do not tell are left out. The prediction sets the ratio of the
        two ceilings against the kernels' time, but never below what moving their bytes takes.

    What helps
        torch.set_float32_matmul_precision("high") lets float32 products use TF32 where the device has it (convolutions
        do so by default); torch.autocast with bfloat16 halves the memory traffic besides; with float16 a GradScaler
        is needed.

    When to ignore it
        When the numbers need all 24 bits (linear solvers, physics, some losses): then only those parts.
    """
    slow = [use for use in signals.kernels if _off_units(use)]
    best = _format(signals.machine)
    if not slow or best is None or not signals.machine.matrix_flops:
        return None
    (_, how, meaning), rate = best
    saved = sum(use.duration - _at_units(use, signals.machine, rate) for use in slow)
    share = format_share(ratio(spent(slow), signals.step.duration.value))
    summary = (
        f"Matrix products in float32, off the matrix units, take {format_duration(spent(slow))} a step ({share}) in "
        f"{sum(use.calls for use in slow):.4g} kernels"
    )
    stake = modelled(LIKELY * saved, SURE * saved, saved, signals.step.steady)
    return idle_matrix_units.finding(
        summary,
        f"Use {how} ({meaning}).",
        stake,
        account="compute",
        source=first_source(slow),
        evidence=tuple(map(told, longest(slow))),
    )


def _off_units(use: KernelUse) -> bool:
    return use.matrix_unit is False and use.number_format == "float32" and is_matrix_product(use)


def _format(machine: MachineUse) -> tuple[tuple[str, str, str], float] | None:
    """The gentlest format that the machine has a higher ceiling for than for float32."""
    rates = dict(machine.rates)
    plain = machine.matrix_flops or 0.0
    return next(((each, rates[each[0]]) for each in FORMATS if rates.get(each[0], 0.0) > plain), None)


def _at_units(use: KernelUse, machine: MachineUse, rate: float) -> float:
    """ns with the units as well used as the ordinary ones are now, no less than its bytes take."""
    scaled = use.duration * ratio(machine.matrix_flops or 0.0, rate)
    moving = ratio(use.bytes or 0.0, machine.copy_bytes or 0.0) * 1e9
    return min(use.duration, max(scaled, moving))
