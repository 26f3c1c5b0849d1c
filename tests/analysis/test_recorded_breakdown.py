"""A recording and its trace together: the profiled steps explain what the watched ones spent their time on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from journals import EPOCH, MS, START, JournalBuilder

from steptime.analysis.categories import Category
from steptime.analysis.layout import lay_out_whole
from steptime.analysis.recorded_breakdown import RecordedBreakdown, breakdown_of_process
from steptime.journal import Kind
from steptime.recording.load import load
from steptime.recording.recording import Process

SHIFT = EPOCH - START
THREAD = 4711


def job(
    folder: Path, *, damage: bytes | None = None, trace: bool = True, last: int = 3 * MS, ranks: str = ""
) -> Process:
    """Thirty steps of 20 ms: 10 waiting, 6 forward (4 of them in one operator), 3 backward (all in one operator), 1
    updating. Steps 20 to 22 are profiled; `last`: ns of the backward of the last of them.
    ranks: who says that there are two of them, "process" or "trace"."""
    built = JournalBuilder()
    built.process_facts["world_size"] = 2 if ranks == "process" else None
    events: list[dict[str, Any]] = []
    window = (0, 0)
    for step in range(30):
        profiled = 20 <= step < 23
        if step == 20:
            built.span(Kind.PAUSE, 5 * MS)
            window = (built.now, 0)
        backward = last if step == 22 else 3 * MS
        built.next(10 * MS)
        start = built.now
        built.forward(6 * MS)
        if profiled:
            events += [
                event("aten::mm", start + MS, 4 * MS),
                event("autograd::engine::evaluate_function: MmBackward0", built.now, backward),
                event("aten::mm", built.now, backward),
            ]
        built.backward(backward).step(1 * MS)
        if step == 22:
            window = (window[0], built.now)
            built.record(Kind.PROFILED, *window, 1)
            built.span(Kind.PAUSE, 5 * MS)
    clock = {"epoch_ns": window[1] + SHIFT, "monotonic_ns": window[1], "thread": THREAD}
    facts = {"number": 1, "path": "trace-1.json", "start": window[0], "end": window[1], "steps": 3, "stacks": False}
    if trace:
        built.fact("trace", **facts, **clock)
    head: dict[str, Any] = {"schemaVersion": 1, "baseTimeNanoseconds": EPOCH}
    if ranks == "trace":
        head["distributedInfo"] = {"backend": "gloo", "rank": 0, "world_size": 2}
    text = json.dumps({**head, "traceEvents": events}).encode()
    (built.write(folder) / "process-17" / "trace-1.json").write_bytes(text if damage is None else damage)
    return load(folder).processes[0]


def event(name: str, start: int, duration: int) -> dict[str, Any]:
    """A complete event of Kineto: microseconds since the file's base time."""
    since = (start + SHIFT - EPOCH) / 1000
    shapes = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]} if name == "aten::mm" else {}
    return {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 17, "tid": THREAD, "ts": since, "dur": duration / 1000,
        "args": shapes,
    }  # fmt: skip


def profiled_steps(found: RecordedBreakdown) -> int:
    return sum(len(window) for window in found.windows if not window.stacks)


def category(process: Process) -> RecordedBreakdown:
    return breakdown_of_process(process, lay_out_whole(process))


def per_step(category: RecordedBreakdown) -> dict[str, float]:
    """Milliseconds of each account in the mean steady step."""
    means = category.breakdown.entries.mean(axis=0) / MS
    return {each.name.lower(): round(float(means[each]), 3) for each in Category if means[each] > 0}


def test_phases_are_as_watched_and_split_as_profiled(tmp_path: Path) -> None:
    found = category(job(tmp_path / "r"))
    assert profiled_steps(found) == 3
    assert found.problems == ()
    spent = per_step(found)
    assert spent["input"] == 10.0, "what was measured is not estimated"
    assert spent["compute"] == pytest.approx(4 + 3, abs=0.1)
    assert spent["python"] + spent["unexplained"] == pytest.approx(2 + 1, abs=0.1)
    assert (found.breakdown.wall == found.breakdown.entries.sum(axis=1)).all()
    assert sum(spent.values()) == pytest.approx(20, abs=0.01)


def test_operators_are_those_of_the_profiled_steps(tmp_path: Path) -> None:
    products = [each for each in category(job(tmp_path / "r")).operators if each.name == "aten::mm"]
    assert {each.phase: each.calls for each in products} == {"forward": 1, "backward": 1}
    assert sum(each.duration for each in products) == pytest.approx(7 * MS)
    assert sum(each.flops or 0 for each in products) == pytest.approx(2 * 2 * 64**3)


def test_a_step_that_the_profiler_spoilt_has_no_part_in_the_operators(tmp_path: Path) -> None:
    """Twice as long as the others: not the job's ways, but those of its memory under the profiler."""
    found = category(job(tmp_path / "r", last=25 * MS))
    assert profiled_steps(found) == 2
    assert sum(each.duration for each in found.operators if each.name == "aten::mm") == pytest.approx(7 * MS)


@pytest.mark.parametrize("last", [4 * MS, 20 * MS])
def test_a_step_that_is_a_little_longer_keeps_its_part(tmp_path: Path, last: int) -> None:
    assert profiled_steps(category(job(tmp_path / "r", last=last))) == 3


@pytest.mark.parametrize("ranks", ["process", "trace"])
def test_ranks_keep_every_step_that_they_profiled_together(tmp_path: Path, ranks: str) -> None:
    assert profiled_steps(category(job(tmp_path / "r", last=80 * MS, ranks=ranks))) == 3


def test_without_a_trace_the_phases_are_the_category(tmp_path: Path) -> None:
    found = category(job(tmp_path / "r", trace=False))
    spent = per_step(found)
    assert profiled_steps(found) == 0
    assert found.operators == ()
    assert spent["input"] == 10.0
    assert spent["unexplained"] == pytest.approx(10, abs=0.01)


@pytest.mark.parametrize("damage", [b"", b"no trace", b'{"traceEvents": 7}'])
def test_a_trace_that_cannot_be_read_costs_the_split_not_the_category(tmp_path: Path, damage: bytes) -> None:
    found = category(job(tmp_path / "r", damage=damage))
    assert len(found.problems) == 1
    assert "trace-1.json" in found.problems[0]
    assert per_step(found)["input"] == 10.0
