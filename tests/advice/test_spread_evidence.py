"""Tensors of all pairs in a trace: known by the shapes of what is broadcast, where they are summed up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from advice.healthy import MS
from advice.planted import BASE, PAIRS
from traces import Event, operator

from steptime.advice.evidence import PathUse
from steptime.advice.rules.shaped import all_pairs
from steptime.advice.run_uses import SpreadUse
from steptime.advice.spread_evidence import broadcast, spread_uses
from steptime.analysis.operators import OperatorUse
from steptime.analysis.step_context import step_context
from steptime.quantities import SourceLine
from steptime.trace.reader import read

ROWS, COLUMNS, WHOLE = [64, 1, 32], [1, 64, 32], [64, 64, 32]
LAST = {"Concrete Inputs": ["", "[-1]", "False"]}
FIRST = {"Concrete Inputs": ["", "[0, 1]", "False"]}


def called(name: str, at: int, *shapes: list[int], **more: Any) -> Event:
    """An operator of 50 us on tensors of these shapes."""
    return operator(f"aten::{name}", at, at + 50, **{"Input Dims": [*shapes], **more})


def seen(path: Path, *events: Event, steady: float = 1.0) -> tuple[SpreadUse, ...]:
    """steady: time of sums in a steady step as a fraction of that in the profiled one."""
    path.write_text(json.dumps({"traceEvents": [operator("aten::add", 0, 1), *events], "baseTimeNanoseconds": 0}))
    trace = read(path)
    start = int(trace.events.start.min())
    steps = step_context(trace, np.array([[start, start + 1_000_000]]))
    uses = [OperatorUse("aten::sum", 1.0, spent, "memory", "forward") for spent in (1.0, steady)]
    return spread_uses(steps, [steps], uses[:1], uses[1:])


def test_differences_of_all_pairs_have_the_time_of_all_operators_on_them(tmp_path: Path) -> None:
    squared = called("sub", 10, ROWS, COLUMNS), called("pow", 70, WHOLE, []), called("sum", 130, WHOLE, [], **LAST)
    (use,) = seen(tmp_path / "t.json", *squared, called("mul", 300, WHOLE, []), called("mm", 400, [64, 32], [32, 64]))
    assert (use.kind, use.shape, use.calls) == ("distance", (64, 64, 32), 1.0)
    assert use.duration == pytest.approx(200_000, rel=0.02)
    (use,) = seen(tmp_path / "u.json", *squared, steady=0.5)
    assert use.duration == pytest.approx(125_000, rel=0.02), "sums are scaled to the steady steps"


def test_expanded_tensors_are_pairs_too(tmp_path: Path) -> None:
    sizes = {"Concrete Inputs": ["", "[64, -1, 32]", "False"]}, {"Concrete Inputs": ["", "[64, 64, 32]", "False"]}
    expanded = called("expand", 10, COLUMNS, [], [], **sizes[1]), called("expand", 70, ROWS, [], [], **sizes[1])
    summed = called("mul", 130, WHOLE, WHOLE), called("sum", 190, WHOLE, [], **LAST)
    assert [use.kind for use in seen(tmp_path / "t.json", *expanded, *summed)] == ["product"]
    assert seen(tmp_path / "u.json", *summed) == ()
    one = called("expand", 10, COLUMNS, [], [], **sizes[0])
    assert seen(tmp_path / "v.json", one, *summed) == (), "a weight of each pair"
    inside = called("expand", 12, ROWS, [], [], **sizes[1]), called("expand", 72, ROWS, [], [], **sizes[1])
    masked: list[Event] = [{**called("baddbmm", at, ROWS, [64, 64, 8], [64, 8, 32]), "dur": 55} for at in (11, 71)]
    assert seen(tmp_path / "w.json", *masked, *inside, *summed) == (), "attention's mask, and dropout's product"


@pytest.mark.parametrize(
    "events",
    [
        [called("sub", 10, ROWS, COLUMNS), called("relu", 70, WHOLE), called("sum", 130, WHOLE, [], **LAST)],
        [called("add", 10, ROWS, COLUMNS), called("tanh", 70, WHOLE), called("sum", 130, WHOLE, [], **LAST)],
        [called("mul", 10, ROWS, COLUMNS), called("mm", 70, [4096, 32], [32, 8])],  # the products are used themselves
        [called("sub", 10, [512, 1], [1, 512]), called("pow", 70, [512, 512], []),
         called("sum", 130, [512, 512], [], **LAST)],
        [called("sub", 10, WHOLE, [32]), called("pow", 70, WHOLE, []), called("sum", 130, WHOLE, [], **LAST)],
        [called("sub", 10, ROWS, COLUMNS), called("pow", 70, WHOLE, []), called("sum", 130, WHOLE, [], **LAST),
         called("mul", 190, WHOLE, [64, 64, 1])],  # the differences are weighted, too
        [called("mul", 10, [8, 64, 1], [8, 1, 64]), called("sum", 70, [8, 64, 64], [], **LAST)],  # nothing to sum over
        [called("sub", 10, [8, 64, 1], [8, 1, 64]), called("abs", 70, [8, 64, 64]),
         called("mean", 130, [8, 64, 64], [], **FIRST)],
        [called("sub", 10, [4, 1, 8], [1, 4, 8]), called("pow", 70, [4, 4, 8], []),
         called("sum", 130, [4, 4, 8], [], **LAST)],
    ],
)  # fmt: skip
def test_other_broadcasts_are_left_alone(tmp_path: Path, events: list[Event]) -> None:
    assert seen(tmp_path / "t.json", *events) == ()


def test_shapes_are_broadcast_as_torch_does() -> None:
    assert broadcast((64, 1, 32), (100, 1)) == (64, 100, 32)
    assert broadcast((3,), (4,)) == ()


def test_the_line_that_subtracts_is_named_and_not_that_of_the_sum() -> None:
    assert PAIRS.source is not None
    gap, total = (
        SourceLine(PAIRS.source.file, PAIRS.source.line + number, PAIRS.source.function, text)
        for number, text in enumerate(("gap = z[:, None] - c[None]", "return gap.pow(2).sum(-1)"), 1)
    )
    paths = (PathUse(1 * MS, "forward", (gap,)), PathUse(4 * MS, "forward", (total,)))
    (found,) = all_pairs(replace(BASE, spread=(PAIRS,), paths=paths))
    assert found.source == gap
    assert "cdist" in found.advice
