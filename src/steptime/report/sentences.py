"""Texts on a report's figures for all renderers: source lines, intervals, roofline, predictions, own cost."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from steptime.advice.device_uses import MachineUse, ReplayUse, RooflineUse
from steptime.advice.evidence import Case
from steptime.advice.kernels import tensor_core_name
from steptime.advice.run_uses import StepSummary
from steptime.advice.savings import IDLE
from steptime.advice.verdict import WORDS, steps_text
from steptime.analysis.what_if.elsewhere import Elsewhere
from steptime.analysis.what_if.what_if import Prediction
from steptime.answer.printable import one_line, reachable
from steptime.quantities import (
    Estimate,
    SourceLine,
    format_count,
    format_duration,
    format_intensity,
    format_rate,
    format_samples,
    format_share,
    format_source,
)
from steptime.report.json import sources_of
from steptime.report.report import Cost, ProcessReport, Report, Throughput
from steptime.report.steps import EXCLUDING, MOST_MARKS, THINNED

MENTIONED = 0.05
"""Fraction of the kernels' time from which on a reason for missing models is mentioned."""
NEARLY_ALL = 0.95
"""Fraction of the kernels' time with a model below which its sum is only a lower bound."""
ONE_HALF = 0.5
"""Fraction of the kernels' time in graphs from which on these explain the missing models."""
BETWEEN = 1.1
"""Time from step to step, as a multiple of the step, above which steptime's cost refers to that time."""
SMALLEST = 0.005
"""Fraction of the step below which predictions and shares are not shown."""
_BOUNDS = (("memory", "memory"), ("compute", "arithmetic"), ("latency", "latency"), ("unmodelled", "unmodelled"))
"""Fields of `RooflineUse` and their words."""


def source_text(source: SourceLine) -> str:
    """Source line for a reader: "train.py:12: loss.backward()"."""
    return one_line(place_text(source) + (f": {source.text}" if source.text else ""))


def place_text(source: SourceLine) -> str:
    """Place of a line, as an editor opens it from the current folder: "deep/train.py:12"."""
    return from_here(format_source(source), (source,))


def placed(process: ProcessReport) -> ProcessReport:
    """Process whose sentences name every place by the path that an editor opens from the current folder."""
    sources = tuple(sources_of(process))

    def here(text: str) -> str:
        return from_here(text, sources)

    findings = tuple(
        replace(each, summary=here(each.summary), advice=here(each.advice), evidence=tuple(map(here, each.evidence)))
        for each in process.findings
    )
    verdict = replace(process.verdict, sentence=here(process.verdict.sentence))
    return replace(process, verdict=verdict, findings=findings, notes=tuple(map(here, process.notes)))


def from_here(text: str, sources: Iterable[SourceLine]) -> str:
    """Text whose short places ("train.py:12") are replaced by paths that an editor opens from the current folder;
    ambiguous file names stay short."""
    paths: dict[str, set[str]] = {}
    for source in sources:
        if source.line and (short := format_source(source)) in text and (path := reachable(source.file)):
            paths.setdefault(short, set()).add(path)
    for short, found in paths.items():
        if len(found) == 1:
            place = one_line(f"{found.pop()}:{short.rpartition(':')[2]}")
            text = place.join(re.split(rf"(?<![\w./\\-]){re.escape(short)}(?!\d)", text))
    return text


def interval_text(estimate: Estimate) -> str:
    """Interval as text: "95.1 ms to 97.3 ms"; "one step, no spread" for a single step."""
    if estimate.samples < 2:
        return "one step, no spread"
    return f"{format_duration(estimate.low)} to {format_duration(estimate.high)}"


def step_text(step: StepSummary) -> str:
    """Step with its mean as text: "70.6 ms ± 3.74 ms, mean of 34 steps"."""
    duration, reported = format_duration(step.duration.value), steps_text(step)
    if step.steady == 1:
        return f"{duration}, one step"
    if step.steady > 1 and "± " in reported:
        steps, _, spread = reported.partition(", ")
        return f"{duration} {spread}, mean of {steps}"
    return f"{duration}, mean of {reported}"


def left_out_text(process: ProcessReport) -> str:
    """Steps that the mean excludes, and why: "1 warm-up, 14 for measurements of steptime, …"; "" for none."""
    step, series = process.case.step, process.series
    use = process.case.outliers
    outliers = use.left_out - use.at_segments if use is not None else 0
    excluded = step.total - step.steady - step.warm_up - outliers - step.behind
    job, rest = list[tuple[int, str]](), "interrupted"
    if series is not None and len(series.marks) < MOST_MARKS and THINNED not in series.names:
        kinds = Counter(series.names[kind] for kind in series.kinds)
        job = [(kinds[name], name) for name in EXCLUDING]
        rest = "for measurements of steptime"
    ours = excluded - sum(count for count, _ in job)
    aside = "outlier" if outliers == 1 else "outliers"
    counts = ((step.warm_up, "warm-up"), (ours, rest), *job, (outliers, aside), (step.behind, "after the profiler"))
    return ", ".join(f"{count} {what}" for count, what in counts if count > 0)


def throughput_text(throughput: Throughput | None, device: str = "cpu", ranks: int = 1) -> str:
    """Throughput as text: "401 samples/s in a steady step, 280 samples/s over the whole run"; "" if unknown. With
    several ranks, the text has the rate of each and of all together, because each reads its own batches. If no loader
    defines a sample, the text ends with what is counted."""
    if throughput is None:
        return ""
    each = "" if device == "cpu" else "/GPU"  # a process trains on one
    tokens = f", {throughput.token_rate:,.0f} tokens/s{each}" if throughput.token_rate is not None else ""
    own = (each or " per rank") if ranks > 1 else ""
    whole = f" ({format_samples(ranks * throughput.rate)} by {ranks} ranks)" if ranks > 1 else ""
    run = f"{format_samples(throughput.run_rate)}{own}"
    counted = f" (samples: rows of {throughput.model}'s inputs)" if throughput.model else ""
    return f"{format_samples(throughput.rate)}{own}{whole}{tokens} in a steady step, {run} over the whole run{counted}"


def cost_text(cost: Cost, step: float) -> str:
    """Cost as text: "27 µs/step always (< 0.1 %); 1.5 s once, for 6 profiled steps (22 % of this 7 s run)". step:
    ns."""
    always = "always-on timers not measured"
    if cost.always_ns is not None:
        about = "" if cost.measured else "about "
        always = f"{about}{format_duration(cost.always_ns)}/step always ({format_share(cost.always_ns / step)})"
        if cost.span_ns > BETWEEN * step:
            whole = f"{format_share(cost.always_ns / cost.span_ns)} of {format_duration(cost.span_ns)}"
            always = f"{about}{format_duration(cost.always_ns)} always, between step starts ({whole})"
    if cost.tracer is not None:
        longer = f"{format_duration(cost.tracer.value)}/step ({format_share(cost.tracer.value / step)})"
        always += f"; {longer} more since the profiler was on, though its tracer was detached (unless TEARDOWN_CUPTI=0)"
    counts = ((cost.lined_steps, "line-timed"), (cost.profiled_steps, "profiled"))
    looked = " and ".join(f"{count} {how}" for count, how in counts if count)
    what = f", for {looked} step{'' if cost.lined_steps + cost.profiled_steps == 1 else 's'}" if looked else ""
    share = ""
    if cost.run_ns:
        share = f" ({format_share(cost.once_ns / cost.run_ns)} of this {format_duration(cost.run_ns)} run)"
    peaks = f"; {format_duration(cost.peaks_ns)} after the job, for this machine's peaks" if cost.peaks_ns else ""
    around = cost.before_ns + cost.after_ns
    outside = f"; {format_duration(around)} before and after the job, for its start and this report" if around else ""
    return f"{always}; {format_duration(cost.once_ns)} once{what}{share}{outside}{peaks}"


LESS = "profiled less than usual"
"""Start of the probe's note on that."""


def own_cost_text(process: ProcessReport) -> str:
    """Text on steptime's own cost, and on what it left out to save time and memory; "" if no job was measured."""
    if process.cost is None:
        return ""
    less = [note for note in process.notes if note.startswith(LESS)]
    return "; ".join((cost_text(process.cost, process.case.step.duration.value), *less[-1:]))


def roofline_sentences(case: Case) -> tuple[str, ...]:
    """Sentences on the bounds of the computing, its rates, and the origin of the peaks."""
    roofline, machine = case.roofline, case.machine
    if roofline is None:
        return ()
    bounds, reached, moved = bounds_text(roofline, case), reached_text(case), balance_text(case)
    sentences = [f"{bounds[:1].upper()}{bounds[1:]}."] if bounds else []
    if reached:
        sentences.append(f"Reached: {reached}.")
    if moved:
        sentences.append(f"{moved[:1].upper()}{moved[1:]}.")
    if roofline.tensor_cores is not None:
        share = format_share(roofline.tensor_cores)
        units = tensor_core_name(machine.name if machine is not None else case.step.device)
        sentences.append(f"{units} ran {share} of the matmul time.")
    if roofline.modelled < NEARLY_ALL:
        share = format_share(1 - roofline.modelled)
        sentences.append(f"Kernels of unknown cost take {share}; the shortest of them count as latency.")
    whole = sum(use.duration for use in case.kernels)
    alone = sum(use.duration for use in case.kernels if not use.operator and use.bound != "communication")
    if alone > MENTIONED * whole:
        share = format_share(alone / whole)
        sentences.append(f"{share} of it belongs to no operator (launched before the trace started?).")
    if machine is not None and not (machine.measured and roofline.peak):  # it was reported with what was reached
        source = f" ({machine.source})" if machine.source and not machine.measured else ""
        sentences.append(f"Peaks of {machine.name}: {origin(machine)}{source}.")
    return tuple(sentences)


def bounds_text(roofline: RooflineUse, case: Case) -> str:
    """Compute category by bound: "compute bound by memory 61 %, arithmetic 30 %, …"; "" without known peaks."""
    if not roofline.flops and not roofline.bytes:
        return f"kernels of unknown cost: {_why_unmodelled(case)}"
    if case.machine is None:
        return ""
    parts = [(getattr(roofline, field), words) for field, words in _BOUNDS]
    whole = sum(part for part, _ in parts)
    displayed = sorted(((part, words) for part, words in parts if whole and part / whole >= SMALLEST), reverse=True)
    return "compute bound by " + ", ".join(f"{words} {format_share(part / whole)}" for part, words in displayed)


def _why_unmodelled(case: Case) -> str:
    computing = [use for use in case.kernels if use.bound != "communication"]
    if any(use.shapes for use in computing):
        return "steptime has no model of their operators"
    if case.step.graphs is not None and case.step.graphs.share > ONE_HALF:
        return "kernels of a CUDA graph have no operators in a trace"
    if computing and not any(use.operator for use in computing):
        return "the trace does not show which operators launched them"
    return "no shapes in the trace (record_shapes=True)"


def reached_text(case: Case) -> str:
    """FLOP rate as text: "12.3 TFLOP/s, 4 % of the bfloat16 peak (312 TFLOP/s, datasheet)"; "" without a model."""
    roofline, step = case.roofline, case.step.duration.value
    if roofline is None or not roofline.flops or not step:
        return ""
    least = "at least " if roofline.modelled < NEARLY_ALL else ""
    rate = f"{least}{format_rate(roofline.flops / step * 1e9)}FLOP/s"
    if roofline.peak is None or not roofline.dtype:
        return f"{rate} over the whole step; the peak of this device is unknown"
    peak = f"{format_rate(roofline.peak)}FLOP/s, {_peak_origin(case.machine, roofline.dtype)}"
    if roofline.utilization is None:
        return f"{rate} over the whole step ({roofline.dtype}: at most {peak})"
    rated = _by_datasheet(roofline, case.machine)
    return f"{rate}, {format_share(roofline.utilization)} of the {roofline.dtype} peak ({peak}){rated}"


def _by_datasheet(roofline: RooflineUse, machine: MachineUse | None) -> str:
    """Text "; MFU 37 % of the datasheet's 494 TFLOP/s, HFU 45 %"; HFU only with recomputation for checkpointing."""
    if roofline.mfu is None or roofline.rated is None:
        return ""
    again = roofline.hfu is not None and roofline.hfu > roofline.mfu
    hfu = f", HFU {format_share(roofline.hfu)}" if again and roofline.hfu is not None else ""
    sheet = f" of the datasheet's {format_rate(roofline.rated)}FLOP/s" if machine is None or machine.measured else ""
    return f"; MFU {format_share(roofline.mfu)}{sheet}{hfu}"


def balance_text(case: Case) -> str:
    """Intensity as text: "12 FLOP/byte against a balance of 186 (bfloat16): memory-bound; memory-bound kernels move
    1.42 TB/s, 47 % of a copy's 3.01 TB/s". The bound is named only if the split of the kernels' time agrees."""
    roofline, machine = case.roofline, case.machine
    if roofline is None or machine is None or not roofline.bytes:
        return ""
    intensity, balance, parts = roofline.flops / roofline.bytes, machine.balance(roofline.dtype), []
    if balance is not None:
        low, by_memory = intensity < balance, roofline.memory > roofline.compute
        bound = f": {'memory' if low else 'compute'}-bound" if low == by_memory else ""
        ridge = format_intensity(balance).partition(" ")[0]
        parts.append(f"{format_intensity(intensity)} against a balance of {ridge} ({roofline.dtype}){bound}")
    waiting = [use for use in case.kernels or case.operators if use.bound == "memory" and use.bytes]
    if (spent := sum(use.duration for use in waiting)) and machine.copy_bytes:
        rate, copy = sum(use.bytes or 0.0 for use in waiting) / spent * 1e9, machine.copy_bytes
        reach = format_share(rate / copy) if rate <= copy else "from a cache, beyond the peak"
        what = "kernels" if case.kernels else "operators"
        parts.append(f"memory-bound {what} move {format_rate(rate)}B/s, {reach} of a copy's {format_rate(copy)}B/s")
    return "; ".join(parts)


LEAST_BUSY = 0.7
"""Fraction of the time: below it the guides of the field call a GPU underused, and the reason is reported."""


def gpu_busy_text(case: Case) -> str:
    """GPU utilization as text: "GPU busy in 36 % of the steady steps' time, by the driver; idle mostly for operator
    overhead, 5.3 ms/step". Without the driver's samples, the figure comes from the kernels; "" without kernels."""
    step, source = case.step, "driver"
    idle = [use for use in case.categories if use.name in IDLE]
    busy = step.gpu_busy
    if busy is None and step.device != "cpu" and case.kernels and not step.untraced and step.duration.value > 0:
        busy, source = max(0.0, 1 - sum(use.duration.value for use in idle) / step.duration.value), "kernels"
    if busy is None:
        return ""
    why, most = "", max(idle, key=lambda use: use.duration.value, default=None)
    if busy < LEAST_BUSY and most is not None and most.duration.value > 0:
        why = f"; idle mostly for {WORDS[most.name]}, {format_duration(most.duration.value)}/step"
    return f"GPU busy in {format_share(busy)} of the steady steps' time, by the {source}{why}"


HOUR, THOUSAND = 3.6e12, 1_000
"""Nanoseconds per hour; number of steps that a price refers to."""


def price_text(report: Report) -> str:
    """Price as text: "$1.90 per 1,000 steps (8 GPUs at $2.50 an hour each); ST302 is worth $0.72 of it", or ""."""
    price, process = report.price, report.processes[0]
    if price is None:
        return ""
    devices, rate = max(1, report.environment.ranks), price_rate(price, report)
    unit = format_count(devices, "process" if process.case.step.device == "cpu" else "GPU")
    each = " each" if devices > 1 else ""
    whole = f"{format_price(rate * process.case.step.duration.value)} per {THOUSAND:,} steps"
    text = f"{whole} ({unit} at {format_price(price)} an hour{each})"
    first = next((finding for finding in process.findings if finding.savings is not None), None)
    if first is None or first.savings is None:
        return text
    return f"{text}; {first.code} is worth {format_price(rate * first.savings.value)} of it"


def price_rate(price: float, report: Report) -> float:
    """Price in $ per thousand steps and per ns of step time, on all GPUs of the job. price: $ per hour and GPU."""
    return THOUSAND * max(1, report.environment.ranks) * price / HOUR


def format_price(dollars: float) -> str:
    """Price as text: "$1,234.50", "$0.0021"; cents, or three digits below a dollar."""
    if dollars >= 1 or not dollars:
        return f"${dollars:,.2f}"
    return f"${dollars:.{max(2, 2 - math.floor(math.log10(dollars)))}f}"


def origin(machine: MachineUse | None) -> str:
    """Text on the source of the machine's peaks."""
    if machine is None:
        return "unknown"
    if not machine.measured:
        return "datasheet"
    return "measured while other processes ran, so a lower bound" if machine.under_load else "measured"


def _peak_origin(machine: MachineUse | None, dtype: str) -> str:
    if machine is None or dtype not in machine.reached:
        return origin(machine)
    source = "the datasheet's" if not machine.measured else "the one measured"
    return f"reached by this job: above {source}{' next to other load' if machine.under_load else ''}"


def predictions(replay: ReplayUse | None, step: float) -> list[Prediction]:
    """Significant predictions, largest first, without the device as a whole, whose parts are listed."""
    found = [each for each in replay.predictions if not each.change.startswith("device ")] if replay is not None else []
    sure = [each for each in found
            if each.saved.value >= SMALLEST * step and (each.saved.samples < 2 or each.saved.low > 0)]  # fmt: skip
    return sorted(sure, key=lambda each: -each.saved.value)


def prediction_text(prediction: Prediction, step: float) -> str:
    """Prediction as text: "input free: 12 % shorter (10 to 14 %)"."""
    saved = prediction.saved
    if saved.samples < 2:
        return f"{prediction.change}: {format_share(saved.value / step)} shorter (from one step)"
    low, high = (f"{100 * each / step:.0f}" for each in (saved.low, saved.high))
    interval = f" ({low} to {high} %)" if low != high else ""
    return f"{prediction.change}: {format_share(saved.value / step)} shorter{interval}"


NOTABLE = 0.1
"""Fraction of the kernels' time: if a larger gain mostly does not shorten the step, the text gives the reason."""


def elsewhere_text(prediction: Elsewhere, step: float) -> str:
    """Prediction for another device as text: "AMD Instinct MI300X: 42.5 ms per step, 14 % shorter (36 to 52 ms);
    kernels 45.1 to 29.8 ms". For a job that communicates, it adds that the number of ranks stays."""
    times, kernels = prediction.step, prediction.kernels
    faster = f"a link {prediction.link:.3g} times as fast" if prediction.link != 1 else ""
    where = " and ".join(filter(None, (prediction.device, faster)))
    change = (
        f"{format_share(abs(times.value / step - 1))} {'shorter' if times.value < step else 'longer'}" if step else ""
    )
    low, high = format_duration(times.low), format_duration(times.high)
    between = f" ({low} to {high})" if low != high else ""
    gain = prediction.here - kernels.value
    kept = gain > NOTABLE * prediction.here and step - times.value < gain / 2
    host = "; assumes unchanged CPU time" if kept else ""
    caveat = "" if prediction.checked else "; the error of such predictions was not measured"
    reported = f"{format_duration(prediction.here)} to {format_duration(kernels.value)}"
    ranks = "; same number of ranks" if prediction.communication else ""
    return (
        f"{where}: {format_duration(times.value)} per step, {change}{between}; kernels {reported}{host}{ranks}{caveat}"
    )
