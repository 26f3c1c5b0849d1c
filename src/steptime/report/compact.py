"""Compact report for programs: what a person is shown, as a document of a few kilobytes.

This is the public format. Its records are defined here alone, so that renaming a type within steptime does not change
it; removing a field or changing its meaning requires a new version. Its JSON Schema is docs/compact-schema.json. Only
`steptime watch` reads it back: it does not hold what a page or a comparison needs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from steptime.advice.evidence import Case, record_of
from steptime.advice.rule import Finding
from steptime.analysis.modules import ModuleUse
from steptime.analysis.what_if.elsewhere import Elsewhere
from steptime.answer.json import document
from steptime.quantities import Estimate
from steptime.report.compose import confirming
from steptime.report.json import COMPACT
from steptime.report.report import Cost, ProcessReport, Report
from steptime.report.sentences import price_rate

COMPACT_VERSION = 2
MOST_FINDINGS, MOST_PROBLEMS, MOST_MODULES = 12, 8, 6
"""Most entries; the others are in the full document, and counted here."""
LARGEST = 8_000
"""Characters."""
LEAK = "ST702"
"""A leak is mended by hand: what confirms it is a run more."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Time in nanoseconds with a 95 % interval."""

    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class CompactJob:
    """Job, and where it ran. ranks: number of processes that trained; shown: name of the document's process."""

    command: str
    device: str
    torch: str
    steptime: str
    ranks: int
    shown: str


@dataclass(frozen=True, slots=True)
class CompactStep:
    """Step of the job. duration_ns: mean of `steps` usual steps. warm_up, excluded: number of steps left out."""

    duration_ns: Interval
    steps: int
    warm_up: int
    excluded: int


@dataclass(frozen=True, slots=True)
class CompactCategory:
    """Category of the step. share: fraction of the step."""

    name: str
    duration_ns: Interval
    share: float


@dataclass(frozen=True, slots=True)
class CompactLine:
    """Source line. text: as in the file, "" if it could not be read."""

    file: str
    line: int
    function: str
    text: str


@dataclass(frozen=True, slots=True)
class CompactFinding:
    """Finding of a rule. weight: "finding", "note" or "caveat". savings_ns: per step, what a perfect fix of this alone
    could save; share: fraction of the step. evidence: sentence with its numbers. fixes: codes of the fixes that
    steptime try can test. next: command that helps, ready to paste."""

    code: str
    name: str
    weight: str
    line: CompactLine | None
    savings_ns: Interval | None
    share: float | None
    evidence: str
    advice: str
    fixes: tuple[str, ...]
    next: str


@dataclass(frozen=True, slots=True)
class CompactModule:
    """Module of the model, including submodules, per step. kept_bytes: memory that its forward leaves allocated."""

    path: str
    type: str
    forward_ns: int
    backward_ns: int
    share: float
    flops: float | None
    parameters: int
    kept_bytes: float | None


@dataclass(frozen=True, slots=True)
class CompactCost:
    """Cost of steptime itself. per_step_ns: cost of the always-on timers; measured: False if estimated from the number
    of records. once_ns: cost of examining some steps closely; once_share: fraction of the run; peaks_ns: time for
    measuring the machine's peaks afterwards."""

    per_step_ns: int | None
    measured: bool
    once_ns: int
    once_share: float
    peaks_ns: int


@dataclass(frozen=True, slots=True)
class CompactThroughput:
    """Throughput of the job. samples: number per step. rate: samples per second in a steady step; run_rate: over the
    whole run, with its warm-up, its evaluations and steptime's own time. tokens: number per step, including padding,
    None if its batches are not token ids. counted_from: "loader", or "inputs of" the model whose calls show the batch
    size."""

    samples: float
    rate: float
    run_rate: float
    tokens: float | None
    counted_from: str = "loader"


@dataclass(frozen=True, slots=True)
class CompactGpu:
    """Use of one GPU in a steady step; None for an unknown value. busy: fraction of the time in which the driver saw a
    kernel run. mfu, hfu: model and hardware FLOPs utilization by the device's datasheet, 0 to 1. price: $ per 1,000
    steps of the job, if a price per hour was given. flop_per_byte: arithmetic intensity of the operators that have a
    model; balance: intensity at which the device is balanced, in the dtype with most of their FLOPs."""

    busy: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    price: float | None = None
    flop_per_byte: float | None = None
    balance: float | None = None


@dataclass(frozen=True, slots=True)
class CompactElsewhere:
    """Predicted step on another device, or with a link that is `link` times as fast (`diagnose --on`, `--link`), with
    as many ranks as here. device: "" for the same device. kernels_ns: kernel time per step there; kernels_here_ns:
    kernel time in the trace. communication: fraction of kernel time. checked: True if such predictions were compared
    with traces of both devices; else their error is unknown. peaks: sources of both devices' peaks."""

    device: str
    link: float
    step_ns: Interval
    kernels_ns: Interval
    kernels_here_ns: int
    communication: float
    checked: bool
    peaks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Compact report of a job. headline: answer for a person. confidence: "confident", "likely" or "unclear"; reason:
    basis of the confidence. bottleneck: a category, "balanced" or "unknown". findings: largest savings first; modules:
    longest first; more_findings, more_problems, more_modules: number of entries in the full document only. next:
    command that helps most, ready to paste. elsewhere: predictions, if requested. decides: side that decides the step's
    length, "host", "device" or "both"; "" if unknown."""

    schema: str
    schema_version: int
    source: str
    headline: str
    confidence: str
    reason: str
    bottleneck: str
    next: str
    job: CompactJob
    step: CompactStep
    categories: tuple[CompactCategory, ...]
    findings: tuple[CompactFinding, ...]
    more_findings: int
    problems: tuple[str, ...]
    more_problems: int
    cost: CompactCost | None
    throughput: CompactThroughput | None
    modules: tuple[CompactModule, ...]
    more_modules: int
    elsewhere: tuple[CompactElsewhere, ...] = ()
    gpu: CompactGpu | None = None
    decides: str = ""


def compact(report: Report) -> CompactReport:
    """Compact form of a report, of its first process; modules are dropped if the document gets too large."""
    made = _compact(report)
    while len(document(made)) > LARGEST and made.modules:
        made = replace(made, modules=made.modules[:-1], more_modules=made.more_modules + 1)
    return made


def _compact(report: Report) -> CompactReport:
    process, environment = report.processes[0], report.environment
    step, verdict, rates = process.case.step, process.verdict, process.throughput
    counted_from = f"inputs of {rates.model}" if rates is not None and rates.model else "loader"
    return CompactReport(
        schema=COMPACT,
        schema_version=COMPACT_VERSION,
        source=report.source,
        headline=verdict.sentence,
        confidence=verdict.confidence,
        reason=verdict.reason,
        bottleneck=verdict.bottleneck,
        next=report.next_command,
        job=record_of(CompactJob, environment, shown=process.name),
        step=CompactStep(_interval(step.duration), step.steady, step.warm_up, step.total - step.steady - step.warm_up),
        categories=tuple(
            CompactCategory(use.name, _interval(use.duration), _share(use.duration.value, process))
            for use in sorted(process.case.categories, key=lambda use: -use.duration.value)
        ),
        findings=_findings(report, process),
        more_findings=max(0, len(process.findings) - MOST_FINDINGS),
        problems=report.problems[:MOST_PROBLEMS],
        more_problems=max(0, len(report.problems) - MOST_PROBLEMS),
        cost=_cost(process.cost) if process.cost is not None else None,
        throughput=record_of(CompactThroughput, rates, counted_from=counted_from) if rates is not None else None,
        modules=_modules(process.case.modules),
        more_modules=max(0, len(process.case.modules) - MOST_MODULES),
        elsewhere=tuple(map(_elsewhere, process.case.replay.elsewhere)) if process.case.replay is not None else (),
        gpu=_gpu(report, process.case) if step.device != "cpu" or report.price is not None else None,
        decides=verdict.decides,
    )


def _gpu(report: Report, case: Case) -> CompactGpu:
    price = None if report.price is None else case.step.duration.value * price_rate(report.price, report)
    roofline = case.roofline
    mfu, hfu = (roofline.mfu, roofline.hfu) if roofline is not None else (None, None)
    intensity = roofline.flops / roofline.bytes if roofline is not None and roofline.bytes else None
    balance = case.machine.balance(roofline.dtype) if roofline is not None and case.machine is not None else None
    return CompactGpu(case.step.gpu_busy, mfu, hfu, price, intensity, balance)


def _elsewhere(found: Elsewhere) -> CompactElsewhere:
    return record_of(
        CompactElsewhere,
        found,
        step_ns=_interval(found.step),
        kernels_ns=_interval(found.kernels),
        kernels_here_ns=round(found.here),
        communication=round(found.communication, 4),
        peaks=found.sources,
    )


def _modules(modules: Sequence[ModuleUse]) -> tuple[CompactModule, ...]:
    """Modules with most time, including parents."""
    longest = sorted(modules, key=lambda use: -(use.forward + use.backward))[:MOST_MODULES]
    return tuple(
        record_of(
            CompactModule,
            use,
            forward_ns=round(use.forward),
            backward_ns=round(use.backward),
            share=round(use.share, 4),
            kept_bytes=use.kept,
        )
        for use in longest
    )


def _findings(report: Report, process: ProcessReport) -> tuple[CompactFinding, ...]:
    from steptime.advice.propose import propose

    proposals = propose(process.case, process.findings) if process.case.step.mode != "trace" else ()
    tried = [proposal.fix for proposal in proposals if not proposal.advice_only]

    def reported(finding: Finding) -> CompactFinding:
        fixes = tuple(dict.fromkeys(fix.code for fix in tried if finding.code in fix.addresses))
        saving, line, next_ = finding.savings, finding.source, f"steptime explain {finding.code}"
        if fixes:
            next_ = f"steptime try {shlex.quote(report.source)}"
        elif finding.code == LEAK and report.environment.command:
            next_ = confirming(report.source, report.environment.command)
        return record_of(
            CompactFinding,
            finding,
            weight=finding.weight.value,
            line=record_of(CompactLine, line) if line is not None else None,
            savings_ns=_interval(saving) if saving is not None else None,
            share=_share(saving.value, process) if saving is not None else None,
            evidence=finding.summary,
            fixes=fixes,
            next=next_,
        )

    return tuple(map(reported, process.findings[:MOST_FINDINGS]))


def _interval(estimate: Estimate) -> Interval:
    return Interval(round(estimate.value), round(estimate.low), round(estimate.high))


def _share(duration: float, process: ProcessReport) -> float:
    step = process.case.step.duration.value
    return round(duration / step, 4) if step else 0.0


def _cost(cost: Cost) -> CompactCost:
    always = round(cost.always_ns) if cost.always_ns is not None else None
    once = round(cost.once_ns / cost.run_ns, 4) if cost.run_ns else 0.0
    return record_of(CompactCost, cost, per_step_ns=always, once_share=once)
