"""Evaluations in batches much smaller than training's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from advice.healthy import HEALTHY
from journals import MS, JournalBuilder

from steptime.advice.engine import examine
from steptime.advice.run_uses import SegmentLine, SegmentUse, SmallBatches
from steptime.advice.segment_evidence import segment_uses
from steptime.analysis.layout import lay_out_whole
from steptime.quantities import SourceLine

SITE = {"file": "train.py", "line": 61, "function": "<module>", "text": "dev = DataLoader(held_out, 1)"}
ONE = {"identity": 1, "rows": 1, "larger": 1.0}


def _job(evaluated: dict[str, Any] | None, forward: int = 2 * MS, *, by_hand: bool = False) -> JournalBuilder:
    """Twelve steps on 32 rows, forward 4 ms, and an evaluation of 40 calls after every fourth."""
    job = JournalBuilder()
    job.fact("inputs", identity=1, module="Net", rows=32, steps=2)
    job.fact("loader", identity=1, loader=1, dataset="D", batch_size=32)
    for at in (2, 3, 4):
        job.fact("loader", identity=at, loader=2, dataset="D", batch_size=1, site=SITE)
    if evaluated is not None:
        job.fact("evaluated", **evaluated)
    for number in range(1, 13):
        job.next(MS).forward(4 * MS).backward(8 * MS).step(2 * MS)
        for _ in range(40 if number % 4 == 0 else 0):
            if not by_hand:
                job.next(0, 1 + number // 4)
            job.evaluate(forward)
    return job


def _small(job: JournalBuilder, folder: Path) -> SmallBatches | None:
    process = job.process(folder)
    (use,) = segment_uses(process, lay_out_whole(process))
    assert use.kind == "evaluation"
    return use.small


def test_a_loader_of_single_rows_is_what_the_evaluation_takes_its_time_for(tmp_path: Path) -> None:
    small = _small(_job(ONE), tmp_path)
    assert small is not None
    assert (small.rows, small.usual, small.calls) == (1, 32, 40)
    assert (small.forward, small.batched) == (80 * MS, 5 * MS)
    assert small.loader is not None
    assert small.loader.line == 61


def test_single_rows_by_hand_have_no_loader(tmp_path: Path) -> None:
    small = _small(_job(ONE, by_hand=True), tmp_path)
    assert small is not None
    assert small.loader is None


@pytest.mark.parametrize(
    ("evaluated", "forward"),
    [
        pytest.param(None, 2 * MS, id="nobody counted rows"),
        pytest.param({**ONE, "rows": 32}, 2 * MS, id="batches as large as training's"),
        pytest.param({**ONE, "rows": 16}, 2 * MS, id="half as large"),
        pytest.param({**ONE, "larger": 16.0}, 2 * MS, id="whole images where training has crops"),
        pytest.param({**ONE, "rows": 8}, MS, id="passes as long as their rows ask for"),
        pytest.param({**ONE, "identity": 2}, 2 * MS, id="of another model"),
    ],
)
def test_other_evaluations_are_not_in_small_batches(
    evaluated: dict[str, Any] | None, forward: int, tmp_path: Path
) -> None:
    assert _small(_job(evaluated, forward), tmp_path) is None


def test_the_batch_size_comes_first_with_the_loaders_line(tmp_path: Path) -> None:
    process = _job(ONE).process(tmp_path)
    uses = segment_uses(process, lay_out_whole(process))
    (found,) = (each for each in examine(replace(HEALTHY, segments=uses)).findings if each.code == "ST901")
    assert found.summary == (
        "The evaluation's loader has a batch size of 1: 40 forward passes, 80 ms; 2 of 32 rows, some 5 ms"
    )
    assert found.source is not None
    assert found.source.line == 61
    assert "batch size of its own, 32 or more" in found.advice


@pytest.mark.parametrize("text", ["right += int(net(x[i : i + 1]).argmax() == y[i])", "seen = env.step(act(seen))"])
def test_a_loop_without_a_loader_is_no_rollout_where_no_line_is_an_environment(text: str) -> None:
    line = SegmentLine(SourceLine("train.py", 14, "validate", text), 0.96)
    use = SegmentUse("rollout", 24, 783 * MS, 0.33, 0.75, (line,), small=SmallBatches(1, 32, 300.0, 24e6, 4e6))
    (found,) = (each for each in examine(replace(HEALTHY, segments=(use,))).findings if each.code == "ST903")
    by_row = "Without gradients the model gets 1 row at a time: 300 forward passes, 24 ms; 10 of 32 rows, some 4 ms"
    assert found.summary.startswith("Rollouts" if "env" in text else by_row)


@pytest.mark.parametrize(("gradient", "needed", "graphs"), [(True, False, 1.0), (False, False, 0.0), (True, True, 0.0)])
def test_evaluations_with_gradients_on_are_known_where_no_backward_needs_them(
    gradient: bool, needed: bool, graphs: float, tmp_path: Path
) -> None:
    job = JournalBuilder()
    for number in range(1, 13):
        job.next(MS).forward(4 * MS).backward(8 * MS).step(2 * MS)
        for _ in range(10 if number % 4 == 0 else 0):
            job.next(0, 2).forward(2 * MS, gradient=gradient, training=False)
            if needed:
                job.backward(MS)
    process = job.process(tmp_path)
    evaluations = [use for use in segment_uses(process, lay_out_whole(process)) if use.kind == "evaluation"]
    assert [use.graphs for use in evaluations] in ([graphs], []), "forces: a backward in what is called evaluation"
    assert evaluations or needed
