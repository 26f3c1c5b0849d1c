"""What the kernels reached, in words: shared by the terminal and Markdown."""

from __future__ import annotations

from steptime.findings.case import Case, MachineUse, PredictionUse, ReplayUse, RooflineUse
from steptime.quantities import format_share

BOUNDS = (
    ("memory", "memory"),
    ("compute", "arithmetic"),
    ("latency", "latency"),
    ("unmodelled", "unmodelled"),
)
"""Fields of `RooflineUse` and what they are called."""
UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
NEARLY_ALL = 0.95
"""Of the kernels' time: where less has a model, the sum of what has one is a lower bound only."""
SMALLEST = 0.005
"""Half a percent, in predictions and shares: less is not shown."""


def bounds_text(roofline: RooflineUse, machine: MachineUse | None) -> str:
    """The compute account by what bounds it: "compute bound by memory 61 %, arithmetic 30 %, unmodelled 9 %"; ""
    where no ceilings are known."""
    if not roofline.flops and not roofline.bytes:
        return "kernels without a known work: no shapes in the trace (record_shapes=True)"
    if machine is None:
        return ""
    parts = [(getattr(roofline, field), words) for field, words in BOUNDS]
    whole = sum(part for part, _ in parts)
    shown = sorted(((part, words) for part, words in parts if whole and part / whole >= SMALLEST), reverse=True)
    return "compute bound by " + ", ".join(f"{words} {format_share(part / whole)}" for part, words in shown)


def reached_text(case: Case) -> str:
    """What the step reached: "12.3 TFLOP/s, 4 % of the bfloat16 peak (312 TFLOP/s, datasheet)"; "" where no kernel has
    a model."""
    roofline, step = case.roofline, case.step.duration.value
    if roofline is None or not roofline.flops or not step:
        return ""
    least = "at least " if roofline.modelled < NEARLY_ALL else ""
    rate = f"{least}{format_rate(roofline.flops / step * 1e9)}FLOP/s"
    if roofline.peak is None or not roofline.number_format:
        return f"{rate} over the whole step; no ceiling of this device is known"
    peak = f"{format_rate(roofline.peak)}FLOP/s, {_peak_origin(case.machine, roofline.number_format)}"
    if roofline.utilization is None:
        return f"{rate} over the whole step ({roofline.number_format}: at most {peak})"
    return f"{rate}, {format_share(roofline.utilization)} of the {roofline.number_format} peak ({peak})"


def origin(machine: MachineUse | None) -> str:
    """Where the ceilings come from."""
    if machine is None:
        return "unknown"
    if not machine.measured:
        return "datasheet"
    return "measured beside other load, so at least this" if machine.disturbed else "measured"


def _peak_origin(machine: MachineUse | None, number_format: str) -> str:
    """Where a peak comes from."""
    if machine is None or number_format not in machine.reached:
        return origin(machine)
    source = "the datasheet's" if not machine.measured else "the one measured"
    return f"reached by this job: above {source}{' beside other load' if machine.disturbed else ''}"


def format_rate(rate: float) -> str:
    """A rate with a decimal prefix, the unit to follow: "12.3 T"."""
    size, prefix = next(((size, prefix) for size, prefix in UNITS if rate >= size), (1.0, ""))
    return f"{rate / size:.3g} {prefix}"


def prediction_text(prediction: PredictionUse, step: float) -> str:
    """ "input free: 12 % shorter (10 to 14 %)"."""
    saved = prediction.saved
    if saved.samples < 2:
        return f"{prediction.change}: {format_share(saved.value / step)} shorter (one step)"
    low, high = (f"{100 * each / step:.0f}" for each in (saved.low, saved.high))
    return f"{prediction.change}: {format_share(saved.value / step)} shorter ({low} to {high} %)"


def predictions(replay: ReplayUse | None, step: float) -> list[PredictionUse]:
    """Those that matter, the largest first; one whose interval reaches down to nothing is none."""
    found = replay.predictions if replay is not None else ()
    sure = [each for each in found if each.saved.value >= SMALLEST * step and _is_sure(each)]
    return sorted(sure, key=lambda each: -each.saved.value)


def _is_sure(prediction: PredictionUse) -> bool:
    return prediction.saved.samples < 2 or prediction.saved.low > 0
