"""Graphs of kernels: what of them a trace holds."""

from __future__ import annotations

from pathlib import Path

from analysis import trace_events as made

from steptime.analysis.graph_launches import GraphUse, graph_use
from steptime.analysis.step_context import step_context
from steptime.analysis.trace_steps import steps_of


def graphs(folder: Path, *events: made.Event) -> GraphUse | None:
    own = [made.step(0, 1000), made.called("cudaLaunchKernel", 10, 20, 1), made.kernel(1, 30, 130)]
    trace = made.written(folder / "trace.json", [*own, *events])
    return graph_use(step_context(trace, steps_of(trace)))


def test_kernels_of_a_graph_are_counted_with_their_share_of_the_time(tmp_path: Path) -> None:
    launched = made.called("cudaGraphLaunch", 200, 210, 2)
    kernels = [made.kernel(2, begin, begin + 150) for begin in (220, 400)]
    assert graphs(tmp_path, launched, *kernels) == GraphUse(1, 0, 2, 0.75, 0, 0)


def test_a_graph_whose_kernels_were_not_recorded_is_empty(tmp_path: Path) -> None:
    assert graphs(tmp_path, made.called("hipGraphLaunch", 200, 210, 2)) == GraphUse(1, 1, 0, 0, 0, 0)


def test_a_capture_lasts_from_its_begin_to_its_end_on_one_thread(tmp_path: Path) -> None:
    capture = [made.called("cudaStreamBeginCapture", 200, 210), made.called("cudaStreamEndCapture", 610, 640)]
    other = made.called("cudaStreamEndCapture", 300, 310, thread=made.ENGINE)
    assert graphs(tmp_path, *capture, other) == GraphUse(0, 0, 0, 0, 1, 400_000)


def test_a_trace_without_graphs_has_none(tmp_path: Path) -> None:
    assert graphs(tmp_path) is None
