"""Norms that are written out in single operators, and what a gradient scaler costs, from traces of devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from device_recordings import diagnosed
from traces import ENGINE, Event, Events, Written, annotation, called, kernel, launch, operator, step, write

from steptime.advice.device_evidence import norm_uses
from steptime.advice.device_uses import WrittenNormUse
from steptime.advice.loss_scaling import scaling_use
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.cli.trial import case_and_findings

WHOLE, REDUCED, WEIGHT = [64, 32, 256], [64, 32, 1], [256]
LAYER_NORM: list[tuple[str, list[Any]]] = [
    ("mean", [WHOLE, [], []]), ("sub", [WHOLE, REDUCED]), ("pow", [WHOLE, []]), ("mean", [WHOLE, [], []]),
    ("add", [REDUCED, []]), ("sqrt", [REDUCED]), ("div", [WHOLE, REDUCED]), ("mul", [WEIGHT, WHOLE]),
    ("add", [WHOLE, WEIGHT]),
]  # fmt: skip


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return lambda events: write(events, tmp_path)


def launched(calls: list[tuple[str, list[Any]]], since: int = 0, lasts: int = 10) -> Events:
    """Operators one after the other, each with a kernel; numbered as autograd numbers them."""
    events: Events = []
    for at, (name, shapes) in enumerate(calls):
        known: dict[str, Any] = {
            "Input Dims": shapes, "Input type": ["float"] * len(shapes), "Sequence number": since + at
        }  # fmt: skip
        start, number = since + 20 * at, since + at + 1
        events += [
            operator(f"aten::{name}", start, start + 10, **known),
            launch(number, start + 2, start + 4),
            kernel(number, start + 5, start + 5 + lasts, f"{name}_kernel"),
        ]
    return events


def frame(of: int, start: int, lasts: int) -> list[Event]:
    """What autograd runs for one of the operators, on its own thread."""
    known: dict[str, Any] = {"Sequence number": of, "Fwd thread id": 1}
    return [
        operator("autograd::engine::evaluate_function: MeanBackward1", start, start + 20, ENGINE, **known),
        operator("aten::expand_copy", start + 1, start + 15, ENGINE),
        launch(1000 + of, start + 2, start + 4, ENGINE),
        kernel(1000 + of, start + 5, start + 5 + lasts, "expand_kernel"),
    ]


def norms(trace: Any) -> tuple[WrittenNormUse, ...]:
    return norm_uses(step_context(trace, steps_of(trace)))


def test_a_layer_norm_is_found_with_its_backward(written: Written) -> None:
    events = [step(0, 3000), *launched(LAYER_NORM), *frame(0, 1000, 30), *frame(3, 1100, 30)]
    (use,) = norms(written(events))
    assert (use.kind, use.shape, use.calls) == ("layer norm", (64, 32, 256), 1)
    assert use.operators == tuple(name for name, _ in LAYER_NORM)
    assert (use.kernels, use.duration) == (9 + 2, 9 * 10_000 + 2 * 30_000)
    assert use.bytes == 5 * 64 * 32 * 256 * 4, "two tensors forward, three in backward"


def test_two_norms_of_one_kind_are_two_calls(written: Written) -> None:
    events = [step(0, 3000), *launched(LAYER_NORM), *launched(LAYER_NORM, 500)]
    (use,) = norms(written(events))
    assert (use.calls, use.kernels) == (2, 18)
    assert use.bytes == 2 * 2 * 64 * 32 * 256 * 4


def test_a_sum_with_a_residual_is_none_of_its_kernels(written: Written) -> None:
    residual = ("add", [WHOLE, WHOLE])
    (use,) = norms(written([step(0, 3000), *launched([residual, *LAYER_NORM, residual])]))
    assert use.operators == tuple(name for name, _ in LAYER_NORM)


@pytest.mark.parametrize(
    "calls",
    [
        [("mean", [WHOLE, []]), ("sqrt", [WHOLE])],  # a root of the whole tensor
        [("mean", [WHOLE, []]), ("sqrt", [REDUCED]), ("add", [REDUCED, []])],  # nothing is scaled by it
        [("mean", [[8, 4]]), ("rsqrt", [[8, 1]]), ("mul", [[8, 4], [8, 1]])],  # too small
        [("softmax", [WHOLE]), ("rsqrt", [REDUCED]), ("mul", [WHOLE, REDUCED])],  # nothing was reduced
    ],
)
def test_what_is_no_norm_is_left_alone(written: Written, calls: list[tuple[str, list[Any]]]) -> None:
    assert norms(written([step(0, 3000), *launched(calls)])) == ()


def test_rms_norms_of_a_real_model_are_found(shared_data: Path) -> None:
    """Qwen 1.5 on an H100 has 24 layers with two norms each, and one behind them."""
    trace = shared_data / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"
    case, findings = case_and_findings(trace)
    (use,) = case.written_norms
    assert (use.kind, use.shape, use.calls, use.kernels) == ("RMS norm", (16, 559, 1024), 49, 49 * 8)
    reported = next(finding for finding in findings if finding.code == "ST416")
    assert reported.savings is not None
    assert case.machine is not None
    assert case.machine.copy_bytes is not None
    least = use.bytes / case.machine.copy_bytes * 1e9
    assert reported.savings.value == pytest.approx(use.duration - least / 0.8)


def test_a_scaler_costs_its_kernels_and_the_wait_before_the_update() -> None:
    """A recording of an H200 whose step reads twice: the scaler's flag, and the loss behind the update."""
    case, findings = diagnosed("amp")
    use = case.scaling
    assert use is not None
    ran = sum(each.duration for each in case.kernels if "_amp_" in each.operator)
    assert use.kernels.value == pytest.approx(ran, rel=0.01)
    wait = sum(gap.duration.value for gap in case.gaps if gap.category == "sync")
    assert 0.5 * wait < use.waiting.value < wait
    codes = {finding.code: finding for finding in findings}
    assert codes["ST418"].savings is not None
    assert codes["ST418"].savings.value == pytest.approx(
        sum(each.value for each in (use.kernels, use.launching, use.waiting))
    )
    assert "ST303" not in codes, "what is left of the waiting is too little to tell"


def scaled(*between: Event) -> Events:
    """A scaler looks through the gradients, its flag is read, and then the optimizer updates. between: the two."""
    return [
        step(0, 3000),
        operator("aten::_amp_foreach_non_finite_check_and_unscale_", 0, 20),
        launch(1, 2, 4),
        kernel(1, 5, 400, "unscale"),
        operator("aten::item", 30, 420),
        called("cudaStreamSynchronize", 31, 419),
        *between,
        annotation("Optimizer.step#AdamW.step", 600, 800),
        operator("aten::_fused_adamw_", 700, 780),
        launch(2, 750, 760),
        kernel(2, 760, 900, "adamw"),
    ]


def test_the_wait_before_an_update_is_the_scalers(written: Written) -> None:
    trace = written(scaled())
    use = scaling_use(step_context(trace, steps_of(trace)))
    assert use is not None
    assert (use.kernels.value, use.waiting.value) == (395_000, 350_000), "from 400 to the launch at 750"


def test_a_read_with_work_before_the_update_is_not_the_scalers(written: Written) -> None:
    trace = written(scaled(operator("aten::mul", 500, 550)))
    use = scaling_use(step_context(trace, steps_of(trace)))
    assert use is not None
    assert use.waiting.value == 0


def test_a_step_without_a_scaler_has_none(written: Written) -> None:
    trace = written([step(0, 3000), *launched(LAYER_NORM)])
    assert scaling_use(step_context(trace, steps_of(trace))) is None
