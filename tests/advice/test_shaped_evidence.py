"""Calls by their shapes: what rules see of operators that are slow for some of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from advice.healthy import MS
from advice.planted import BASE, BILINEAR, ITEM
from traces import Event, operator, python

from steptime.advice.evidence import PathUse
from steptime.advice.rules import CATALOGUE
from steptime.advice.run_uses import ShapedUse
from steptime.advice.shaped_evidence import shaped_uses
from steptime.analysis.modules import ModuleUse
from steptime.analysis.operators import OperatorUse
from steptime.analysis.step_context import StepContext, step_context
from steptime.quantities import SourceLine
from steptime.trace.reader import read

FRAME = "autograd::engine::evaluate_function: ConvolutionBackward0"


def convolved(size: int, at: int, gradient: str, *, groups: int = 3) -> list[Event]:
    """A convolution of 60 us, with a backward of 100 us. gradient: mask of input, weights and bias."""
    weights = [3, 3 // groups, size, size]
    number: dict[str, Any] = {"Sequence number": at}
    settings = ["", "", "", "[1, 1]", "[0, 0]", "[1, 1]", str(groups)]
    dims: dict[str, Any] = {
        "Input Dims": [[4, 3, 96, 96], weights, [], [], [], [], []],
        "Concrete Inputs": settings,
        **number,
    }
    back: dict[str, Any] = {
        "Input Dims": [[4, 3, 76, 76], [4, 3, 96, 96], weights],
        "Concrete Inputs": ["", "", "", gradient],
    }
    return [
        operator("aten::conv2d", at, at + 60, **dims),
        operator("aten::convolution", at + 1, at + 59, **dims),
        operator(FRAME, at + 300, at + 400, **number),
        operator("aten::convolution_backward", at + 301, at + 399, **back),
    ]


def window(path: Path, *events: Event, stacks: bool = False) -> StepContext:
    """A step of 1000 us."""
    path.write_text(json.dumps({"traceEvents": [operator("aten::add", 0, 1), *events], "baseTimeNanoseconds": 0}))
    trace = read(path)
    start = int(trace.events.start.min())
    return step_context(trace, np.array([[start, start + 1_000_000]]), stacks=stacks)


def seen(steps: StepContext, *stacks: StepContext, steady: float = 1.0) -> tuple[ShapedUse, ...]:
    """steady: time of backward in a steady step as a fraction of that in the profiled one."""
    uses = [OperatorUse("aten::convolution_backward", 1.0, spent, "compute", "backward") for spent in (1.0, steady)]
    return shaped_uses(steps, stacks, uses[:1], uses[1:])


def test_a_window_has_its_time_forward_and_backward(tmp_path: Path) -> None:
    (use,) = seen(window(tmp_path / "t.json", *convolved(21, 10, "[True, False, False]")))
    assert (use.name, use.shapes[1], use.calls, use.trains) == ("conv2d", (3, 1, 21, 21), 1.0, False)
    assert 150_000 < use.duration < 160_000
    (use,) = seen(window(tmp_path / "u.json", *convolved(21, 10, "[True, False, False]")), steady=0.5)
    assert 100_000 < use.duration < 110_000, "backward is scaled to the steady steps"


def test_a_window_whose_weights_get_a_gradient_is_known(tmp_path: Path) -> None:
    (use,) = seen(window(tmp_path / "t.json", *convolved(21, 10, "[True, True, False]")))
    assert use.trains
    (use,) = seen(window(tmp_path / "u.json", *convolved(21, 10, "")))
    assert use.trains, "as far as the trace shows"


def test_small_windows_those_over_channels_and_dense_lookups_are_not_kept(tmp_path: Path) -> None:
    settings = ["", "", "-1", "False", "False"]
    lookup: dict[str, Any] = {"Input Dims": [[600, 48], [64], [], [], []], "Concrete Inputs": settings}
    events = [*convolved(3, 10, ""), *convolved(21, 110, "", groups=1), operator("aten::embedding", 800, 810, **lookup)]
    assert seen(window(tmp_path / "t.json", *events)) == ()


def test_the_function_comes_from_steps_with_stacks(tmp_path: Path) -> None:
    events = convolved(21, 10, "[True, False, False]")
    around = [python("/job/train.py(28): blur", 5, 80), python("nn.Module: Similarity_0", 4, 90)]
    stacks = window(tmp_path / "u.json", *events, *around, stacks=True)
    (use,) = seen(window(tmp_path / "t.json", *events), stacks)
    assert use.source is not None
    assert (use.source.line, use.source.function, use.module, use.calls) == (28, "blur", "Similarity", 1.0)


@pytest.mark.parametrize(
    ("text", "line"),
    [("return arcs, self.label(head, child)", 28), ("y = F.bilinear(a, b, self.w)", 28), ("y = self.other(a)", 13)],
)
def test_the_line_is_the_one_that_names_what_runs(text: str, line: int) -> None:
    """Else the function that runs it. line: of the finding."""
    longer = SourceLine(ITEM.file, 24, ITEM.function, "read = self.read(words)")
    lines = longer, SourceLine(ITEM.file, 28, ITEM.function, text)
    paths = tuple(PathUse(spent * MS, "forward", (each,)) for spent, each in zip((9, 6), lines, strict=True))
    module = ModuleUse("Parser.label", "Bilinear", 1, 1.0, 3 * MS, 5 * MS, 0.4)
    case = replace(BASE, shaped=(replace(BILINEAR, module="Bilinear"),), paths=paths, modules=(module,))
    (rule,) = (each for each in CATALOGUE if each.name == "slow-operator")
    (found,) = rule(case)
    assert found.source is not None
    assert found.source.line == line
