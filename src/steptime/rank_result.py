"""Analysis of one rank of a job, from a recorded process or a trace: its whole report except for the other ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from steptime._version import __version__
from steptime.advice.assemble import assemble
from steptime.advice.engine import examine
from steptime.advice.outliers import usual_steps
from steptime.advice.rank_evidence import companions
from steptime.advice.trace_evidence import look_at_trace
from steptime.advice.verdict import Verdict, verdict, with_savings
from steptime.analysis.breakdown import device_of
from steptime.analysis.device_activity import has_kernels, nothing_in, unseen_work
from steptime.analysis.layout import Layout
from steptime.analysis.memory_samples import most_held, sampled_memory
from steptime.analysis.recorded_breakdown import breakdown_of_process
from steptime.analysis.stragglers.comparison import RankComparison
from steptime.analysis.stragglers.fleet import machine_of
from steptime.analysis.stragglers.summary import RankSummary, summarise, summarise_process
from steptime.analysis.timeline import Timeline
from steptime.analysis.trace_steps import whole_steps
from steptime.analysis.tracer import slowed_by_tracer, without_tracer
from steptime.arrays import give_back
from steptime.machine.machine import Machine
from steptime.machine.peaks import known
from steptime.recording.load import name_of
from steptime.recording.recording import Process, Recording
from steptime.report.compose import cost_of, environment_of, facts_of_trace, machine_over_time, throughput_of
from steptime.report.flame import flame_of, flame_of_process
from steptime.report.report import JobEnvironment, ProcessReport
from steptime.report.step_view import step_view_of_process, step_view_of_trace
from steptime.report.steps import series_of_process, series_of_trace
from steptime.report.trace_files import traces_of, traces_of_process
from steptime.trace.table import Trace

NOT_YET = Verdict("", "")
"""Verdict of a rank whose findings wait for the other ranks."""


@dataclass(frozen=True, slots=True, eq=False)
class RankResult:
    """Result of a rank, without its recording or trace, which may be large and is released before the next is read.
    own: report of the rank, to which no rule was applied yet."""

    own: ProcessReport
    place: int | tuple[str, int]
    """Identity for merging: the rank, else the host and the process number there."""
    environment: JobEnvironment
    summary: RankSummary
    problems: tuple[str, ...]
    machine: Machine | None = None

    def report(self, ranks: RankComparison | None) -> ProcessReport:
        """Report of the rank, completed with the other ranks of the job."""
        case = self.own.case if self.own.rank is None else companions(self.own.case, self.own.rank, ranks)
        found = examine(case)
        case = replace(with_savings(case, found.findings), texts=())  # rules have read them: a report holds no source
        return replace(
            self.own,
            case=case,
            verdict=verdict(case, found.findings),
            findings=found.findings,
            not_examined=found.not_examined,
            failed=found.failed,
        )


def analyse_process(
    recording: Recording, process: Process, layout: Layout, *, on_host: int, detailed: bool
) -> RankResult:
    """Result of a recorded process. on_host: number of training processes on its host. detailed: True to include step
    view, flame graph and owners of memory."""
    from steptime.memory.in_report import kept_in_process, owned_in_process  # pictures': text needs none of it

    machine, timeline = machine_of(recording), layout.timeline
    recorded, steps, rank = breakdown_of_process(process, layout, machine), timeline.steps, process.facts.rank
    case = assemble(
        process,
        layout,
        recorded,
        telemetry=recording.telemetry,
        machine=machine,
        trainers_on_host=on_host,
        kept=kept_in_process(process, recorded.windows) if detailed and recorded.profiled is not None else None,
    )
    usual = usual_steps(layout)
    own = ProcessReport(
        name=name_of(process),
        rank=rank,
        case=case,
        verdict=NOT_YET,
        findings=(),
        not_examined=(),
        failed=(),
        step_ns=tuple(steps.duration.tolist()),
        steady=tuple(np.isin(np.arange(len(steps.start)), without_tracer(layout, usual)).tolist()),
        series=series_of_process(timeline, recorded.breakdown),
        step_view=step_view_of_process(process, steps, recorded) if detailed else None,
        flame=flame_of_process(recorded) if detailed else None,
        memory_by_owner=owned_in_process(process, recorded.windows) if detailed else None,
        traces=traces_of_process(process),
        notes=(*process.notes, f"Warm-up: {timeline.warm_up_reason}.", *_thinned(timeline)),
        cost=cost_of(process, steps, machine, case.contention, slowed_by_tracer(layout, usual), recording.manifest),
        throughput=throughput_of(case, steps, timeline.left_out),
        machine_over_time=machine_over_time(recording.telemetry, process.devices, case, int(steps.start[0])),
        peak_bytes=most_held(process, steps),
        memory=sampled_memory(process, int(steps.start[0])),
    )
    summary = summarise_process(process, layout, recorded)
    alike = process.facts.system_number if rank is None else rank
    return RankResult(own, alike, environment_of(recording), summary, recorded.problems, machine)


def _thinned(timeline: Timeline) -> tuple[str, ...]:
    if not timeline.left_out:
        return ()
    whole = len(timeline.steps.end) + timeline.left_out
    return (
        f"The recording of this long run is thinned: {timeline.left_out:,} of {whole:,} steps were only "
        "counted. Figures use the recorded steps, some of every minute; slow steps are recorded too, but not "
        "in any mean.",
    )


def analyse_trace(trace: Trace, number: int, *, detailed: bool) -> RankResult | None:
    """Result of a rank's trace; None if it has no step of positive length. number: its rank, if the trace has none."""
    trace, steps = whole_steps(trace)
    if not (steps.boundaries[:, 1] > steps.boundaries[:, 0]).any() or nothing_in(trace):
        return None
    give_back(len(trace.events))
    device, rank = device_of(trace), trace.rank if trace.rank is not None else number
    looked = look_at_trace(trace, steps.boundaries, known(device), how=steps.how)
    warm_up, walls = looked.case.step.warm_up, looked.whole.wall
    seen = _seen_device(trace, device)
    damage = (*trace.damage.sentences, *filter(None, [steps.lost]))
    by_owner = None
    if detailed:
        from steptime.memory.in_report import owned_in_trace

        by_owner = owned_in_trace(trace, steps.boundaries, steps.how)
    own = ProcessReport(
        name=f"rank {rank}",
        rank=rank,
        case=looked.case,
        verdict=NOT_YET,
        findings=(),
        not_examined=(),
        failed=(),
        cost=None,
        step_ns=tuple(walls.tolist()),
        steady=tuple(np.isin(np.arange(len(walls)), looked.numbers).tolist()),
        series=series_of_trace(looked.whole, warm_up),
        step_view=step_view_of_trace(looked.steps, looked.numbers) if detailed else None,
        flame=flame_of(looked.steps) if detailed else None,
        memory_by_owner=by_owner,
        traces=traces_of(trace),
        notes=damage,
    )
    environment = JobEnvironment("", "", seen, "", "", __version__, 1, facts=facts_of_trace(trace))
    summary = summarise(looked.later, looked.whole.only(np.arange(warm_up, len(walls))), rank)
    return RankResult(own, rank, environment, summary, damage)


def _seen_device(trace: Trace, device: str) -> str:
    """Device, with a remark if the trace only has the host's part of a job that used, or may have used, a device."""
    if unseen_work(trace).any():
        return f"{trace.devices[0].name if trace.devices else 'device'} (not recorded)"
    idle = f" ({trace.devices[0].name} idle, or not recorded)" if trace.devices and not has_kernels(trace) else ""
    return device + idle
