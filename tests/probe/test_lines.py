"""The line timeline in every Python that is here: what it sees, what it leaves behind."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import preloading
import pytest
from patience import PATIENCE

from steptime.journal import Kind

pytest.importorskip("torch")

from steptime.probe.lines import LineTimeline, LoopFrame
from steptime.probe.sites import names_by_line

SOURCE = Path(__file__).resolve().parents[2] / "src"
OTHERS = [
    *(path for path in os.environ.get("STEPTIME_PYTHONS", "").split(os.pathsep) if path),
    *(name for name in ("python3.10", "python3.12", "python3.13", "python3.14") if shutil.which(name)),
]
"""Interpreters of other versions: those that the environment names, and those on PATH."""

LOOP = """
import sys, json, types, os
sys.path.insert(0, SOURCE)
if WITHOUT_TORCH:  # the line timeline itself needs none
    torch = types.ModuleType("torch")
    torch.__file__ = "/nowhere/torch/__init__.py"
    sys.modules["torch"] = torch
from steptime.probe.lines import LineTimeline, LoopFrame
records, facts, notes, costs = [], [], [], []
def fact(kind, **more):
    costs.append(more) if kind == "line_cost" else facts.append(more)
timeline = LineTimeline(lambda *record: records.append(record), fact, notes.append)
frames = LoopFrame()

def work(n):
    total = 0
    for i in range(n):
        total += i
    return total

def fails():
    raise ValueError("mine")

def numbers():
    for i in range(4):
        yield i

def boundary(step):
    if step == 1: frames.mark(sys._getframe())
    if step == 2:
        frames.look(sys._getframe())
        assert timeline.start(frames.code, [work.__code__, fails.__code__, numbers.__code__], sys._getframe())
    if step == 5: timeline.stop()

def train():
    for step, number in zip(range(7), list(range(7))):
        a = work(100)
        try:
            fails()
        except ValueError as error:
            names = [entry for entry in error.__traceback__.tb_frame.f_code.co_names]
        b = sum(numbers())
        boundary(step)

train()
assert sys.gettrace() is None and sys._getframe().f_trace is None
lines = {}
for code in facts:
    for line in code["lines"]:
        lines[code["base"] + line["line"] - code["first_line"]] = line["text"]
hits = {}
for kind, calls, identity, begin, end in records:
    assert end >= begin and identity in lines, identity
assert bool(costs) == (sys.version_info < (3, 12)), "sys.monitoring tells of what is timed alone"
assert not costs or 0 < costs[0]["line"] < 100_000
for kind, calls, identity, begin, end in records:
    hits[lines[identity]] = hits.get(lines[identity], 0) + 1
print(json.dumps({"hits": hits, "loop": [code["function"] for code in facts if code["loop"]], "notes": notes}))
"""


def run_loop(python: str, folder: Path, without_torch: bool) -> dict[str, Any]:
    script = folder / "train.py"
    script.write_text(f"SOURCE = {str(SOURCE)!r}\nWITHOUT_TORCH = {without_torch}\n{LOOP}")
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [python if without_torch else preloading.python(), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    import json

    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.parametrize("python", [sys.executable, *OTHERS])
def test_each_execution_of_a_line_is_one_record(python: str, tmp_path: Path) -> None:
    if python != sys.executable and subprocess.run([python, "-V"], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} does not start")
    result = run_loop(python, tmp_path, without_torch=python != sys.executable)
    hits = result["hits"]
    assert result["loop"] == ["train"]
    assert hits["a = work(100)"] == 3  # steps 3, 4 and 5
    assert hits["total += i"] == 300
    assert hits["for i in range(n):"] == 303
    assert hits["return total"] == 3
    assert hits['raise ValueError("mine")'] == 3
    assert hits["fails()"] == 3
    assert hits["boundary(step)"] == 4  # from the middle of one to the middle of another
    assert hits["b = sum(numbers())"] == 3
    assert hits["yield i"] == 12
    assert not result["notes"]


def loop_once(timeline: LineTimeline, frames: LoopFrame, made: list[Any]) -> None:
    class Batch:
        pass

    for step in range(6):
        batch = Batch()
        made.append(weakref.ref(batch))
        if step == 1:
            frames.mark(sys._getframe())
        if step == 2:
            frames.look(sys._getframe())
            assert frames.code is loop_once.__code__
            timeline.start(frames.code, [], sys._getframe())
        if step == 5:
            timeline.stop()
            assert sum(reference() is not None for reference in made) == 1
        del batch


def make() -> tuple[LineTimeline, list[tuple[int, ...]], list[str]]:
    records: list[tuple[int, ...]] = []
    notes: list[str] = []
    return LineTimeline(lambda *record: records.append(record), lambda *_, **__: None, notes.append), records, notes


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is on")
def test_no_object_of_the_users_is_kept_alive() -> None:
    timeline, records, _ = make()
    made: list[Any] = []
    gc.collect()
    gc.disable()
    try:
        loop_once(timeline, LoopFrame(), made)
    finally:
        gc.enable()
    assert not any(reference() for reference in made)
    assert records
    assert {kind for kind, *_ in records} == {int(Kind.LINE)}


def test_a_tracer_of_the_users_stays_and_ours_does_not_start() -> None:
    timeline, records, notes = make()

    def theirs(*_: Any) -> None:
        return None

    before = sys.gettrace()
    sys.settrace(theirs)
    try:
        frames = LoopFrame()
        frames.mark(sys._getframe())
        assert sys._getframe().f_trace is None
        assert not timeline.start(make.__code__, [], sys._getframe())
        assert sys.gettrace() is theirs
    finally:
        sys.settrace(before)
    assert "debugger" in notes[0]
    assert not records


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is on")
def test_a_loop_of_too_many_lines_ends_the_timeline_and_says_so() -> None:
    timeline, records, notes = make()

    def long() -> int:
        total = 0
        for i in range(30_000):
            total += i
        return total

    assert timeline.start(long.__code__, [], None)
    assert long() == sum(range(30_000))
    assert sys.gettrace() is None
    timeline.stop()
    assert 20_000 < len(records) < 20_010
    assert "20000" in notes[0]


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is on")
def test_a_busy_function_counts_for_the_line_that_calls_it() -> None:
    timeline, records, notes = make()

    def busy() -> int:
        total = 0
        for i in range(9_000):
            total += i
        return total

    def loop() -> int:
        first = busy()
        return first + busy()

    assert timeline.start(loop.__code__, [busy.__code__], None)
    assert loop() == 2 * sum(range(9_000))
    timeline.stop()
    assert len(records) == 2  # one for each line of the loop's function, none of the busy one's
    assert notes == ["busy runs too many lines to be timed: they count for the line that calls it"]


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer is on")
def test_an_exception_leaves_no_frame_of_ours_in_its_traceback() -> None:
    timeline, _, _ = make()

    def fails() -> None:
        raise ValueError("mine")

    timeline.start(None, [fails.__code__], None)
    try:
        fails()
    except ValueError as error:
        traceback, files = error.__traceback__, []
        while traceback is not None:
            files.append(traceback.tb_frame.f_code.co_filename)
            traceback = traceback.tb_next
    finally:
        timeline.stop()
    assert files == [__file__, __file__]


def test_the_names_of_a_line_are_reported_from_its_bytecode() -> None:
    def step(loader: Any, model: Any, device: Any) -> Any:
        x, y = next(loader)
        batch = {key: value.to(device) for key, value in x.items()}
        model.last = batch
        out = model(model.last, y)
        return out

    first = step.__code__.co_firstlineno
    names = names_by_line(step.__code__)
    assert names[first + 1] == ({"x", "y"}, {"next", "loader"})
    stores, loads = names[first + 2]
    assert "batch" in stores
    assert {"x", "items", "to", "device"} <= loads
    assert names[first + 3] == ({".last"}, {"model", "batch"})
    assert names[first + 4] == ({"out"}, {"model", ".last", "y"})


GIVEN_UP_BY_THE_COLLECTOR = """
import gc, sys
from steptime.probe.lines import LineTimeline

kept = []

def inner():
    kept.append(sys._getframe())  # frames are what the collector counts here

def loop():
    for _ in range(60):
        inner()

for at in range(1, 100):
    timeline = LineTimeline(lambda *_: None, lambda *_, **__: None, lambda _: None)
    seen = []

    def collected(*_):
        seen.append(None)
        if len(seen) >= at:
            timeline.give_up()

    timeline.start(None, [inner.__code__, loop.__code__], sys._getframe())
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    loop()
    gc.set_threshold(700)
    gc.callbacks.clear()
    timeline.stop()
    kept.clear()
assert seen
"""


def test_a_collection_between_two_lines_may_end_the_timeline() -> None:
    """Python 3.11 is about to call the trace function when it collects, and must find it alive."""
    words = [sys.executable, "-c", GIVEN_UP_BY_THE_COLLECTOR]
    done = subprocess.run(
        words, env={**os.environ, "PYTHONMALLOC": "debug"}, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
