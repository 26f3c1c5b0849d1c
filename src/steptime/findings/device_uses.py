"""What a device did, as rules see it: the kernels, the roofline and the replay of a trace.

One law: nothing is computed here; what the rooms below found is named as the case names it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from steptime.arrays import Bool, Int64
from steptime.estimates import mean_of_series
from steptime.findings.case import (
    AccountUse,
    AllocationUse,
    CollectiveUse,
    CopyUse,
    GapUse,
    KernelUse,
    MachineUse,
    PredictionUse,
    ReplayUse,
    RooflineUse,
)
from steptime.findings.kernel_kinds import short_kernel
from steptime.findings.stakes import capped, named
from steptime.hardware.machine import Machine
from steptime.kineto.table import Category, Trace
from steptime.ledger.allocations import allocations_of
from steptime.ledger.collectives import collectives_of
from steptime.ledger.copies import copies_of
from steptime.ledger.gap_totals import gap_totals
from steptime.ledger.gaps import Gaps
from steptime.ledger.ledger import Account
from steptime.ledger.operations import DISPATCH_GAP
from steptime.links.frames import function_name, source_line
from steptime.links.links import UNKNOWN, Links
from steptime.quantities import SourceLine
from steptime.replay.replay import Prediction, Replay
from steptime.roofline.roofline import COMMUNICATION, KernelGroup, Roofline

MOST_REPLAYED = 3
"""Groups of kernels that the replay speeds up: each is a replay of its own, and a fourth would not be read."""
MOST_KERNELS = 400
"""Groups that are kept: those with the most time. What is left is less than a tenth of a percent each."""
PAUSE = "(the device's own pause between queued kernels)"
MOST_GAPS = 100
"""Causes of idle time that are kept, likewise."""
LONGEST_TEXT = 300
"""Characters of a kernel's name or of its arguments' shapes: templates and lists of tensors run to thousands."""


def source_of(trace: Trace, links: Links, row: int) -> SourceLine | None:
    """The user's function behind an event; None without stacks."""
    function = int(links.function[row]) if 0 <= row < len(links.function) else UNKNOWN
    return source_line(trace.symbols[int(trace.events.name[function])]) if function != UNKNOWN else None


def kernel_uses(trace: Trace, links: Links, roofline: Roofline) -> tuple[KernelUse, ...]:
    """The groups of kernels, the longest first."""
    return tuple(_kernel(trace, links, each) for each in roofline.groups[:MOST_KERNELS])


def _kernel(trace: Trace, links: Links, group: KernelGroup) -> KernelUse:
    return KernelUse(
        name=group.name[:LONGEST_TEXT],
        operator=group.operator,
        calls=group.calls,
        duration=group.duration,
        bound=group.bound,
        shapes=group.shapes if len(group.shapes) <= LONGEST_TEXT else "",
        number_format=group.number_format,
        flops=group.flops,
        bytes=group.bytes,
        at_roofline=float(group.at_roofline) if group.at_roofline is not None else None,
        matrix_unit=group.matrix_unit,
        dimensions=group.dimensions,
        source=source_of(trace, links, group.example),
    )


def gap_uses(trace: Trace, links: Links, gaps: Gaps, steps: int) -> tuple[GapUse, ...]:
    """Why the device idled, the longest first. steps: how many the gaps are of. The device's own pauses between kernels
    that were launched before are nobody's on the host: their cause is PAUSE.
    """
    own = _own_pauses(trace, gaps)
    named_gaps = replace(gaps, cause=np.where(own, UNKNOWN, gaps.cause))
    return tuple(
        GapUse(
            account=each.account.name.lower(),
            cause=each.cause or (PAUSE if each.account is Account.LAUNCH and own.any() else ""),
            duration=mean_of_series(each.duration),
            count=float(each.count.mean()),
            longest=each.longest,
            source=each.source,
            inside=function_name(each.inside)[:LONGEST_TEXT],
        )
        for each in gap_totals(trace, links, named_gaps, steps)[:MOST_GAPS]
    )


def _own_pauses(trace: Trace, gaps: Gaps) -> Bool:
    """Pieces of LAUNCH in which the next kernel was queued already, or which end with one that no call launched (it was
    queued before the trace began)."""
    launched = np.where(gaps.launch == UNKNOWN, gaps.begin, trace.events.begin[gaps.launch])
    short = gaps.duration <= DISPATCH_GAP
    own: Bool = (gaps.account == Account.LAUNCH) & (launched <= gaps.begin) & short
    return own


def copy_uses(trace: Trace, links: Links, windows: Int64) -> tuple[CopyUse, ...]:
    """The copies of the steps, (n, 2) ns, the most exposed first."""
    return tuple(
        CopyUse(
            kind=each.kind,
            memory=each.memory,
            calls=float(each.calls.mean()),
            duration=mean_of_series(each.duration),
            exposed=mean_of_series(each.exposed),
            bytes=float(each.bytes.mean()) if each.bytes is not None else 0.0,
            operator=each.operator,
            source=each.source,
        )
        for each in copies_of(trace, links, windows)[:MOST_GAPS]
    )


def collective_uses(trace: Trace, links: Links, windows: Int64) -> tuple[CollectiveUse, ...]:
    """The collectives of the steps, (n, 2) ns, the longest first."""
    return tuple(
        CollectiveUse(
            name=each.name,
            group=each.group,
            calls=float(each.calls.mean()),
            duration=mean_of_series(each.duration),
            exposed=mean_of_series(each.exposed),
            bytes=float(each.bytes.mean()) if each.bytes is not None else None,
        )
        for each in collectives_of(trace, links, windows)[:MOST_GAPS]
    )


def allocation_uses(trace: Trace, links: Links, windows: Int64) -> tuple[AllocationUse, ...]:
    """The calls to the driver's allocator in the steps, (n, 2) ns, those first that cost the device most."""
    return tuple(
        AllocationUse(
            name=each.name,
            calls=float(each.calls.mean()),
            duration=mean_of_series(each.duration),
            idle=mean_of_series(each.idle),
            source=each.source,
        )
        for each in allocations_of(trace, links, windows)[:MOST_GAPS]
    )


def roofline_use(roofline: Roofline, step: float) -> RooflineUse | None:
    """The compute account by its bounds; None where nothing computed. step: ns of the step that the report is about,
    which a profiled one may be longer than."""
    if not len(roofline.split) or not roofline.split.any():
        return None
    means = dict(zip(roofline.bounds, roofline.split.mean(axis=0).tolist(), strict=True))
    return RooflineUse(
        compute=means.get("compute", 0.0),
        memory=means.get("memory", 0.0),
        latency=means.get("latency", 0.0),
        unmodelled=means.get("unmodelled", 0.0),
        flops=roofline.flops,
        bytes=roofline.bytes,
        number_format=roofline.number_format,
        peak=roofline.peak,
        matrix_unit=roofline.matrix_unit,
        utilization=min(1.0, roofline.utilization * roofline.wall / step)
        if roofline.utilization is not None and step
        else None,
        modelled=roofline.modelled,
    )


RELIEVED = {
    "input free": "input",
    "syncs free": "sync",
    "one launch": "launch",
    "communication overlapped": "communication",
}
"""Changes of the replay and the account that each relieves."""


def replay_use(replay: Replay | None, accounts: tuple[AccountUse, ...]) -> ReplayUse | None:
    """The replay's error, critical path and predictions; none saves more than its account has in all steady steps (the
    replay is of some of them)."""
    if replay is None or not len(replay.replayed):
        return None
    predictions = tuple(_prediction(each, accounts) for each in replay.predictions)
    return ReplayUse(replay.error, len(replay.replayed), replay.critical_path, predictions, replay.longest())


def _prediction(prediction: Prediction, accounts: tuple[AccountUse, ...]) -> PredictionUse:
    account = named(accounts, RELIEVED.get(prediction.change, ""))
    saved = capped(prediction.saved, account.duration) if account is not None else prediction.saved
    return PredictionUse(
        prediction.change, saved, min(prediction.cap, account.duration.value if account else prediction.cap)
    )


def at_roofline(trace: Trace, links: Links, roofline: Roofline) -> dict[str, dict[int, int]]:
    """What the kernels that lose most would last at the machine's ceilings, for the replay: by "operator (kernel)", ns
    by row of the event table."""
    lost: dict[tuple[str, str], tuple[float, float]] = {}
    for group in roofline.groups:
        if group.at_roofline is not None and group.bound != COMMUNICATION:
            spent, best = lost.get((group.name, group.operator), (0.0, 0.0))
            lost[group.name, group.operator] = (spent + group.duration, best + group.at_roofline)
    most = sorted(lost.items(), key=lambda item: item[1][1] - item[1][0])[:MOST_REPLAYED]
    names = {symbol: number for number, symbol in enumerate(trace.symbols)}
    found = {}
    for (name, operator), (spent, best) in most:
        rows = np.flatnonzero((trace.events.name == names[name]) & (trace.events.category == Category.KERNEL))
        behind = links.operator[rows]
        called = np.where(behind == UNKNOWN, -1, trace.events.name[np.maximum(behind, 0)])
        rows = rows[called == names.get(operator, -1)]
        lengths = np.rint(trace.events.duration[rows] * (best / spent if spent else 1.0)).astype(np.int64)
        label = f"{operator} ({short_kernel(name)})" if operator else short_kernel(name)
        found[label] = dict(zip(rows.tolist(), lengths.tolist(), strict=True))
    return found


def machine_use(machine: Machine | None) -> MachineUse | None:
    """The ceilings as rules see them."""
    if machine is None:
        return None
    dispatch = machine.launch or machine.dispatch
    return MachineUse(
        machine.name,
        machine.measured,
        machine.matrix_rate(),
        machine.copy.value if machine.copy is not None else None,
        dispatch.value if dispatch is not None else None,
        tuple((rate.name, rate.rate.value) for rate in machine.matrix),
        machine.source,
        tuple((each.size, each.rate.value) for each in machine.updates),
        machine.disturbed,
        tuple(rate.name for rate in machine.matrix if rate.reached),
    )
