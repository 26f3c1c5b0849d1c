"""What a device did in the steps of a trace, added to a case: of a bare trace, or of a recording's profiled steps.

One law: times are those of the traced steps. A recording's accounts are of steps that nobody profiled; a finding's
stake is cut to its account, so that no kernel's time promises more than the steady step holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from steptime.arrays import Int64
from steptime.findings.case import AccountUse, Case, ChainUse, GapUse, KernelUse
from steptime.findings.changing_work import changing_work
from steptime.findings.device_uses import (
    allocation_uses,
    at_roofline,
    collective_uses,
    copy_uses,
    gap_uses,
    kernel_uses,
    machine_use,
    replay_use,
    roofline_use,
)
from steptime.findings.gradient_use import gradient_use
from steptime.findings.kernel_kinds import above_ceilings, spent
from steptime.findings.pointwise_chains import chain_uses
from steptime.findings.stakes import ratio, scaled
from steptime.findings.trace_optimizers import optimizer_uses
from steptime.hardware.machine import Machine
from steptime.intervals import EMPTY, Intervals
from steptime.kineto.table import Trace
from steptime.ledger.account import account_for, has_kernels
from steptime.ledger.gaps import gaps_of
from steptime.ledger.ledger import Ledger
from steptime.ledger.recorded import RecordedAccount
from steptime.ledger.source_lines import sources_of
from steptime.ledger.trace_steps import reach
from steptime.links.compiled import compiled_kernels
from steptime.links.link import link
from steptime.quantities import SourceLine
from steptime.replay.rerun import rerun
from steptime.roofline.draw import draw
from steptime.roofline.roofline import COMMUNICATION
from steptime.timeline.timeline import Phase

Use = TypeVar("Use", KernelUse, ChainUse, GapUse)


def with_device(
    case: Case,
    trace: Trace,
    borders: Int64,
    windows: Int64,
    ledger: Ledger,
    machine: Machine | None,
    *,
    input_ranges: Intervals = EMPTY,
    compile_ranges: Intervals = EMPTY,
    training_thread: int | None = None,
    sources: Mapping[str, SourceLine] | None = None,
) -> Case:
    """The case with kernels, roofline, chains, optimisers and replay.

    borders, windows: (n, 2) ns, the steps as host and ledger have them. input_ranges to training_thread: as
    for `account_for`. sources: lines by operator name, where the trace itself has no stacks.
    """
    links = link(trace, borders)
    roofline = draw(trace, links, windows, machine, case.step.duration.value)
    replay = rerun(
        trace,
        borders,
        links,
        ledger,
        input_ranges=input_ranges,
        training_thread=training_thread,
        at_roofline=at_roofline(trace, links, roofline),
    )
    generated = {name: each.source for name, each in compiled_kernels(trace, links).items()}
    known = {**generated, **(sources or {})}
    gaps = gaps_of(
        trace,
        links,
        windows,
        input_ranges=input_ranges,
        compile_ranges=compile_ranges,
        training_thread=training_thread,
    )
    kernels = tuple(_placed(use, use.operator, known) for use in kernel_uses(trace, links, roofline))
    computing = [use for use in kernels if use.bound != COMMUNICATION]
    return replace(
        case,
        accounts=with_recoverable(case.accounts, ratio(above_ceilings(computing), spent(computing))),
        gaps=tuple(_placed(use, use.cause, known) for use in gap_uses(trace, links, gaps, len(windows))),
        copies=copy_uses(trace, links, windows),
        collectives=collective_uses(trace, links, windows),
        allocations=allocation_uses(trace, links, windows),
        kernels=kernels,
        roofline=roofline_use(roofline, case.step.duration.value),
        machine=machine_use(roofline.machine),
        chains=tuple(_placed(use, use.operators[0], known) for use in chain_uses(trace, links, len(borders))),
        optimizers=case.optimizers or optimizer_uses(trace, links, windows),
        replay=replay_use(replay, case.accounts),
    )


def with_processor(case: Case, trace: Trace, borders: Int64, machine: Machine | None) -> Case:
    """The case of a trace without a device, with its roofline and optimisers. borders: (n, 2) ns."""
    links = link(trace, borders)
    roofline = draw(trace, links, borders, machine, case.step.duration.value)
    return replace(
        case,
        roofline=roofline_use(roofline, case.step.duration.value),
        machine=machine_use(roofline.machine),
        optimizers=case.optimizers or optimizer_uses(trace, links, borders),
    )


def with_recorded_device(case: Case, account: RecordedAccount, machine: Machine | None) -> Case:
    """The case of a recording with what the device did in its profiled steps; without kernels, with the roofline of the
    processor; as it was where nothing was profiled."""
    timed = [each for each in account.windows if not each.stacks and len(each.borders)]
    if not timed:
        return case
    window = max(timed, key=lambda window: (has_kernels(window.trace), len(window.borders)))
    changing = changing_work(window.trace, window.borders, window.phases[Phase.FORWARD])
    case = replace(case, gradients=gradient_use(window.trace, window.borders), changing_work=changing)
    if not has_kernels(window.trace):
        return with_processor(case, window.trace, window.borders, machine)
    sources: dict[str, SourceLine] = {}
    for each in account.windows:
        sources |= sources_of(each.trace, training_thread=each.thread) if each.stacks else {}
    ledger = account_for(
        window.trace,
        window.borders,
        input_ranges=window.phases[Phase.INPUT],
        compile_ranges=window.compiling,
        phase_ranges=window.phases,
        training_thread=window.thread,
        machine=machine,
    )
    return with_device(
        case,
        window.trace,
        window.borders,
        reach(window.trace, window.borders),
        ledger,
        machine,
        input_ranges=window.phases[Phase.INPUT],
        compile_ranges=window.compiling,
        training_thread=window.thread,
        sources=sources,
    )


def with_recoverable(accounts: tuple[AccountUse, ...], part: float) -> tuple[AccountUse, ...]:
    """The accounts with the part of computing that good kernels would save."""
    return tuple(
        replace(use, recoverable=scaled(use.duration, part)) if use.name == "compute" else use for use in accounts
    )


def _placed(use: Use, operator: str, sources: Mapping[str, SourceLine]) -> Use:
    return use if use.source is not None or operator not in sources else replace(use, source=sources[operator])
