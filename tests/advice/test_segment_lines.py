"""Lines of what lies between the steps: told where the time is spread."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from advice.healthy import HEALTHY
from journals import MS, US, JournalBuilder

from steptime.advice.engine import examine
from steptime.advice.run_uses import SegmentLine, SegmentUse
from steptime.advice.segment_evidence import DEEPEST, lines_text, loop_paths, segment_lines, segment_uses
from steptime.analysis.layout import lay_out_whole
from steptime.intervals import union
from steptime.journal import Flag, Kind
from steptime.quantities import SourceLine
from steptime.recording.recording import SampledPath

MAIN = SourceLine("ppo.py", 40, "main", "batch = collect()")
UPDATE = SourceLine("ppo.py", 41, "main", "update(batch)")
ACT = SourceLine("ppo.py", 20, "collect", "action = policy(obs)")
STEP = SourceLine("ppo.py", 21, "collect", "obs = env.step(action)")
INNER = SourceLine("env.py", 9, "Env.step", "for body in bodies:")
LAYER = SourceLine("model.py", 5, "Network.forward", "return self.head(x)")


def test_a_line_that_calls_nearly_all_gives_way_to_those_below_it() -> None:
    paths = (
        SampledPath(60, "", (INNER, STEP, MAIN)),
        SampledPath(10, "", (STEP, MAIN)),
        SampledPath(27, "forward", (ACT, MAIN)),
        SampledPath(3, "", (UPDATE,)),
    )
    assert [(line.source, line.share) for line in segment_lines(paths)] == [(STEP, 0.7), (ACT, 0.27)]


def test_the_line_that_one_of_several_leads_to_is_reported_alongside_it() -> None:
    moved = SourceLine("env.py", 14, "Env._move", "body.position += body.speed")
    paths = (
        SampledPath(55, "", (moved, INNER, STEP, MAIN)),
        SampledPath(10, "", (STEP, MAIN)),
        SampledPath(15, "", (LAYER, ACT, MAIN)),
        SampledPath(15, "", (ACT, MAIN)),
    )
    assert [(line.source, line.within) for line in segment_lines(paths)] == [(STEP, moved), (ACT, None)]
    use = SegmentUse("rollout", 47, 5 * 10**9, 0.7, 0.0, segment_lines(paths), 4.0)
    assert "68 % of that in the environment at ppo.py:21 (most at env.py:14), 32 % at ppo.py:20" in lines_text(
        use, "cpu"
    )
    (found,) = (each for each in examine(replace(HEALTHY, segments=(use,))).findings if each.code == "ST903")
    assert found.source == moved
    assert found.advice.startswith("Make the environment's own step cheaper")


def test_one_line_alone_is_followed_to_where_its_time_goes() -> None:
    assert [line.source for line in segment_lines((SampledPath(9, "", (INNER, STEP, MAIN)),))] == [INNER]


def test_time_that_is_spread_below_one_line_is_reported_there() -> None:
    paths = (SampledPath(50, "", (STEP, MAIN)), SampledPath(40, "", (ACT, MAIN)), SampledPath(10, "", (MAIN,)))
    assert [line.source for line in segment_lines(paths)] == [STEP, ACT]


def test_nothing_timed_has_no_lines() -> None:
    assert segment_lines(()) == ()


def test_lines_that_timing_slowed_are_reported_with_that() -> None:
    lines = (SegmentLine(ACT, 0.84), SegmentLine(STEP, 0.1))

    def reported(slowed: float) -> str:
        use = SegmentUse("rollout", 47, 5 * 10**9, 0.7, 0.22, lines, 4.0, slowed)
        (found,) = (each for each in examine(replace(HEALTHY, segments=(use,))).findings if each.code == "ST903")
        assert found.summary.endswith("(5 s in 47 rollouts)")
        return " ".join(found.evidence)

    assert "84 %: ppo.py:20" in reported(1.2)
    assert "times as long" not in reported(1.2)
    assert "It took 1.7 times as long while these lines were timed, so lines that call much of torch" in reported(1.66)
    assert "84 %" not in reported(4.0)
    assert "It took 4 times as long while these lines were timed." in reported(4.0)


def test_a_models_forward_is_not_looked_into() -> None:
    paths = (SampledPath(60, "forward", (LAYER, ACT, MAIN)), SampledPath(40, "", (ACT, MAIN)))
    assert [line.source for line in segment_lines(paths)] == [ACT]
    assert [line.source for line in segment_lines((SampledPath(9, "forward", (LAYER,)),))] == [LAYER]


def test_calls_between_the_steps_are_reported_by_the_line_of_the_loop_that_makes_them(tmp_path: Path) -> None:
    """Eight calls of the model behind each step, as long as the step: lines were timed in three of twelve steps."""
    job, lines = JournalBuilder(), ("for x, y in batches:", "    loss = train(x, y)", "    check = model(x)")
    numbered = [{"line": 10 + number, "text": text, "stores": [], "loads": []} for number, text in enumerate(lines)]
    job.fact("code", base=100, file="train.py", function="main", first_line=10, loop=True, lines=numbered)
    inside = [{"line": 5, "text": "return self.head(x)", "stores": [], "loads": []}]
    job.fact("code", base=200, file="model.py", function="Network.forward", first_line=5, loop=False, lines=inside)
    for number in range(12):
        start = job.now
        with job.within(Kind.LINE, 101):
            job.wait(10 * US).forward(2 * MS).backward(3 * MS).step(1 * MS)
        for _ in range(8):
            with job.within(Kind.LINE, 102), job.within(Kind.FORWARD, 1, Flag.TRAINING), job.within(Kind.LINE, 200):
                job.wait(1 * MS)
        if number in (4, 5, 6):
            job.record(Kind.LINES, start, job.now)
    process = job.process(tmp_path / "recording")
    (use,) = segment_uses(process, lay_out_whole(process))
    assert (use.kind, [line.source.line for line in use.lines]) == ("rollout", [12])
    assert use.share == pytest.approx(8 / 14, rel=0.05)


def test_a_recursion_far_below_the_loop_counts_with_its_outer_calls(tmp_path: Path) -> None:
    job = JournalBuilder()
    lines = [{"line": 10, "text": "walk(tree)", "stores": [], "loads": []}]
    job.fact("code", base=100, file="train.py", function="walk", first_line=10, loop=True, lines=lines)
    start = job.now
    for depth in range(400):
        job.record(Kind.LINE, start + depth * US, start + 2 * MS - depth * US, 100)
    process = job.wait(2 * MS).process(tmp_path / "recording")
    layout = lay_out_whole(process)
    (*_, deepest) = sorted(
        loop_paths(process, layout, union(np.array([start]), np.array([start + 2 * MS]))), key=depth_of
    )
    assert (depth_of(deepest), deepest.duration) == (DEEPEST, 2 * MS - 2 * (DEEPEST - 1) * US)


def depth_of(path: SampledPath) -> int:
    return len(path.lines)


def test_rows_of_calls_are_no_rollouts() -> None:
    def summary(forward: float, line: SourceLine) -> str:
        use = SegmentUse("rollout", 47, 5 * 10**9, 0.7, forward, (SegmentLine(line, 1.0),))
        (found,) = (each for each in examine(replace(HEALTHY, segments=(use,))).findings if each.code == "ST903")
        return found.summary

    assert summary(0.99, ACT) == "Calls of the models without gradients took 70 % of the run (5 s in 47 rows of calls)"
    assert summary(0.8, ACT).startswith("Rollouts took 70 %")
    assert summary(0.99, STEP).startswith("Rollouts took 70 %")


def test_a_line_in_which_nothing_acts_is_told_in_place_of_the_rollouts() -> None:
    """Its function was timed, and holds neither a model nor an environment."""
    batch = SourceLine("train.py", 40, "main", "batch = to_batch(memory.sample(64))")
    stack = SourceLine("train.py", 9, "to_batch", "states = torch.as_tensor([each.state for each in items])")
    play = SourceLine("train.py", 39, "main", "play(4)")
    paths = (SampledPath(70, "", (stack, batch)), SampledPath(30, "", (STEP, play)))
    first, second = segment_lines(paths)
    assert (first.source, first.acts, second.source, second.acts) == (batch, False, play, True)
    use = SegmentUse("rollout", 47, 5 * 10**9, 0.7, 0.1, (first, second), 1, 1.2)
    (found,) = (each for each in examine(replace(HEALTHY, segments=(use,))).findings if each.code == "ST903")
    assert found.source == stack
    assert "np.stack" in found.advice
    assert found.summary.startswith("train.py:40 (most at train.py:9) takes 70 % of the time between updates")
