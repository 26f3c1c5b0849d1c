"""Steps run again, on traces where the right answer is known by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from analysis.trace_events import ENGINE, Event, annotation, called, copy, kernel, operator, replayed, step, written

from steptime.analysis.what_if.what_if import Prediction, Replay


def microseconds(replay: Replay) -> tuple[list[float], list[float]]:
    return (replay.measured / 1000).tolist(), (replay.replayed / 1000).tolist()


def path(replay: Replay) -> dict[str, float]:
    """Microseconds per step by kind."""
    return {kind: value / 1000 for kind, value in replay.critical_path}


def saved(replay: Replay, change: str) -> float:
    return prediction(replay, change).saved.value / 1000


def prediction(replay: Replay, change: str) -> Prediction:
    return next(each for each in replay.predictions if each.change == change)


def launching(number: int, since: float, dispatch: float, start: float, length: float) -> list[Event]:
    """An operator that launches a kernel at half of its time; the call takes 4 µs."""
    call = since + dispatch / 2
    return [
        operator("aten::mm", since, since + dispatch),
        called("cudaLaunchKernel", call, call + 4, number),
        kernel(number, start, start + length),
    ]


def slow_host(steps: int = 4, kernels: int = 5) -> list[Event]:
    """Each operator takes 100 µs of the host, its kernel 10 µs, 6 µs after the call began."""
    events = []
    for index in range(steps):
        start = index * kernels * 100
        events.append(step(start, start + kernels * 100, index))
        for at in range(kernels):
            operator_start = start + at * 100
            events += launching(index * kernels + at + 1, operator_start, 100, operator_start + 56, 10)
    return events


def slow_device(steps: int = 4, kernels: int = 5) -> list[Event]:
    """Each operator takes 20 µs of the host, its kernel 100 µs, 1 µs after the kernel before; the first 6 µs after its
    call began. The host waits for the device at the end of each step, which takes another 10 µs."""
    events = []
    since = 0.0
    for index in range(steps):
        start = since + 10 + 6
        for at in range(kernels):
            events += launching(index * 100 + at + 1, since + at * 20, 20, start + at * 101, 100)
        done = start + kernels * 101 - 1
        waiting = since + kernels * 20 + 5
        events.append(called("cudaDeviceSynchronize", waiting, done + 10))
        events.append(step(since, done + 10, index))
        since = done + 10
    return events


def test_a_step_bound_by_the_host_is_replayed_to_the_nanosecond(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", slow_host()))
    assert microseconds(replay) == ([500] * 4, [500] * 4)
    assert replay.error == 0
    assert path(replay) == {"dispatch": 500}


def test_one_launch_leaves_the_kernels_of_a_step_bound_by_the_host(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", slow_host()))
    category = 500 - 5 * 10  # what the breakdown calls launch: the device idles unless one of the kernels runs
    assert prediction(replay, "one graph launch").cap == category * 1000
    # Kernels back to back with the usual gap of 1 µs, after one call of 4 µs: far below the cap.
    assert saved(replay, "one graph launch") == pytest.approx(500 - (5 * 10 + 4 * 1 + 4), abs=5)
    assert saved(replay, "one graph launch") <= category


def test_a_step_bound_by_the_device_has_its_kernels_on_the_critical_path(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", slow_device()))
    measured, again = microseconds(replay)
    assert measured == [530] * 4
    assert again == pytest.approx(measured, abs=0.01)
    # dispatch to the first call, launch, kernels, gaps between them, return of the wait
    expected = {"kernel": 500, "dispatch": 10, "sync": 10, "launch delay": 6, "kernel gap": 4}
    assert path(replay) == pytest.approx(expected, abs=0.01)


def test_the_critical_path_sums_to_the_replayed_step_to_the_nanosecond(tmp_path: Path) -> None:
    for name, events in (("host", slow_host()), ("device", slow_device())):
        replay = replayed(written(tmp_path / f"{name}.json", events))
        assert (replay.entries.sum(axis=1) == replay.replayed).all()
        assert (replay.entries >= 0).all()


def test_kernels_at_their_roofline_save_what_they_lose_on_the_critical_path(tmp_path: Path) -> None:
    trace = written(tmp_path / "made.json", slow_device())
    kernels = [row for row, name in enumerate(trace.events.name) if trace.symbols[name] == "gemm"]
    replay = replayed(trace, at_roofline={"gemm": dict.fromkeys(kernels, 60_000)})
    assert saved(replay, "roofline: gemm") == pytest.approx(5 * 40, abs=0.01)


def test_kernels_off_the_critical_path_save_nothing(tmp_path: Path) -> None:
    trace = written(tmp_path / "made.json", slow_host())
    kernels = [row for row, name in enumerate(trace.events.name) if trace.symbols[name] == "gemm"]
    assert saved(replayed(trace, at_roofline={"gemm": dict.fromkeys(kernels, 1_000)}), "roofline: gemm") == 0


def test_no_prediction_exceeds_its_category(tmp_path: Path) -> None:
    for events in (slow_host(), slow_device()):
        for made in replayed(written(tmp_path / "made.json", events)).predictions:
            assert 0 <= made.saved.low <= made.saved.value <= made.saved.high <= made.cap


def synchronised(host: float, device: float, steps: int = 5) -> list[Event]:
    """Per step: a launch, its kernel, a wait for it, then Python."""
    events = []
    for index in range(steps):
        start = index * (20 + device + 10 + host)
        events += launching(index + 1, start, 20, start + 20, device)
        events.append(called("cudaStreamSynchronize", start + 20, start + 20 + device + 10))
        events.append(step(start, start + 20 + device + 10 + host, index))
    return events


def test_without_waits_the_host_runs_ahead_and_the_longer_of_the_two_remains(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", synchronised(host=300, device=200)))
    assert microseconds(replay)[0] == [530] * 5
    assert replay.error < 1e-4
    waiting = prediction(replay, "syncs free")
    # What remains is the host: 20 µs of dispatch, 300 of Python, and what the call itself costs (10 µs).
    assert waiting.saved.value / 1000 == pytest.approx(min(530 - 330, waiting.cap / 1000), abs=1)


def test_without_waits_a_busier_device_remains(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", synchronised(host=100, device=400)))
    assert saved(replay, "syncs free") <= 530 - 400
    assert saved(replay, "syncs free") > 0


def test_the_wait_is_on_the_critical_path_as_the_device_it_waited_for(tmp_path: Path) -> None:
    kinds = path(replayed(written(tmp_path / "made.json", synchronised(host=300, device=200))))
    assert kinds["kernel"] == 200
    assert kinds["sync"] == 10
    assert kinds["host"] == 300


def two_streams(first: float = 100) -> list[Event]:
    """a on stream 7; b on stream 20 waits for a; c on stream 7 waits for b; all launched at once. Then a wait."""
    events = []
    for index in range(3):
        since, number = index * 1000, index * 10
        start = since + 30
        second, third = start + first + 2, start + first + 2 + 200 + 2
        events += [
            step(since, since + 1000, index),
            operator("aten::mm", since, since + 30),
            called("cudaLaunchKernel", since + 24, since + 28, number + 1),
            kernel(number + 1, start, start + first, "a"),
            called("cudaEventRecord", since + 31, since + 32),
            called("cudaStreamWaitEvent", since + 33, since + 34),
            called("cudaLaunchKernel", since + 40, since + 44, number + 2),
            kernel(number + 2, second, second + 200, "b", stream=20),
            called("cudaEventRecord", since + 46, since + 47),
            called("cudaStreamWaitEvent", since + 48, since + 49),
            called("cudaLaunchKernel", since + 50, since + 54, number + 3),
            kernel(number + 3, third, third + 300, "c"),
            called("cudaDeviceSynchronize", since + 60, third + 310),
        ]
    return events


def test_streams_that_wait_for_each_other_move_together(tmp_path: Path) -> None:
    trace = written(tmp_path / "made.json", two_streams())
    kernels = [row for row, name in enumerate(trace.events.name) if trace.symbols[name] == "a"]
    replay = replayed(trace, at_roofline={"a": dict.fromkeys(kernels, 40_000)})
    assert replay.error < 1e-4
    assert saved(replay, "roofline: a") == pytest.approx(60, abs=0.01)
    assert path(replay)["kernel"] == 600


def test_streams_that_do_not_wait_run_side_by_side(tmp_path: Path) -> None:
    """The same kernels without the waits between the streams: b does not follow a."""
    free = [event for event in two_streams() if event["name"] != "cudaStreamWaitEvent"]
    trace = written(tmp_path / "made.json", free)
    replay = replayed(trace)
    assert "b" not in {name for kind, name, _ in replay.longest() if kind == "kernel"}


def loading(host: float, device: float, steps: int = 4) -> list[Event]:
    """400 µs in the loader's next(), then operators for `host`, whose last launches a kernel of `device`."""
    events = []
    start = 0.0
    for index in range(steps):
        end = start + 400 + host
        events += [
            step(start, end, index),
            annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 400),
            operator("aten::mm", start + 400, end),
            called("cudaLaunchKernel", end - 10, end - 6, index + 1),
            kernel(index + 1, end - 3, end - 3 + device),
        ]
        start = end
    return events


def test_free_input_saves_what_the_loader_took_where_the_host_binds(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", loading(host=200, device=3)))
    assert path(replay) == {"input": 400, "dispatch": 200}
    assert prediction(replay, "input free").cap == 400_000
    assert saved(replay, "input free") == 400


def test_free_input_saves_no_more_than_the_device_gives_back(tmp_path: Path) -> None:
    """The kernel of a step runs while the loader works: without input the device binds."""
    replay = replayed(written(tmp_path / "made.json", loading(host=200, device=550)))
    assert saved(replay, "input free") == 600 - 551  # kernels of 550 µs follow each other after the usual gap of 1 µs


def backward_on_the_engine() -> list[Event]:
    """The training thread is silent between 110 and 300 µs, where autograd's engine works."""
    events = []
    for index in range(3):
        start = index * 400
        events += [
            step(start, start + 400, index),
            operator("aten::mm", start, start + 100),
            called("cudaLaunchKernel", start + 50, start + 54, index * 10 + 1),
            kernel(index * 10 + 1, start + 56, start + 66),
            operator("autograd::engine::evaluate_function: MmBackward0", start + 120, start + 290, ENGINE),
            operator("aten::sum", start + 130, start + 280, ENGINE),
            called("cudaLaunchKernel", start + 200, start + 204, index * 10 + 2, ENGINE),
            kernel(index * 10 + 2, start + 206, start + 216),
            operator("aten::add_", start + 310, start + 400),
        ]
    return events


def test_the_critical_path_leads_through_autograds_thread_and_back(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", backward_on_the_engine()))
    assert replay.error == 0
    longest = {name: value / 1000 for kind, name, value in replay.longest() if kind == "dispatch"}
    assert longest["aten::sum"] == pytest.approx(150)
    assert longest["aten::mm"] == pytest.approx(100)
    assert longest["autograd::engine::evaluate_function: MmBackward0"] == pytest.approx(20)


def reduced() -> list[Event]:
    """Per step: compute 100 on stream 7, then an all-reduce of 300 on stream 20, for which compute of 200 waits that
    does not need it, and then the optimizer's kernel of 50, which does. The host waits at the end."""
    events = []
    for index in range(4):
        start, number = index * 1000, index * 10
        ready = start + 20 + 100
        events += [
            step(start, start + 1000, index),
            operator("aten::mm", start, start + 20),
            called("cudaLaunchKernel", start + 14, start + 18, number + 1),
            kernel(number + 1, start + 20, ready, "forward"),
            called("cudaStreamWaitEvent", start + 21, start + 22),
            called("cudaLaunchKernel", start + 24, start + 28, number + 2),
            kernel(number + 2, ready + 1, ready + 301, "ncclDevKernel_AllReduce", stream=20),
            called("cudaStreamWaitEvent", start + 30, start + 31),
            called("cudaLaunchKernel", start + 34, start + 38, number + 3),
            kernel(number + 3, ready + 302, ready + 502, "backward"),
            annotation("Optimizer.step#SGD.step", start + 50, start + 60),
            called("cudaLaunchKernel", start + 52, start + 56, number + 4),
            kernel(number + 4, ready + 503, ready + 553, "update"),
            called("cudaDeviceSynchronize", start + 70, ready + 563),
        ]
    return events


def test_overlapped_communication_hides_behind_compute_until_the_update(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", reduced()))
    assert replay.error < 1e-3
    # forward 100, then the all-reduce of 300 next to backward's 200, then the update: 200 are saved.
    assert saved(replay, "communication overlapped") == pytest.approx(200, abs=2)
    assert path(replay)["communication"] == 300


def test_overlapped_communication_leaves_the_compute_of_its_stream_in_order(tmp_path: Path) -> None:
    """a, an all-reduce and b on one stream: without the all-reduce, b still follows a."""
    events = []
    for index in range(4):
        since, number = index * 1000, index * 10
        events += [step(since, since + 1000, index), operator("aten::mm", since, since + 40)]
        for at, (name, start, length) in enumerate(
            (("a", 30, 200), ("ncclDevKernel_AllReduce", 231, 300), ("b", 532, 250))
        ):
            events.append(called("cudaLaunchKernel", since + 10 * at + 5, since + 10 * at + 9, number + at + 1))
            events.append(kernel(number + at + 1, since + start, since + start + length, name))
        events.append(called("cudaDeviceSynchronize", since + 50, since + 792))
    replay = replayed(written(tmp_path / "made.json", events))
    assert replay.error < 0.02
    # a 200, then the all-reduce of 300 next to b of 250: 250 and a gap are saved, not the 450 of b next to a.
    assert saved(replay, "communication overlapped") == pytest.approx(250, abs=5)


def allocating() -> list[Event]:
    """Per step: an allocation of 150 µs, a launch, and a free that waits for the kernel (100 µs) and takes 40 more."""
    events = []
    for index in range(4):
        start = index * 500
        events += [
            step(start, start + 500, index),
            called("cudaMalloc", start, start + 150),
            operator("aten::mm", start + 150, start + 170),
            called("cudaLaunchKernel", start + 160, start + 164, index + 1),
            kernel(index + 1, start + 166, start + 266),
            called("cudaFree", start + 170, start + 306),
        ]
    return events


def test_without_allocation_neither_the_calls_nor_the_wait_of_freeing_remain(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", allocating()))
    assert replay.error < 1e-3
    assert path(replay)["allocation"] == pytest.approx(150 + 40)
    assert saved(replay, "allocation free") == pytest.approx(150 + 136, abs=1)


def full_queue() -> list[Event]:
    """Per step 700 launches of 4 µs, their kernels of 20 µs; then a launch that is held back for 1.4 ms, until a kernel
    has ended; then Python, for longer than what the device still has to do."""
    events = []
    for index in range(3):
        since = index * 24_000
        for at in range(700):
            events.append(called("cudaLaunchKernel", since + at * 4, since + at * 4 + 4, index * 1000 + at + 1))
            start = since + 10 + at * 21
            events.append(kernel(index * 1000 + at + 1, start, start + 20))
        released = since + 10 + 200 * 21 - 1  # the kernel before has just ended
        events += [
            called("cudaLaunchKernel", since + 2800, released + 4, index * 1000 + 701),
            kernel(index * 1000 + 701, since + 10 + 700 * 21, since + 10 + 700 * 21 + 20),
            step(since, since + 24_000, index),
        ]
    return events


def test_a_launch_that_finds_the_queue_full_waits_for_the_device_and_not_by_itself(tmp_path: Path) -> None:
    trace = written(tmp_path / "made.json", full_queue())
    kernels = [row for row, name in enumerate(trace.events.name) if trace.symbols[name] == "gemm"]
    replay = replayed(trace, at_roofline={"gemm": dict.fromkeys(kernels, 5_000)})
    assert replay.error < 1e-3
    # Kernels of 5 µs leave the queue faster than the host fills it: nothing holds the launch back.
    assert saved(replay, "roofline: gemm") == pytest.approx(200 * 21 + 13 - 2800, abs=20)


def test_pageable_copies_hold_the_host(tmp_path: Path) -> None:
    events = []
    for index in range(3):
        start = index * 500
        events += [
            step(start, start + 500, index),
            called("cudaMemcpyAsync", start + 10, start + 310, index + 1),
            copy(index + 1, start + 100, start + 305, "Memcpy HtoD (Pageable -> Device)"),
        ]
    replay = replayed(written(tmp_path / "made.json", events))
    assert microseconds(replay)[1] == pytest.approx([500] * 3, abs=0.01)
    assert path(replay)["copy"] == pytest.approx(205 + 90)  # on the bus, and staged by the host before


def test_the_replay_does_not_copy_what_it_cannot_explain(tmp_path: Path) -> None:
    """A kernel that starts 400 µs late for no reason in the trace is replayed on time: an error, not a tautology."""
    events = slow_device(steps=3)
    for event in events:
        if event["args"].get("correlation") in (3, 103, 203) and event["cat"] == "kernel":
            event["ts"] += 40
            event["dur"] -= 40
    replay = replayed(written(tmp_path / "made.json", events))
    measured, again = microseconds(replay)
    assert all(before - after > 20 for before, after in zip(measured, again, strict=True))
    assert replay.error > 0.03


def test_a_long_wait_for_something_unseen_is_reported_and_costs_accuracy(tmp_path: Path) -> None:
    """The device waits 5 ms for what the trace does not hold (another rank, say)."""
    events = []
    for index in range(3):
        start = index * 6000
        events += [
            step(start, start + 6000, index),
            *launching(index + 1, start, 20, start + 5100, 800),
            called("cudaDeviceSynchronize", start + 30, start + 5910),
        ]
    replay = replayed(written(tmp_path / "made.json", events))
    assert dict(replay.critical_path)["unexplained"] == pytest.approx(5 / 6 * replay.replayed.mean(), rel=0.03)
    assert replay.error > 0.8
    assert microseconds(replay)[1] == pytest.approx([6000] * 3, abs=60)


def test_kernels_queued_before_the_steps_run_before_theirs(tmp_path: Path) -> None:
    """The first step starts with 300 µs of work in the queue; it counts, as in the breakdown."""
    events = [
        called("cudaLaunchKernel", 0, 4, 90),
        kernel(90, 6, 400, "before"),
        step(100, 200, 0),
        *launching(1, 100, 20, 401, 50),
        step(200, 300, 1),
        *launching(2, 200, 20, 452, 50),
    ]
    replay = replayed(written(tmp_path / "made.json", events))
    assert microseconds(replay)[0] == [351, 51]
    assert microseconds(replay)[1] == pytest.approx([351, 51], abs=0.01)


def test_a_trace_without_a_device_has_only_its_host_to_replay(tmp_path: Path) -> None:
    events = [event for event in slow_host() if event["cat"] not in ("kernel", "cuda_runtime")]
    replay = replayed(written(tmp_path / "made.json", events))
    assert path(replay) == {"dispatch": 500}
    assert replay.predictions == ()


def test_many_steps_are_replayed_from_their_middle(tmp_path: Path) -> None:
    replay = replayed(written(tmp_path / "made.json", slow_host(steps=11)))
    assert replay.steps.tolist() == [3, 4, 5, 6, 7]
