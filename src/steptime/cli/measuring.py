"""What `try -- CMD…` and `lab -- CMD…` begin with: the job as it is, measured, for no longer than that takes."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence
from pathlib import Path

from steptime.capture.arm import DEADLINE_PASSED, OUTPUT, Place, run_arm
from steptime.capture.command import default_recording, resolve
from steptime.capture.outcome import Outcome, ProbeOptions, Progress
from steptime.capture.progress import PROFILED
from steptime.cli.aftermath import measure_ceilings, nothing_measured
from steptime.cli.border import say
from steptime.cli.progress import Announcer
from steptime.errors import NothingMeasuredError, UsageError
from steptime.trials.containment import Layer, Stand, clear, contained, ground_of, leave, refuse_uncontained
from steptime.trials.execute import NO_INPUT, last_lines
from steptime.trials.working_copy import offline_environment

STEPS, SECONDS = 20, 8.0
"""After the profile: steps without it, and the time in which the watch measures its own cost."""
SHARE = 0.5
"""Of the budget: a job that has not come to its steady steps then leaves no time to try anything."""


class Enough:
    """Whether the job has been seen enough of."""

    def __init__(self, announcer: Announcer | None) -> None:
        self._announcer = announcer
        self._since: Progress | None = None

    def __call__(self, progress: Progress) -> bool:
        """Called twice a second."""
        if self._announcer is not None:
            self._announcer.show(progress)
        if progress.stage != PROFILED:
            return False
        if self._since is None:
            self._since = progress
        seconds = progress.elapsed_seconds - self._since.elapsed_seconds
        return seconds >= SECONDS and progress.steps - self._since.steps >= STEPS


def measure(command: Sequence[str], budget: float, *, quiet: bool, uncontained: bool) -> Path:
    """Runs the command until it has been measured, and returns the recording. budget: seconds. uncontained: in its
    own folder where the system permits no overlays: source lines of a copy would be nobody's.

    Its input is empty and its output goes beside the recording. Raises what `capture.arm.run_arm` raises, and
    NothingMeasuredError.
    """
    folder = default_recording(command).absolute()
    place = folder.with_name(f"{folder.name}-workspace")
    stand = Stand(tuple(command), place, Path.cwd(), uncontained=uncontained)
    if not quiet:
        say("measuring the job as it is, until its steps are known")
    enough = Enough(None if quiet else Announcer(say))
    resolve(command)
    try:
        refuse_uncontained(stand)
        outcome = _watched(stand, folder, SHARE * budget, enough)
    finally:
        leave(stand)
        clear(stand.folder)
        with contextlib.suppress(OSError):  # there is a recording in it, or it was never made
            folder.parent.rmdir()
    if not outcome.steps_seen:
        raise _reason(outcome, folder, SHARE * budget)
    measure_ceilings(folder, quiet=quiet)
    return folder


def _watched(stand: Stand, folder: Path, deadline: float, enough: Enough) -> Outcome:
    if ground_of(stand).layer is Layer.OVERLAY:
        with contained(stand, "measured", folder) as setting:
            return run_arm(setting.command, folder, ProbeOptions(), setting.place(deadline), enough)
    if not stand.uncontained:
        raise UsageError(
            "not-contained",
            "This system permits no user namespaces with overlays, without which the job can only be measured where it "
            f"writes to your own files: steptime run -- {shlex.join(stand.command)}, and try its recording; or add "
            "--uncontained.",
        )
    place = Place(stand.directory, offline_environment(folder), deadline)
    return run_arm(stand.command, folder, ProbeOptions(), place, enough)


def _reason(outcome: Outcome, folder: Path, seconds: float) -> NothingMeasuredError:
    """Why there is nothing to try."""
    if any(problem.startswith(DEADLINE_PASSED) for problem in outcome.problems):
        return NothingMeasuredError(
            "no-steps",
            f"The job took no training step in {seconds:.0f} s, half of the budget: give it more with --budget, or "
            f"check that it trains here; its output is in {folder / OUTPUT}.",
        )
    reason = nothing_measured(outcome, folder)
    said = last_lines(folder / OUTPUT)
    if reason is None or not said:
        return reason or NothingMeasuredError("no-steps", "The job took no training step.")
    hint = f" ({NO_INPUT})" if "EOFError" in said else ""
    return NothingMeasuredError(reason.slug, f"{reason.sentence} It said: {said}{hint}")
