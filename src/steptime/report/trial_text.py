"""Trials and the lab in a terminal: at most 25 lines each, ending with the next command.

A gain is shown with its interval, or not at all; what trains something else (no input, other batches) is an upper bound
or a throughput, never a win.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from statistics import fmean, median, quantiles

from steptime.advice.fix import Goal
from steptime.quantities import (
    Estimate,
    format_bytes,
    format_change,
    format_count,
    format_duration,
    format_samples,
    format_share,
)
from steptime.report.printable import one_line, printable
from steptime.report.trials import TrialReport, Tried
from steptime.trials.judge import MIN_GAIN, usual_step
from steptime.trials.plan import NO_INPUT, BatchSizePoint, plateau, points_of, workers_of
from steptime.trials.results import Results
from steptime.trials.trial import BASELINE, CONTROL, MAX_ROUNDS, PATCH, Judgement, Run, TrialVerdict, batch_of

LINES = 25
ORDER = (
    TrialVerdict.ADOPT,
    TrialVerdict.UNDECIDED,
    TrialVerdict.NO_EFFECT,
    TrialVerdict.SLOWER,
    TrialVerdict.MORE_MEMORY,
    TrialVerdict.SUSPICIOUS,
    TrialVerdict.NOT_REACHED,
    TrialVerdict.BROKE_PROMISE,
    TrialVerdict.NOT_EXERCISED,
    TrialVerdict.FAILED,
)
_VARIANTS = 12
_AT = {Goal.SPEED: "at", Goal.MEMORY: "with peak"}
LONG_COMPILATION = 0.5
"""Seconds."""


def render_trial(results: Results, advice: Sequence[str] = (), next_command: str = "") -> str:
    """The whole text, with a line feed at its end. advice: sentences on what only the user can do."""
    goal = results.plan.goal
    singles = [judgement for stage, judgement in results.judgements if stage == 0]
    ordered = sorted(singles, key=lambda each: (ORDER.index(each.verdict), -_gain(each, goal)))
    top = [
        one_line(f"Trials of {shlex.join(results.plan.command)}"),
        _baseline(results.runs, goal),
        "",
    ]
    bottom = [*_predictions(singles), *_by_workers(results), *_combined(results), *_patch(results)]
    bottom += _crowded(results.runs, goal)
    if next_command:
        bottom.append(f"Next:  {one_line(next_command)}")
    displayed = [_variant(judgement, results.runs, goal) for judgement in ordered[:_VARIANTS]]
    rows = [line for pair in displayed for line in pair]
    if len(ordered) > _VARIANTS:
        rows.append(f"  … and {len(ordered) - _VARIANTS} more, in the results file")
    room = LINES - len(top) - len(bottom) - 1
    if len(rows) > room:  # the reasons go before the figures do
        rows = [line for line, _ in displayed][:room]
    left = max(0, room - len(rows))
    reported = [f"Yours: {one_line(each)}" for each in advice][:left]
    return "".join(f"{printable(line)}\n" for line in (*top, *rows, *reported, "", *bottom))


def _baseline(runs: Sequence[Run], goal: Goal) -> str:
    first = [run for run in runs if run.stage == 0]
    step = usual_step(first)
    if step is None:
        return "The job as it is was not timed."
    rounds = sum(run.variant == CONTROL and not run.rehearsal for run in first)
    processes = f"{len(runs)} processes, {format_count(rounds, 'round')}"
    peak = max((run.peak_bytes or 0 for run in first if run.variant in (BASELINE, CONTROL)), default=0)
    memory = f"peak memory {format_bytes(peak)}; " if goal is Goal.MEMORY and peak else ""
    spent = format_duration(sum(run.seconds for run in runs) * 1e9)
    return f"As it is: {memory}step {format_duration(step.value)} ({processes}, {spent})"


def _variant(judgement: Judgement, runs: Sequence[Run], goal: Goal) -> tuple[str, str]:
    """What was tried, what came out; and why, on a line of its own."""
    variant = judgement.variant
    label = one_line(f"{variant.proposal} {variant.label}")
    line = f"{label:<41} {gain_text(judgement, goal) or '–':<19} {judgement.verdict.value}"
    pays = _pays_from(judgement, runs) if goal is Goal.SPEED else ""
    why = f"    {_extra(judgement, goal)}{pays}{one_line(reason_text(judgement))}"
    return line, why


def reason_text(judgement: Judgement) -> str:
    """Why a judgement is what it is; of one that stays open, that nothing further is run."""
    ended = judgement.verdict is TrialVerdict.UNDECIDED and judgement.rounds >= MAX_ROUNDS
    sentence = judgement.sentence.rstrip(".")
    return f"{sentence}; {MAX_ROUNDS} rounds, the most that are run, did not decide it" if ended else sentence


def _extra(judgement: Judgement, goal: Goal) -> str:
    if goal is Goal.MEMORY:
        return f"{judgement.speed.value:.2f}× as fast; " if judgement.speed is not None else ""
    predicted, speed = judgement.variant.predicted, judgement.speed
    if predicted is None or speed is None:
        return ""
    return f"predicted {predicted.value:.2f}× ({format_change(predicted.value / speed.value - 1)}); "


def _predictions(judgements: Sequence[Judgement]) -> list[str]:
    """How far the predictions were from what was measured, where there are several."""
    known = [(each.variant.predicted, each.speed) for each in judgements]
    errors = [predicted.value / speed.value - 1 for predicted, speed in known if predicted and speed]
    if len(errors) < _FEWEST_PREDICTED:
        return []
    off, worst = median(map(abs, errors)), max(errors, key=abs)
    reported = f"{format_share(off)} in the median, {format_change(worst)} at most"
    return [f"Predicted against measured: off by {reported}, of {len(errors)}"]


def _pays_from(judgement: Judgement, runs: Sequence[Run]) -> str:
    """From which step on the time that it compiles is paid back, where that is considerable. The longest compilation
    counts: the others found it in a cache."""
    step, speed = usual_step([run for run in runs if run.stage == 0]), judgement.speed
    if step is None or speed is None or judgement.verdict is not TrialVerdict.ADOPT:
        return ""
    longest = {
        variant: max((run.compile_seconds for run in runs if run.variant == variant), default=0.0)
        for variant in (judgement.variant.name, BASELINE)
    }
    compiling = longest[judgement.variant.name] - longest[BASELINE]
    saved = step.value * (1 - 1 / speed.value)
    return f"pays from step {compiling * 1e9 / saved:,.0f} on; " if compiling >= LONG_COMPILATION else ""


_FEWEST_PREDICTED = 2
_MOST_TRIED = 3
_MOST_CHANGED = 3
"""Variants, and lines of a patch, that are told beside a report."""


def trial_lines(trials: TrialReport) -> list[str]:
    """A trial beside the report of its recording, in short: what was tried and what came out, and the patch's lines."""
    names = [verdict.value for verdict in ORDER]
    singles = [each for each in trials.variants if each.stage == 0 and each.name != PATCH]
    ordered = sorted(singles, key=lambda each: (names.index(each.verdict), -(each.speed.value if each.speed else 0)))
    reported = [f"{each.proposal} {each.label} {_came_out(each)}".strip() for each in ordered[:_MOST_TRIED]]
    more = [f"{len(ordered) - _MOST_TRIED} more"] if len(ordered) > _MOST_TRIED else []
    base = f", step {format_duration(trials.step_ns)} as it is" if trials.step_ns is not None else ""
    lines = [f"Tried: {'; '.join([*reported, *more])} ({trials.processes} processes{base})"] if reported else []
    if not trials.diff:
        return lines
    patch = next((each for each in trials.variants if each.name == PATCH), None)
    changed = [line for line in trials.diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]
    left = len(changed) - _MOST_CHANGED
    behind = f" (and {format_count(left, 'more line')} of it)" if left > 0 else ""
    displayed = [f"  {line[0]} {line[1:].strip()}" for line in changed[:_MOST_CHANGED]]
    return [*lines, f"Patch: {_came_out(patch) if patch is not None else 'not timed'}{behind}", *displayed]


def _came_out(variant: Tried) -> str:
    """ "1.66× (1.60–1.73), adopt"."""
    return f"{speed_text(variant.speed)}, {variant.verdict}" if variant.speed is not None else variant.verdict


def speed_text(speed: Estimate) -> str:
    """ "2.90× (2.70–3.10)"."""
    return f"{speed.value:.2f}× ({speed.low:.2f}–{speed.high:.2f})"


def memory_text(memory: Estimate) -> str:
    """A ratio of peaks, the baseline's over the variant's, as what the peak changed by: "−38 % (−40 to −36)"."""
    value, low, high = (format_change(1 / max(each, 1e-9) - 1) for each in (memory.value, memory.high, memory.low))
    return f"{value} ({low.removesuffix(' %')} to {high.removesuffix(' %')})"


def gain_text(judgement: Judgement, goal: Goal) -> str:
    """What was gained at the goal, "" where that is not known."""
    gain = judgement.gain(goal)
    if gain is None:
        return ""
    return memory_text(gain) if goal is Goal.MEMORY else speed_text(gain)


def _by_workers(results: Results) -> list[str]:
    """Steps per second by number of workers, as bars, with the measured optimum: the smallest number that no other one
    beats beyond doubt. Of a sweep only."""
    step = usual_step([run for run in results.runs if run.stage == 0])
    tried = {workers_of(each.variant): each.speed for stage, each in results.judgements if stage == 0}
    speeds = {workers: speed for workers, speed in tried.items() if workers is not None and speed is not None}
    if step is None or len(tried) < 2 or len(speeds) < 2 or None in tried:
        return []
    rate = 1e9 / step.value
    fastest = max(1.0, *(speed.value for speed in speeds.values()))
    lines = [f"Steps a second by workers (as it is: {_rate(rate)})"]
    for workers, speed in sorted(speeds.items()):
        bar = "█" * max(1, round(_BAR * speed.value / fastest))
        interval = f"({_rate(rate * speed.low)}–{_rate(rate * speed.high)})"
        lines.append(f"  {workers:>4}  {_rate(rate * speed.value):>8} {interval:<19} {bar}")
    surest = max(speed.low for speed in speeds.values())
    if surest <= 1:
        return [*lines, "Optimum: the job's own number, as none of these is faster beyond doubt"]
    optimum = min(workers for workers, speed in speeds.items() if speed.high >= surest)
    further = ", the most that were tried: more may bring more" if optimum == max(speeds) else ""
    return [*lines, f"Optimum: {format_count(optimum, 'worker')}{further}"]


def _combined(results: Results) -> list[str]:
    later = [judgement for stage, judgement in results.judgements if stage > 0 and judgement.variant.name != "patch"]
    gained = gain_text(later[-1], results.plan.goal) if later else ""
    if not gained:
        return []
    return [f"Together: {later[-1].variant.label}: {gained} {later[-1].verdict.value}"]


def _patch(results: Results) -> list[str]:
    patch = results.patch
    if patch is None:
        return []
    lines = []
    if patch.diff:
        gained = gain_text(patch.judgement, results.plan.goal) if patch.judgement is not None else ""
        ran = f"ran {_AT[results.plan.goal]} {gained}" if gained else "was not timed"
        lines.append(f"Patch: this diff {ran}: patch.diff beside the results")
        lines += [f"    {one_line(patch.replaced[0])}{_of(patch.replaced)}"] if patch.replaced else []
    elif patch.judgement is not None and patch.judgement.verdict in (TrialVerdict.FAILED, TrialVerdict.BROKE_PROMISE):
        lines.append(f"Patch: none, as it failed when it ran by itself: {one_line(patch.judgement.sentence)}")
    if patch.environment:
        lines.append("Environment: " + " ".join(f"{name}={value}" for name, value in patch.environment))
    if patch.snippets:
        first, *further = patch.snippets[0].split("\n")
        code = (
            f"To write yourself{_of(patch.snippets)}: {one_line(first)}",
            *(f"    {each.rstrip()}" for each in further),
        )
        lines.append("\n".join(code))  # one for the count of LINES: no verdict gives way to it
    if not patch.apply:
        return lines
    timed = not patch.diff or patch.judgement is not None
    return [*lines, f"Apply it{'' if timed else ' untimed'}: {one_line(patch.apply)}"]


def _of(several: Sequence[str]) -> str:
    """That the first of them is not the only one."""
    return f" (and {len(several) - 1} more in results.jsonl)" if len(several) > 1 else ""


def _crowded(runs: Sequence[Run], goal: Goal) -> list[str]:
    """What the machine did besides, where that was considerable."""
    busiest = max((run.load.other_cpu for run in runs), default=0.0)
    peak = max((run.peak_bytes or 0 for run in runs), default=0)
    lines = [f"Other load on the machine: up to {busiest:.1f} CPUs during a process"] if busiest > 0.25 else []
    return [*lines, f"Peak memory: {format_bytes(peak)}"] if peak and not lines and goal is Goal.SPEED else lines


def _gain(judgement: Judgement, goal: Goal) -> float:
    gain = judgement.gain(goal)
    return gain.value if gain is not None else 0.0


NO_TIME = "no time was left for it"
_LABEL, _BAR = 31, 30
_WORTH = 1.1
"""An upper bound below this is not worth looking for."""


def render_lab(
    results: Results,
    batch_size: int | None,
    next_command: str,
    capacity: int | None = None,
    samples: float | None = None,
) -> str:
    """The whole text, with a line feed at its end. batch_size: the job's own, None where it is not known; capacity:
    bytes that it may have, likewise; samples: that a step of it reads, likewise."""
    judgements = [each for stage, each in results.judgements if stage == 0 and batch_of(each.variant) is None]
    timed = [run for run in results.runs if not run.rehearsal and run.step_ns]
    head = f"{'':<{_LABEL}} {'mean':>8} {'IQR':>8}  {'speed-up':<19} peak"
    rows = [_line("as it is", timed, (BASELINE, CONTROL), "1")]
    for each in judgements:
        untimed = each.verdict is TrialVerdict.UNDECIDED and not any(run.variant == each.variant.name for run in timed)
        speed = speed_text(each.speed) if each.speed is not None else NO_TIME if untimed else each.verdict.value
        rows.append(_line(each.variant.label, timed, (each.variant.name,), speed))
    reasons = [f"  {each.variant.label}: {each.verdict.value}: {one_line(each.sentence)}" for each in judgements
               if each.verdict in _EXPLAINED]  # fmt: skip
    points = size_points(results, batch_size)
    step = usual_step(timed)
    rate = f": {format_samples(samples / step.value * 1e9)} as it is" if samples and step is not None else ""
    lines = [one_line(f"Lab of {shlex.join(results.plan.command)}{rate}"), "", head, *rows, ""]
    if not timed:
        reasons = [each for each in reasons if "nothing was timed" not in each]
        lines = [*lines[:1], "Nothing was timed: the budget was too short for a first round.", ""]
    lines += [*reasons, *_drifted(judgements, timed), *_compilation(judgements, timed), *_curve(points)]
    end = [reading(judgements, points, capacity)] if timed else []
    end += [f"Next:  {one_line(next_command)}"]
    if len(lines) + len(end) > LINES:
        lines = [line for line in lines if line]
    return "".join(f"{printable(line)}\n" for line in (*lines[: LINES - len(end)], *end))


_EXPLAINED = frozenset({TrialVerdict.BROKE_PROMISE, TrialVerdict.NOT_EXERCISED, TrialVerdict.FAILED})


def _line(label: str, timed: Sequence[Run], variants: Sequence[str], speed: str) -> str:
    """A row of the lab: step (the mean, of which the speed-up is) and spread are means over the runs of these variants,
    memory their largest peak."""
    runs = [run for run in timed if run.variant in variants]
    if not runs:
        return f"{label:<{_LABEL}} {'–':>8} {'–':>8}  {speed}"
    step = _mean_step(runs)
    spread = fmean(_spread(run.step_ns) for run in runs)
    peak = max(run.peak_bytes or 0 for run in runs)
    times = f"{format_duration(step):>8} {format_duration(spread):>8}"
    text = f"{label:<{_LABEL}} {times}  {speed:<19} {format_bytes(peak) if peak else ''}"
    return text.rstrip()


def _mean_step(runs: Sequence[Run]) -> float:
    """ns."""
    return fmean(fmean(run.step_ns) for run in runs)


def _drifted(judgements: Sequence[Judgement], timed: Sequence[Run]) -> list[str]:
    """A sentence for rows whose speed-up says another thing than their steps: it compares each run with the runs of the
    job as it is right before and after it, and the machine's pace has changed in between."""
    base = [run for run in timed if run.variant in (BASELINE, CONTROL)]
    rows = []
    for each in judgements:
        runs = [run for run in timed if run.variant == each.variant.name]
        if each.speed is None or not runs or not base:
            continue
        of_means = _mean_step(base) / _mean_step(runs)
        if (of_means - 1) * (each.speed.value - 1) < 0 and max(abs(of_means - 1), abs(each.speed.value - 1)) >= 0.005:
            rows.append(each.variant.label)
    if not rows:
        return []
    them = "it is" if len(rows) == 1 else "they are"
    return [f"  {', '.join(rows)}: {them} compared with the runs right before and after, as the machine's pace changed"]


def _spread(values: Sequence[int]) -> float:
    """Interquartile range."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4)
    return high - low


def _compilation(judgements: Sequence[Judgement], timed: Sequence[Run]) -> list[str]:
    """What compiling costs once, and after how many steps that is paid back."""
    base = usual_step(timed)
    lines = []
    for judgement in judgements:
        seconds = [
            run.compile_seconds for run in timed if run.variant == judgement.variant.name and run.compile_seconds > 0
        ]
        if not seconds or base is None or judgement.speed is None:
            continue
        saved = base.value * (1 - 1 / judgement.speed.value)
        spent = fmean(seconds)
        sure = judgement.speed.low > 1
        paid = f"paid back after {spent * 1e9 / saved:,.0f} steps" if sure else "not known ever to be paid back"
        lines.append(f"  {judgement.variant.label}: compiles {spent:.1f} s, {paid}")
    return lines


def size_points(results: Results, batch_size: int | None) -> tuple[BatchSizePoint, ...]:
    """The batch sizes of a lab, the job's own among them; nothing where none other was tried."""
    timed = [run for run in results.runs if not run.rehearsal and run.step_ns]
    sizes = [each for _, each in results.judgements if batch_of(each.variant) is not None]
    base = usual_step(timed)
    peak = max((run.peak_bytes or 0 for run in timed if run.variant in (BASELINE, CONTROL)), default=0)
    return points_of(sizes, base.value, batch_size, peak or None) if sizes and base is not None else ()


def _curve(points: Sequence[BatchSizePoint]) -> list[str]:
    """Items per second by batch size, as bars; out of memory is one of the results."""
    most = max((point.rate.value for point in points if point.rate is not None), default=0.0)
    lines = ["Items a second by batch size"] if points else []
    for point in points:
        if point.rate is None:
            why = "out of memory" if point.out_of_memory else one_line(point.failure) or NO_TIME
            lines.append(f"  {point.size:>7,}  {why}")
        else:
            bar = "█" * max(1, round(_BAR * point.rate.value / most))
            interval = f"({_rate(point.rate.low)}–{_rate(point.rate.high)})" if point.rate.samples > 1 else "(as it is)"
            peak = format_bytes(point.peak) if point.peak else ""
            lines.append(f"  {point.size:>7,}  {_rate(point.rate.value):>8} {interval:<19} {peak:>8} {bar}")
    return lines


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def reading(judgements: Sequence[Judgement], points: Sequence[BatchSizePoint] = (), capacity: int | None = None) -> str:
    """The table in a sentence."""
    parts = [*_peaks(judgements), *_paying(judgements), *_sizes(points), *_margin(points, capacity)]
    text = "; ".join(parts) or "nothing could be timed"
    return f"Reading: {text[:1].upper()}{text[1:]}."


def _peaks(judgements: Sequence[Judgement]) -> list[str]:
    """What no input, and on CUDA no launch, would bring."""
    upper_bound = next((each.speed for each in judgements if each.variant.name == NO_INPUT), None)
    if upper_bound is None:
        return []
    if upper_bound.low > _WORTH:
        return [f"a perfect input would make steps {upper_bound.value:.2f}× as fast"]
    return ["the input costs next to nothing"] if upper_bound.high < _WORTH else []


def _paying(judgements: Sequence[Judgement]) -> list[str]:
    adopted = [each for each in judgements if each.verdict is TrialVerdict.ADOPT and each.speed is not None]
    best = max(adopted, key=lambda each: each.speed.value if each.speed is not None else 0.0, default=None)
    if best is not None and best.speed is not None:
        return [f"{best.variant.label} pays ({best.speed.value:.2f}×)"]
    tried = any(each.speed is not None or each.verdict is not TrialVerdict.UNDECIDED for each in judgements)
    return ["no precision or compilation tried here is faster beyond doubt"] if tried else []


FEWER_UPDATES = "with larger batches an epoch makes fewer updates: tune the learning rate anew"


def _sizes(points: Sequence[BatchSizePoint]) -> list[str]:
    known = [point for point in points if point.rate is not None]
    if len(known) < 2:
        return []
    size, out = plateau(points), next((point.size for point in points if point.out_of_memory), None)
    if size is not None:
        (rate,) = (point.rate.value for point in known if point.size == size and point.rate is not None)
        wide = any(point.rate.high > rate * (1 + MIN_GAIN) for point in known if point.size > size and point.rate)
        unsure = ", as far as the intervals tell (a longer --budget narrows them)" if wide else ""
        return [f"beyond batches of {size} throughput hardly grows{unsure}", FEWER_UPDATES]
    end = f" to {known[-1].size}, and {out} runs out of memory" if out is not None else f" up to {known[-1].size}"
    return [f"throughput still grows{end}", FEWER_UPDATES]


def _margin(points: Sequence[BatchSizePoint], capacity: int | None) -> list[str]:
    """How much of the memory the largest size leaves that fits."""
    largest = next((point for point in reversed(points) if point.rate is not None and point.peak), None)
    if len(points) < 2 or largest is None or largest.peak is None or not capacity:
        return []
    left = format_share(max(0.0, 1 - largest.peak / capacity))
    return [f"the largest batch that was timed, {largest.size}, leaves {left} of {format_bytes(capacity)} free"]
