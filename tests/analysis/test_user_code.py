"""Functions of the user's code in a step with Python stacks: their Python and their operators, phase by phase."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from traces import Event, annotation, operator, python

from steptime.analysis.step_context import step_context
from steptime.analysis.timeline import Phase
from steptime.analysis.user_code import FunctionUse, function_uses
from steptime.intervals import union
from steptime.trace.reader import read

US = 1_000


def uses(folder: Path, events: list[Event], *, stacks: bool = True) -> dict[tuple[str, str], FunctionUse]:
    """By function and phase, of one step of 1 ms whose first half is the forward."""
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
    trace = read(path)
    start = int(trace.events.start.min())
    forward = union(np.array([start]), np.array([start + 500 * US]))
    window = step_context(trace, np.array([[start, start + 1000 * US]]), phases={Phase.FORWARD: forward}, stacks=stacks)
    return {(use.source.function if use.source else "", use.phase): use for use in function_uses([window])}


def job() -> list[Event]:
    """A hook that parses for 200 us behind a product of 100, under a range that outlasts the call that opened it; torch
    itself at work; a loss of its own in the other half."""
    return [
        python("torch/nn/modules/module.py(1782): _call_impl", 0, 490),
        python("<built-in method enter>", 1, 5),
        annotation("nn.Module: Net (Net)", 3, 480),
        python("train.py(8): forward", 10, 130),
        operator("aten::mm", 20, 120),
        python("train.py(20): watch", 150, 370),
        python("json/__init__.py(299): loads", 160, 360),
        python("torch/_tensor.py(10): wrapped", 370, 470),
        python("loss.py(4): penalty", 600, 900),
        operator("aten::abs", 650, 850),
    ]


def test_python_and_operators_are_reported_by_the_innermost_function_of_the_user(tmp_path: Path) -> None:
    found = uses(tmp_path, job())
    assert found["watch", "forward"].python == 220 * US, "what it calls but torch is its own"
    assert found["forward", "forward"].operators == 100 * US
    assert found["penalty", "rest"].operators == 200 * US
    assert found["forward", "forward"].python <= 20 * US


def test_no_function_gets_what_torch_does_and_all_stay_within_the_step(tmp_path: Path) -> None:
    found = uses(tmp_path, job())
    assert found["", "forward"].python >= 100 * US
    assert sum(use.python + use.operators for use in found.values()) <= 1000 * US


def test_a_step_without_stacks_tells_no_functions(tmp_path: Path) -> None:
    assert uses(tmp_path, job(), stacks=False) == {}
