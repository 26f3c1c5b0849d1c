"""Goodput: fraction of the time since a job first started, over all its recordings, that went into training steps.

Laws: the parts sum to the whole, to the nanosecond. A step that was repeated after a crash counts once: what a run did
after its last checkpoint is lost if another run follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from steptime.analysis.layout import lay_out
from steptime.analysis.timeline import Mode, SegmentKind, Timeline
from steptime.answer.answer import Answer
from steptime.answer.tables import Table, duration, share, table_of, word
from steptime.compare.history import JobHistory
from steptime.intervals import Intervals, measure, union
from steptime.quantities import format_count, format_duration, format_share
from steptime.recording.load import load_process, look_into, place
from steptime.recording.manifest import NAME as MANIFEST

STALL = 2.0
"""Factor on the median: a longer step stalled, for the time above the median."""
PRODUCTIVE, STALLED, LOST, START, END, DOWN = (
    "training steps", "stalls", "lost with a crash", "start-up", "after the last step", "between runs",
)  # fmt: skip
NAMES = {
    SegmentKind.EVALUATION: "evaluation",
    SegmentKind.CHECKPOINT: "checkpoints",
    SegmentKind.ROLLOUT: "rollouts",
    SegmentKind.COMPILATION: "compilation",
    SegmentKind.LOADER_START: "loader starts",
    SegmentKind.PAUSE: "steptime's profiles",
}
MEANINGS = {
    STALLED: f"extra time of steps longer than {STALL:g} times the median",
    LOST: "steps after the last checkpoint of a run that failed",
    START: "from the start of a run to its first step",
    DOWN: "from the end of a run to the start of the next",
}


@dataclass(frozen=True, slots=True)
class RunTime:
    """Time of one recording by what it went into. began, ended: start and end, ns since the epoch. parts: (name, ns),
    which sum to ended - began. steps: number of steps. unsaved: ns of training steps after the last checkpoint. failed:
    True if its exit status was not 0."""

    path: str
    began: int
    ended: int
    steps: int
    parts: tuple[tuple[str, int], ...]
    unsaved: int
    failed: bool


@dataclass(frozen=True, slots=True)
class Goodput:
    """Time of a job on one machine by what it went into. whole: ns from the start of its first run to the end of its
    last; parts: (name, ns), the largest first, which sum to it. steps: number of steps in all runs. restarts: number of
    runs that followed a failed one. Raises ValueError if the parts do not sum."""

    job: str
    machine: str
    whole: int
    parts: tuple[tuple[str, int], ...]
    runs: tuple[RunTime, ...]
    steps: int
    restarts: int

    def __post_init__(self) -> None:
        if sum(time for _, time in self.parts) != self.whole:
            raise ValueError("the parts of a job's time do not sum to it")

    @property
    def share(self) -> float:
        """Fraction of the time in training steps; 0 for a job without any time."""
        return dict(self.parts).get(PRODUCTIVE, 0) / self.whole if self.whole else 0.0


def goodput_of(track: JobHistory) -> Goodput | None:
    """Goodput of the recordings of one job; None if none has times. Of overlapping runs, the later one counts from the
    end of the earlier."""
    found = [run for entry in track.entries if (run := _run(Path(entry.path))) is not None]
    runs = sorted(found, key=lambda run: (run.began, run.path))
    if not runs:
        return None
    sums: dict[str, int] = {}
    reach, restarts = runs[0].began, 0
    for run, following in zip(runs, [*runs[1:], None], strict=True):
        parts = dict(run.parts)
        if run.failed and following is not None:
            restarts += 1
            parts[LOST] = min(run.unsaved, parts.get(PRODUCTIVE, 0))
            parts[PRODUCTIVE] = parts.get(PRODUCTIVE, 0) - parts[LOST]
        parts[DOWN] = max(0, run.began - reach)
        hidden = max(0, min(reach, run.ended) - run.began)  # another run was there
        for name in (START, END, *parts):
            taken = min(hidden, parts.get(name, 0))
            parts[name], hidden = parts.get(name, 0) - taken, hidden - taken
        reach = max(reach, run.ended)
        for name, time in parts.items():
            sums[name] = sums.get(name, 0) + time
    ordered = tuple(sorted(((name, time) for name, time in sums.items() if time), key=lambda each: -each[1]))
    steps = sum(run.steps for run in runs)
    return Goodput(track.job, track.machine, reach - runs[0].began, ordered, tuple(runs), steps, restarts)


def _run(folder: Path) -> RunTime | None:
    """Times of a recording, from the first of its processes that trained; None without valid times."""
    contents = look_into(folder)
    manifest = contents.manifest
    processes = sorted((load_process(each, manifest)[0] for each in contents.folders), key=place)
    laid = [(process, lay_out(process)) for process in processes]
    trained = [each for each in laid if each[1].mode is not Mode.FORWARD and len(each[1].steps.end)]
    process, timeline = next(iter(trained or laid), (None, None))
    written = max(path.stat().st_mtime_ns for path in (folder / MANIFEST, *folder.glob("telemetry.jsonl")))
    began, ended = manifest.started_epoch_ns, manifest.ended_epoch_ns or written
    if not began or ended <= began:
        return None
    failed = manifest.exit_status != 0
    if process is None or timeline is None or not len(timeline.steps.end) or not process.facts.epoch_ns:
        return RunTime(str(folder), began, ended, 0, ((START, ended - began),), 0, failed)
    shift = process.facts.epoch_ns - process.facts.monotonic_ns
    return _split(RunTime(str(folder), began, ended, 0, (), 0, failed), timeline, shift)


def _split(run: RunTime, timeline: Timeline, shift: int) -> RunTime:
    steps = timeline.steps
    first = min(max(int(steps.start[0]) + shift, run.began), run.ended)
    last = min(max(int(steps.end[-1]) + shift, first), run.ended)
    parts = {START: first - run.began}
    window = ([run.began - shift], [run.ended - shift])
    for kind, name in NAMES.items():
        parts[name] = int(measure(_held(timeline, kind), *window)[0])
    # What is before the first step and behind the last one, in no segment.
    companions = sum(int(measure(_held(timeline, kind), [window[0][0]], [first - shift])[0]) for kind in NAMES)
    behind = sum(int(measure(_held(timeline, kind), [last - shift], [window[1][0]])[0]) for kind in NAMES)
    parts[START] -= companions
    parts[END] = run.ended - last - behind
    trained = run.ended - run.began - sum(parts.values())
    usual = float(np.median(steps.duration[steps.steady])) if steps.steady.any() else float(np.median(steps.duration))
    alone = ~steps.profiled & ~(measure(_held(timeline, SegmentKind.THINNED), steps.start, steps.end) > 0)
    long = alone & ~steps.warm_up & (steps.duration > STALL * usual)
    parts[STALLED] = min(trained, int((steps.duration[long] - round(usual)).sum()))
    parts[PRODUCTIVE] = trained - parts[STALLED]
    saved = [each.end for each in timeline.segments if each.kind is SegmentKind.CHECKPOINT]
    unsaved = int(steps.duration[steps.start >= max(saved)].sum()) if saved else parts[PRODUCTIVE]
    return replace(
        run, steps=len(steps.end) + timeline.left_out, parts=tuple(parts.items()), unsaved=min(unsaved, trained)
    )


def _held(timeline: Timeline, kind: SegmentKind) -> Intervals:
    found = [each for each in timeline.segments if each.kind is kind]
    return union([each.start for each in found], [each.end for each in found])


def answer_of(found: Sequence[Goodput]) -> Answer:
    if not found:
        return Answer("Goodput", "No recording has the time of its job.")
    first = min(found, key=lambda each: each.share)
    headline = f"{first.job} on {first.machine}: training steps took {format_share(first.share)} of "
    headline += f"{format_duration(first.whole)}."
    return Answer("Goodput", headline, parts=tuple(_table(each, number) for number, each in enumerate(found)))


def _table(goodput: Goodput, number: int) -> Table:
    runs, whole = format_count(len(goodput.runs), "run"), goodput.whole or 1
    restarts = f", {format_count(goodput.restarts, 'restart')} after a failure" if goodput.restarts else ""
    title = f"{goodput.job} on {goodput.machine}: {runs}{restarts}, {format_count(goodput.steps, 'step')}"
    return table_of(
        f"goodput-{number}", f"{title}; goodput {format_share(goodput.share)} of {format_duration(whole)}", "",
        goodput.parts,
        word("", "part", lambda part: part[0]),
        duration("time", "time_ns", lambda part: part[1]),
        share("share", "share", lambda part: part[1] / whole, barred=True),
        word(" ", "meaning", lambda part: MEANINGS.get(part[0], "")),
    )  # fmt: skip
