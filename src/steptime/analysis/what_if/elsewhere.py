"""Prediction of a trace's steps on another device, or with another link.

The steps are replayed with kernels that come as near to the other device's peaks as they did to this one's. Both peaks
are from datasheets. CPU work and copies between CPU and device stay as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from steptime.analysis.op_cost.call import OpCost
from steptime.analysis.op_cost.op_cost import LATENCY, time_at_peaks
from steptime.analysis.roofline import COMMUNICATION, KernelUse, groups_of_kernels
from steptime.analysis.step_context import StepContext
from steptime.analysis.what_if.build import build
from steptime.analysis.what_if.calibrated import calibrated
from steptime.analysis.what_if.graph import NodeKind, run
from steptime.analysis.what_if.scope import scope_of
from steptime.analysis.what_if.what_if import window_of
from steptime.arrays import Float64, Int32
from steptime.machine.datasheet import CDNA3, H100
from steptime.machine.machine import Machine
from steptime.quantities import Estimate

LATENCIES = (("h[12]00|v100", 1.35), ("b200", 2.0), ("mi300|mi210", 1.75))
"""(pattern of the device's name, shortest kernel in µs): 1.1 to 1.6 on H100 and V100, 2.0 on B200, 1.6 to 1.9 on MI300X
and MI210, in published traces. The duration of latency-bound kernels is scaled by these."""
CHECKED = frozenset({f"{H100}, SXM", f"{CDNA3}, MI300X"})
"""Devices between which predictions were compared with traces of the same models, published by TraceLens: five models,
both ways (benchmarks/elsewhere_error.py)."""
MOST_WRONG = 1.45
"""Largest ratio between predicted and real kernel time, in either direction, over those ten."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Prediction for another device or link. device: name of the device, "" for the same; link: factor on the link's
    speed. step, kernels: predicted, ns per step; here: kernel time in the trace, ns per step. sources: sources of the
    devices' peaks. checked: True if predictions between these two devices were compared with traces; the interval
    always has the width of the error found there. communication: fraction of `here` in communication kernels, which a
    device does not change."""

    device: str
    link: float
    step: Estimate
    kernels: Estimate
    here: float
    communication: float
    sources: tuple[str, ...]
    checked: bool


def elsewhere(
    steps: StepContext, device: Machine | None, link: float = 1.0, step: float | None = None
) -> Elsewhere | None:
    """Prediction of the steps on another device (None: the same one) and with a link `link` times as fast. None if
    nothing can be replayed: no CPU work, no step, no kernel. The steps' machine has the peaks of the present device.
    step: ns of a step that the profiler did not slow, to which the CPU's work is scaled; None if unknown."""
    if steps.track is None or not len(steps) or not steps.on_device:
        return None
    rows, groups, kind = groups_of_kernels(steps)
    cases = np.array([_factors(each, steps.machine, device, link) for each in groups], np.float64).T
    spent = np.array([each.duration for each in groups], np.float64)
    exchanging = np.array([each.bound == COMMUNICATION for each in groups], np.bool_)
    here = float(spent.sum())
    if step is not None and here > step:  # kernels of a profiled step last a little longer
        spent, here = spent * (step / here), step
    sources = tuple(dict.fromkeys(each.source for each in (steps.machine, device) if each is not None))
    return Elsewhere(
        device=device.name if device is not None else "",
        link=link,
        step=_estimate(_replayed(steps, steps.track, rows, cases[:, kind], step)),
        kernels=_estimate((cases * spent).sum(axis=1)),
        here=here,
        communication=float(spent[exchanging].sum()) / here if here else 0.0,
        sources=sources if device is not None else (),
        checked=link == 1 and device is not None and set(sources) == CHECKED,
    )


def _factors(group: KernelUse, here: Machine | None, there: Machine | None, link: float) -> tuple[float, float, float]:
    """Factors on the duration of the group's kernels: predicted, best, worst."""
    if group.bound == COMMUNICATION:
        return 1 / link, min(1 / link, 1.0), max(1 / link, 1.0)
    if here is None or there is None:
        return 1.0, 1.0, 1.0
    predicted = _factor(group, here, there)
    return predicted, predicted / MOST_WRONG, predicted * MOST_WRONG


def _factor(group: KernelUse, here: Machine, there: Machine) -> float:
    if group.bound == LATENCY:
        return _latency(there) / _latency(here) if _latency(here) and _latency(there) else 1.0
    work = None
    if group.calls and group.flops is not None and group.bytes is not None:
        work = OpCost(group.flops / group.calls, group.bytes / group.calls, group.dtype)
    times = [time_at_peaks(work, machine) for machine in (here, there)]
    if times[0] and times[1] and max(times[0]) > 0:
        return max(times[1]) / max(times[0])
    return here.copy.value / there.copy.value if here.copy is not None and there.copy is not None else 1.0


def _latency(machine: Machine) -> float:
    return next((shortest for pattern, shortest in LATENCIES if re.search(pattern, machine.name.lower())), 0.0)


def _replayed(steps: StepContext, track: int, rows: Int32, cases: Float64, step: float | None) -> Float64:
    """Duration of the step, (3,), ns, if the kernels in `rows` take so many times as long, by case."""
    window = window_of(steps.trace, steps.boundaries, steps.links.launch)
    boundaries = steps.boundaries[window.steps]
    wall = int(boundaries[0, 1] - boundaries[0, 0])
    graph = build(scope_of(window.trace, boundaries, window.launch, track, steps.input, wall=wall))
    if step is not None:
        graph = calibrated(graph, step)
    device = graph.nodes.kind != NodeKind.HOST
    unchanged, ratios = np.maximum(run(graph).duration, 1), []
    for factors in cases:
        every = np.ones(len(steps.trace.events))
        every[rows] = factors
        scaled = np.where(device, graph.nodes.duration * every[window.rows][graph.nodes.row], graph.nodes.duration)
        changed = run(graph, duration=np.rint(scaled).astype(np.int64)).duration / unchanged
        ratios.append(float(changed[int(len(changed) > 1) :].mean()))  # the first one fills the queue
    return np.array(ratios) * (step or float((steps.windows[:, 1] - steps.windows[:, 0]).mean()))


def _estimate(cases: Float64) -> Estimate:
    value, low, high = cases.tolist()
    return Estimate(value, min(low, value), max(high, value), 1)
