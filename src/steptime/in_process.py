"""Functions for training scripts: `steptime.log_to(writer)` sends the step's numbers to the job's own logger, and
`steptime.record()` starts a recording from within the job, as `steptime run` does from outside.

One law: the job continues whatever happens here; failures become one line on standard error."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from multiprocessing import parent_process
from pathlib import Path
from typing import Any

from steptime import probe
from steptime.own_python import own_python
from steptime.probe import messages
from steptime.probe.ours import suppressed

__all__ = ["OwnRecording", "log_to", "record"]


_reported: list[Path] = []
"""Recordings whose last message was printed: children of multiprocessing end twice."""


@dataclass(frozen=True, slots=True)
class OwnRecording:
    """Recording of this process. folder: None if nothing is recorded. begun: True if `record` started it, which
    therefore ends it; else `steptime run` did. leads: True if this process prints the messages of all ranks. pid: its
    process ID."""

    folder: Path | None
    begun: bool = False
    leads: bool = True
    pid: int = 0

    def stop(self) -> None:
        """Ends the recording as the process's end does: removes the probe, and prints the command that diagnoses it."""
        if self.begun and self.folder is not None and (session := probe.watching(str(self.folder))) is not None:
            self._notify()
            probe.leave(session)

    def _notify(self) -> None:
        folder = self.folder
        if folder is None or not self.leads or folder in _reported or os.getpid() != self.pid:
            return
        if probe.watching(str(folder)) is not None:
            _reported.append(folder)
            displayed = str(folder)
            with suppressed(OSError):  # the current folder is gone
                displayed = os.path.relpath(folder)
            messages.say(f"recorded {displayed}: steptime diagnose {shlex.quote(displayed)}")

    def __enter__(self) -> OwnRecording:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def record(folder: str | os.PathLike[str] | None = None, *, profile: bool = True) -> OwnRecording:
    """Records the training of this process into a new folder, by default runs/<script>-<time>. Call it before the
    loader and the optimizer are made. A few steps are timed by line and profiled, as under `steptime run`;
    profile=False: none is profiled. Ranks of one node share a recording; those of several nodes do if all name the same
    folder. If the process is already recorded, returns that recording."""
    if (session := probe.watching()) is not None:
        return OwnRecording(Path(session.plan["recording"]))
    if probe.PLAN in os.environ:  # another verb of ours looks at the job, or the probe has switched itself off
        return OwnRecording(None)
    return messages.guarded(lambda: _start(folder, profile)) or OwnRecording(None)


def _start(folder: str | os.PathLike[str] | None, profile: bool) -> OwnRecording:
    """Starts a recording. Raises SteptimeError and OSError."""
    from steptime.launcher.command import default_recording, make_recording
    from steptime.launcher.joining import join, leave
    from steptime.launcher.outcome import ProbeOptions
    from steptime.probe.identity import place
    from steptime.probe.recorder import finish_as_child
    from steptime.recording.manifest import start_manifest

    here, leads = place(), True
    if here.alone:
        made = make_recording(Path(folder) if folder is not None else default_recording(_command()), keep_earlier=True)
    else:
        shared = join(Path(folder) if folder is not None else shared_name(), str(here.rank))
        made, leads = shared.folder, shared.leads
        leave(shared)  # nobody waits for us
    if leads:
        start_manifest(made, _command(), {"profile": str(profile), "in_process": "True"})
        (made / "seen-torch").touch()
    if not probe.start(json.dumps({"recording": str(made), **asdict(ProbeOptions(profile))}, ensure_ascii=False)):
        return OwnRecording(None)
    if leads:
        # Without it a recording has no telemetry, and grows with the job's length.
        subprocess.run(
            own_python("steptime.launcher.companion", str(made), str(os.getpid()), str(_root())), check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    recording = OwnRecording(made, begun=True, leads=leads, pid=os.getpid())
    atexit.register(recording._notify)
    finish_as_child(recording._notify)
    return recording


def _command() -> tuple[str, ...]:
    """Command of this process; for a child of multiprocessing, this interpreter and its arguments."""
    return tuple(sys.orig_argv if parent_process() is None else (sys.executable, *sys.argv)) or ("python",)


def _root() -> int:
    """Id of the process that started all ranks of the job on this node."""
    launched = parent_process() is not None or "TORCHELASTIC_RUN_ID" in os.environ
    return os.getppid() if launched else os.getpid()


def shared_name() -> Path:
    """Path of a recording that is the same for all ranks started by one process: it has that process's start time."""
    from steptime.launcher.command import job_name

    began = Path(f"/proc/{_root()}").stat().st_ctime
    return Path("runs") / f"{job_name(_command())}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(began))}"


def log_to(writer: Any = None, *, every: float = 10.0, step: Callable[[], int] | None = None) -> Any:
    """Sends the mean step of the last seconds, its parts, the throughput and the memory in use to the job's own logger
    as steptime/step_ms, /input_ms, /forward_ms, /backward_ms, /optimizer_ms, /other_ms (which sum to it),
    /samples_per_second and /memory_mib.

    writer: a TensorBoard SummaryWriter, a Weights & Biases run, mlflow or a run of it, a logger with
    log_metrics(values, step), or a function of name, value and step; None: whichever of the first three the job has
    open. every: least seconds between two transmissions. step: function that returns the job's own step number for the
    log; None: the number of steps that steptime has seen.

    A process that is not recorded yet is recorded from here on (`record`). The result has `write()`, which sends the
    current numbers, and `end()`; it is None if nothing is recorded. Raises TypeError for an unknown writer, ValueError
    for an `every` that is negative or infinite."""
    if not 0 <= every < float("inf"):
        raise ValueError(f"every must be a number of seconds, 0 or more, not {every!r}")
    from steptime.probe.writers import writer_of

    write = writer_of(writer)
    record()
    session = probe.watching()
    if session is None or session.plan.get("variant"):  # nothing of ours may slow the steps of a trial
        return None
    from steptime.probe.step_metrics import StepMetrics

    return StepMetrics(session, write, every, step)
