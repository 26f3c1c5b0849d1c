"""Which files are meant, and whose they are."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from traces import event, trace_file

from steptime.errors import TraceError
from steptime.trace.gather import Gathered, gather, is_traces, rank_in_name


def names(found: Gathered) -> list[tuple[int | None, list[str]]]:
    return [(rank.rank, [file.name for file in rank.files]) for rank in found.ranks]


def of_rank(path: Path, rank: int | None, size: int = 8, *, pid: int | None = None, start: int = 0) -> Path:
    """A trace of one process of a job. start: in events of 10 µs."""
    pid = 100 + (rank or 0) if pid is None else pid
    events = [event(start + number, pid=pid, tid=pid) for number in range(5)]
    around: dict[str, Any] = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": size}}
    return trace_file(path, events, **around)


def test_a_folder_means_the_traces_in_it_and_says_what_it_passed_over(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        of_rank(tmp_path / f"{rank}.pt.trace.json", rank, 11)
    (tmp_path / "settings.json").write_text('{"lr": 0.1}')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "notes.txt").write_text("not looked at")
    of_rank(tmp_path / "older" / "0.json", 0, 3)
    found = gather([str(tmp_path)])
    expected = [(0, ["0.pt.trace.json"]), (2, ["2.pt.trace.json"]), (10, ["10.pt.trace.json"])]
    assert names(found) == expected
    assert found.problems == ("2 of 5 files are not traces and were skipped: empty.json, settings.json.",)


def test_sub_folders_count_where_the_folder_itself_has_no_file(tmp_path: Path) -> None:
    for rank in range(3):
        of_rank(tmp_path / f"rank{rank}" / "trace.json", None, pid=50 + rank)
    recording = of_rank(tmp_path / "recording" / "7" / "trace-0.json.gz", 9).parent.parent
    (recording / "manifest.json").write_text("{}")
    found = gather([str(tmp_path)])
    assert [rank for rank, _ in names(found)] == [0, 1, 2]
    assert found.problems == ()


def test_a_recording_of_ours_is_no_folder_of_traces(tmp_path: Path) -> None:
    trace = of_rank(tmp_path / "trace-0.json", 0)
    assert is_traces(str(tmp_path))
    assert is_traces(str(trace))
    assert is_traces(str(tmp_path / "*.json"))
    (tmp_path / "manifest.json").write_text("{}")
    assert not is_traces(str(tmp_path))
    assert not is_traces(str(tmp_path / "absent"))


def test_a_pattern_is_expanded_and_a_file_of_that_name_comes_first(tmp_path: Path) -> None:
    of_rank(tmp_path / "a" / "rank0.json", None)
    of_rank(tmp_path / "b" / "rank1.json", None, pid=8)
    assert [rank for rank, _ in names(gather([str(tmp_path / "*" / "rank*.json")]))] == [0, 1]
    assert [rank for rank, _ in names(gather([str(tmp_path / "**" / "*.json")]))] == [0, 1]
    literal = of_rank(tmp_path / "rank[0].json", None)
    assert names(gather([str(literal)])) == [(None, ["rank[0].json"])]


def test_a_packed_copy_alongside_a_trace_is_not_another_trace(tmp_path: Path) -> None:
    trace = of_rank(tmp_path / "trace.json", 0)
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(trace.read_bytes()))
    assert names(gather([str(tmp_path)])) == [(0, ["trace.json"])]


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz", 34),
        ("rank0.json", 0),
        ("trace_rank_12.json", 12),
        ("Rank7.json", 7),
        ("worker3_step_12.1694128201545.pt.trace.json.gz", 3),
        ("resnet50_workers0.pt.trace.json", None),
        ("frank2.json", None),
        ("rank_not_found_v0.json", None),
        ("host1_4711.1694128201545.pt.trace.json", None),
    ],
)
def test_the_rank_in_a_name(path: str, rank: int | None) -> None:
    assert rank_in_name(path) == rank


def test_a_folders_name_says_the_rank_where_nothing_else_does(tmp_path: Path) -> None:
    for path, pid in (("rank5/trace.json", 1), ("rank5x/rank6.json", 2), ("rank7/trace.json", 3)):
        of_rank(tmp_path / path, None, pid=pid)
    assert [rank for rank, _ in names(gather([str(tmp_path)]))] == [5, 6, 7]


def test_a_folder_of_several_processes_is_not_one_rank_whatever_its_name(tmp_path: Path) -> None:
    of_rank(tmp_path / "lora_rank8" / "a.json", None, pid=1)
    of_rank(tmp_path / "lora_rank8" / "b.json", None, pid=2, start=1)
    of_rank(tmp_path / "lora_rank8" / "c.json", 3, pid=3, start=2)
    found = gather([str(tmp_path / "lora_rank8")])
    assert names(found) == [(3, ["c.json"]), (None, ["a.json"]), (None, ["b.json"])]


def test_the_file_knows_its_rank_better_than_its_name(tmp_path: Path) -> None:
    assert names(gather([str(of_rank(tmp_path / "rank0.json", 5))])) == [(5, ["rank0.json"])]


def test_cycles_of_one_rank_belong_together_in_order_of_time(tmp_path: Path) -> None:
    for rank in (0, 1):
        for step, start in ((24, 200), (4, 0), (12, 100)):
            of_rank(tmp_path / f"worker{rank}_step_{step}.json", rank, 2, start=start)
    cycles = [[f"worker{rank}_step_{step}.json" for step in (4, 12, 24)] for rank in (0, 1)]
    assert names(gather([str(tmp_path)])) == [(0, cycles[0]), (1, cycles[1])]


def test_cycles_of_one_process_without_a_rank_belong_together(tmp_path: Path) -> None:
    of_rank(tmp_path / "host_9.200.pt.trace.json", None, pid=9, start=100)
    of_rank(tmp_path / "host_9.100.pt.trace.json", None, pid=9)
    found = gather([str(tmp_path)])
    assert names(found) == [(None, ["host_9.100.pt.trace.json", "host_9.200.pt.trace.json"])]
    assert found.problems == ()


def test_processes_that_do_not_say_which_they_are_are_counted_and_that_is_reported(tmp_path: Path) -> None:
    of_rank(tmp_path / "a.json", None, pid=1)
    of_rank(tmp_path / "b.json", None, pid=2, start=1)
    found = gather([str(tmp_path)])
    assert names(found) == [(None, ["a.json"]), (None, ["b.json"])]
    assert "Each process counts as one rank" in found.problems[0]


def test_different_numbers_of_ranks_are_different_jobs(tmp_path: Path) -> None:
    of_rank(tmp_path / "a.json", 0, 8)
    of_rank(tmp_path / "b.json", 1, 2)
    with pytest.raises(TraceError, match=r"job of 8 ranks, .*of 2: .*different jobs") as refused:
        gather([str(tmp_path)])
    assert refused.value.slug == "mixed-traces"


def test_two_processes_of_one_rank_are_different_jobs(tmp_path: Path) -> None:
    of_rank(tmp_path / "a.json", 3, pid=41)
    of_rank(tmp_path / "b.json", 3, pid=42, start=100)
    with pytest.raises(TraceError, match="both from rank 3, but from two processes") as refused:
        gather([str(tmp_path)])
    assert refused.value.slug == "mixed-traces"


def test_what_was_given_by_name_must_be_a_trace(tmp_path: Path) -> None:
    good, bad = of_rank(tmp_path / "a.json", 0), tmp_path / "b.json"
    bad.write_text('{"nodes": []}')
    with pytest.raises(TraceError) as refused:
        gather([str(good), str(bad)])
    assert refused.value.slug == "trace-not-a-trace"
    assert names(gather([str(good), str(tmp_path / "b*.json")])) == [(0, ["a.json"])]


def test_no_trace_at_all_is_refused_with_what_was_looked_at(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    for pattern in (str(tmp_path), str(tmp_path / "none*")):
        with pytest.raises(TraceError, match=r"No trace of torch\.profiler in") as refused:
            gather([pattern])
        assert refused.value.slug == "no-traces"


def test_a_folder_that_cannot_be_listed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(TraceError, match="Permission denied") as refused:
        gather([str(tmp_path)])
    assert refused.value.slug == "trace-unreadable"


def test_the_ranks_of_a_real_job_alongside_its_execution_traces(shared_data: Path) -> None:
    found = gather([str(shared_data / "param")])
    assert [rank for rank, _ in names(found)] == list(range(8))
    assert found.problems[0].startswith("8 of 16 files are not traces and were skipped: dlrm_eg_0.json.gz, ")
    with pytest.raises(TraceError, match="none of 8 files is one"):
        gather([str(shared_data / "param" / "dlrm_pytorch_et")])
    with pytest.raises(TraceError, match="different jobs"):
        gather([str(shared_data / "hta" / "critical_path")])
