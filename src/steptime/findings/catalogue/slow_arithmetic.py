"""ST408: simple arithmetic takes many times as long as its bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steptime.findings.case import OperatorUse, Signal
from steptime.findings.finding import Finding
from steptime.findings.kernel_kinds import plain_name
from steptime.findings.operator_time import profile_scale
from steptime.findings.rule import rule
from steptime.findings.signals import Signals
from steptime.findings.stakes import modelled, ratio
from steptime.quantities import SourceLine, format_bytes, format_duration, format_share

ARITHMETIC = frozenset(
    {
        "add", "addcdiv", "addcmul", "div", "lerp", "mul", "reciprocal", "rsqrt", "rsub", "sqrt", "square", "sub",
        "_foreach_add", "_foreach_addcdiv", "_foreach_addcmul", "_foreach_div", "_foreach_lerp", "_foreach_mul",
        "_foreach_reciprocal", "_foreach_sqrt", "_foreach_sub", "_fused_adagrad", "_fused_adam", "_fused_adamw",
        "_fused_sgd",
    }
)  # fmt: skip
"""Operators of a few instructions an element, all of which a processor does for several elements at once."""
SLOW = 10.0
"""Times as long as copying as many bytes. The slowest of them, a square root, takes three to four on one thread of an
EPYC (Zen 4); on denormals 100, and an addition of a matrix and a transposed one 12 to 20."""
LARGEST = float(16 << 20)
"""Bytes of a call: larger tensors are new memory from the system each time, which can take as long (RM402)."""
SHORTEST = 20_000.0
"""ns of a call: a shorter one may be all dispatch."""
GRAIN = 8.0 * 32768
"""Bytes that one thread reads and writes at least: at::internal::GRAIN_SIZE elements of a float32 tensor. A smaller
operator has fewer threads than the copy had that measured the bandwidth."""
LEAST_SHARE = 0.05
"""Of the step."""
INPUT = ("input", "transfer")
"""Phases whose time is told by the rules of the input."""
SURE, LIKELY = 0.3, 0.9
"""Of what lies above three times the copy: which of the two causes it is, and whether it can go, is not seen here."""
NEEDED = 3.0


@rule(
    "ST408",
    "slow-arithmetic",
    needs={Signal.STEP, Signal.OPERATORS, Signal.MACHINE, Signal.SETTINGS},
    uses={Signal.ACCOUNTS, Signal.KERNELS, Signal.LINES},
    instead_of=("memory-bound-pointwise", "optimizer-share"),
)
def slow_arithmetic(signals: Signals) -> Finding | None:
    """Simple arithmetic takes many times as long as its bytes

    What it means
        Additions, products and roots should take as long as memory needs to bring their tensors. Two things make a
        processor ten to a hundred times slower: numbers so near to zero that they are denormal (below 1.2e-38 in
        float32: squares of faint activations, an optimiser's averages of vanished gradients), and operands whose
        layouts differ (x + y.t()), which are read element by element.

    How we know
        The operator's bytes, computed from its shapes, at the copy bandwidth of this machine with as many threads:
        it took more than ten times that, with 20 us a call at least and 16 MB at most. A small tensor, which torch
        gives to fewer threads, has their part of the bandwidth. What lies above three times is the ceiling of what is
        at stake. Processors differ: a Zen 4 is slow in roots and quotients of denormals only,
        others in products, too.

    What helps
        torch.set_flush_denormal(True) at the start of the script takes denormals for zero; `try` measures it. Better:
        keep values away from zero (an epsilon inside of the root, a larger eps of the optimiser, normalised inputs).
        Where layouts differ, .contiguous() once, outside of the loop.

    When to ignore it
        When the values below 1.2e-38 matter.
    """
    if signals.has(Signal.KERNELS):
        return None
    machine = signals.machine
    if not machine.measured or not machine.copy_bytes:
        return None
    rate = _Rate(machine.copy_bytes, signals.settings.intra_op_threads)
    scale = profile_scale(signals.operators, signals.accounts)
    slow = [use for use in signals.operators if _is_slow(use, rate)]
    above = scale * sum(use.duration - NEEDED * rate.copied(use) for use in slow)
    if ratio(above, signals.step.duration.value) < LEAST_SHARE:
        return None
    top = max(slow, key=_duration)
    times = ratio(top.duration, rate.copied(top))
    flushed = signals.settings.denormals_flushed
    cause = "mixed layouts" if flushed else "denormal numbers or mixed layouts"
    share = format_share(ratio(scale * top.duration, signals.step.duration.value))
    summary = (
        f"{plain_name(top.name)} takes {format_duration(scale * top.duration)} a step ({share}), "
        f"{times:.0f}× a copy of its {format_bytes(top.bytes or 0.0)}: {cause}"
    )
    contiguous = "Make transposed operands .contiguous() once."
    keep = "Call torch.set_flush_denormal(True) first, or keep values away from zero. "
    stake = modelled(LIKELY * above, SURE * above, above, signals.step.steady)
    evidence = tuple(
        f"{use.name}: {format_duration(use.duration)} for {format_bytes(use.bytes or 0.0)} in {use.calls:.3g} calls"
        for use in sorted(slow, key=_duration, reverse=True)[:3]
    )
    advice = contiguous if flushed else keep + contiguous
    source = top.source or _line_that_names(plain_name(top.name), signals)
    return slow_arithmetic.finding(summary, advice, stake, account="compute", source=source, evidence=evidence)


def _line_that_names(operator: str, signals: Signals) -> SourceLine | None:
    """The only line of the training loop that calls a function of the operator's name: the stack of an operator that
    the loop itself calls begins above the loop."""
    lines = signals.lines if signals.has(Signal.LINES) else ()
    naming = [use.source for use in lines if re.search(rf"\b{re.escape(operator)}_?\(", use.source.text)]
    return naming[0] if len(naming) == 1 else None


@dataclass(frozen=True, slots=True)
class _Rate:
    """Of copies. bandwidth: B/s, read and written together, by so many threads."""

    bandwidth: float
    threads: int

    def copied(self, use: OperatorUse) -> float:
        """ns in which the threads that such a call gets copy as many bytes."""
        moved = use.bytes or 0.0
        threads = min(float(self.threads), max(1.0, ratio(moved, use.calls * GRAIN)))
        return moved / self.bandwidth * (self.threads / threads) * 1e9


def _is_slow(use: OperatorUse, rate: _Rate) -> bool:
    if plain_name(use.name) not in ARITHMETIC or use.phase in INPUT or not use.bytes or not use.calls:
        return False
    if use.duration < SHORTEST * use.calls or use.bytes > LARGEST * use.calls:
        return False
    return use.duration > SLOW * rate.copied(use)


def _duration(use: OperatorUse) -> float:
    return use.duration
