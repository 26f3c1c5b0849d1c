"""Options, progress and outcome of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steptime.changes import Change, VariantOptions


@dataclass(frozen=True, slots=True)
class NumericsOptions:
    """Options of `steptime nan`. mode: "watch", or "instrument" from first_step to last_step, after a first run found a
    `kind` of fault. seed: number that replaces the job's random seeds. go_on: True if the job runs on after it."""

    mode: str
    seed: int
    go_on: bool = False
    first_step: int = 1
    last_step: int = 1
    kind: str = ""


@dataclass(frozen=True, slots=True)
class CatchOptions:
    """Choice of the steps to sample; one field is set. times: steps longer than this multiple of the usual one; ns:
    steps longer than this; every: one step in so many."""

    times: float = 0.0
    ns: int = 0
    every: int = 0


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options of the probe. profile_steps: number of profiled steps, None to choose it by the step time. A limit of 0
    means the probe's own. changes: of the job. variant: None for a job that runs to its own end. numerics: set to check
    values instead of measuring time. trace_ranks: numbers of the ranks that trace, "auto" for a sample of a large job,
    "all". contained: protection of the user's files, "overlay", "landlock" or "copy", since began_epoch_ns; "" for
    none. compile_logs: True if torch.compile logs into the recording. catch: steps that are sampled while they last.
    log: True if the job's own loggers get its step times."""

    profile: bool = True
    profile_steps: int | None = None
    max_profile_seconds: int = 0
    changes: tuple[Change, ...] = ()
    variant: VariantOptions | None = None
    numerics: NumericsOptions | None = None
    trace_ranks: tuple[str, ...] = ("auto",)
    contained: str = ""
    began_epoch_ns: int = 0
    compile_logs: bool = False
    catch: CatchOptions | None = None
    log: bool = False


THINNING_PERIOD = 30.0
"""Seconds between two checks of the journals' size."""
WAITING = "waiting for the first training step"
"""First stage of a job."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the job. steps: most steps of a process. processes: number of processes that train. notice: reason
    why a process with torch is not measured, or "". bar: True if a progress bar is on the current line of standard
    error."""

    elapsed_seconds: float
    steps: int
    processes: int
    stage: str
    notice: str = ""
    bar: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """End of the job. status: in a shell's convention (128 + signal). signal: number of the signal that ended it, or
    None.

    python_seen, torch_seen, steps_seen: True if a Python process of the job loaded the probe, imported torch, and
    trained. `problems`: one sentence per loss in the recording. whole: False if it could not be written to its end (no
    room, removed), so that missing steps prove nothing. killed_for_memory: True if the job failed and the kernel killed
    a process for memory meanwhile."""

    recording: Path
    status: int
    signal: int | None
    seconds: float
    python_seen: bool
    torch_seen: bool
    steps_seen: bool
    problems: tuple[str, ...] = ()
    whole: bool = True
    leads: bool = True
    """False for a part of a job whose recording another launcher leads and reports on."""
    killed_for_memory: bool = False
    asked_to_end: bool = False
    """True where somebody ended it by a signal, as by Ctrl-C, who does not wait for more to be measured."""
