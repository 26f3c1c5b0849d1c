"""From a folder to its recordings, and from a recording to an entry of its history."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from steptime.capture.command import job_name
from steptime.errors import SteptimeError
from steptime.findings.case import Case
from steptime.findings.examine import examine
from steptime.findings.finding import Weight
from steptime.findings.step_uses import contention_use, step_summary
from steptime.findings.usual_steps import usual_steps
from steptime.history.history import Entry
from steptime.quantities import Estimate
from steptime.recording.load import load_process, look_into, place
from steptime.recording.recording import Manifest, Process, ProcessFacts, TelemetrySample
from steptime.report.facts import peak_bytes
from steptime.timeline.layout import lay_out_whole
from steptime.timeline.timeline import Mode

MANIFEST = "manifest.json"
DEEPEST = 4
"""Folders below the one that is asked for: the arms of a trial lie in its `arms`."""
ARMS = "arms"
CLAIM = re.compile(rb'^\s*\{\s*"format_version":\s*\d')
"""How steptime's manifests begin; other programs have a manifest.json, too."""
RUNNING = 3600.0
"""Seconds since the last write from which on a recording without an end belongs to a job that was killed."""
LEAST_STEPS = 3
"""Steady steps without which nothing is said, as in a diagnosis."""
Fingerprint = tuple[int, int]


def find_recordings(folder: Path) -> tuple[Path, ...]:
    """The recordings in a folder, in order. Links are not followed, and nothing inside a recording is looked at."""
    return tuple(sorted(_below(folder, DEEPEST)))


def _below(folder: Path, depth: int) -> Iterator[Path]:
    if is_recording(folder):
        yield folder
        return
    if not depth:
        return
    try:
        with os.scandir(folder) as found:
            inside = [Path(each.path) for each in found if each.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for each in inside:
        if not each.name.startswith("."):
            yield from _below(each, depth - 1)


def is_recording(folder: Path) -> bool:
    """Whether a folder has a manifest as steptime writes it."""
    path = folder / MANIFEST
    try:
        if folder.is_symlink() or path.is_symlink() or not path.is_file():
            return False
        with path.open("rb") as file:
            return CLAIM.match(file.read(256)) is not None
    except OSError:
        return False


def fingerprint(folder: Path) -> Fingerprint:
    """Bytes of a recording's files and the time of the last write to any: other ones, another entry."""
    size, newest = 0, 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                state = os.lstat(f"{parent}/{name}")
            except OSError:
                continue
            size, newest = size + state.st_size, max(newest, state.st_mtime_ns)
    return size, newest


@dataclass(frozen=True, slots=True)
class _Looked:
    """What is kept of a process; its journal is forgotten before the next one is read. case: None for too few steps."""

    place: tuple[bool, int, int, int]
    facts: ProcessFacts
    mode: Mode
    case: Case | None
    peak_bytes: int | None


def entry_of(folder: Path, print_of: Fingerprint) -> Entry | None:
    """What a history tells of a recording; None where it cannot be read at all."""
    try:
        contents = look_into(folder)
    except SteptimeError:
        return None
    manifest, size = contents.manifest, print_of[0]
    read = (load_process(each, manifest)[0] for each in contents.folders)
    looked = sorted((_look(process, contents.telemetry) for process in read), key=lambda each: each.place)
    fresh = time.time() - print_of[1] / 1e9 < RUNNING
    facts = looked[0].facts if looked else None
    entry = Entry(
        path=str(folder),
        job=job_name(manifest.command) if manifest.command else folder.name,
        command=shlex.join(manifest.command),
        commit=manifest.commit,
        dirty=manifest.dirty,
        machine=_machine(manifest, facts),
        torch=facts.torch if facts is not None else "",
        started_epoch_ns=manifest.started_epoch_ns,
        running=manifest.ended_epoch_ns is None and fresh,
        bytes=size,
        trial=folder.parent.name == ARMS
        or "numerics" in manifest.options
        or any(each.facts.changes for each in looked),
    )
    return _measured(entry, looked)


def _machine(manifest: Manifest, facts: ProcessFacts | None) -> str:
    device = (facts.device_name or facts.device.partition(":")[0]) if facts is not None else ""
    return ", ".join(filter(None, (manifest.host, device)))


def _measured(entry: Entry, looked: Sequence[_Looked]) -> Entry:
    """The entry with its step: of the slowest training process, or of the first one where they are alike."""
    trainers = [each for each in looked if each.mode != Mode.FORWARD] or looked
    found = [(each, each.case) for each in trainers if each.case is not None]
    if not found:
        return replace(entry, problem="too few steady steps to account for")
    slowest = max(found, key=lambda each: each[1].step.duration.value)
    alike = max(_step(case).low for _, case in found) <= min(_step(case).high for _, case in found)
    process, case = found[0] if alike else slowest
    doubts = [each.summary for each in examine(case).findings if each.weight is Weight.DOUBT and each.name == BUSY]
    return replace(
        entry,
        step=case.step.duration,
        steady=case.step.steady,
        peak_bytes=process.peak_bytes,
        busy=doubts[0] if doubts else "",
    )


BUSY = "background-load"
"""The rule that says that other programs used the CPUs."""


def _step(case: Case) -> Estimate:
    return case.step.duration


def _look(process: Process, telemetry: Sequence[TelemetrySample]) -> _Looked:
    """A process's step and the load beside it."""
    layout = lay_out_whole(process)
    timeline, usual = layout.timeline, usual_steps(layout)
    case = None
    if timeline.steps.steady.sum() >= LEAST_STEPS and len(usual):
        contention = contention_use(process, timeline.steps, usual, telemetry)
        case = Case(step_summary(process, timeline, usual), contention=contention)
    return _Looked(place(process), process.facts, timeline.mode, case, peak_bytes(process))
