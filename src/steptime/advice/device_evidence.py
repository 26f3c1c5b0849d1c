"""Evidence about the device, added to a case: its work in the steps of a trace, or of a recording's profiled steps.

Times are those of the traced steps, except for gaps: a recording's categories come from unprofiled steps, in which the
device idles less. A finding's savings are limited to its category, so that no kernel's time promises more than the
steady step has.

A chain is two or more consecutive kernels on one stream, launched in one step by pointwise operators of at least two
kinds on tensors of one size. A fused kernel would not write and read the tensors in between. A trace does not show
whether each kernel reads the result of the one before. So rows of a single operator (scaled gradients, cleared buffers)
are excluded, and so is the optimizer, which has a rule of its own."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TypeVar

import numpy as np

from steptime.advice.device_uses import (
    AllocationUse,
    ChainUse,
    CollectiveUse,
    CopyUse,
    GapUse,
    MachineUse,
    ReplayUse,
    RooflineUse,
    ScalingUse,
    WrittenNormUse,
)
from steptime.advice.evidence import Case, OptimizerUse, record_of
from steptime.advice.kernels import (
    COPIES,
    MATRIX,
    POINTWISE,
    above_peaks,
    elements,
    plain_name,
    shapes_at,
    shapes_of,
    short_kernel,
    time_in,
)
from steptime.advice.loss_scaling import scaling_use
from steptime.advice.run_uses import CategoryUse
from steptime.advice.savings import IDLE, as_decided, at_most, named, of_usual_steps, ratio, scaled, summed
from steptime.advice.step_evidence import optimizer_uses
from steptime.advice.written_norms import item_of, written_norms
from steptime.analysis.breakdown import device_of
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.idle import gap_totals, gaps_of
from steptime.analysis.kernel_names import multiplies
from steptime.analysis.op_cost.op_cost import UNMODELLED, Bound
from steptime.analysis.operators import DISPATCH_GAP, OperatorUse, source_behind
from steptime.analysis.roofline import BOUNDS, COMMUNICATION, KernelUse, Roofline, draw
from steptime.analysis.step_context import StepContext
from steptime.analysis.tiles import waves_of
from steptime.analysis.traffic import AllocationTotal, allocations_of, collectives_of, copies_of
from steptime.analysis.what_if.calibrated import DEVICE, FACTORS, HOST
from steptime.analysis.what_if.what_if import RELIEVED as BY_WORK, Prediction, Replay, rerun
from steptime.arrays import Int32, Int64, distinct, give_back
from steptime.intervals import contains, union
from steptime.machine.datasheet import interconnect_of, look_up
from steptime.machine.machine import Machine
from steptime.quantities import SourceLine, format_rate, mean_of_series
from steptime.trace.links import UNKNOWN, Links, function_name
from steptime.trace.table import ABSENT, EventKind, Trace, details_of
from steptime.trace.vendors import OPTIMIZER_STEP, matching

MOST_REPLAYED = 3
"""Most kernel groups that the replay speeds up: each costs a replay of its own."""
MOST_KERNELS = 400
"""Most kernel groups that are kept, longest first; the rest is below a tenth of a percent each."""
PAUSE = "(the device's own pause between queued kernels)"
MOST_FUNCTIONS = 8
"""Most functions that are named for an idle interval."""
MOST_GAPS = 100
"""Most causes of idle time that are kept, longest first; also the limit of copies, collectives and allocations."""
LONGEST_TEXT = 300
"""Most characters of a kernel's name or its arguments' shapes: templates and tensor lists can have thousands."""


def _kernel(use: KernelUse, example: int, trace: Trace, links: Links) -> KernelUse:
    """Kernel group completed with facts of its longest kernel."""
    return replace(
        use,
        name=use.name[:LONGEST_TEXT],
        shapes=use.shapes if len(use.shapes) <= LONGEST_TEXT else "",
        blocks=max(int(trace.events.blocks[example]), 0),
        waves=_waves(use, example, trace),
        source=source_behind(trace, links, example),
    )


def _waves(group: KernelUse, example: int, trace: Trace) -> float | None:
    """Waves of a matmul's tiles, on the device of the group's longest kernel; None for other kernels."""
    operator = plain_name(group.operator)
    if operator not in MATRIX or not multiplies(group.name):
        return None
    sizes = {device.number: device.multiprocessors for device in trace.devices}
    size = sizes.get(int(trace.events.device[example]), 0)
    blocks = max(int(trace.events.blocks[example]), 0)
    return waves_of(group.name, operator, shapes_of(group.shapes), blocks, size)


def gap_uses(steps: StepContext) -> tuple[GapUse, ...]:
    """Idle time of the device by category and cause, longest first. Pauses between kernels that were already queued
    have no cause on the CPU: their cause is PAUSE."""
    give_back(len(steps.trace.events))
    gaps = gaps_of(steps)
    give_back(len(steps.trace.events))
    launched = np.where(gaps.launch == UNKNOWN, gaps.start, steps.trace.events.start[gaps.launch])
    own = (gaps.category == Category.OVERHEAD) & (launched <= gaps.start) & (gaps.duration <= DISPATCH_GAP)
    named_gaps = replace(gaps, cause=np.where(own, UNKNOWN, gaps.cause))
    return tuple(
        record_of(
            GapUse,
            each,
            category=each.category.title,
            cause=each.cause or (PAUSE if each.category is Category.OVERHEAD and own.any() else ""),
            inside=function_name(each.inside)[:LONGEST_TEXT],
            functions=tuple((name[:LONGEST_TEXT], ns / len(steps)) for name, ns in each.functions[:MOST_FUNCTIONS]),
        )
        for each in gap_totals(steps, named_gaps)[:MOST_GAPS]
    )


def _allocation(each: AllocationTotal) -> AllocationUse:
    within = tuple((category.title, mean_of_series(spent)) for category, spent in each.within)
    return record_of(AllocationUse, each, within=within)


def copy_uses(steps: StepContext) -> tuple[CopyUse, ...]:
    """Copies of the steps, most exposed first; bytes are 0 if the trace has none."""
    totals = copies_of(steps)[:MOST_GAPS]
    sizes = [float(each.bytes.mean()) if each.bytes is not None else 0.0 for each in totals]
    return tuple(record_of(CopyUse, each, bytes=size) for each, size in zip(totals, sizes, strict=True))


def collective_uses(steps: StepContext) -> tuple[CollectiveUse, ...]:
    """Collectives of the steps, longest first."""
    link, there = interconnect_of(device_of(steps.trace)), len(steps.trace.devices)
    uses = []
    for each in collectives_of(steps)[:MOST_GAPS]:
        use = record_of(CollectiveUse, each)
        if link is not None and on_one_machine(each.size, each.members, there):
            share = each.bus_bandwidth / link.rate if each.bus_bandwidth is not None else None
            name = f"{link.name}'s {format_rate(link.rate)}B/s"
            use = replace(use, link=name, link_share=share if share is not None and share <= 1 else None)
        uses.append(use)
    return tuple(uses)


def on_one_machine(size: int, members: str, devices: int) -> bool:
    """True if all ranks of a group are on one machine with `devices` devices, assuming that each machine has as many
    consecutive ranks. size: number of ranks. members: the ranks as in a trace ("[0, 1, 2, 3]"), "" if unknown."""
    ranks = [int(number) for number in RANK.findall(members)]
    if not 0 < size <= devices:
        return False
    return len({rank // devices for rank in ranks}) == 1 if len(ranks) == size else not ranks and size == devices


def roofline_use(roofline: Roofline, case: Case, device: str = "") -> RooflineUse | None:
    """Computing time of the case by what bounds its kernels; None if nothing computed. device: name for the datasheet.
    The ratios refer to the roofline's steps, which are profiled and may take longer than the case's."""
    if not len(roofline.split) or not roofline.split.any():
        return None
    step, compute = case.step.duration.value, named(case.categories, "compute")
    utilization, mfu, hfu = (
        share * roofline.wall / step if share is not None and step else None
        for share in (roofline.utilization, roofline.mfu, roofline.hfu)
    )
    utilization = min(1.0, utilization) if utilization is not None else None
    mfu, hfu = (share if share is not None and share <= 1 else None for share in (mfu, hfu))
    sheet = look_up(device) if device else None
    rated = sheet.matrix_rate(roofline.dtype) if sheet is not None else None
    split = roofline.split.mean(axis=0)
    if compute is not None:
        split *= compute.duration.value / split.sum()
    parts = dict(zip(BOUNDS, split.tolist(), strict=True))
    return record_of(RooflineUse, roofline, utilization=utilization, mfu=mfu, hfu=hfu, rated=rated, **parts)


RELIEVED = {
    "input free": ("input",),
    "syncs free": ("sync",),
    "one graph launch": ("overhead",),
    "communication overlapped": ("communication",),
    **{
        f"{work} {how}": tuple(each.name.lower() for each in relieved)
        for work, relieved in BY_WORK.items()
        for how in FACTORS
    },
    "allocation free": IDLE,
}
"""Categories that each change of the replay relieves; all other changes make kernels shorter. All of them keep the
device's own work."""


def replay_use(replay: Replay | None, categories: tuple[CategoryUse, ...]) -> ReplayUse | None:
    """Error, critical path and predictions of a replay. No prediction saves more than its categories take in all steady
    steps, because the replay covers only some of them."""
    if replay is None or not len(replay.replayed):
        return None
    predictions = tuple(_within(each, categories) for each in replay.predictions)
    step, calibration = sum(use.duration.value for use in categories), replay.calibration
    return record_of(
        ReplayUse,
        replay,
        steps=len(replay.replayed),
        predictions=predictions,
        longest=replay.longest(),
        elsewhere=(),
        calibration=calibration.on(step) if calibration is not None and step > 0 else None,
    )


def _within(prediction: Prediction, categories: tuple[CategoryUse, ...]) -> Prediction:
    relieved = RELIEVED.get(prediction.change, ("compute",))
    most = sum(use.duration.value for use in categories if use.name in relieved)
    return replace(prediction, saved=at_most(prediction.saved, most), cap=min(prediction.cap, most))


def at_roofline(trace: Trace, links: Links, roofline: Roofline) -> dict[str, dict[int, int]]:
    """Times at the machine's peaks of the kernels that lose most, for the replay: by "operator (kernel)", a dict from
    row of the event table to ns."""
    lost: dict[tuple[str, str], tuple[float, float]] = {}
    for group in roofline.groups:
        if group.at_roofline is not None and group.bound != COMMUNICATION:
            spent, best = lost.get((group.name, group.operator), (0.0, 0.0))
            lost[group.name, group.operator] = (spent + group.duration, best + group.at_roofline)
    most = sorted(lost.items(), key=lambda item: item[1][1] - item[1][0])[:MOST_REPLAYED]
    names = {symbol: number for number, symbol in enumerate(trace.symbols)}
    found = {}
    for (name, operator), (spent, best) in most:
        rows = np.flatnonzero((trace.events.name == names[name]) & (trace.events.event_kind == EventKind.KERNEL))
        behind = links.operator[rows]
        called = np.where(behind == UNKNOWN, -1, trace.events.name[np.maximum(behind, 0)])
        rows = rows[called == names.get(operator, -1)]
        lengths = np.rint(trace.events.duration[rows] * (best / spent if spent else 1.0)).astype(np.int64)
        label = f"{operator} ({short_kernel(name)})" if operator else short_kernel(name)
        found[label] = dict(zip(rows.tolist(), lengths.tolist(), strict=True))
    return found


def machine_use(machine: Machine | None) -> MachineUse | None:
    """Peaks of a machine as the rules see them; None if unknown."""
    if machine is None:
        return None
    dispatch = machine.launch or machine.dispatch
    return record_of(
        MachineUse,
        machine,
        matrix_flops=machine.matrix_rate(),
        copy_bytes=machine.copy.value if machine.copy is not None else None,
        dispatch=dispatch.value if dispatch is not None else None,
        rates=tuple((rate.name, rate.rate.value) for rate in machine.matrix),
        updates=tuple((each.size, each.rate.value) for each in machine.updates),
        reached=tuple(rate.name for rate in machine.matrix if rate.reached),
    )


RANK = re.compile(r"\d{1,9}")
FUSIBLE = POINTWISE | COPIES
"""Operators that fuse into a chain: pointwise ones, and copies (casts, changes of layout)."""
MOST_CHAINS = 50
"""Most kinds of chains that are kept, longest first."""


def chain_uses(trace: Trace, links: Links, steps: int) -> tuple[ChainUse, ...]:
    """Chains of pointwise kernels in the steps, longest kind first. steps: number of steps that were linked."""
    rows = _of_operators(trace, links)
    if not len(rows):
        return ()
    size, item = _sizes(trace, links.operator[rows])
    rows, size, item = rows[size > 0], size[size > 0], item[size > 0]
    if not len(rows):
        return ()
    found: dict[tuple[int, ...], list[Int64]] = defaultdict(list)
    names = trace.events.name[links.operator[rows]]
    for run in _runs(trace, links, rows, size):
        found[(int(size[run[0]]), *names[run].tolist(), *item[run].tolist())].append(run)
    uses = [
        _chain(trace, links, rows[runs[0]], rows[np.concatenate(runs)], size[runs[0]] * item[runs[0]], steps)
        for runs in found.values()
        if len(set(names[runs[0]].tolist())) > 1
    ]
    return tuple(sorted(uses, key=lambda use: -use.duration)[:MOST_CHAINS])


def _of_operators(trace: Trace, links: Links) -> Int64:
    """Rows of the kernels in steps that an operator launched, without the optimizer's, by stream and time."""
    events = trace.events
    rows: Int64 = np.flatnonzero((events.event_kind == EventKind.KERNEL) & (links.step != UNKNOWN))
    rows = rows[links.operator[rows] != UNKNOWN]
    if not len(rows):
        return rows
    updates = matching(trace, OPTIMIZER_STEP.match)
    launch = links.launch[rows]
    updating = contains(union(events.start[updates], events.ends(updates)), events.start[np.maximum(launch, 0)])
    rows = rows[~(updating & (launch != UNKNOWN))]
    order: Int64 = np.lexsort((events.start[rows], events.stream[rows], events.device[rows]))
    ordered: Int64 = rows[order]
    return ordered


def _sizes(trace: Trace, operators: Int32) -> tuple[Int64, Int64]:
    """(elements of the largest tensor, bytes per element) of each operator; 0 elements unless pointwise."""
    shapes = np.array([_largest(text) for text in trace.shapes] or [0], np.int64)
    items = np.array([item_of(text) for text in trace.dtypes] or [4], np.int64)
    kinds = np.array([plain_name(symbol) in FUSIBLE for symbol in trace.symbols] or [False])
    events = trace.events
    shape, dtype = events.shapes[operators], events.dtypes[operators]
    known = (shape != ABSENT) & kinds[events.name[operators]]
    size = np.where(known, shapes[np.maximum(shape, 0)], 0)
    return size, np.where(dtype != ABSENT, items[np.maximum(dtype, 0)], 4)


@lru_cache(maxsize=4096)
def _largest(text: str) -> int:
    return max((elements(shape) for shape in shapes_of(text) if shape), default=0)


def _runs(trace: Trace, links: Links, rows: Int64, size: Int64) -> list[Int64]:
    """Positions in `rows` of each chain: consecutive kernels on a stream, in one step, with one size."""
    events = trace.events
    keys = np.stack((events.device[rows], events.stream[rows], links.step[rows], size, _between(trace, rows)))
    heads = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    return [run for run in np.split(np.arange(len(rows)), heads) if len(run) > 1]


def _between(trace: Trace, rows: Int64) -> Int64:
    """Number of foreign kernels on the way to each row: equal values mean that no other kernel is in between. rows:
    sorted by stream and time."""
    events = trace.events
    everything = np.flatnonzero(events.event_kind == EventKind.KERNEL)
    everything = everything[
        np.lexsort((events.start[everything], events.stream[everything], events.device[everything]))
    ]
    others = ~np.isin(everything, rows)
    interval: Int64 = np.cumsum(others, dtype=np.int64)[~others]
    return interval


def _chain(trace: Trace, links: Links, first: Int64, everyone: Int64, tensor: Int64, steps: int) -> ChainUse:
    """Chains of one kind. first: kernels of one chain; everyone: kernels of all. tensor: bytes of the tensor that each
    kernel of one chain reads (the result of a cast is what the next one reads)."""
    operators = links.operator[first]
    inputs = np.array([_inputs(trace, row) for row in operators.tolist()])
    between = int(tensor[1:].sum())  # each written once and read once
    whole = int((inputs * tensor).sum()) + between + int(tensor[-1])
    count = len(everyone) / len(first) / steps
    known = (source_behind(trace, links, row) for row in first.tolist())
    return ChainUse(
        operators=tuple(trace.symbols[number] for number in trace.events.name[operators].tolist()),
        calls=count,
        kernels=len(everyone) / steps,
        duration=float(trace.events.duration[everyone].sum()) / steps,
        bytes=count * whole,
        saved=count * 2 * between,
        source=next((line for line in known if line is not None), None),
    )


def _inputs(trace: Trace, operator: int) -> int:
    """Number of an operator's inputs that are as large as its largest, at least 1."""
    sizes = [elements(each) for each in shapes_at(trace, operator) if each]
    return max(1, sum(each == max(sizes, default=0) for each in sizes))


Use = TypeVar("Use", KernelUse, ChainUse, GapUse)


def with_device(
    case: Case, steps: StepContext, breakdown: Breakdown, sources: Mapping[str, SourceLine] | None = None
) -> Case:
    """The case with kernels, roofline, chains, optimizers and replay from a trace with a device. breakdown: breakdown
    of the steps. sources: lines by operator name, for a trace without stacks."""
    trace, links = steps.trace, steps.links
    roofline = draw(steps, case.step.duration.value)
    give_back(len(trace.events))
    bare = case.step.mode == "trace"
    steady, shortest = (None, 0.0) if bare else (case.step.duration.value, float(case.step.shortest))
    groups = at_roofline(trace, links, roofline)
    replay = replay_use(rerun(steps, breakdown, groups, steady=steady, shortest=shortest), case.categories)
    give_back(len(trace.events))
    known = {**generated_sources(trace, links), **(sources or {})}
    kernels = [
        _kernel(group, example, trace, links)
        for group, example in zip(roofline.groups[:MOST_KERNELS], roofline.examples, strict=False)
    ]
    computing = [use for use in kernels if use.bound != COMMUNICATION]
    with_peaks = _on_machine(case, steps, roofline)
    recoverable = _with_recoverable(case.categories, ratio(above_peaks(computing), time_in(computing)))
    return replace(
        with_peaks,
        optimizers=_on_device(with_peaks.optimizers, steps, replay.decides if replay is not None else ""),
        categories=tuple(
            replace(use, recoverable=as_decided(use.recoverable, use.name, replay)) for use in recoverable
        ),
        gaps=tuple(_placed(use, use.cause, known) for use in _usual_gaps(gap_uses(steps), breakdown, case)),
        copies=copy_uses(steps),
        collectives=collective_uses(steps),
        allocations=tuple(map(_allocation, allocations_of(steps)[:MOST_GAPS])),
        kernels=tuple(_placed(use, use.operator, known) for use in kernels),
        operators=_bound_as_kernels(case.operators, roofline.groups),
        chains=tuple(_placed(use, use.operators[0], known) for use in chain_uses(trace, links, len(steps))),
        written_norms=norm_uses(steps),
        scaling=_usual_scaling(scaling_use(steps), breakdown, case),
        replay=replay,
    )


def norm_uses(steps: StepContext) -> tuple[WrittenNormUse, ...]:
    """Norms that the steps compute in separate operators, longest first."""
    trace, links = steps.trace, steps.links
    return written_norms(trace, links, _of_operators(trace, links), len(steps))


def _usual_gaps(gaps: Sequence[GapUse], breakdown: Breakdown, case: Case) -> Iterator[GapUse]:
    """Gaps, scaled to the case's steps: the CPU is slower in traced ones, so that the device idles longer."""
    traced = _traced(breakdown)
    for gap in gaps:
        duration = of_usual_steps(gap.duration, traced[gap.category], named(case.categories, gap.category))
        factor = ratio(duration.value, gap.duration.value)
        if not factor:
            continue
        functions = tuple((name, factor * spent) for name, spent in gap.functions)
        yield replace(gap, duration=duration, longest=round(factor * gap.longest), functions=functions)


def _traced(breakdown: Breakdown) -> dict[str, float]:
    """Time per traced step by category, ns."""
    means = breakdown.entries.mean(axis=0).tolist()
    return {category.name.lower(): spent for category, spent in zip(Category, means, strict=True)}


def _usual_scaling(use: ScalingUse | None, breakdown: Breakdown, case: Case) -> ScalingUse | None:
    """Gradient scaler with idle times scaled to the case's steps, like the gaps."""
    if use is None:
        return None
    traced = _traced(breakdown)
    launching = of_usual_steps(use.launching, traced["overhead"], named(case.categories, "overhead"))
    waiting = of_usual_steps(use.waiting, traced["sync"], named(case.categories, "sync"))
    return replace(use, launching=launching, waiting=waiting)


def generated_sources(trace: Trace, links: Links) -> dict[str, SourceLine]:
    """Files of the kernels that torch.compile generated, by kernel name, with paths of the traced machine. Inductor
    launches each Triton kernel under an operator of the same name, whose arguments hold the file
    (CachingAutotuner.get_profiler_kwargs in torch/_inductor/runtime/triton_heuristics.py)."""
    events = trace.events
    kernels = np.flatnonzero(events.event_kind == EventKind.KERNEL)
    around = links.operator[kernels]
    kernels, around = kernels[around != UNKNOWN], around[around != UNKNOWN]
    same = around[events.name[kernels] == events.name[around]]
    rows = same[distinct(events.name[same])[0]].astype(np.int64)
    names = (trace.symbols[number] for number in events.name[rows].tolist())
    files = (arguments.get("kernel_file") for arguments in details_of(trace, rows))
    found = zip(names, files, strict=True)
    return {name: SourceLine(file, 1, name) for name, file in found if isinstance(file, str) and file}


def _bound_as_kernels(operators: Sequence[OperatorUse], groups: Sequence[KernelUse]) -> tuple[OperatorUse, ...]:
    """Operators with the bound of most of their kernels' time; kernels without a model count only if they take the
    longer part."""
    spent: dict[str, Counter[Bound]] = defaultdict(Counter)
    for group in groups:
        spent[group.operator][group.bound] += round(group.duration)
    for each in spent.values():
        if 2 * each[UNMODELLED] < each.total():
            del each[UNMODELLED]
    bounds = {name: each.most_common(1)[0][0] for name, each in spent.items()}
    return tuple(replace(use, bound=bounds.get(use.name, use.bound)) for use in operators)


def with_processor(case: Case, steps: StepContext) -> Case:
    """The case with roofline and optimizers from a trace without a device."""
    return _on_machine(case, steps, draw(steps, case.step.duration.value))


def _on_machine(case: Case, steps: StepContext, roofline: Roofline) -> Case:
    return replace(
        case,
        roofline=roofline_use(roofline, case, device_of(steps.trace)),
        machine=machine_use(roofline.machine),
        optimizers=case.optimizers or optimizer_uses(steps.trace, steps.links, steps.windows),
    )


def _on_device(optimizers: tuple[OptimizerUse, ...], steps: StepContext, decides: str) -> tuple[OptimizerUse, ...]:
    """Optimizers with the time of their kernels if the device decides the step, because the CPU then only launches
    these or waits for room in the driver's queue. If both decide, the shorter time counts. Optimizers of one type share
    their kernels' time in proportion to their host times."""
    if decides == HOST:
        return optimizers
    seen_in = optimizer_uses(steps.trace, steps.links, steps.windows, gapless=True)
    traced = {use.type: use for use in seen_in if use.kernels}
    whole = summed((use.type, round(use.duration.value)) for use in optimizers)
    found = []
    for use in optimizers:
        seen, part = traced.get(use.type), ratio(use.duration.value, whole[use.type])
        if seen is None or use.kernels is not None or not seen.kernels:
            found.append(use)
            continue
        spent = scaled(seen.duration, part)
        if decides == DEVICE or spent.value < use.duration.value:
            use = replace(use, duration=spent, kernels=part * seen.kernels)
        found.append(use)
    return tuple(found)


def _with_recoverable(categories: tuple[CategoryUse, ...], part: float) -> tuple[CategoryUse, ...]:
    """Categories with the part of computing that good kernels would save."""
    return tuple(
        replace(use, recoverable=scaled(use.duration, part)) if use.name == "compute" else use for use in categories
    )


def _placed(use: Use, operator: str, sources: Mapping[str, SourceLine]) -> Use:
    return use if use.source is not None or operator not in sources else replace(use, source=sources[operator])
