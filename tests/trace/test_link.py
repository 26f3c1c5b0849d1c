"""Links: on traces made by hand, and against plain loops on every real trace."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from published import IN_A_CLONE
from traces import ENGINE, Written, annotation, called, happened, kernel, launch, operator, python, step, write

from steptime.analysis.trace_steps import steps_of
from steptime.arrays import Bool
from steptime.trace.links import (
    DEVICE,
    UNKNOWN,
    Around,
    Links,
    forest_of,
    function_name,
    latest_before,
    launches_of,
    link,
    linked,
    origins_of,
    roles_of,
    with_full_paths,
)
from steptime.trace.reader import read
from steptime.trace.table import ABSENT, HOST_CATEGORIES, EventKind, EventTable, Trace

NOWHERE = np.empty((0, 2), np.int64)
BACKWARD = "autograd::engine::evaluate_function: AddmmBackward0"


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes events and reads them back."""
    return lambda events: write(events, tmp_path)


def name(trace: Trace, row: int) -> str:
    return "" if row == UNKNOWN else trace.symbols[trace.events.name[row]]


def row_of(trace: Trace, wanted: str) -> int:
    (found,) = np.flatnonzero(trace.events.name == trace.symbols.index(wanted))
    return int(found)


def test_a_kernel_belongs_to_its_launch_operator_module_line_and_step(written: Written) -> None:
    trace = written(
        [
            step(0, 1000),
            python("train.py(12): train", 10, 900),
            python("torch/nn/modules/module.py(1): _call_impl", 15, 205),
            python("nn.Module: Linear_0", 20, 200),
            operator("aten::linear", 30, 190),
            operator("aten::addmm", 40, 180),
            launch(7, 50, 60),
            kernel(7, 1500, 1600),
        ]
    )
    links, it = link(trace, steps_of(trace)), row_of(trace, "gemm")
    found = (links.launch[it], links.operator[it], links.annotation[it], links.function[it])
    assert [name(trace, row) for row in found] == [
        "cudaLaunchKernel",
        "aten::addmm",
        "nn.Module: Linear_0",
        "train.py(12): train",
    ]
    assert links.step[it] == 0
    assert name(trace, links.parent[links.launch[it]]) == "aten::addmm"
    assert name(trace, links.parent[row_of(trace, "aten::linear")]) == "ProfilerStep#3"


def test_one_launch_of_a_graph_owns_all_its_kernels(written: Written) -> None:
    kernels = [kernel(7, 100 + 10 * each, 105 + 10 * each, f"k{each}") for each in range(5)]
    trace = written([operator("vllm::forward", 0, 90), called("cudaGraphLaunch", 10, 20, 7), *kernels])
    links = link(trace, NOWHERE)
    rows = [row_of(trace, f"k{each}") for each in range(5)]
    assert {name(trace, links.launch[row]) for row in rows} == {"cudaGraphLaunch"}
    assert {name(trace, links.operator[row]) for row in rows} == {"vllm::forward"}


def test_kernels_queued_before_the_trace_have_no_launch(written: Written) -> None:
    trace = written([step(0, 100), launch(2, 10, 15), kernel(1, 0, 5, "early"), kernel(2, 20, 30)])
    links, early = link(trace, steps_of(trace)), row_of(trace, "early")
    assert (links.launch[early], links.operator[early], links.step[early]) == (UNKNOWN, UNKNOWN, UNKNOWN)


def test_without_its_launch_a_kernel_is_known_by_its_external_id(written: Written) -> None:
    place = {"device": 0, "stream": 7, "External id": 5}
    lost = happened("kernel", "gemm", 500, 600, (0, 7), correlation=9, **place)
    trace = written([step(0, 100), operator("aten::mm", 10, 50, **{"External id": 5}), lost])
    links, it = link(trace, steps_of(trace)), row_of(trace, "gemm")
    assert (links.launch[it], name(trace, links.operator[it]), links.step[it]) == (UNKNOWN, "aten::mm", 0)


def test_a_repeated_correlation_goes_to_the_latest_launch_before_the_kernel(written: Written) -> None:
    first, second = called("hipLaunchKernel", 0, 10, 5), called("hipExtLaunchKernel", 100, 110, 5)
    trace = written([first, kernel(5, 50, 60, "a"), second, kernel(5, 150, 160, "b")])
    links = link(trace, NOWHERE)
    assert name(trace, links.launch[row_of(trace, "a")]) == "hipLaunchKernel"
    assert name(trace, links.launch[row_of(trace, "b")]) == "hipExtLaunchKernel"


def test_what_launches_by_its_name_comes_before_other_calls_with_the_number(written: Written) -> None:
    trace = written([called("hipMemsetAsync", 0, 10, 5), called("hipArray3DCreate", 1, 9, 5), kernel(5, 50, 60)])
    assert name(trace, link(trace, NOWHERE).launch[row_of(trace, "gemm")]) == "hipMemsetAsync"


def test_backward_is_linked_to_its_forward_and_the_line_that_called_that(written: Written) -> None:
    number = {"Sequence number": 4}
    trace = written(
        [
            python("train.py(1): train", 0, 900),
            python("model.py(5): forward", 10, 100),
            operator("aten::t", 20, 25, **number),
            operator("aten::addmm", 30, 60, **number),
            operator(BACKWARD, 200, 300, ENGINE, **number),
            operator("aten::mm", 220, 290, ENGINE),
        ]
    )
    links, it = link(trace, NOWHERE), row_of(trace, "aten::mm")
    assert name(trace, links.forward[it]) == "aten::addmm"
    assert name(trace, links.function[it]) == "model.py(5): forward"
    assert links.forward[row_of(trace, "aten::addmm")] == UNKNOWN


def test_a_function_inside_backward_owns_what_it_calls(written: Written) -> None:
    """On a CPU, backward runs below the line that called it; a hook is the user's own."""
    number = {"Sequence number": 4}
    trace = written(
        [
            python("train.py(1): train", 0, 900),
            python("model.py(5): forward", 10, 100),
            operator("aten::addmm", 30, 60, **number),
            operator(BACKWARD, 200, 300, **number),
            operator("aten::mm", 210, 220),
            python("hooks.py(3): clip", 230, 290),
            operator("aten::mul", 240, 250),
        ]
    )
    links = link(trace, NOWHERE)
    assert name(trace, links.function[row_of(trace, "aten::mm")]) == "model.py(5): forward"
    assert name(trace, links.function[row_of(trace, "aten::mul")]) == "hooks.py(3): clip"


def test_what_checkpointing_runs_again_is_the_forward_of_its_own_backward(written: Written) -> None:
    trace = written(
        [
            operator("CheckpointFunction", 0, 50, **{"Sequence number": 1}),
            operator("CheckpointFunctionBackward", 100, 400, **{"Sequence number": 1}),
            operator("aten::addmm", 120, 150, **{"Sequence number": 2}),
            operator(BACKWARD, 200, 300, **{"Sequence number": 2}),
            operator("aten::mm", 210, 220),
        ]
    )
    links = link(trace, NOWHERE)
    assert name(trace, links.forward[row_of(trace, "aten::mm")]) == "aten::addmm"
    assert name(trace, links.forward[row_of(trace, "aten::addmm")]) == "CheckpointFunction"


def test_a_sequence_number_used_again_later_is_not_the_forward(written: Written) -> None:
    """Numbers are counted in each thread for itself."""
    trace = written(
        [
            operator("aten::mul", 0, 50, **{"Sequence number": 1}),
            operator(BACKWARD, 100, 200, ENGINE, **{"Sequence number": 1}),
            operator("aten::add", 300, 310, 12, **{"Sequence number": 1}),
        ]
    )
    assert name(trace, link(trace, NOWHERE).forward[row_of(trace, BACKWARD)]) == "aten::mul"


def test_the_profilers_own_annotation_of_a_step_is_none(written: Written) -> None:
    trace = written([step(0, 100), annotation("Optimizer.step#SGD.step", 10, 50), operator("aten::add", 20, 30)])
    links = link(trace, steps_of(trace))
    assert name(trace, links.annotation[row_of(trace, "aten::add")]) == "Optimizer.step#SGD.step"
    assert links.annotation[row_of(trace, "ProfilerStep#3")] == UNKNOWN


def test_a_trace_of_a_device_alone_puts_work_into_the_step_in_which_it_began(written: Written) -> None:
    trace = written([kernel(1, 10, 20, "a"), kernel(2, 120, 130, "b")])
    links = link(trace, np.array([[0, 100_000], [100_000, 200_000]]))
    assert links.step.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("<built-in function zoom_shift>", "zoom_shift"),
        ("<built-in method item of Tensor object at 0x7f>", "item"),
        ("train.py(12): forward", "forward"),
        ("aten::stack", "aten::stack"),
    ],
)
def test_a_python_function_has_a_name_without_its_place(symbol: str, name: str) -> None:
    assert function_name(symbol) == name


def test_nothing_is_linked_in_a_trace_without_events_of_the_host(written: Written) -> None:
    trace = written([kernel(1, 10, 20)])
    links = link(trace, NOWHERE)
    assert all(getattr(links, column)[:].tolist() == [UNKNOWN] for column in Links.__slots__)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 20)), max_size=30))
def test_a_parent_is_the_latest_begun_that_is_still_open(events: list[tuple[int, int, int]]) -> None:
    track, start, duration = (np.array([each[part] for each in events], np.int64) for part in range(3))
    columns: dict[str, Any] = {"track": track, "start": start, "duration": duration}
    table = EventTable(**{each.name: columns.get(each.name, track) for each in dataclasses.fields(EventTable)})
    made = forest_of(table, np.arange(len(start), dtype=np.int32))
    found = made.enclosing(np.ones(len(start), np.bool_)).tolist()
    assert found == list(parents_by_loop(track.tolist(), start.tolist(), (start + duration).tolist()))
    asked = np.arange(len(start), dtype=np.int32)[::2]
    marked = duration > 10
    for itself, of_all in ((True, made.nearest(marked)), (False, made.enclosing(marked))):
        assert made.around(asked, marked, itself=itself).tolist() == of_all[asked].tolist()


def parents_by_loop(track: list[int], start: list[int], end: list[int]) -> list[int]:
    """By a stack of open events for each lane."""
    order = sorted(range(len(track)), key=lambda row: (track[row], start[row], -end[row], row))
    found, stacks = [UNKNOWN] * len(track), defaultdict[int, list[int]](list)
    for row in order:
        stack = stacks[track[row]]
        while stack and end[stack[-1]] <= start[row]:
            stack.pop()
        found[row] = stack[-1] if stack else UNKNOWN
        stack.append(row)
    return found


NUMBERED = st.lists(st.tuples(st.integers(0, 5) | st.just(10**12), st.integers(0, 30)), max_size=20)


@given(NUMBERED, NUMBERED, st.booleans())
def test_a_partner_is_the_latest_before_the_moment(
    candidates: list[tuple[int, int]], wanted: list[tuple[int, int]], later: bool
) -> None:
    def chosen(number: int, moment: int) -> tuple[int, int] | None:
        alike = [each for each in candidates if each[0] == number]
        before = [each for each in alike if each[1] <= moment]
        return max(before) if before else min(alike) if alike and later else None

    keys, times = (np.array([each[part] for each in candidates], np.int64) for part in (0, 1))
    numbers, moments = (np.array([each[part] for each in wanted], np.int64) for part in (0, 1))
    at = latest_before(keys, times, numbers, moments, later=later)
    assert [None if each == UNKNOWN else candidates[each] for each in at.tolist()] == [chosen(*each) for each in wanted]


def real_traces(folder: Path, largest: int) -> Iterator[Trace]:
    for path in sorted(folder.rglob("*.json*")):
        if "_et" not in str(path) and "expected" not in path.name and path.stat().st_size < largest:
            yield read(path)


def test_on_real_traces_parents_launches_and_operators_are_those_of_plain_loops(shared_data: Path) -> None:
    stacks = read(shared_data / "tracelens/b200/eager_trace.json.gz")
    traces = [*real_traces(shared_data, 150_000), stacks]
    assert len(traces) > 15
    for trace in traces:
        links, roles = link(trace, steps_of(trace)), roles_of(trace)
        check_launches(trace, links)
        not_python = trace.events.event_kind != EventKind.PYTHON
        check_ancestors(trace, links.parent, not_python, itself=False)
        check_ancestors(trace, links.operator, roles.operator, itself=True)
        check_ancestors(trace, links.annotation, roles.annotation, itself=True)


def check_ancestors(trace: Trace, column: Around, marked: Bool, *, itself: bool) -> None:
    """That a column of the links is the innermost marked event around each of the host's."""
    events = trace.events
    hosts = np.flatnonzero(np.isin(events.event_kind, HOST_CATEGORIES))
    found = parents_by_loop(events.track[hosts].tolist(), events.start[hosts].tolist(), events.end[hosts].tolist())
    above = dict(zip(hosts.tolist(), np.append(hosts, UNKNOWN)[found].tolist(), strict=True))
    good, wanted = marked.tolist(), []
    for row in hosts.tolist():
        at = row if itself else above[row]
        while at != UNKNOWN and not good[at]:
            at = above[at]
        wanted.append(at)
    assert column[hosts].tolist() == wanted, trace.path


def check_launches(trace: Trace, links: Links) -> None:
    events = trace.events
    calls = defaultdict[int, set[int]](set)
    for row in np.flatnonzero((events.event_kind == EventKind.RUNTIME) & (events.correlation != ABSENT)).tolist():
        calls[int(events.correlation[row])].add(row)
    on_device = np.isin(events.event_kind, DEVICE)
    for row in np.flatnonzero(on_device).tolist():
        choices = calls[int(events.correlation[row])]
        assert links.launch[row] in choices if choices else links.launch[row] == UNKNOWN
    assert (links.launch[~on_device] == UNKNOWN).all()


def test_backward_kernels_of_a_real_network_know_their_forward(shared_data: Path) -> None:
    trace = read(shared_data / "tracelens/mi300/ddp_resnet18_no_pool/train_resnet18.json.gz")
    links = link(trace, steps_of(trace))
    for backward, forward in (
        ("Convolution", "convolution"),
        ("NativeBatchNorm", "native_batch_norm"),
        ("Add", "add_"),
    ):
        frames = np.flatnonzero(
            trace.events.name == trace.symbols.index(f"autograd::engine::evaluate_function: {backward}Backward0")
        )
        assert {name(trace, row) for row in links.forward[frames]} == {f"aten::{forward}"}
    kernels = np.isin(trace.events.event_kind, DEVICE)
    assert (links.function[kernels] == UNKNOWN).all(), "main started the profiler at line 41, and calls nothing there"


def test_a_trace_that_lost_its_ids_knows_the_same_launches(shared_data: Path) -> None:
    launches = 0
    for trace in real_traces(shared_data, 150_000):
        without = linked(trace)
        assert not (without.events.correlation != ABSENT).any()
        for found in (launches_of, origins_of):
            assert found(without)[:].tolist() == found(trace)[:].tolist()
        launches += len(launches_of(without).rows)
    assert launches > (500 if IN_A_CLONE else 1000)


def test_launches_of_real_graphs_and_lost_launches_are_counted_right(shared_data: Path) -> None:
    graph = read(shared_data / "tracelens/inference/vllm_decode_full/graph_execution.json.gz")
    launched = link(graph, NOWHERE).launch
    assert max(np.bincount(launched[launched != UNKNOWN])) > 300
    queued = read(shared_data / "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz")
    activities = np.isin(queued.events.event_kind, DEVICE)
    assert (link(queued, NOWHERE).launch[activities] == UNKNOWN).sum() == 509


def test_the_line_at_which_a_function_started_the_profiler_is_not_that_of_its_operators(written: Written) -> None:
    trace = written(
        [
            python("train.py(3): <module>", 0, 900),
            python("train.py(41): main", 1, 890),
            python("torch/profiler/profiler.py(1128): start", 2, 20),
            operator("aten::mm", 100, 110),
            python("train.py(7): loss_of", 200, 250),
            operator("aten::sum", 210, 220),
        ]
    )
    links = link(trace, NOWHERE)
    function = {name(trace, row): int(links.function[row]) for row in range(len(trace.events))}
    assert function["aten::mm"] == UNKNOWN
    assert name(trace, function["aten::sum"]) == "train.py(7): loss_of"


def test_a_package_that_is_known_to_be_installed_is_no_code_of_the_users(written: Written) -> None:
    library, own = "solvers/steps.py(3): solve", "train.py(12): train"
    trace = written([step(0, 1000), python(own, 10, 900), python(library, 20, 200), operator("aten::mm", 30, 190)])
    known = with_full_paths(trace, ["/env/lib/python3/site-packages/solvers", "/env/lib/python3/site-packages/torch"])
    callers = (link(each, NOWHERE).function[row_of(each, "aten::mm")] for each in (trace, known))
    assert [name(trace, row) for row in callers] == [library, own]
    assert "/env/lib/python3/site-packages/solvers/steps.py(3): solve" in known.symbols
    assert own in known.symbols
    assert with_full_paths(trace, ["/", ""]).symbols == trace.symbols
