"""Several recordings of one process as one trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import event, trace_file

from steptime.analysis.trace_steps import steps_of
from steptime.errors import TraceError
from steptime.trace.gather import RankFiles
from steptime.trace.reader import read
from steptime.trace.windows import join, read_rank


def kernel(number: int, correlation: int, **changed: Any) -> dict[str, Any]:
    args = {"stream": 7, "device": 0, "correlation": correlation}
    return event(number, cat="kernel", name=f"k{correlation}", pid=0, tid=7, args=args) | changed


def cycle(path: Path, start: int, tail: str) -> Path:
    frame = event(start, cat="python_function", name="f", args={"Python id": 0, "Python parent id": None})
    inner = event(start, cat="python_function", name=f"g{tail}", args={"Python id": 1, "Python parent id": 0})
    call = event(start + 1, cat="cuda_runtime", name="cudaLaunchKernel", args={"correlation": 5})
    operator = event(start, name="aten::mm", args={"External id": 0, "Sequence number": 0, "Input Dims": [[2], tail]})
    return trace_file(path, [frame, inner, operator, call, kernel(start + 2, 5)], distributedInfo={"rank": 4})


def test_ids_of_one_recording_never_meet_those_of_another(tmp_path: Path) -> None:
    files = [cycle(tmp_path / f"{number}.json", 100 * number, str(number)) for number in range(3)]
    trace = read_rank(RankFiles(4, tuple(files)))
    table = trace.events
    assert len(table) == 15
    assert [trace.symbols[name] for name in table.name[1::5]] == ["g0", "g1", "g2"]
    assert [json.loads(trace.shapes[shape]) for shape in table.shapes[2::5]] == [[[2], "0"], [[2], "1"], [[2], "2"]]
    assert trace.symbols.count("aten::mm") == 1
    assert table.correlation[3::5].tolist() == table.correlation[4::5].tolist()
    assert len(set(table.correlation[3::5].tolist())) == 3
    assert len(set(table.sequence[2::5].tolist())) == 3
    assert table.external[2::5].tolist() == [0, 0, 0], "0 stands for none"
    assert trace.windows == ((1_000_000, 1_025_000), (2_000_000, 2_025_000), (3_000_000, 3_025_000))
    assert (trace.rank, trace.path, trace.size) == (4, files[0], sum(file.stat().st_size for file in files))
    assert not table.start.flags.writeable


def test_joining_one_recording_changes_nothing_in_its_columns(tmp_path: Path) -> None:
    alone = read(cycle(tmp_path / "0.json", 0, "x"))
    joined = join([alone])
    for column in ("name", "track", "start", "duration", "correlation", "sequence", "shapes", "stream", "event_kind"):
        assert np.array_equal(getattr(joined.events, column), getattr(alone.events, column)), column


def test_no_step_reaches_over_the_time_between_two_recordings(tmp_path: Path) -> None:
    def updates(first: int) -> list[dict[str, Any]]:
        return [event(first + 10 * n, cat="user_annotation", name="Optimizer.step#SGD.step") for n in range(3)]

    files = [trace_file(tmp_path / f"{first}.json", updates(first)) for first in (0, 1000)]
    trace = read_rank(RankFiles(None, tuple(files)))
    assert (np.diff(steps_of(trace), axis=1) == 100_000).all()
    assert len(steps_of(trace)) == 4
    bare = [trace_file(tmp_path / f"bare{first}.json", [event(first), event(first + 1)]) for first in (0, 1000)]
    assert np.diff(steps_of(read_rank(RankFiles(None, tuple(bare)))), axis=1).tolist() == [[15_000], [15_000]]


def test_damage_adds_up(tmp_path: Path) -> None:
    first = trace_file(tmp_path / "0.json", [event(0), event(1, dur=-1), event(2, ts=None)])
    second = trace_file(tmp_path / "1.json", [event(100), event(101, dur=-1)])
    second.write_text(second.read_text()[:-20])
    damage = read_rank(RankFiles(0, (first, second))).damage
    assert (damage.truncated, damage.refused, damage.negative) == (True, 1, 1)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"start": 0, "pid": 77}, "at the same time"),
        ({"start": 10**10, "pid": 77}, "more than a day apart"),
        ({"start": 100, "pid": 78}, "two processes, 77 and 78"),
    ],
)
def test_recordings_that_cannot_follow_one_another_are_refused(
    tmp_path: Path, second: dict[str, int], message: str
) -> None:
    one = trace_file(tmp_path / "0.json", [event(number) for number in range(5)])
    events = [event(second["start"] + number, pid=second["pid"]) for number in range(5)]
    other = trace_file(tmp_path / "1.json", events)
    with pytest.raises(TraceError, match=message) as refused:
        read_rank(RankFiles(0, (one, other)))
    assert refused.value.slug == "mixed-traces"


def test_recordings_may_touch(tmp_path: Path) -> None:
    one = trace_file(tmp_path / "0.json", [event(number, dur=12) for number in range(5)])
    other = trace_file(tmp_path / "1.json", [event(number) for number in range(5, 10)])
    trace = read_rank(RankFiles(0, (one, other)))
    assert trace.windows[0][1] == trace.windows[1][0]


def test_the_limit_holds_for_all_recordings_of_a_rank_together(tmp_path: Path) -> None:
    files = [trace_file(tmp_path / f"{n}.json", [event(100 * n + k) for k in range(50)]) for n in range(3)]
    size = sum(file.stat().st_size for file in files)
    assert len(read_rank(RankFiles(0, tuple(files)), max_size=size).events) == 150
    with pytest.raises(TraceError, match=r"0.json and 2 more of its process hold more than 18\.\d kB") as refused:
        read_rank(RankFiles(0, tuple(files)), max_size=size - 1)
    assert refused.value.slug == "trace-too-large"


def test_a_rank_that_only_the_name_knows_is_the_traces_rank(tmp_path: Path) -> None:
    assert read_rank(RankFiles(6, (trace_file(tmp_path / "rank6.json", [event()]),))).rank == 6
