"""Options, progress and outcome of a launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from steptime.changes import Change, VariantOptions


@dataclass(frozen=True, slots=True)
class NumericsOptions:
    """How `steptime nan` looks at a job. mode: "watch", or "instrument" from first_step to last_step, for what the
    watch has seen (kind). seed: what all that the job leaves to chance is made from. go_on: do not end the job."""

    mode: str
    seed: int
    go_on: bool = False
    first_step: int = 1
    last_step: int = 1
    kind: str = ""


@dataclass(frozen=True, slots=True)
class CatchOptions:
    """Which steps are looked into: longer ones than `times` the usual, or than ns; or one in `every`. One is set."""

    times: float = 0.0
    ns: int = 0
    every: int = 0


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Options of the probe. profile_steps: None lets it choose from the step time. Limits of 0: the probe's
    own. changes: what is changed about the job. variant: None for a job that runs to its own end. numerics: looked for
    instead of time. trace_ranks: numbers of the ranks that trace, "auto" for a sample of a large job, "all". contained:
    what keeps it from the user's files, "overlay", "landlock" or "copy", since began_epoch_ns; "" for nothing.
    compile_logs: whether torch.compile writes down what it does, into the recording. catch: steps that are looked into
    while they last. log: whether the job's own loggers get the numbers of its steps."""

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
"""Seconds between two looks at how large the journals are."""
WAITING = "waiting for the first training step"
"""The first stage of a job."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the job has come. steps: of the process that has most. processes: those that train. notice: why one that
    uses torch is not measured, "" where that is not so. bar: a progress bar is in the line of standard error."""

    elapsed_seconds: float
    steps: int
    processes: int
    stage: str
    notice: str = ""
    bar: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the job ended. status: as a shell has it (128 + signal). signal: the one that ended it, or None.

    The three `seen`: whether any process of it was a Python that took the probe in, imported torch, and trained.
    `problems`: a sentence each for what was lost of the recording. whole: False where it could not be written to its
    end (no room, removed): then little or nothing in it is no sign of how the job trained. killed_for_memory: the
    kernel killed something for want of memory while the job ran, and the job failed."""

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
    """False for a part of a job whose recording another launcher leads, and accounts for."""
    killed_for_memory: bool = False
    asked_to_end: bool = False
    """True where somebody ended it by a signal, as by Ctrl-C, who does not wait for more to be measured."""
