"""Watches a recording: finds it, describes its job now, and handles the two requests that a watcher can make.

One law: the job is not disturbed. Its files are read with at most LARGEST_SHARE of a CPU, at the lowest priority, and a
profile is requested through the file that the probe checks anyway.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil

from steptime.answer.answer import Item
from steptime.arrays import Int64
from steptime.errors import OutputError, RecordingError, UsageError, no_such_file
from steptime.launcher.launch import PLAN
from steptime.live.view import Diagnosed, LiveView, RankView, view_of, with_stragglers
from steptime.own_python import own_python
from steptime.quantities import Estimate, SourceLine, format_duration, format_share
from steptime.recording.growing import WINDOW, GrowingRecording
from steptime.recording.inventory import REQUEST
from steptime.recording.manifest import NAME as MANIFEST
from steptime.report.compact import CompactFinding, CompactLine, CompactReport
from steptime.report.sentences import from_here, source_text

PERIOD = 1.0
"""Seconds between two updates."""
LARGEST_SHARE = 0.02
"""Largest fraction of one CPU for updates: with many ranks they become rarer."""
DIAGNOSIS_PERIOD, DIAGNOSIS_SHARE = 60.0, 0.03
"""Seconds between two diagnoses, and the fraction of a CPU that they may take together: one of two seconds of CPU a
minute, and fewer of a recording of many hours."""
STEPS_TO_DIAGNOSE = 20
LARGEST_DIAGNOSIS = 1 << 22
"""Most bytes of a diagnosis that are read."""
GROWING, DEAD, SILENCE = 60.0, 5.0, 300.0
"""Seconds since the last write: below GROWING a recording counts as growing. Beyond, its job counts as gone: after DEAD
if its processes are gone, after SILENCE if they cannot be checked."""


def find_recording(target: str | None) -> Path:
    """Path of the recording in a folder, of a process ID, or the newest that grows. Raises UsageError,
    RecordingError."""
    if target is None:
        return _newest(Path("runs"))
    path = Path(target)
    if target.isdigit() and not path.exists():
        return _recording_of(int(target))
    if not path.exists():
        raise no_such_file(path, "a recording (a folder written by steptime run) or a process ID")
    return path


def _newest(folder: Path) -> Path:
    found = [manifest.parent for manifest in folder.glob(f"*/{MANIFEST}")]
    times = {path: time.time() - _last_written(path) for path in found}
    growing = [path for path in found if times[path] < GROWING and not _has_ended(path)]
    if not growing:
        raise RecordingError(
            "nothing-to-watch",
            f"No job is being recorded in {folder}. Start one with `steptime run -- COMMAND`, or name a recording "
            "or a process ID: `steptime watch PID`.",
        )
    return max(growing, key=lambda path: (path / MANIFEST).stat().st_ctime_ns)


def _last_written(recording: Path) -> float:
    written = [0.0]
    for path in (recording, *recording.glob("telemetry.jsonl"), *recording.glob("process-*/journal.bin")):
        with contextlib.suppress(OSError):  # packed by now, or a link that leads nowhere
            written.append(path.stat().st_mtime)
    return max(written)


def _has_ended(recording: Path) -> bool:
    try:
        return bool(msgspec.json.decode((recording / MANIFEST).read_bytes()).get("ended_epoch_ns"))
    except (OSError, ValueError, AttributeError):
        return True


def _recording_of(pid: int) -> Path:
    """Recording of a process: from the environment of it or a child, by `steptime run`; else `steptime attach`'s."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        raise UsageError("nothing-to-watch", f"There is no process {pid} on this machine.") from None
    try:
        found = next(filter(None, map(_planned, family)), None)
    except psutil.AccessDenied:
        raise UsageError(
            "nothing-to-watch",
            f"Process {pid} belongs to another user, so its environment cannot be read. Give its recording.",
        ) from None
    attached = [each.parent for each in Path("runs").glob(f"*/process-{pid}") if not _has_ended(each.parent)]
    if found is None and not attached:
        raise UsageError(
            "nothing-to-watch", f"Process {pid} was not started by `steptime run`. Attach to it: steptime attach {pid}"
        )
    return found or max(attached, key=_last_written)


def still_recorded(folder: Path) -> bool:
    """True if a process is running that records into the folder (absolute), or will do so when it imports torch."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if _planned(process) == folder:
                return True
    return False


def _planned(process: psutil.Process) -> Path | None:
    """Folder in which a process records; None for none. Raises psutil.AccessDenied."""
    try:
        plan = msgspec.json.decode(process.environ().get(PLAN, "{}"))
    except (psutil.NoSuchProcess, psutil.ZombieProcess, OSError, ValueError):
        return None
    folder = plan.get("recording") if isinstance(plan, dict) else None
    return Path(folder) if isinstance(folder, str) else None


class Watcher:
    """Reader of a recording that grows, which describes its job now. Raises RecordingError if there is none."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self._recording = GrowingRecording(source)
        self._began = time.monotonic()
        self._grown = self._began - max(0.0, time.time() - _last_written(source))
        self._sampled = 0
        self._ranks: dict[Path, tuple[RankView, Int64]] = {}
        self._base: dict[str, Estimate] = {}
        self._diagnosis = Diagnosis(source)
        self.due = 0.0

    def look(self) -> LiveView:
        """State of the job from newly read data. Sets `due` to the time of the next update (seconds of time.monotonic).
        Raises RecordingError if the recording was removed."""
        start = time.monotonic()
        changed = self._read()
        samples, manifest = self._recording.samples, self._recording.manifest
        sampled = samples[-1].monotonic_ns if samples else 0
        if changed or sampled != self._sampled:
            self._grown, self._sampled = start if self.due else self._grown, sampled
        for folder in changed:
            process = self._recording.processes[folder]
            self._ranks[folder] = view_of(process.last_minute(), process.count.steps)
        every = sorted(self._ranks.values(), key=lambda each: (each[0].rank is None, each[0].rank or 0, each[0].name))
        ranks, waiting = with_stragglers(every)
        ended = manifest.ended_epoch_ns
        started = manifest.started_epoch_ns or time.time_ns()
        state = "ended" if ended else "silent" if self._is_gone(start) else "running"
        trained = any(rank.total >= STEPS_TO_DIAGNOSE for rank in ranks)
        view = LiveView(
            source=str(self.source),
            command=shlex.join(manifest.command),
            state=state,
            elapsed=max(0.0, ((ended or time.time_ns()) - started) / 1e9),
            silent=start - self._grown,
            ranks=ranks,
            exit_status=manifest.exit_status,
            waiting=waiting,
            left_out=self._recording.left_out,
            diagnosed=self._diagnosis.look(start, start=trained and state == "running"),
            notice=_notice(self.source),
            samples=tuple(each for each in samples if each.monotonic_ns > sampled - WINDOW),
        )
        self.due = time.monotonic() + max(PERIOD, (time.monotonic() - start) / LARGEST_SHARE)
        return replace(view, change=self._change(view.front, start))

    def _read(self) -> frozenset[Path]:
        try:
            return self._recording.read()
        except RecordingError:
            if not self.due or self.source.exists():
                raise
            raise RecordingError(
                "recording-cut-short",
                f"Somebody removed the recording {self.source} during steptime watch. The job goes on.",
            ) from None

    def _is_gone(self, now: float) -> bool:
        """True if nothing more will come although no end was written, because the launcher was killed too."""
        quiet = now - self._grown
        known = [process.known for process in self._recording.processes.values()]
        here = [each for each in known if each is not None and each.host == os.uname().nodename]
        if known and len(here) == len(known) and not any(psutil.pid_exists(each.pid) for each in here):
            return quiet > DEAD
        return quiet > SILENCE

    def _change(self, front: RankView | None, now: float) -> float | None:
        """Relative change of the front rank's step since the first watched minute; None within noise."""
        if front is None or front.step is None or front.steps < STEPS_TO_DIAGNOSE:
            return None
        base = self._base.setdefault(front.name, front.step)
        apart = front.step.low > base.high or front.step.high < base.low
        return front.step.value / base.value - 1 if apart and now - self._began > WINDOW / 1e9 else None

    def close(self) -> None:
        """Closes the files, and ends an unfinished diagnosis."""
        self._recording.close()
        self._diagnosis.close()


def ask_for_profile(recording: Path) -> None:
    """Asks every process of the job for one more window of the profiler. Raises OutputError."""
    try:
        (recording / REQUEST).touch()
    except OSError as error:
        raise OutputError(
            "profile-not-asked",
            f"A profile cannot be requested in {recording} ({os.strerror(error.errno or 0)}). Requesting one "
            "needs write access to the recording.",
        ) from None


def _notice(recording: Path) -> str:
    """Outcome of the last request for a profile; "" without a recent one."""
    try:
        asked = (recording / REQUEST).stat().st_mtime
        taken = max((path.stat().st_mtime for path in recording.glob("process-*/trace-*.json*")), default=0.0)
    except OSError:
        return ""
    if asked > taken:
        return f"Profile requested {max(0.0, time.time() - asked):.0f} s ago; steptime profiles the next steady steps."
    return "The requested profile is ready: the next diagnosis uses it." if time.time() - taken < GROWING else ""


def diagnosis_command(recording: Path, *options: str) -> list[str]:
    """Command that diagnoses a recording in a process of its own, at the lowest priority."""
    return ["nice", "-n", "19", *own_python("steptime", "diagnose", *options, "--", str(recording))]


class Diagnosis:
    """Background diagnosis of a recording: runs now and then in its own process and folder, and keeps its result."""

    def __init__(self, recording: Path) -> None:
        self._recording = recording.absolute()
        self._due = self._used = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._reported: Diagnosed | None = None

    def look(self, now: float, *, start: bool) -> Diagnosed | None:
        """Newest diagnosis; None if there is none yet. start: True if a new one may start."""
        if self._process is not None and self._process.poll() is not None:
            self._due = now + max(DIAGNOSIS_PERIOD, (_children_cpu() - self._used) / DIAGNOSIS_SHARE)
            self._reported = self._read() or self._reported
            self.close()
        elif self._process is None and start and now >= self._due:
            self._start()
        return self._reported

    def _start(self) -> None:
        """Starts a diagnosis. Whatever it writes ends with its folder."""
        self._used, self._folder = _children_cpu(), tempfile.TemporaryDirectory(prefix="steptime-diagnosis-")
        with Path(self._folder.name, "report.json").open("wb") as output:
            self._process = subprocess.Popen(
                diagnosis_command(self._recording, "--json"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.DEVNULL,
                cwd=self._folder.name,
                env={**os.environ, "TMPDIR": self._folder.name},
            )

    def _read(self) -> Diagnosed | None:
        if self._folder is None:
            return None
        try:
            with Path(self._folder.name, "report.json").open("rb") as file:
                return _diagnosed(msgspec.json.decode(file.read(LARGEST_DIAGNOSIS), type=CompactReport))
        except (OSError, msgspec.MsgspecError, ValueError):
            return None  # there is nothing to be reported yet

    def close(self) -> None:
        """Ends an unfinished diagnosis."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._process = self._folder = None


def _children_cpu() -> float:
    """CPU seconds of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _diagnosed(report: CompactReport) -> Diagnosed:
    """Diagnosis with every place as an editor opens it from here."""
    sources = [_source(each.line) for each in report.findings if each.line is not None]

    def here(text: str) -> str:
        return from_here(text, sources)

    def item(found: CompactFinding) -> Item:
        saves = found.savings_ns.value if found.savings_ns is not None else 0
        share = f" ({format_share(found.share)})" if found.share else ""
        return Item(
            f"{found.code} {found.name}",
            f"saves {format_duration(saves)}/step{share}" if saves else "",
            "" if found.evidence in report.headline else here(found.evidence),
            here(source_text(_source(found.line))) if found.line is not None else "",
            here(found.advice),
        )

    reason = f": {report.reason[:1].lower()}{report.reason[1:]}" if report.reason else ""
    sure = f"{report.confidence.capitalize()}{reason}"
    return Diagnosed(here(report.headline), here(sure), tuple(map(item, report.findings)))


def _source(line: CompactLine) -> SourceLine:
    return SourceLine(line.file, line.line, text=line.text)
