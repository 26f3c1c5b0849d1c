"""Real jobs of many shapes through the real launcher: steps are found right, and nothing in the job changes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from patience import PATIENCE
from preloading import python

from steptime.analysis.layout import lay_out, lay_out_whole
from steptime.analysis.lines import LineRole, identity_of, line_table
from steptime.analysis.recorded_breakdown import breakdown_of_process
from steptime.analysis.timeline import Mode, Phase, SegmentKind, Timeline
from steptime.journal import Kind
from steptime.recording.load import load

pytest.importorskip("torch")

from steptime.probe.allowance import LEAST

ZOO = Path(__file__).parent / "zoo"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True)
class Job:
    """A script and what is to be found in it. steps: of each training process. micro_batches: of one model in
    each step, None where steps differ. evaluations, rollouts: at least so many segments between steps."""

    name: str
    steps: tuple[int, ...]
    mode: Mode = Mode.OPTIMIZER
    micro_batches: int | None = 1
    evaluations: int = 0
    rollouts: int = 0
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    needs: str = ""


JOBS = (
    Job("loader_schedule_eval", (30,), evaluations=2),
    Job("gan", (24,)),
    Job("wgan", (30,), micro_batches=None),
    Job("accumulation_scaler", (10,), micro_batches=4),
    Job("numpy_batches", (40,), evaluations=2, needs="numpy"),
    Job("lbfgs", (10,), micro_batches=1),
    Job("nested_optimizers", (25,)),
    Job("optimizer_in_backward", (25,)),
    Job("rollouts", (25,), rollouts=4),
    Job("folds", (240,)),
    Job("manual_update", (30,), mode=Mode.BACKWARD),
    Job("functional", (30,), mode=Mode.BACKWARD),
    Job("compiled_model", (20,), arguments=("eager",)),
    Job("compiled_step", (20,), mode=Mode.BACKWARD, arguments=("eager",)),
    Job("distributed", (40, 40), launcher=TORCHRUN),
    Job("spawned", (30, 30)),
    Job("threads", (30,)),
)
QUICK = {
    "loader_schedule_eval", "gan", "accumulation_scaler", "optimizer_in_backward", "rollouts", "functional",
    "distributed", "threads",
}  # fmt: skip
"""Of each kind of step one; the others are among the slow tests."""


def environment() -> dict[str, str]:
    """One thread, so that a job repeats itself bit for bit; nothing of an outer launch. What is spawned is a fork:
    Pythons of their own are spawned in other tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STEPTIME")}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PRELOADED_SPAWNS_ARE_FORKS": "1"}


def run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=ZOO, env=environment(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def command(job: Job) -> tuple[str, ...]:
    return (python(), *job.launcher, f"{job.name}.py", *job.arguments)


def watch(words: tuple[str, ...], recording: Path) -> subprocess.CompletedProcess[str]:
    launch = (python(), "-m", "steptime", "run", "--quiet", "--no-peaks", "--recording", str(recording), "--")
    return run((*launch, *words))


def lay_out_all(recording: Path) -> list[Timeline]:
    loaded = load(recording)
    assert loaded.problems == ()
    return [lay_out(process) for process in loaded.processes]


def segments(timeline: Timeline, kind: SegmentKind) -> int:
    return Counter(segment.kind for segment in timeline.segments)[kind]


@pytest.mark.parametrize(
    "job", [pytest.param(each, id=each.name, marks=() if each.name in QUICK else pytest.mark.slow) for each in JOBS]
)
def test_steps_are_found_and_the_job_is_the_same(job: Job, tmp_path: Path) -> None:
    if job.needs and importlib.util.find_spec(job.needs) is None:
        pytest.skip(f"{job.needs} is not installed")
    bare = run(command(job))
    assert bare.returncode == 0, f"the bare job: {bare.stderr}"
    watched = watch(command(job), tmp_path / "recording")
    assert (watched.stdout, watched.returncode) == (bare.stdout, 0), f"the watched job: {watched.stderr}"
    assert "steptime" not in watched.stderr
    timelines = lay_out_all(tmp_path / "recording")
    assert tuple(len(timeline.steps.start) for timeline in timelines) == job.steps
    for timeline in timelines:
        check(timeline, job)


def check(timeline: Timeline, job: Job) -> None:
    """One process's timeline against what its script does."""
    steps = timeline.steps
    assert timeline.mode is job.mode
    if job.micro_batches is not None:
        assert set(steps.micro_batches[1:-1][steps.timed[1:-1]].tolist()) == {job.micro_batches}
    assert (steps.phases.sum(axis=1) == steps.duration).all()
    assert (steps.phases >= 0).all()
    assert (steps.start[1:] >= steps.end[:-1]).all()
    assert segments(timeline, SegmentKind.EVALUATION) >= job.evaluations
    assert segments(timeline, SegmentKind.ROLLOUT) >= job.rollouts
    assert steps.steady.any()
    assert steps.phases[steps.steady][:, Phase.BACKWARD].min() > 0


def test_a_model_that_is_evaluated_after_each_update_has_that_in_its_steps(tmp_path: Path) -> None:
    watch(command(Job("probing", ())), tmp_path / "recording")
    (timeline,) = lay_out_all(tmp_path / "recording")
    steps = timeline.steps
    assert len(steps.start) == 40
    assert segments(timeline, SegmentKind.EVALUATION) == 0
    assert (steps.phases[steps.steady][:, [Phase.EVALUATION, Phase.FORWARD]] > 0).all()


def test_batches_made_in_the_arguments_of_the_training_call_are_input(tmp_path: Path) -> None:
    watch(command(Job("by_hand", ())), tmp_path / "recording")
    (process,) = load(tmp_path / "recording").processes
    layout = lay_out_whole(process)
    names = {identity_of(code, line): code.function for code in process.codes for line in code.lines}
    prepare = {names[each] for each, role in layout.lines.roles.items() if role is LineRole.INPUT}
    assert "draw" in {each.rpartition(".")[2] for each in prepare}
    steps = layout.timeline.steps
    assert np.median(steps.phases[steps.steady][:, Phase.INPUT]) > 0


def test_the_model_of_every_fold_is_found(tmp_path: Path) -> None:
    watch(command(Job("folds", ())), tmp_path / "recording")
    (timeline,) = lay_out_all(tmp_path / "recording")
    forwards = timeline.steps.phases[:, Phase.FORWARD]
    folds = [forwards[start + 40 : start + 80] for start in (0, 80, 160)]  # a model is looked for in the first steps
    assert [bool(np.median(fold) > 0) for fold in folds] == [True, True, True]


def test_a_job_that_only_infers_is_laid_out_by_its_forwards(tmp_path: Path) -> None:
    job = Job("inference", (), mode=Mode.FORWARD)
    bare, watched = run(command(job)), watch(command(job), tmp_path / "recording")
    assert watched.stdout == bare.stdout
    (timeline,) = lay_out_all(tmp_path / "recording")
    # The calls that make it an inference job are over before its root is timed.
    assert 15 <= len(timeline.steps.start) <= 20
    assert timeline.mode is Mode.FORWARD


@pytest.mark.slow
@pytest.mark.parametrize("name", ["compiled_model", "compiled_step"])
def test_what_inductor_compiles_is_not_changed(name: str, tmp_path: Path) -> None:
    job = Job(name, (20,), arguments=("inductor",))
    bare, watched = run(command(job)), watch(command(job), tmp_path / "recording")
    assert bare.returncode == 0, f"the bare job: {bare.stderr}"
    assert watched.stdout == bare.stdout
    (timeline,) = lay_out_all(tmp_path / "recording")
    assert len(timeline.steps.start) == 20


LONG = ("--pause", "0.055")
SHORT_JOBS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "eight long steps": (8, LONG, ()),
    "forty long steps": (40, LONG, ()),
    "a fraction of a second": (60, (), ()),
    "short steps on two ranks": (120, ("--ranks",), TORCHRUN),
}


@pytest.mark.parametrize(
    ("steps", "arguments", "launcher"),
    [
        pytest.param(
            *job, id=name, marks=pytest.mark.slow if name in ("forty long steps", "short steps on two ranks") else ()
        )
        for name, job in SHORT_JOBS.items()
    ],
)
def test_a_job_that_ends_soon_is_profiled_and_timed_by_line(
    steps: int, arguments: tuple[str, ...], launcher: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "recording"
    done = watch((python(), *launcher, "short.py", "--steps", str(steps), *arguments), folder)
    assert done.returncode == 0, done.stderr[-2000:]
    for process in load(folder).processes:
        layout = lay_out_whole(process)
        found, recorded = layout.timeline.steps, breakdown_of_process(process, layout)
        assert len(found.start) == steps
        assert recorded.profiled is not None, process.notes
        table = line_table(found, layout.lines, layout.claims, layout.work)
        assert np.median(table.untimed / table.steps) < 0.05  # of a step in which the machine stood still, any part
        assert found.steady.sum() >= 3
        assert not (found.steady & found.profiled).any()
        if arguments == LONG:
            assert np.flatnonzero(found.profiled)[0] <= 4, "before anything that takes more steps"
        if steps > 8:
            paused = process.intervals.kind == Kind.PAUSE  # with stacks, unless the machine had no time for them
            held = int((process.intervals.end - process.intervals.start)[paused].sum())
            assert any(window.stacks and len(window) for window in recorded.windows) or held > LEAST // 8
