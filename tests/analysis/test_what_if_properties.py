"""Replays of traces that a simulated machine wrote: its laws are known, so every answer is."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from analysis.trace_events import Event, called, kernel, operator, replayed, step, written
from hypothesis import given, settings, strategies as some

from examples import examples
from steptime.analysis.what_if.scope import SURE
from steptime.analysis.what_if.what_if import Replay

CALL, LAUNCH, GAP, RETURN = 4, 3, 1, 10
"""µs: a launching call, from its end to the kernel, between kernels, from the device's end to a wait's return: what the
replay takes for usual where a trace shows no clear case."""
Program = list[tuple[str, int, int]]
"""Of a step: ("work", µs, 0), ("launch", stream, µs), ("after", stream, another that it waits for), ("wait", 0, 0)."""


@dataclass
class Machine:
    """One thread, some streams. syncs: whether waits wait. events: what a profiler would have recorded. short: µs of
    waits so short that a trace does not show whether they waited."""

    syncs: bool = True
    now: float = 0
    launched: int = 0
    short: float = 0
    done: dict[int, float] = field(default_factory=dict)
    awaited: dict[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def do(self, what: str, first: int, second: int) -> None:
        since = self.now
        if what == "work":
            self.now += first
            self.events.append(operator("aten::mm", since, self.now))
        elif what == "launch":
            self.launched += 1
            self.now += CALL
            self.events.append(called("cudaLaunchKernel", since, self.now, self.launched))
            start = max(self.now + LAUNCH, self.done.get(first, -1e9) + GAP, self.awaited.pop(first, -1e9) + GAP)
            self.done[first] = start + second
            self.events.append(kernel(self.launched, start, start + second, stream=first))
        elif what == "after":
            self.now += 1
            self.events.append(called("cudaStreamWaitEvent", since, self.now))
            self.awaited[first] = self.done.get(second, -1e9)
        else:
            waited = max(0, max(self.done.values(), default=0) - self.now) if self.syncs else 0
            self.short += waited if waited <= SURE / 1000 else 0
            self.now += waited + RETURN
            self.events.append(called("cudaDeviceSynchronize", since, self.now))

    def run(self, program: Program, steps: int) -> list[float]:
        """Runs the steps; returns how long each took, as a breakdown has it."""
        ends, durations = [0.0], []
        for number in range(steps):
            start = self.now
            for action in program:
                self.do(*action)
            self.events.append(step(start, self.now, number))
            ends.append(max(self.now, *self.done.values(), ends[-1]))
            durations.append(ends[-1] - max(start, ends[-2]))
        return durations


works = some.tuples(some.just("work"), some.integers(5, 300), some.just(0))
launches = some.tuples(some.just("launch"), some.sampled_from([7, 20]), some.integers(5, 300))
ties = some.sampled_from([[("after", 20, 7), ("launch", 20, 50)], [("after", 7, 20), ("launch", 7, 50)]])
waits = some.just([("wait", 0, 0)])
actions = some.one_of(works.map(lambda each: [each]), launches.map(lambda each: [each]), ties, waits)
programs: some.SearchStrategy[Program] = some.lists(actions, min_size=2, max_size=12).map(
    lambda parts: [("work", 20, 0), ("launch", 7, 60), *(each for part in parts for each in part)]
)


def replay_of(machine: Machine) -> Replay:
    with tempfile.TemporaryDirectory() as folder:
        return replayed(written(Path(folder) / "made.json", machine.events))


@settings(max_examples=examples(40), deadline=None)
@given(programs)
def test_the_unchanged_replay_is_the_machine(program: Program) -> None:
    machine = Machine()
    durations = machine.run(program, 4)
    replay = replay_of(machine)
    assert (replay.measured / 1000).tolist() == durations
    assert replay.replayed / 1000 == pytest.approx(durations, rel=0.01, abs=3)
    assert (replay.entries.sum(axis=1) == replay.replayed).all()


@settings(max_examples=examples(40), deadline=None)
@given(programs)
def test_free_syncs_save_no_more_than_the_machine_without_them_does(program: Program) -> None:
    """And as much, where the streams are not tied: ties that the replay has to guess may hold a kernel back."""
    program = [*program, ("wait", 0, 0)]
    machine, free = Machine(), Machine(syncs=False)
    before, after = machine.run(program, 5), free.run(program, 5)
    came_true = (sum(before[1:]) - sum(after[1:])) / 4
    predictions = [each for each in replay_of(machine).predictions if each.change == "syncs free"]
    for prediction in predictions:
        saved, cap = prediction.saved.value / 1000, prediction.cap / 1000
        assert saved <= max(came_true, 0) + 3
        if not any(what == "after" for what, _, _ in program):
            assert saved >= min(came_true, cap) - 3 - machine.short / 4


@settings(max_examples=examples(20), deadline=None)
@given(programs, some.integers(1, 10**9))
def test_a_replay_does_not_know_the_time_of_day(program: Program, shift: int) -> None:
    machine = Machine()
    machine.run(program, 3)
    moved = Machine(events=[{**event, "ts": event["ts"] + shift} for event in machine.events])
    one, other = replay_of(machine), replay_of(moved)
    assert one.replayed.tolist() == other.replayed.tolist()
    assert one.critical_path == other.critical_path
    assert one.predictions == other.predictions


times = some.integers(0, 400)
lengths = some.integers(0, 120)
NAMES = (
    "cudaLaunchKernel",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaStreamWaitEvent",
    "cudaFree",
    "cudaMalloc",
)
calls = some.builds(
    lambda name, start, length, number, thread: called(name, start, start + length, number, thread),
    some.sampled_from(NAMES), times, lengths, some.integers(1, 12), some.sampled_from([10, 11]),
)  # fmt: skip
activities = some.builds(
    lambda number, start, length, stream, name: kernel(number, start, start + length, name, stream=stream),
    some.integers(1, 14), times, lengths, some.sampled_from([7, 20, 24]), some.sampled_from(["gemm", "ncclKernel"]),
)  # fmt: skip
operators = some.builds(
    lambda start, length, name, thread: operator(name, start, start + length, thread),
    times, lengths, some.sampled_from(["aten::mm", "MmBackward0"]), some.sampled_from([10, 11]),
)  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(some.lists(some.one_of(calls, activities, operators), max_size=40))
def test_nonsense_is_replayed_without_a_miscount(events: list[Event]) -> None:
    """Overlap on one stream, kernels before their launch, broken nesting, repeated correlations, no launch at all."""
    marked = [step(0, 100, 0), step(100, 250, 1), step(260, 400, 2), *events]
    replay = replay_of(Machine(events=marked))
    assert (replay.entries.sum(axis=1) == replay.replayed).all()
    assert (replay.entries >= 0).all()
    for made in replay.predictions:
        assert 0 <= made.saved.low <= made.saved.value <= made.saved.high <= made.cap
