"""Saves that become longer over the run: checkpoints, and long steps in which the job writes its state by itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import HEALTHY
from journals import MS, JournalBuilder

from steptime.advice.assemble import assemble
from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.rule import Finding
from steptime.advice.run_uses import PeriodUse, SegmentUse
from steptime.advice.segment_evidence import segment_uses
from steptime.analysis.layout import lay_out_whole
from steptime.journal import Kind
from steptime.quantities import Estimate, SourceLine

SAVE = SourceLine("train.py", 94, "Snapshots.save", "path.write_bytes(pickle.dumps(self.pool.samples))")
GROWTH = (40e6, 180e6)


def _found(code: str, case: Case) -> Finding:
    (found,) = (each for each in examine(case).findings if each.code == code)
    return found


@pytest.mark.parametrize("rise", [0, 10])
def test_checkpoints_that_become_longer(rise: int, tmp_path: Path) -> None:
    job = JournalBuilder()
    for number in range(1, 61):
        job.forward(4 * MS).backward(8 * MS).step(2 * MS)
        if number % 5 == 0:
            job.span(Kind.CHECKPOINT, 30 * MS + rise * number * MS // 5)
    process = job.process(tmp_path)
    (use,) = segment_uses(process, lay_out_whole(process))
    assert (use.kind, use.growth is not None) == ("checkpoint", rise > 0)
    assert use.growth is None or use.growth[0] < 80 * MS < 120 * MS < use.growth[1]


def test_a_checkpoint_every_few_steps_says_that_it_grows() -> None:
    use = SegmentUse("checkpoint", 30, 3_300_000_000, 0.4, growth=GROWTH)
    found = _found("ST204", replace(HEALTHY, segments=(use,)))
    assert "takes 40 ms at first, 180 ms at the end" in found.summary
    assert "only what is new" in found.advice


def test_rare_checkpoints_say_so_too() -> None:
    use = SegmentUse("checkpoint", 4, 1_000_000_000, 0.1, growth=GROWTH)
    found = _found("ST902", replace(HEALTHY, step=replace(HEALTHY.step, total=5000), segments=(use,)))
    assert found.summary.endswith(": 40 ms at first, 180 ms at the end")
    assert "only what is new" in found.advice


@pytest.mark.parametrize(("line", "advice"), [(SAVE, "save only what is new"), (None, "that grows with the run")])
def test_every_kth_step_that_becomes_slower(line: SourceLine | None, advice: str) -> None:
    period = PeriodUse(16, 40, 110e6, Estimate(7e6, 6e6, 8e6, 40), "rest", line, growth=GROWTH)
    found = _found("ST905", replace(HEALTHY, period=period))
    assert found.summary.startswith("Every 16th step takes 40 ms more at first, 180 ms at the end, ")
    assert advice in found.advice
    assert found.source == line


def _pooled(folder: Path, *, grows: bool, evaluation: int = 0) -> Case:
    """Steps of 14 ms, and a save of 100 ms or more that nobody times, at uneven distances; before that which is timed
    by line an evaluation, of so many ns."""
    job, saves = JournalBuilder(), 0
    for number in range(1, 161):
        start = job.now
        if saves == 11 and evaluation and number % 37 in (3, 14, 19, 33):
            job.start(0, 2).next(MS, 2).evaluate(evaluation)
        if number > 20 and number % 37 in (3, 14, 19, 33):
            saves += 1
            saved = (100 + 20 * saves * grows) * MS
            job.wait(saved)
            if saves == 12:
                line = {"file": SAVE.file, "line": SAVE.line, "function": SAVE.function, "text": SAVE.text}
                path = {"duration": max(saved, evaluation), "part": "", "lines": [line], "ran": 1}
                job.fact("between", start=start, end=job.now + 14 * MS, steps=1, paths=[path])
        job.forward(4 * MS).backward(8 * MS).step(2 * MS)
    process = job.process(folder)
    return assemble(process, lay_out_whole(process))


def test_long_steps_that_become_longer_name_the_line_that_saves(tmp_path: Path) -> None:
    case = _pooled(tmp_path, grows=True)
    assert case.outliers is not None
    assert case.outliers.rise is not None
    assert case.outliers.line == SAVE
    found = _found("ST906", case)
    assert "at the end" in found.summary
    assert found.summary.endswith("most of it at train.py:94")
    assert (found.source, "only what is new" in found.advice) == (SAVE, True)


def test_long_steps_of_one_length_are_not_told_to_grow(tmp_path: Path) -> None:
    found = _found("ST906", _pooled(tmp_path, grows=False))
    assert "at the end" not in found.summary
    assert found.advice == "Look at what train.py:94 does in these steps."


def test_the_line_of_an_evaluation_before_a_long_step_is_not_blamed(tmp_path: Path) -> None:
    outliers = _pooled(tmp_path, grows=True, evaluation=400 * MS).outliers
    assert outliers is not None
    assert outliers.line is None
