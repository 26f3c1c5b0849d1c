"""The work of operators around others, in traces where every microsecond is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from steptime.analysis.operators import OperatorUse, operator_totals
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.trace.reader import read

PRODUCT: dict[str, Any] = {"Input Dims": [[4, 8], [8, 16]], "Input type": ["float", "float"]}
FLOPS, BYTES = 2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16 + 4 * 16)
VECTOR: dict[str, Any] = {"Input Dims": [[100]], "Input type": ["float"]}


def event(name: str, start: float, end: float, event_kind: str = "cpu_op", **args: Any) -> dict[str, Any]:
    """Times in microseconds."""
    return {
        "ph": "X",
        "cat": event_kind,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": end - start,
        "args": args,
    }


def totals(path: Path, *operators: dict[str, Any]) -> dict[str, OperatorUse]:
    """Of one step of a millisecond."""
    boundary = event("ProfilerStep#3", 0, 1000, "user_annotation")
    path.write_text(json.dumps({"traceEvents": [boundary, *operators]}))
    trace = read(path)
    return {each.name: each for each in operator_totals(step_context(trace, steps_of(trace)), {})}


@pytest.mark.parametrize("interruption", [0, 40, 60, 500])
def test_an_interrupted_wrapper_does_not_count_the_work_inside_again(tmp_path: Path, interruption: float) -> None:
    """The thread loses its processor between the call of the outer operator and that of the inner one."""
    inner = event("aten::mm", 10 + interruption, 100 + interruption, **PRODUCT)
    outer = event("aten::matmul", 0, 105 + interruption, **PRODUCT)
    found = totals(tmp_path / "trace.json", outer, inner)
    assert found["aten::mm"].flops == FLOPS
    assert sum(each.flops or 0 for each in found.values()) == FLOPS
    assert sum(each.bytes or 0 for each in found.values()) == BYTES
    assert ("aten::matmul" in found) == (interruption > 40)  # its time is accounted for all the same


def test_work_of_an_operator_that_only_sums_inside_is_its_own(tmp_path: Path) -> None:
    inner = event("aten::sum", 300, 320, **VECTOR)
    found = totals(tmp_path / "trace.json", event("aten::mm", 0, 400, **PRODUCT), inner)
    assert found["aten::mm"].flops == FLOPS
    assert found["aten::sum"].bytes


def test_of_three_nested_only_the_innermost_product_counts(tmp_path: Path) -> None:
    nested = [event("aten::bmm", 200, 300, **{**PRODUCT, "Input Dims": [[1, 4, 8], [1, 8, 16]]})]
    nested += [event("aten::matmul", 100, 400, **PRODUCT), event("aten::mm", 0, 600, **PRODUCT)]
    found = totals(tmp_path / "trace.json", *nested)
    assert {name: each.flops for name, each in found.items()} == {"aten::bmm": FLOPS, "aten::matmul": 0, "aten::mm": 0}


def test_bytes_of_an_operator_made_of_others_are_theirs(tmp_path: Path) -> None:
    parts = [event("aten::mul", 100, 120, **VECTOR), event("aten::add", 200, 220, **VECTOR)]
    alone = totals(tmp_path / "alone.json", *parts)
    found = totals(tmp_path / "trace.json", event("aten::gelu", 0, 300, **VECTOR), *parts)
    assert found["aten::gelu"].bytes == 0
    assert {name: found[name].bytes for name in alone} == {name: each.bytes for name, each in alone.items()}


LONG: dict[str, Any] = {"Input Dims": [[1000]], "Input type": ["float"]}
NUMBER: dict[str, Any] = {"Input Dims": [[]], "Input type": ["float"]}


def test_bytes_of_an_operator_that_only_prepares_a_number_inside_are_its_own(tmp_path: Path) -> None:
    """As a division by a number does, whose tensor is made and copied inside."""
    nested = [event("aten::copy_", 10, 14, **NUMBER), event("aten::_to_copy", 5, 20, **NUMBER)]
    found = totals(tmp_path / "trace.json", event("aten::div", 0, 400, **LONG), *nested)
    assert found["aten::div"].bytes == 2 * 4 * 1000


def test_bytes_of_a_wrapper_around_such_an_operator_do_not_count_again(tmp_path: Path) -> None:
    nested = [event("aten::sum", 100, 700, **LONG), event("aten::fill_", 120, 130, **NUMBER)]
    found = totals(tmp_path / "trace.json", event("aten::mean", 0, 800, **LONG), *nested)
    assert found["aten::sum"].bytes == 4 * 1001
    assert found["aten::mean"].bytes == 0


def test_bytes_of_an_operator_around_one_without_a_model_are_not_taken_for_its_own(tmp_path: Path) -> None:
    nested = event("mine::transform", 100, 300, **LONG)
    found = totals(tmp_path / "trace.json", event("aten::div", 0, 400, **LONG), nested)
    assert found["aten::div"].bytes is None


def test_what_sums_sparse_tensors_has_no_work_that_their_shapes_could_tell(tmp_path: Path) -> None:
    table: dict[str, Any] = {"Input Dims": [[1000, 16], [1000, 16]], "Input type": ["float", "float"]}
    known = event("aten::add", 0, 5, **table)
    outer, inner = event("aten::add", 100, 300, **table), event("aten::_nnz", 110, 112, **table)
    found = totals(tmp_path / "trace.json", known, outer, inner)
    assert found["aten::add"].bytes is None


def test_a_call_that_waited_for_a_processor_is_not_usual(tmp_path: Path) -> None:
    calls = [event("aten::add", at, at + (90 if at == 200 else 10), **VECTOR) for at in (0, 100, 200)]
    found = totals(tmp_path / "trace.json", *calls, event("aten::add", 300, 304, **PRODUCT))
    assert (found["aten::add"].duration, found["aten::add"].usual) == (114_000, 34_000)


@pytest.mark.parametrize(
    ("longest", "kept"),
    [(12.0, False), (0.4, True)],  # ms: a turn of another program's, and a cold cache
)
def test_a_call_that_had_no_processor_does_not_speak_for_the_others(tmp_path: Path, longest: float, kept: bool) -> None:
    """Two profiled steps of three calls each, one of which is much longer than its like in the other step."""
    events = []
    for number, at in enumerate((0, 50_000)):
        events.append(event(f"ProfilerStep#{number}", at, at + 40_000, "user_annotation"))
        for turn in range(3):
            start, long = at + 13_000 * turn, (number, turn) == (1, 1)
            events.append(event("aten::sqrt", start, start + (1000 * longest if long else 20), **VECTOR))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read(path)
    (found,) = operator_totals(step_context(trace, steps_of(trace)), {}, usual=True)
    assert found.duration == (pytest.approx(250_000) if kept else pytest.approx(60_000))


def test_a_call_that_has_more_to_do_counts_in_full(tmp_path: Path) -> None:
    many: dict[str, Any] = {"Input Dims": [[100_000]], "Input type": ["float"]}
    events = []
    for number, (at, long) in enumerate(((0, False), (50_000, True))):
        events.append(event(f"ProfilerStep#{number}", at, at + 40_000, "user_annotation"))
        events.append(event("aten::sqrt", at, at + (12_000 if long else 20), **(many if long else VECTOR)))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read(path)
    (found,) = operator_totals(step_context(trace, steps_of(trace)), {}, usual=True)
    assert found.duration == pytest.approx(6_010_000)
