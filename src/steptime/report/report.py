"""Report: everything that a person or a program is shown, as plain versioned data."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.advice.evidence import Case
from steptime.advice.rule import Finding
from steptime.advice.verdict import Verdict
from steptime.analysis.memory_samples import OverTime
from steptime.analysis.stragglers.comparison import RankComparison
from steptime.quantities import Estimate
from steptime.report.flame import FlameGraph
from steptime.report.step_view import StepView
from steptime.report.steps import StepSeries
from steptime.report.trace_files import TraceFile
from steptime.report.trials import TrialReport

SCHEMA_VERSION = 3
ENDED = "ended with"
"""Name of the fact on how a failed job ended."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of steptime itself in one job; 0 or None if unknown. Always: instrumentation, always-on timers minus none,
    ns per step, measured in this run, None for too few steps; computed, the same estimated from the number of records.
    Once: pause_ns, time in which the probe held the job between steps, at its start and at its end; slowed_ns, extra
    duration of the steps with function discovery, line timing or profiling. profile_ns: length of the profiled windows.
    run_ns: from the start of the job to its end; for a job that steptime did not start, from the first step to the end
    of the last. Outside of the job: before_ns, delay of its start; after_ns, packing the recording and making this
    report; peaks_ns, measuring the machine's peaks. span_ns: time from the end of one steady step to the end of the
    next, including what is between them (a rollout), whose records count, too. tracer: extra ns per step since a
    device's tracer was attached, which remains."""

    instrumentation: Estimate | None
    computed: float | None
    profiled_steps: int
    profile_ns: int
    pause_ns: int
    bytes_per_step: float | None
    lined_steps: int = 0
    slowed_ns: int = 0
    run_ns: int = 0
    peaks_ns: int = 0
    span_ns: float = 0.0
    tracer: Estimate | None = None
    before_ns: int = 0
    after_ns: int = 0

    @property
    def measured(self) -> bool:
        """True if the always-on timers' cost exceeds the noise of this run."""
        return self.instrumentation is not None and self.instrumentation.low > 0

    @property
    def always_ns(self) -> float | None:
        """Cost of the always-on timers, ns per step: measured, else from the number of records."""
        return self.instrumentation.value if self.instrumentation is not None and self.measured else self.computed

    @property
    def once_ns(self) -> int:
        """Total cost of profiling and line timing, ns."""
        return self.pause_ns + self.slowed_ns


@dataclass(frozen=True, slots=True)
class MachineOverTime:
    """Machine over time, sampled by the launcher about once a second. times: ns since the first step. series: (name,
    percent of its own maximum at each time): CPUs of the job and of other programs, as a fraction of those that the job
    may use; time in which a task waited for a CPU; utilisation of the GPUs, their clock, memory and power, and 100
    while the driver lowered the clock for heat or power."""

    times: tuple[int, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput of a process. samples: number per step. rate: samples per second in a steady step; run_rate: over the
    whole run, with its warm-up, its evaluations and steptime's own time. tokens: number per step, including padding,
    None if its batches are not token ids. model: class of the model whose inputs show the batch size, "" for the
    loader."""

    samples: float
    rate: float
    run_rate: float
    tokens: float | None = None
    model: str = ""

    @property
    def token_rate(self) -> float | None:
        """Tokens per second in a steady step."""
        return self.tokens / self.samples * self.rate if self.tokens is not None else None


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """Job, and where it ran. commit: commit of the job's working tree, "" outside of one; dirty: True if tracked files
    differed from it, None if unknown. facts: (name, value) of other differences between runs, for comparisons."""

    command: str
    host: str
    device: str
    python: str
    torch: str
    steptime: str
    ranks: int = 1
    commit: str = ""
    dirty: bool | None = None
    facts: tuple[tuple[str, str], ...] = ()

    @property
    def ended(self) -> str:
        """ "ended with status 1" or "ended with signal 9"; "" for a job that succeeded, still runs, or was stopped by
        the user."""
        how = dict(self.facts).get(ENDED, "")
        return f"{ENDED} {how}" if how else ""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Report of one training process (rank). Times: ns per step. not_examined: (rule code, reason); failed: (rule or
    plug-in, error)."""

    name: str
    rank: int | None
    case: Case
    verdict: Verdict
    findings: tuple[Finding, ...]
    not_examined: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]
    cost: Cost | None
    step_ns: tuple[int, ...]
    """Durations of all steps in order, for the step series, ns."""
    steady: tuple[bool, ...]
    notes: tuple[str, ...] = ()
    throughput: Throughput | None = None
    """Throughput of the process; None if the batch size is unknown."""
    peak_bytes: int | None = None
    """Peak memory, bytes: allocated on its device, else resident; None if not measured."""
    series: StepSeries | None = None
    """Kinds and categories of the steps of `step_ns`."""
    step_view: StepView | None = None
    flame: FlameGraph | None = None
    """One step as a flame graph; in a job of several processes only the first has it."""
    memory: OverTime | None = None
    """Memory over the whole run, as sampled by the probe."""
    memory_by_owner: OverTime | None = None
    """Memory by owner over the steps in which a profiler recorded every allocation."""
    machine_over_time: MachineOverTime | None = None
    """Load of CPUs and GPUs; None for a trace, and for too few samples."""
    traces: tuple[TraceFile, ...] = ()
    """Trace files behind its figures, the one with the step view first; only the first process has them."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a recording or a set of traces. processes: first the one to show first (rank 0, or the slowest
    trainer); of a large job only the most informative. next_command: ready to paste. problems: sentences on what was
    damaged or left out. ranks: comparison of all ranks, None for a single one. trials: newest trial of the recording.
    price: $ per hour for each GPU (process), None if not given."""

    schema_version: int
    source: str
    environment: JobEnvironment
    processes: tuple[ProcessReport, ...]
    next_command: str
    problems: tuple[str, ...] = ()
    ranks: RankComparison | None = None
    trials: TrialReport | None = None
    price: float | None = None

    def __post_init__(self) -> None:
        if not self.processes:
            raise ValueError("a report is of one process at least")
