"""`steptime nan -- CMD…`: the first value that is not finite, with the operator and the line that made it."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

import click

from steptime.cli.after_run import nothing_measured
from steptime.cli.exit_codes import say, tell
from steptime.errors import SteptimeError, UsageError
from steptime.launcher.command import default_recording, job_name, resolve
from steptime.launcher.launch import exit_as, launch
from steptime.launcher.outcome import NumericsOptions, Outcome, ProbeOptions
from steptime.launcher.variant import OUTPUT, run_variant
from steptime.nan.nonfinite import NonFinite, ProcessNumerics, Trigger, read_numerics
from steptime.nan.text import render
from steptime.nan.trace_back import first_sign, trace_back
from steptime.report.json import document
from steptime.report.output import STANDARD_OUTPUT, Renderer, check, write_as
from steptime.trials.containment import Layer, Workspace, contained, ground_of, leave, refuse_uncontained
from steptime.trials.plan import ours_in
from steptime.trials.working_copy import find_outputs, outputs_outside

FOUND = 1
"""Exit status where something was not finite."""
LONGEST, SLOWER = 900.0, 3.0
"""An instrumented run may take so many seconds, and so many times what the watched one took, before it is ended."""
RENDERERS: tuple[Renderer[NonFinite], ...] = (Renderer(".txt", render), Renderer(".json", document))


@dataclass(frozen=True, slots=True)
class NanOptions:
    """What the command line asks for."""

    at: int | None
    max_steps: int
    go_on: bool
    replay: bool
    uncontained: bool
    output: str | None
    as_json: bool
    force: bool
    quiet: bool


@dataclass(frozen=True, slots=True)
class WatchedRun:
    """The first run. started: epoch, ns."""

    outcome: Outcome | None
    processes: tuple[ProcessNumerics, ...]
    started: int
    ended: int


class Hunt:
    """One call of the command. Raises what `launch` raises, before anything is started."""

    def __init__(self, job: tuple[str, ...], recording: Path | None, wishes: NanOptions) -> None:
        if wishes.output is not None:
            check(wishes.output, force=wishes.force, renderers=RENDERERS)
        resolve(job)
        self._job, self._wishes = job, wishes
        self._folder = recording or default_recording((f"{job_name(job)}-nan",))
        if wishes.force and recording is not None:
            from steptime.compare.history_index import remove, replaceable

            for part in (recording / "watch", recording / "instrumented"):
                if replaceable(part):
                    remove(part)
        self._seed = secrets.randbelow(1 << 31)

    def go(self) -> int:
        """The whole of it; the exit status. Does not return where the job failed by itself."""
        watched = self._watch()
        sign = self._sign(watched)
        instrumented: tuple[ProcessNumerics, ...] = ()
        if sign is not None and self._wishes.replay:
            instrumented = self._instrument(watched, sign)
        account = trace_back(self._job, watched.processes, instrumented)
        seconds = (time.time_ns() - watched.started) / 1e9
        notes = (*account.notes, *self._remarks(account, sign))
        account = replace(account, seconds=seconds, directory=str(Path.cwd()), notes=notes)
        outcome = watched.outcome
        if account.trigger is None and outcome is not None:
            self._nothing(outcome, watched.processes)
        self._deliver(account)
        if account.trigger is not None:
            return FOUND
        return 0 if outcome is None or outcome.status == 0 else _as_the_job(outcome)

    # -- the two runs ----------------------------------------------------------------------------------------------

    def _watch(self) -> WatchedRun:
        started = time.time_ns()
        if self._wishes.at is not None:
            return WatchedRun(None, (), started, started)
        options = NumericsOptions("watch", self._seed, go_on=self._wishes.go_on)
        outcome = launch(self._job, self._folder / "watch", ProbeOptions(profile=False, numerics=options))
        for problem in outcome.problems:
            say(problem)
        return WatchedRun(outcome, read_numerics(self._folder / "watch"), started, time.time_ns())

    def _sign(self, watched: WatchedRun) -> Trigger | None:
        """What to look for: a job that failed by itself may have seen a loss before we did."""
        if self._wishes.at is not None:
            return Trigger("loss", self._wishes.at)
        found = first_sign(watched.processes)
        outcome = watched.outcome
        if found is not None or outcome is None or outcome.status == 0 or outcome.signal is not None:
            return found
        if not outcome.torch_seen:
            return None
        return Trigger("read", max((process.steps for process in watched.processes), default=0) + 1)

    def _instrument(self, watched: WatchedRun, sign: Trigger) -> tuple[ProcessNumerics, ...]:
        more = 0 if sign.kind == "skipped" else self._wishes.max_steps
        first = max(1, sign.step - sign.steps_before)
        options = NumericsOptions("instrument", self._seed, False, first, sign.step + more, sign.kind)
        folder = self._folder / "instrumented"
        if not self._wishes.quiet:
            say(
                f"looking at every operator from step {first} on, in a second run; its output goes to {folder / OUTPUT}"
            )
        took = watched.outcome.seconds if watched.outcome is not None else 0.0
        stand = self._stand(watched)
        try:
            refuse_uncontained(stand)
            with contained(stand, "instrumented", folder) as setting:
                place = setting.place(LONGEST + SLOWER * took)
                outcome = run_variant(setting.command, folder, ProbeOptions(profile=False, numerics=options), place)
        finally:
            leave(stand)
        for problem in outcome.problems:
            say(problem)
        found = read_numerics(folder, (place.directory, Path.cwd()))
        if not found:
            say(f"The second run ended with status {outcome.status} before it trained: see {folder / OUTPUT}")
        return found

    def _stand(self, watched: WatchedRun) -> Workspace:
        """The working folder, in which what the first run has written is as it was left."""
        directory, folder = Path.cwd(), self._folder.absolute()
        outside = outputs_outside(self._job, directory, watched.started, watched.ended)
        ours = (*ours_in(folder.parent), folder)
        stand = Workspace(
            self._job, folder, directory, outside=outside, without=ours, uncontained=self._wishes.uncontained
        )
        if ground_of(stand).layer is Layer.OVERLAY:
            return stand
        return replace(stand, outputs=find_outputs(directory, watched.started, watched.ended, ours))

    # -- what is told ----------------------------------------------------------------------------------------------

    def _remarks(self, account: NonFinite, sign: Trigger | None) -> tuple[str, ...]:
        if account.trigger is None or not self._wishes.replay or account.reproduced or sign is None:
            return ()
        last = sign.step + self._wishes.max_steps
        return (
            f"it did not come back in the second run up to step {last}: the job draws on something that no seed "
            "governs (time, threads, files that the first run wrote)",
        )

    def _nothing(self, outcome: Outcome, processes: tuple[ProcessNumerics, ...]) -> None:
        """A job in which nothing was watched is no job in which all was finite."""
        if not processes:
            reason: SteptimeError | None = nothing_measured(outcome, self._folder)
            if reason is not None:
                say(str(reason))
                _as_the_job(outcome)

    def _deliver(self, account: NonFinite) -> None:
        wishes = self._wishes
        if wishes.as_json:
            tell(document(account))
        else:
            tell(render(account), error=wishes.output != STANDARD_OUTPUT)
        if wishes.output is not None and wishes.output != STANDARD_OUTPUT:
            write_as(RENDERERS, account, wishes.output, force=wishes.force)
            say(f"Wrote {wishes.output}")


def _as_the_job(outcome: Outcome) -> NoReturn:
    exit_as(outcome)


@click.command(
    "nan",
    short_help="Find the first value that is not finite: step, operator, line, cause.",
    context_settings={"allow_interspersed_args": False},
)
@click.option("--at", metavar="STEP", type=click.IntRange(1), help="Do not watch first: look at the operators of STEP.")
@click.option(
    "--max-steps",
    metavar="N",
    type=click.IntRange(0, 100_000),
    default=3,
    show_default=True,
    help="Steps beyond the one that was named in which every operator is looked at, if it does not come back there.",
)
@click.option("--continue", "go_on", is_flag=True, help="Let the watched job run on after something was found.")
@click.option("--no-replay", is_flag=True, help="Watch only: do not run the job a second time to find the line.")
@click.option("--uncontained", is_flag=True, help="Run again even where not all that is written can be contained.")
@click.option(
    "--recording",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder of what is recorded. Default: runs/<job>-nan-<time>.",
)
@click.option("-o", "--output", metavar="FILE", help="Also write the account to FILE (.txt or .json).")
@click.option("--force", is_flag=True, help="Overwrite what exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the account as JSON on standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing while the job runs.")
@click.argument("job", nargs=-1, type=click.UNPROCESSED, metavar="[--] COMMAND [ARGUMENT]...")
def command(
    job: tuple[str, ...],
    at: int | None,
    max_steps: int,
    go_on: bool,
    no_replay: bool,
    uncontained: bool,
    recording: Path | None,
    output: str | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a training job as it is with a cheap watch on its losses and gradients. When one is not finite the job is
    ended, and a second run of the same command looks at every operator around that step: which one made it, at which
    line, forward or backward, of which values, and what is likely to blame. Options come before the command.

    Exit status: 1 when something was found, else that of the job.

    \b
    steptime nan -- python train.py
    steptime nan --at 1200 -- torchrun --nproc-per-node 2 train.py
    """
    # INNER

    if at is not None and (go_on or no_replay):
        raise UsageError("usage", "--at is one instrumented run: it goes with neither --continue nor --no-replay.")
    wishes = NanOptions(at, max_steps, go_on, not no_replay, uncontained, output, as_json, force, quiet)
    return Hunt(job, recording, wishes).go()
