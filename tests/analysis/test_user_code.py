"""Functions of the user's code in a step with Python stacks: their Python and their operators, phase by phase."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from traces import Event, annotation, operator, python

from steptime.analysis.step_context import step_context
from steptime.analysis.timeline import Phase
from steptime.analysis.user_code import CallUse, FunctionUse, called_name, extra_calls, function_uses
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


def test_a_function_lists_what_it_calls_by_the_outermost_operator_or_library_function(tmp_path: Path) -> None:
    dims: dict[str, Any] = {"Input Dims": [[96, 96]]}
    events = [
        python("train.py(8): refresh", 10, 400),
        python("torch/functional.py(3): wrapped", 20, 200),
        operator("aten::linalg_eigh", 30, 110, **dims),
        operator("aten::_linalg_eigh", 40, 100),
        operator("aten::linalg_eigh", 120, 190),
        python("copy.py(1): deepcopy", 210, 390),
        python("copy.py(1): deepcopy", 220, 300),
        operator("aten::clone", 230, 290),
        python("train.py(30): hook", 310, 380),
        operator("aten::histc", 320, 370),
    ]
    found = uses(tmp_path, events)
    calls = {call.name: call for call in found["refresh", "forward"].called}
    assert calls["aten::linalg_eigh"] == CallUse("aten::linalg_eigh", 2.0, 150 * US, "[[96, 96]]")
    assert calls["copy.deepcopy"].calls == 1, "what it calls itself is part of one call"
    assert calls["copy.deepcopy"].depth == 2
    assert calls["copy.deepcopy"].duration == 110 * US, "a user function that is called back has its own"
    assert found["hook", "forward"].called[0].name == "aten::histc"


def test_what_autograd_runs_is_called_by_no_function(tmp_path: Path) -> None:
    events = [
        python("train.py(8): train", 10, 400),
        operator("autograd::engine::evaluate_function: MmBackward0", 20, 390),
        operator("aten::mm", 30, 200),
        python("train.py(30): hook", 210, 380),
        operator("aten::histc", 220, 370),
    ]
    found = uses(tmp_path, events)
    assert [call.name for call in found["train", "forward"].called] == [""]
    assert found["hook", "forward"].called[0].name == "aten::histc"


def test_calls_have_the_names_that_a_reader_knows() -> None:
    assert called_name("/opt/lib/python3.11/site-packages/PIL/Image.py(2200): resize") == "PIL.Image.resize"
    assert called_name("json/__init__.py(183): dumps") == "json.dumps"
    assert called_name("<built-in method sort of list object at 0x7f>") == "list.sort"
    assert called_name("aten::sort") == "aten::sort"


def test_slow_steps_show_what_they_alone_run(tmp_path: Path) -> None:
    events = [
        each
        for number in range(5)
        for each in (
            operator("aten::mm", 1000 * number + 10, 1000 * number + 110),
            *(
                [
                    operator("aten::histc", 1000 * number + 200, 1000 * number + 500),
                    operator("aten::_histc", 1000 * number + 210, 1000 * number + 490),
                ]
                if number == 2
                else []
            ),
        )
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "baseTimeNanoseconds": 0}))
    trace = read(path)
    start = trace.events.start.min() - 10 * US + 1000 * US * np.arange(5)
    length = np.array([500, 500, 900, 500, 500]) * US
    window = step_context(trace, np.stack((start, start + length), axis=1))
    extras, alone = extra_calls([window], 400 * US)
    assert [(use.name, use.calls, use.duration) for use in extras] == [("aten::histc", 1.0, 300 * US)]
    assert alone == ("aten::_histc", "aten::histc")
    assert extra_calls([window.only(np.array([0, 1, 3]))], 400 * US) == ((), ()), "no profiled step was slow"
