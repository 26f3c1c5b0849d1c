"""A report: all that a person or a program is shown, as plain versioned data. The room's central type."""

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
"""Name of the fact on how a job ended that did not end well."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of steptime itself. Always: watch, ns per step, on minus off, measured in this run (None: too few steps);
    computed, ns per step from the number of records. Once: pause_ns, that the probe held the job between steps, and
    slowed_ns, by which steps took longer than a steady one while functions were looked for, lines timed and
    operators profiled. The job was held in its start and its end, too. profile_ns: of the profiled windows in all.
    run_ns: from the start of the job to its end; of a job that steptime did not start, from the first step to the
    end of the last. Next to the job: before_ns, by which steptime has put off its start, after_ns, of packing the
    recording and of making this report after its end, peaks_ns, of measuring the machine's peaks then. span_ns: from
    the end of one steady step to the end of the next, with what lies between them (a rollout): its records count,
    too. tracer: ns by which steps are longer since a device's tracer was attached, which it stays. 0 or None where
    it is not known."""

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
        """True if the always-on timers' cost is more than noise in this run."""
        return self.instrumentation is not None and self.instrumentation.low > 0

    @property
    def always_ns(self) -> float | None:
        """Cost of the always-on timers, ns per step: measured, else from the number of records."""
        return self.instrumentation.value if self.instrumentation is not None and self.measured else self.computed

    @property
    def once_ns(self) -> int:
        """Cost of profiling and line timing in all, ns."""
        return self.pause_ns + self.slowed_ns


@dataclass(frozen=True, slots=True)
class MachineOverTime:
    """The machine over time, as the launcher saw it about once a second. times: ns from the first step on. series:
    names and percent of their own whole at each time: CPUs of the job and of other programs, of those that the job may
    use; time in which a task waited for a CPU; utilisation of the GPUs, their clock against its highest, memory, power
    against its limit, and 100 while the driver held them back for heat or power."""

    times: tuple[int, ...]
    series: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Throughput:
    """How fast a process trains. samples: that a step reads. rate: samples per second in a steady step, of which there
    are many alike; run_rate: over the whole run, with its warm-up, its evaluations and what steptime took. tokens: of a
    step, the padding included, None where its batches are no token ids. model: the class of the model whose inputs tell
    how large a batch is; "" for the job's loader."""

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
    """The job, and where it ran. commit: of the job's working tree, "" outside of one; dirty: whether tracked
    files differed from it, None where that is not known. facts: what else may differ between two runs, (name, value),
    for comparisons."""

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
        """ "ended with status 1", "ended with signal 9", "" for a job that ended well, runs on, or was ended."""
        how = dict(self.facts).get(ENDED, "")
        return f"{ENDED} {how}" if how else ""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """One training process (rank). Times: ns per step. ledger_steps: steps behind the categories."""

    name: str
    rank: int | None
    case: Case
    verdict: Verdict
    findings: tuple[Finding, ...]
    not_examined: tuple[tuple[str, str], ...]
    failed: tuple[tuple[str, str], ...]
    cost: Cost | None
    step_ns: tuple[int, ...]
    """Durations of all steps in order, for the step series."""
    steady: tuple[bool, ...]
    notes: tuple[str, ...] = ()
    throughput: Throughput | None = None
    """None where the size of a batch is not known."""
    peak_bytes: int | None = None
    """The most memory that was seen: allocated on its device, else resident; None where nobody looked."""
    series: StepSeries | None = None
    """Kinds and categories of the steps of `step_ns`."""
    step_view: StepView | None = None
    flame: FlameGraph | None = None
    """One step as a timeline; of a job of several processes the one in front has it."""
    memory: OverTime | None = None
    """As the watch sampled it, over the whole run."""
    memory_by_owner: OverTime | None = None
    """Number of the steps in which a profiler wrote down every allocation."""
    machine_over_time: MachineOverTime | None = None
    """None for a trace, and where there are too few samples."""
    traces: tuple[TraceFile, ...] = ()
    """Sources of its figures, the one with the step view first; the process in front has them."""


@dataclass(frozen=True, slots=True)
class Report:
    """Report of a recording or a set of traces. processes: the first is the one shown first (rank 0, or the slowest
    trainer); of a large job those that tell most. next_command: ready to paste. problems: what was damaged or left out.
    ranks: all ranks of the job next to one another, None for a single one. trials: the newest one of the recording.
    price: $ an hour for each GPU (process), None where none was given."""

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
