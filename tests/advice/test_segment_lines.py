"""Lines of what lies between the steps: told where the time is spread."""

from __future__ import annotations

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
