"""Lines of what lies between the steps: told where the time is spread."""

from __future__ import annotations

from dataclasses import replace

from advice.healthy import HEALTHY

from steptime.advice.engine import examine
from steptime.advice.evidence import SegmentLine, SegmentUse
from steptime.advice.segment_evidence import segment_lines
from steptime.quantities import SourceLine
from steptime.recording.recording import SampledPath

MAIN = SourceLine("ppo.py", 40, "main", "batch = collect()")
UPDATE = SourceLine("ppo.py", 41, "main", "update(batch)")
ACT = SourceLine("ppo.py", 20, "collect", "action = policy(obs)")
STEP = SourceLine("ppo.py", 21, "collect", "obs = env.step(action)")
INNER = SourceLine("env.py", 9, "Env.step", "for body in bodies:")


def test_a_line_that_calls_nearly_all_gives_way_to_those_below_it() -> None:
    paths = (
        SampledPath(60, "", (INNER, STEP, MAIN)),
        SampledPath(10, "", (STEP, MAIN)),
        SampledPath(27, "forward", (ACT, MAIN)),
        SampledPath(3, "", (UPDATE,)),
    )
    assert [(line.source, line.share) for line in segment_lines(paths)] == [(STEP, 0.7), (ACT, 0.27)]


def test_one_line_alone_is_followed_to_where_its_time_goes() -> None:
    assert [line.source for line in segment_lines((SampledPath(9, "", (INNER, STEP, MAIN)),))] == [INNER]


def test_time_that_is_spread_below_one_line_is_told_there() -> None:
    paths = (SampledPath(50, "", (STEP, MAIN)), SampledPath(40, "", (ACT, MAIN)), SampledPath(10, "", (MAIN,)))
    assert [line.source for line in segment_lines(paths)] == [STEP, ACT]


def test_nothing_timed_has_no_lines() -> None:
    assert segment_lines(()) == ()


def test_lines_that_timing_slowed_are_told_with_that() -> None:
    lines = (SegmentLine(ACT, 0.84), SegmentLine(STEP, 0.1))

    def told(slowed: float) -> str:
        use = SegmentUse("rollout", 47, 5 * 10**9, 0.7, 0.22, lines, 4.0, slowed)
        (found,) = (each for each in examine(replace(HEALTHY, segments=(use,))).findings if each.code == "ST903")
        assert found.summary.endswith("(5 s in 47 rollouts)")
        return " ".join(found.evidence)

    assert "84 %: ppo.py:20" in told(1.2)
    assert "times as long" not in told(1.2)
    assert "It took 1.7 times as long while these lines were timed: what calls much of torch" in told(1.66)
    assert "84 %" not in told(4.0)
    assert "It took 4 times as long while these lines were timed." in told(4.0)
