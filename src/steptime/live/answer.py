"""The answer of `steptime watch`: the same text for the terminal, for lines in a file and for the page."""

from __future__ import annotations

import shlex

from steptime.answer.answer import Answer, Item, Section
from steptime.answer.printable import one_line
from steptime.answer.tables import Table, duration, integer, number, share, size, table_of, word
from steptime.live.view import LiveView, RankView
from steptime.quantities import (
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_samples,
    format_share,
    format_spread,
)
from steptime.recording.recording import DeviceSample, TelemetrySample

BLOCKS = "·▁▂▃▄▅▆▇█"
HELD_BACK = ((0x04, "power cap"), (0x08, "hardware slowdown"), (0x20, "heat"), (0x40, "heat"), (0x80, "power brake"))
"""Bits of NVML's throttle reasons that reduce speed."""
QUIET = 10.0
"""Seconds without new data after which that is reported."""
LEAST = 0.001
"""Fraction of the minute from which on a part is shown."""


def title(view: LiveView) -> str:
    """Title of the live view: the job and its progress."""
    total = max((rank.total for rank in view.ranks), default=0)
    far = _steps(total) if total else "no training step yet"
    silent = f", nothing new for {view.silent:.0f} s" if view.silent > QUIET and view.state == "running" else ""
    return one_line(f"{view.source} · {view.command} · {_time(view.elapsed)}, {far}{silent}")


def _steps(count: int) -> str:
    return f"{count:,} step{'' if count == 1 else 's'}"


def _time(seconds: float) -> str:
    """Time since the start: in seconds, from two minutes on in minutes, then in hours."""
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def step_line(view: LiveView) -> str:
    """Text of the front rank's step over the last minute; "" before there is one."""
    rank = view.front
    if rank is None or rank.step is None:
        return ""
    step = rank.step
    spread = f" {format_spread(step)}" if step.samples > 1 else ""
    rate = f", {format_samples(rank.rate)}" if rank.rate is not None else ""
    change = f", {format_change(view.change)} since the watch began" if view.change is not None else ""
    of = f", {rank.name}" if len(view.ranks) > 1 else ""
    last = format_duration(rank.wall)
    return f"Step {format_duration(step.value)}{spread}{rate}{change} ({_steps(rank.steps)} in the last {last}{of})"


def curve_line(rank: RankView) -> str:
    """Step time over the last minute, from 0, as a row of blocks; "" if there is none."""
    most = max(rank.curve, default=0.0)
    if not most:
        return ""
    return "".join(BLOCKS[max(1, round(8 * value / most)) if value else 0] for value in rank.curve)


def answer_of(view: LiveView) -> Answer:
    """Answer about the last minute: the front rank's step and its parts, every rank, and the diagnosis so far."""
    rank = view.front
    curve = curve_line(rank) if rank is not None else ""
    return Answer(
        title=title(view),
        headline=step_line(view) or title(view),
        head=(title(view), *([curve] if curve else [])) if step_line(view) else (),
        parts=(_parts(rank), _ranks(view), *_findings(view)),
        more=shlex.join(("steptime", "diagnose", view.source)),
        notes=notes(view),
    )


def _findings(view: LiveView) -> tuple[Section, ...]:
    """Diagnosis so far, of which a terminal shows the first finding; () before there is one."""
    found = view.diagnosed
    return (Section(found.headline, found.findings or (Item("", lines=(found.reason,)),), first=1),) if found else ()


def _parts(rank: RankView | None) -> Table:
    """Table of the last minute's parts in total. Per step they would contradict the step above, which leaves out steps
    that steptime or an evaluation made longer."""
    found = (*rank.phases, *rank.between) if rank is not None and rank.steps else ()
    return table_of(
        "parts", "", "", [each for each in found if each.share >= LEAST],
        word("", "part", lambda each: each.name),
        duration("", "time", lambda each: each.total),
        share("", "share", lambda each: each.share, barred=True),
    )  # fmt: skip


def _ranks(view: LiveView) -> Table:
    """Table with a row per rank, stragglers first; empty for a single rank."""
    ordered = sorted(view.ranks, key=lambda rank: not rank.late)
    several = len({rank.host for rank in view.ranks}) > 1

    return table_of(
        "ranks", "", "", ordered if len(ordered) > 1 else [],
        word("rank", "rank", lambda rank: rank.name),
        word("host", "host", lambda rank: rank.host if several else ""),
        integer("steps", "steps", lambda rank: rank.total),
        duration("step", "step_ns", lambda rank: rank.step.value if rank.step is not None else None),
        number("samples/s", "samples_per_s", lambda rank: rank.rate, lambda rate: f"{rate:,.0f}"),
        share("input", "input", lambda rank: next((part.share for part in rank.phases if part.name == "input"), 0.0)
                                             if rank.steps else None),
        share("between steps", "between", lambda rank: sum(p.share for p in rank.between) if rank.steps else None),
        size("memory", "bytes", lambda rank: rank.bytes),
        word(" ", "doing", lambda rank: rank.note(view.waiting)),
    )  # fmt: skip


def notes(view: LiveView) -> tuple[str, ...]:
    """Sentences on the front rank, and on the machine."""
    return (*rank_notes(view), *(machine_lines(view.machine) if view.machine is not None else ()))


def rank_notes(view: LiveView) -> tuple[str, ...]:
    """Sentences on the front rank's activity, queue, garbage and memory, on ranks left out, and on the last request."""
    rank, lines = view.front, []
    if rank is not None:
        about = []
        if rank.doing:
            about.append(f"now: {rank.doing}")
        if rank.queue is not None:
            about.append(f"loader queue: {rank.queue.ready:.1f} of {rank.queue.most} batches ready")
        if rank.collections:
            about.append(f"{format_count(rank.collections, 'garbage collection')}, {format_duration(rank.collecting)}")
        if rank.bytes is not None:
            about.append(f"{format_bytes(rank.bytes)} of memory")
        lines.append("; ".join(about))
    left_out = f"{format_count(view.left_out, 'further rank')} not read." if view.left_out else ""
    return tuple(filter(None, (*lines, left_out, view.notice)))


def machine_lines(sample: TelemetrySample) -> list[str]:
    """Lines of the newest sample of the machine: one per device of the job, then the CPUs."""
    of = f" of {sample.cpus}" if sample.cpus is not None else ""
    cpus = f"CPU: this job {sample.job_cpu:.1f}{of} cores, other processes {sample.other_cpu:.1f}"
    pressure = f"; CPU pressure {sample.pressure:.0f} %" if sample.pressure else ""
    return [*filter(None, map(_device_line, sample.devices)), cpus + pressure]


def _device_line(device: DeviceSample) -> str:
    """Text of the driver's data on a device; "" if it has none."""
    reported = []
    if device.utilization is not None:
        reported.append(f"{device.utilization:.0f} % busy")
    if device.memory_bytes is not None:
        most = f" of {format_bytes(device.memory_total_bytes)}" if device.memory_total_bytes else ""
        reported.append(f"{format_bytes(device.memory_bytes)}{most}")
    if device.clock_mhz is not None:
        most = f" of {device.max_clock_mhz:,}" if device.max_clock_mhz else ""
        reported.append(f"{device.clock_mhz:,}{most} MHz")
    if device.power_watts is not None:
        most = f" (limit {device.power_limit_watts:.0f} W)" if device.power_limit_watts else ""  # a mean may exceed it
        reported.append(f"{device.power_watts:.0f} W{most}")
    reasons = [name for bit, name in HELD_BACK if (device.throttle_reasons or 0) & bit]
    if reasons:
        reported.append(f"held back by {' and '.join(dict.fromkeys(reasons))}")
    if device.other_processes:
        reported.append(f"{format_count(device.other_processes, 'other program')} on it")
    return f"{device.name}: {', '.join(reported)}" if reported else ""


def line(view: LiveView) -> str:
    """Everything important in one line, for output without a terminal."""
    rank = view.front
    total = max((each.total for each in view.ranks), default=0)
    if rank is None or rank.step is None:
        return f"{_time(view.elapsed)}: {_steps(total) if total else 'no training step yet'}"
    shares = sorted((*rank.phases, *rank.between), key=lambda part: -part.share)[:3]
    reported = [f"step {format_duration(rank.step.value)}"]
    reported += [format_samples(rank.rate)] if rank.rate is not None else []
    reported += [f"{part.name} {format_share(part.share)}" for part in shares if part.share >= LEAST]
    late = [each.name for each in view.ranks if each.late]
    reported += [f"{' and '.join(late)} late ({format_duration(view.waiting)}/step)"] if late else []
    devices = view.machine.devices if view.machine is not None else ()
    if busy := sorted(each.utilization for each in devices if each.utilization is not None):
        displayed = "–".join(dict.fromkeys(f"{each:.0f}" for each in (busy[0], busy[-1])))
        reported.append(f"GPU{'s' * (len(busy) > 1)} {displayed} % busy")
    reported += [f"nothing new for {view.silent:.0f} s"] if view.silent > QUIET else []
    return one_line(f"{_time(view.elapsed)}: {_steps(total)}; {', '.join(reported)}")


def last_line(view: LiveView) -> str:
    total = max((each.total for each in view.ranks), default=0)
    if view.state == "ended":
        status = f" with status {view.exit_status}" if view.exit_status is not None else ""
        how = f"The job ended{status} after {_time(view.elapsed)}"
    else:
        how = f"No new data for {view.silent:.0f} s, and the job's end was not recorded"
    return one_line(f"{how}: {_steps(total)}.")
