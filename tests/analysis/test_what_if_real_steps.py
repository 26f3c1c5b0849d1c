"""Steps of real traces, replayed: how near, and against what others publish about them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from analysis.trace_events import replayed
from published import trace_of

from steptime.analysis.breakdown import breakdown_of
from steptime.analysis.categories import Breakdown, Category
from steptime.analysis.step_context import step_context
from steptime.analysis.threads import training_track
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.what_if.build import build, event_ties, wait_ties
from steptime.analysis.what_if.critical_path import PathKind
from steptime.analysis.what_if.graph import EdgeKind, Graph, NodeKind
from steptime.analysis.what_if.scope import Scope, scope_of, streams_of, waits_of
from steptime.analysis.what_if.what_if import rerun
from steptime.intervals import EMPTY
from steptime.trace.call_tree import call_tree, exclusive_spans
from steptime.trace.links import link
from steptime.trace.table import Trace

STEPS = {
    "kineto/resnet50_workers0.pt.trace.json.gz": 0.01,
    "kineto/resnet50_workers4.pt.trace.json.gz": 0.01,
    "hta/ns_resolution_trace/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz": 0.01,
    "hta/nccl_parser_config/nccl_data.json.gz": 0.01,
    "hta/trace_filter/sampled_rank-0.json.gz": 0.01,
    "hta/amd_trace/mi250_minitoy_train_ROCm6_2_kineto.json.gz": 0.01,
    "tracelens/mi300/resnet_act_checkpoint.json.gz": 0.01,
    "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz": 0.01,
    "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz": 0.03,
    "param/dlrm_kineto/worker0_step_12.1694128201545.pt.trace.json.gz": 0.01,
}
"""The error that each may have."""
CRITICAL_PATH = "hta/critical_path"
SIMPLE_ADD = f"{CRITICAL_PATH}/simple_add/benchmark_result_493459_1694039959_trace.json.gz"
ALEXNET = f"{CRITICAL_PATH}/alexnet/benchmark_result_2869224_1695835535_trace.json.gz"
FORWARD = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
MICROSECOND = 1000


@pytest.mark.parametrize(("file", "error"), STEPS.items())
def test_the_unchanged_replay_lands_near_the_measured_steps(shared_data: Path, file: str, error: float) -> None:
    replay = replayed(trace_of(shared_data / file))
    assert replay.error <= error
    assert (replay.entries.sum(axis=1) == replay.replayed).all()
    assert (replay.path.end > replay.path.start).all()


@pytest.mark.parametrize("first", [1, 2])
def test_a_replay_may_start_with_any_step(shared_data: Path, first: int) -> None:
    """The device is two steps behind the host here: a later step starts with a full queue."""
    trace = trace_of(shared_data / "tracelens/mi300/resnet_act_checkpoint.json.gz")
    steps = step_context(trace, steps_of(trace))
    whole = breakdown_of(steps)
    breakdown = Breakdown(whole.device, whole.wall[first:], whole.entries[first:])
    replay = rerun(steps.only(np.arange(first, len(steps))), breakdown)
    assert replay is not None
    assert replay.measured.tolist() == whole.wall[first:].tolist()
    assert replay.error < 0.02


def test_what_the_trace_does_not_hold_is_an_error_and_not_a_delay_of_the_model(shared_data: Path) -> None:
    """Half of each of these steps the device idles for work of other ranks that was not recorded."""
    replay = replayed(trace_of(shared_data / "hta/negative_queue_length_values_check/rank0.json.gz"))
    assert 0.4 < replay.error < 0.6
    assert dict(replay.critical_path)["unexplained"] > 0.4 * replay.replayed.mean()
    for prediction in replay.predictions:
        assert prediction.saved.high - prediction.saved.low >= min(prediction.cap, 0.4 * replay.measured.mean()) * 0.9


def test_free_input_is_predicted_as_it_came_true_with_four_workers(shared_data: Path) -> None:
    """The same training with num_workers=0 and 4. Of the latter, the steps in which the loader was awaited least."""
    alone, helped = (trace_of(shared_data / file) for file in list(STEPS)[:2])
    breakdown = breakdown_of(step_context(helped, steps_of(helped)))
    served = breakdown.entries[:, Category.INPUT] < 1_000_000
    came_true = float(np.median(breakdown.wall[served]))
    replay = replayed(alone)
    prediction = next(each for each in replay.predictions if each.change == "input free")
    assert replay.measured[1:].mean() - prediction.saved.value == pytest.approx(came_true, rel=0.1)


def scope_over(trace: Trace, start: int, end: int) -> tuple[Scope, Graph]:
    """The graph of any interval of a trace, as if it were a step."""
    boundaries = np.array([[start, end]], np.int64)
    track = training_track(trace)
    assert track is not None
    scope = scope_of(trace, boundaries, link(trace, boundaries).launch[:].astype(np.int64), track, EMPTY)
    return scope, build(scope)


def named(trace: Trace, name: str) -> list[int]:
    return [row for row, symbol in enumerate(trace.events.name.tolist()) if trace.symbols[symbol] == name]


def test_self_times_of_the_published_operators_are_theirs(shared_data: Path) -> None:
    """HTA's edges 15, 14, 17, 15, 32 µs: aten::relu_ around aten::clamp_min_ around a launch, in order of time.

    Its path has a node for the start and the end of every operator: 315, with 314 edges, over 159 events. Ours has one
    for what a thread meets outside itself, and names the time between two of them afterwards, so its counts are others
    by intent; what both must agree on are the lengths.
    """
    trace = trace_of(shared_data / SIMPLE_ADD)
    events, annotated = trace.events, named(trace, FORWARD)[1]
    inside = (events.start >= events.start[annotated]) & (events.end <= events.end[annotated])
    rows = np.flatnonzero(inside & (events.track == events.track[annotated]))
    found = exclusive_spans(call_tree(events.start[rows], events.end[rows]))
    lengths = ((found.end - found.start) // MICROSECOND).tolist()
    assert [15, 14, 17, 15, 32] in [lengths[at : at + 5] for at in range(len(lengths))]


def test_launch_and_gap_were_observed_as_published_and_are_replayed_as_the_machines(shared_data: Path) -> None:
    """HTA gives each edge what was observed: 27 µs from the launch of correlation 5597 to its kernel, 7 µs from it to
    the next kernel, 5604. We see the same, and replay one delay for all, which is what makes a replay a test."""
    trace = trace_of(shared_data / SIMPLE_ADD)
    annotated = named(trace, FORWARD)[1]
    _, graph = scope_over(trace, int(trace.events.start[annotated]), int(trace.events.end[annotated]))
    kernels = {int(trace.events.correlation[row]): node for node, row in enumerate(graph.nodes.row.tolist())
               if graph.nodes.kind[node] == NodeKind.KERNEL}  # fmt: skip
    nodes, edges = graph.nodes, graph.edges
    started = nodes.observed - nodes.duration

    def edge(kind: EdgeKind, target: int) -> int:
        return int(np.flatnonzero((edges.kind == kind) & (edges.target == target))[0])

    launch, gap = edge(EdgeKind.LAUNCH, kernels[5597]), edge(EdgeKind.STREAM, kernels[5604])
    assert started[kernels[5597]] - nodes.observed[edges.source[launch]] == 27 * MICROSECOND
    assert edges.source[gap] == kernels[5597]
    assert started[kernels[5604]] - nodes.observed[kernels[5597]] == 7 * MICROSECOND
    assert 0 < edges.weight[launch] < 50 * MICROSECOND
    assert len(np.unique(edges.weight[(edges.kind == EdgeKind.STREAM) & (edges.weight > 0)])) <= 3


def correlations(scope: Scope, pairs: Any) -> set[tuple[int, int]]:
    events, row = scope.trace.events, scope.activities.row
    return {(int(events.correlation[row[one]]), int(events.correlation[row[other]])) for one, other in pairs}


def test_streams_wait_for_each_other_where_the_device_tracer_says_so(shared_data: Path) -> None:
    """HTA's published edge from the kernel of correlation 5606 on stream 20 to that of 5629 on stream 7, and every pair
    of streams in the file's own records of waits that has kernels on both sides."""
    trace = trace_of(shared_data / ALEXNET)
    events = trace.events
    scope, _ = scope_over(trace, int(events.start.min()), int(events.end.max()))
    tied = event_ties(scope, streams_of(scope))
    assert (5606, 5629) in correlations(scope, zip(tied.source, tied.target, strict=True))
    stream = events.stream[scope.activities.row]
    ours = set(zip(stream[tied.source].tolist(), stream[tied.target].tolist(), strict=True))
    with gzip.open(shared_data / ALEXNET) as file:
        records = [event["args"] for event in json.load(file)["traceEvents"] if event.get("cat") == "cuda_sync"]
    message = {(record["wait_on_stream"], record["stream"]) for record in records if "wait_on_stream" in record}
    assert {pair for pair in message if set(pair) <= set(stream.tolist())} <= ours


def test_the_host_waits_for_the_kernel_before_the_event(shared_data: Path) -> None:
    """HTA's synchronising edges of weight 0: from the spinning kernel (correlation 1526) to cudaEventSynchronize and to
    cudaDeviceSynchronize. Ours carry the usual return of a wait instead. cudaEventQuery does not wait, and has none."""
    trace = trace_of(shared_data / f"{CRITICAL_PATH}/cuda_event_sync/event_sync_trace.json.gz")
    start, end = steps_of(trace)[0].tolist()
    scope, _ = scope_over(trace, start, end)
    waits = waits_of(scope)
    tied = wait_ties(scope, waits)
    waited = [trace.symbols[trace.events.name[waits.row[at]]] for at in tied.target]
    sources = trace.events.correlation[scope.activities.row[tied.source]].tolist()
    assert {(source, name) for source, name in zip(sources, waited, strict=True) if source == 1526} == {
        (1526, "cudaEventSynchronize"),
        (1526, "cudaDeviceSynchronize"),
    }


def test_the_stream_of_an_event_is_found_across_three_streams(shared_data: Path) -> None:
    """HTA finds records of events on streams 20, 24 and 28; the file says that stream 24 waits for one of stream 20."""
    trace = trace_of(shared_data / f"{CRITICAL_PATH}/cuda_event_sync_multi_stream/event_sync_trace.json.gz")
    scope, _ = scope_over(trace, int(trace.events.start.min()), int(trace.events.end.max()))
    stream = trace.events.stream[scope.activities.row]
    tied = event_ties(scope, streams_of(scope))
    assert set(stream.tolist()) == {20, 24, 28}
    assert (20, 24) in set(zip(stream[tied.source].tolist(), stream[tied.target].tolist(), strict=True))


def test_the_whole_trace_has_the_published_copies_on_its_critical_path(shared_data: Path) -> None:
    """HTA marks the 16 copies to the device, 39.08 ms, and so do we, plus what the host took to stage them.

    It also marks the last kernels before a cudaDeviceSynchronize that began 235 µs after they had ended; the host did
    not wait for them, so they are on no path of ours.
    """
    trace = trace_of(shared_data / CRITICAL_PATH / "end_to_end/simple_add/input/trace.json.gz")
    replay = replayed(trace)
    with gzip.open(
        shared_data / CRITICAL_PATH / "end_to_end/simple_add/output/overlaid_critical_path_trace.json.gz"
    ) as f:
        marked = [event for event in json.load(f)["traceEvents"] if event.get("args", {}).get("critical")]
    copies = sum(event["dur"] for event in marked if event.get("cat") == "gpu_memcpy")
    copied = replay.entries[0, PathKind.COPY] / MICROSECOND
    assert copies == 39080
    assert copies <= copied <= copies * 1.05
    assert replay.entries[0, PathKind.KERNEL] == 0
    assert sum(value for _, value in replay.critical_path) == replay.replayed[0]
