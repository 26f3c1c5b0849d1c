"""The answer of `steptime bench`: headline, a table per setting of inputs, a chart of time over inputs or blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from steptime.answer.answer import Answer, confidence, with_confidence
from steptime.answer.page.axes import COLOURS, CurveChart, Tick, curve_figures, curve_of, decades, decades_of, middles
from steptime.answer.printable import one_line
from steptime.answer.tables import Cell, Column, Table, duration, interval, number, size, table_of, word
from steptime.callables.bench import NOT_TO_BE_TAKEN, Bench, BenchSetting, Contender, Standing
from steptime.quantities import Estimate, format_bytes, format_count, format_duration, format_rate, format_share
from steptime.report.sentences import interval_text

LONG_FIRST_CALL = 3.0
"""Ratio of first to later calls below which there was no compilation."""
NEAR_ONE, MOST_DECIMALS = 0.5, 4
"""NEAR_ONE: a ratio between this and its inverse is written with decimals, MOST_DECIMALS at most."""
LAUNCH_BOUND = 0.9
"""Fraction of a call's time on a device: if launching takes this much of it, the device waits for the CPU."""


def answer_of(bench: Bench) -> Answer:
    message, sure = headline(bench), badge(bench)
    return Answer(
        f"Bench of {', '.join(bench.options.callables)}", message, sure, (_head(bench),), tables(bench),
        tuple(notes(bench)), figures=curve_figures(chart(bench)),
        data=with_confidence({"bench": bench}, message, sure),
    )  # fmt: skip


def _head(bench: Bench) -> str:
    where = bench.device_name or (f"cpu, {format_count(bench.threads, 'thread')}" if bench.device == "cpu" else "")
    how = [
        "forward and backward" if bench.options.backward else "",
        f"{'cold' if bench.options.cold else 'warm'} caches",
    ]
    return one_line(" · ".join(filter(None, ("steptime bench", f"torch {bench.torch}", where or bench.device, *how))))


def headline(bench: Bench) -> str:
    """Headline: how the callables compare, and which of them must not be used."""
    failed = [each for each in bench.contenders if each.time is None]
    if failed and len(failed) == len(bench.contenders):
        return f"Nothing was timed. {failed[0].name} failed: {failed[0].sentence}."
    if not bench.contenders:
        return f"Nothing was timed: {bench.settings[0].failed}."
    bad = {each.name: each.standing.value for each in bench.contenders if each.standing in NOT_TO_BE_TAKEN}
    reported = _one_setting(bench.settings[0]) if len(bench.settings) == 1 else _several(bench)
    if not bad:
        return reported
    named = ", ".join(f"{name} ({why})" for name, why in bad.items())
    return f"{reported} Rejected: {named}." if reported else f"No comparison: {named}."


def _one_setting(setting: BenchSetting) -> str:
    first, *rest = setting.contenders
    timed = [(each, each.speed) for each in rest if each.speed is not None and each.standing not in NOT_TO_BE_TAKEN]
    if not timed:
        return "" if rest else f"{first.name} takes {_time(first)}."
    best, speed = max(timed, key=lambda each: each[1].value)
    return f"{_alongside(best, speed, first.name)}: {_time(best)} against {_time(first)}."


def _alongside(one: Contender, speed: Estimate, first: str) -> str:
    if one.standing is Standing.ALIKE:
        return f"No difference: {one.name} is {reach_text(speed)} times as fast as {first}"
    times = f"{ratio_text(speed)} times as fast as {first} ({reach_text(speed)} times)"
    if one.standing is Standing.FASTER:
        return f"{one.name} is {times}"
    if one.standing is Standing.SLOWER:
        return f"{one.name} is slower, {times}"
    return f"{one.name} may be faster or not, {times}"


def ratio_text(speed: Estimate) -> str:
    """Speed as text: "12.3", or near 1 with as many decimals as its interval needs."""
    return f"{speed.value:.{_decimals(speed)}f}" if _near_one(speed) else f"{speed.value:.3g}"


def reach_text(speed: Estimate) -> str:
    """Interval as text: "0.98 to 1.02", "0.9996 to 1.0004"."""
    low, high = speed.low, speed.high
    if _near_one(speed):
        return f"{low:.{_decimals(speed)}f} to {high:.{_decimals(speed)}f}"
    return f"{low:.3g} to {high:.3g}"


def _near_one(speed: Estimate) -> bool:
    return speed.low > NEAR_ONE and speed.high < 1 / NEAR_ONE


def _decimals(speed: Estimate) -> int:
    """Number of decimals, at least 2, with which the ends of the interval differ from each other and from 1."""
    ends = (speed.low, 1.0, speed.high)
    return next((many for many in range(2, MOST_DECIMALS) if len({f"{end:.{many}f}" for end in ends}) == len(ends)),
                MOST_DECIMALS)  # fmt: skip


def _several(bench: Bench) -> str:
    """Summary of several settings: how often each callable is faster, slower or alike, and the range of its speed."""
    count = len(bench.settings)
    names = [each.name for each in bench.settings[0].contenders][1:]
    reported = []
    for place, name in enumerate(names, 1):
        own = [setting.contenders[place] for setting in bench.settings if setting.contenders]
        known = [each.speed.value for each in own if each.speed is not None]
        won = ", ".join(
            f"{standing.value} on {many} of {count}"
            for standing in (Standing.FASTER, Standing.SLOWER, Standing.ALIKE, Standing.UNDECIDED)
            if (many := sum(each.standing is standing for each in own))
        )
        if known and not any(each.standing in NOT_TO_BE_TAKEN for each in own):
            whole = Estimate(known[0], min(known), max(known), 2, "1")
            reported.append(f"{name} is {reach_text(whole)} times as fast ({won} inputs)")
    first = bench.settings[0].contenders[0].name
    if not names:
        times = [each.contenders[0].time for each in bench.settings if each.contenders]
        low, high = (pick(each.value for each in times if each) for pick in (min, max))
        return f"{first} takes {format_duration(low)} to {format_duration(high)} on {count} inputs."
    return f"Next to {first}: {'; '.join(reported)}." if reported else f"No comparison with {first}."


def _time(contender: Contender) -> str:
    return format_duration(contender.time.value) if contender.time is not None else "–"


def badge(bench: Bench) -> str:
    """Confidence of the result, with its reason."""
    times = [each.time for setting in bench.settings for each in setting.contenders if each.time is not None]
    if not times:
        return "Unclear: nothing was timed."
    blocks = format_count(min(each.samples for each in times), "block")
    busy = f"other processes used {bench.other_cpus:.1f} CPUs meanwhile" if bench.under_load else ""
    basis = f"{blocks} each in {format_count(bench.processes, 'process')}"
    return confidence(times, basis, busy, enough=bench.processes > 1)


def tables(bench: Bench) -> tuple[Table, ...]:
    return tuple(_table(bench, setting, place) for place, setting in enumerate(bench.settings) if setting.contenders)


def _table(bench: Bench, setting: BenchSetting, place: int) -> Table:
    return table_of(
        f"setting-{place}", setting.inputs or "no arguments", "", setting.contenders,
        word("callable", "callable", lambda each: each.name, kind="code"),
        duration("median", "time_ns", lambda each: each.time.value if each.time else None, barred=True),
        duration("IQR", "iqr_ns", lambda each: each.iqr),
        interval("interval", lambda each: each.time, interval_text),
        duration("backward", "backward_ns", _backward),
        Column("speed", "speed", _speed),
        word("standing", "standing", lambda each: each.standing.value),
        number("error", "error", lambda each: each.error, lambda value: f"{value:.1g}"),
        number("FLOP/s", "FLOP/s", lambda each: each.rate, _against_peaks(bench, setting)),
        number("B/s at least", "B/s", lambda each: each.bandwidth, _against_copy(bench)),
        size("memory", "peak_bytes", lambda each: each.peak_bytes),
    )  # fmt: skip


def _backward(each: Contender) -> float | None:
    """Time of both passes minus the forward pass, ns."""
    if each.time is None or each.forward is None:
        return None
    return max(each.time.value - each.forward.value, 0.0)


def _speed(each: Contender) -> Cell:
    if each.speed is None:
        return Cell("", "")
    return Cell(f"{ratio_text(each.speed)}x ({reach_text(each.speed)})", each.speed.value)


def _against_peaks(bench: Bench, setting: BenchSetting) -> Callable[[float], str]:
    """Formatter of FLOP/s with the fraction of the peak in the inputs' dtype. If they exceed float32's peak, TF32's is
    used, which convolutions use by default."""
    names = (setting.format, "tf32") if setting.format == "float32" else (setting.format,)
    machine = bench.machine
    peaks = [(name, machine.matrix_rate(name)) for name in names] if machine is not None else []

    def words(value: float) -> str:
        share = next((f" ({format_share(value / peak)} of {_of(bench)}{name} peak)" for name, peak in peaks
                      if peak and value <= peak), "")  # fmt: skip
        return f"{format_rate(value)}FLOP/s{share}"

    return words


def _against_copy(bench: Bench) -> Callable[[float], str]:
    """Formatter of B/s with the fraction of a large copy's rate, or "more than" it for cached data."""
    copy = bench.machine.copy.value if bench.machine is not None and bench.machine.copy is not None else None

    def words(value: float) -> str:
        if copy is None:
            return f"{format_rate(value)}B/s"
        whole = f"{format_share(value / copy)} of" if value <= copy else "more than"
        return f"{format_rate(value)}B/s ({whole} {_of(bench) or 'a '}copy)"

    return words


def _of(bench: Bench) -> str:
    return "" if bench.machine is None or bench.machine.measured else "the datasheet's "


def notes(bench: Bench) -> Iterator[str]:
    """Yields sentences that accompany the table."""
    for setting in bench.settings:
        if setting.failed:
            yield one_line(f"Not timed: {setting.inputs or setting.dtype or 'a setting'}: {setting.failed}.")
    reported = (f"{each.name} ({each.standing.value}): {each.sentence}." for each in bench.contenders if each.sentence)
    yield from map(one_line, dict.fromkeys(reported))
    yield from _first_calls(each for setting in bench.settings[:1] for each in setting.contenders)
    yield from _of_calls(bench)


def _of_calls(bench: Bench) -> Iterator[str]:
    """Notes on changed arguments, overhead-bound calls and printed output."""
    changing = dict.fromkeys(each.name for each in bench.contenders if each.changes)
    if changing:
        yield one_line(
            f"{', '.join(changing)} {'change their' if len(changing) > 1 else 'changes its'} arguments: each "
            "call starts from the values that the last one left."
        )
    timed = ((each, each.launch, each.time) for each in bench.contenders)
    waiting = [each.name for each, launch, time in timed if launch and time and launch > LAUNCH_BOUND * time.value]
    if waiting:
        yield one_line(
            f"{', '.join(waiting)}: overhead-bound; the CPU needs nearly all of the time to launch the kernels."
        )
    printed = sum(setting.printed for setting in bench.settings)
    if printed:
        yield f"They print while timed ({format_bytes(printed)}, not shown), which is part of the measured time."


def _first_calls(contenders: Iterable[Contender]) -> Iterator[str]:
    for each in contenders:
        if each.mode == "eager" or each.first_call is None or each.time is None:
            continue
        if each.first_call < LONG_FIRST_CALL * each.time.value:
            continue
        paid = f", paid back after {each.pays_after:,.0f} calls" if each.pays_after is not None else ""
        yield one_line(f"{each.name}: the first call took {format_duration(each.first_call)}{paid}.")


def chart(bench: Bench) -> CurveChart | None:
    """Chart of time over inputs, or over blocks if there is only one setting. None without times."""
    settings = [setting for setting in bench.settings if setting.contenders]
    times = [each.time for setting in settings for each in setting.contenders if each.time is not None]
    if not times:
        return None
    if len(settings) < 2:
        return over_blocks(settings[0])
    axis, places = decades_of(times), middles(len(settings))
    curves = []
    for place, contender in enumerate(settings[0].contenders):
        known = [(x, setting.contenders[place].time) for x, setting in zip(places, settings, strict=True)]
        drawn = [(x, each) for x, each in known if each is not None]
        curves.append(curve_of(contender.name, place % COLOURS, drawn, axis))
    labels = tuple(Tick(x, setting.inputs) for x, setting in zip(places, settings, strict=True))
    return CurveChart(tuple(curves), labels, axis.every_tick(format_duration))


def over_blocks(setting: BenchSetting) -> CurveChart | None:
    """Chart of a call's time in each block: rising clocks and other programs show as steps in all curves."""
    drawn = [(number, each) for number, each in enumerate(setting.contenders) if each.blocks]
    axis = decades([max(block, 1.0) for _, each in drawn for block in each.blocks])
    curves = tuple(
        curve_of(
            each.name,
            number % COLOURS,
            [(place, Estimate(block, block, block, 1))
             for place, block in zip(middles(len(each.blocks)), each.blocks, strict=True)],
            axis,
        )
        for number, each in drawn
    )  # fmt: skip
    across = (Tick(0.0, "first block"), Tick(100.0, "last"))
    return CurveChart(curves, across, axis.every_tick(format_duration), "Time per call, by block")
