"""Graphs of kernels: what of them a trace holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from analysis import trace_events as made
from device_recordings import diagnosed

from steptime.advice.propose import propose
from steptime.analysis.graph_launches import EagerUse, GraphUse, graph_use
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of
from steptime.cli.trial import case_and_findings


def graphs(folder: Path, *events: made.Event) -> GraphUse | None:
    own = [made.step(0, 1000), made.called("cudaLaunchKernel", 10, 20, 1), made.kernel(1, 30, 130)]
    trace = made.written(folder / "trace.json", [*own, *events])
    return graph_use(step_context(trace, steps_of(trace)))


def test_kernels_of_a_graph_are_counted_with_their_share_of_the_time(tmp_path: Path) -> None:
    launched = made.called("cudaGraphLaunch", 200, 210, 2)
    kernels = [made.kernel(2, start, start + 150) for start in (220, 400)]
    assert graphs(tmp_path, launched, *kernels) == GraphUse(1, 0, 2, 0.75, 0, 0, single=1)


def test_a_graph_whose_kernels_were_not_recorded_is_empty(tmp_path: Path) -> None:
    assert graphs(tmp_path, made.called("hipGraphLaunch", 200, 210, 2)) == GraphUse(1, 1, 0, 0, 0, 0, single=1)


def test_a_capture_lasts_from_its_start_to_its_end_on_one_thread(tmp_path: Path) -> None:
    capture = [made.called("cudaStreamBeginCapture", 200, 210), made.called("cudaStreamEndCapture", 610, 640)]
    other = made.called("cudaStreamEndCapture", 300, 310, thread=made.ENGINE)
    assert graphs(tmp_path, *capture, other) == GraphUse(0, 0, 0, 0, 1, 400_000, single=1)


def test_a_trace_without_graphs_has_none(tmp_path: Path) -> None:
    assert graphs(tmp_path) is None


def test_what_runs_alongside_a_graph_is_named_by_its_outermost_operator(tmp_path: Path) -> None:
    compiled = made.operator("CompiledFunction", 195, 300)
    copied = made.operator("aten::copy_", 196, 199)  # goes with the graph
    launched = made.called("cudaGraphLaunch", 200, 210, 2)
    loss = [made.operator("aten::cross_entropy_loss", 310, 340), made.operator("aten::log_softmax", 312, 320)]
    frame = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    sums = [made.operator(frame, start, start + 5, thread=made.ENGINE) for start in (400, 410, 420)]
    update = [made.annotation("Optimizer.step#AdamW.step", 500, 590), made.operator("aten::_fused_adamw_", 510, 580)]
    use = graphs(tmp_path, compiled, copied, launched, made.kernel(2, 220, 250), *loss, *sums, *update)
    assert use is not None
    assert use.eager == (
        EagerUse("AdamW.step", 1, 90_000),
        EagerUse("cross_entropy_loss", 1, 30_000),
        EagerUse("AccumulateGrad", 3, 15_000),
    )


@pytest.mark.parametrize("kind", ["recording", "trace"])
def test_a_recording_says_of_its_graphs_what_its_trace_does(kind: str) -> None:
    recorded = Path(__file__).resolve().parents[1] / "data" / "gpu" / "graphs"
    path = recorded if kind == "recording" else next(recorded.glob("process-*/trace-3.json.gz"))
    case, findings = case_and_findings(path)
    use = case.step.graphs
    assert use is not None
    assert (use.launches, use.kernels, use.single) == (2, 222, 14)
    assert case.step.compiled
    assert {"AccumulateGrad", "AdamW.step", "cross_entropy_loss"} <= {each.name for each in use.eager}
    reported = {finding.code: finding for finding in findings}
    assert "launches 2 graphs of 222 kernels, and 14 kernels" in reported["ST302"].summary
    assert "AccumulateGrad (51 calls)" in reported["ST302"].advice
    assert "reduce-overhead" not in reported["ST302"].advice
    assert "222 kernels" in reported["ST821"].summary


def test_nothing_that_graphs_do_is_proposed_to_a_job_with_graphs() -> None:
    case, findings = diagnosed("graphs")
    assert case.compiled
    assert not [each.fix.code for each in propose(case, findings) if each.fix.code in ("RM303", "RM307")]
    plain = replace(case, compilations=(), top_modules=(), step=replace(case.step, compiled=False, graphs=None))
    assert not plain.compiled
    assert "RM307" in {each.fix.code for each in propose(plain, findings)}
