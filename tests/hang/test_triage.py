"""Planted hangs are named: which collective, which ranks, and what differs; a job that is well is let off."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from documents import json_of, text_of
from hang.dumps import WORLD, entry, healthy, open_entry, write

from steptime.diagnosis import diagnose_paths
from steptime.errors import TraceError, UsageError
from steptime.hang.answer import answer_of
from steptime.hang.dump import read_dump, read_dumps
from steptime.hang.triage import Fault, HangTriage, Stall, counted_ranks, triage

TP = ("1", "tp")


def examine(folder: Path) -> HangTriage:
    return triage(read_dumps((str(folder),))[0])


def cause(folder: Path) -> Stall:
    found = examine(folder)
    assert found.stalls
    return found.stalls[0]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_rank_that_never_came_is_named_with_its_last_line(tmp_path: Path, as_json: bool) -> None:
    entries = healthy()
    for rank in (0, 1, 3):
        entries[rank].append(open_entry(3, 4, "all_gather"))
    stall = cause(write(tmp_path / "dumps", entries, as_json=as_json))
    assert (stall.fault, stall.culprits, stall.waiting) == (Fault.MISSING, (2,), (0, 1, 3))
    assert (stall.operation, stall.sequence) == ("all_gather", 4)
    assert stall.source is not None
    assert (stall.source.file, stall.source.line) == ("/home/someone/train.py", 40)
    assert "ranks 0, 1 and 3 wait in all_gather #4" in stall.sentence
    assert "rank 2 has not called it" in stall.sentence


def test_another_size_is_laid_to_the_odd_rank(tmp_path: Path) -> None:
    entries = healthy()
    for rank in range(WORLD):
        entries[rank].append(open_entry(3, 4, sizes=[[512]] if rank == 1 else [[1024]]))
    stall = cause(write(tmp_path / "dumps", entries))
    assert (stall.fault, stall.culprits) == (Fault.SIZE, (1,))
    assert any("[512]" in each for each in stall.evidence)


def test_another_element_type_is_laid_to_the_odd_rank(tmp_path: Path) -> None:
    entries = healthy()
    for rank in range(WORLD):
        odd: dict[str, Any] = {"input_dtypes": ["Float"], "output_dtypes": ["Float"]} if rank == 3 else {}
        entries[rank].append(open_entry(3, 4, **odd))
    stall = cause(write(tmp_path / "dumps", entries))
    assert (stall.fault, stall.culprits) == (Fault.ELEMENT_TYPE, (3,))


def test_another_operation_and_another_order_are_reported_apart(tmp_path: Path) -> None:
    other = healthy()
    for rank in range(WORLD):
        other[rank].append(open_entry(3, 4, "broadcast" if rank == 2 else "all_reduce"))
    stall = cause(write(tmp_path / "type", other))
    assert (stall.fault, stall.culprits) == (Fault.TYPE, (2,))
    swapped = healthy()
    for rank in range(WORLD):
        names = ("all_reduce", "all_gather")[:: -1 if rank == 2 else 1]
        swapped[rank] += [open_entry(3, 4, names[0]), open_entry(4, 5, names[1])]
    stall = cause(write(tmp_path / "order", swapped))
    assert (stall.fault, stall.culprits) == (Fault.ORDER, (2,))


def test_uneven_operations_may_differ_in_size(tmp_path: Path) -> None:
    entries = healthy()
    for rank in range(WORLD):
        entries[rank].append(open_entry(3, 4, "all_to_all", sizes=[[rank + 1]]))
    assert cause(write(tmp_path / "dumps", entries)).fault is Fault.NOT_DONE


def test_ranks_that_wait_for_one_another_in_two_groups_are_called_a_circle(tmp_path: Path) -> None:
    entries = healthy()
    for rank in (0, 1, 2):
        entries[rank].append(open_entry(3, 4))  # the whole job's all-reduce waits for rank 3 …
    entries[3].append(open_entry(3, 1, "all_gather", process_group=TP))  # … which waits in its own group for rank 2
    found = examine(write(tmp_path / "dumps", entries, {"1": [2, 3]}))
    assert {stall.group for stall in found.stalls} == {"group tp", "group default_pg"}
    assert not any(stall.consequence for stall in found.stalls)
    assert all("deadlock" in stall.evidence[-1] for stall in found.stalls)


def test_a_chain_ends_at_the_rank_that_waits_nowhere(tmp_path: Path) -> None:
    entries = healthy()
    for rank in (0, 1):
        entries[rank].append(open_entry(3, 4))
    entries[3].append(open_entry(5, 1, "all_gather", process_group=TP))  # so rank 3 has not come to the all-reduce
    found = examine(write(tmp_path / "dumps", entries, {"1": [2, 3]}))
    assert {stall.culprits for stall in found.stalls} == {(2,)}


def test_what_only_ends_late_on_some_ranks_is_passed_over_for_what_is_missing(tmp_path: Path) -> None:
    entries = healthy()
    entries[1][-1] |= {"state": "scheduled", "retired": False}
    entries[0].append(open_entry(3, 4))
    assert cause(write(tmp_path / "dumps", entries)).fault is Fault.MISSING


def test_a_send_without_its_receive_is_found(tmp_path: Path) -> None:
    entries = healthy()
    send: dict[str, Any] = {"is_p2p": True, "p2p_seq_id": 7}
    entries[0].append(open_entry(3, 3, "send 0->1", **send))
    stall = cause(write(tmp_path / "dumps", entries))
    assert (stall.fault, stall.waiting, stall.culprits) == (Fault.UNMATCHED, (0,), (1,))
    entries[1].append(open_entry(3, 3, "recv 1<-0", sizes=[[99]], **send))
    stall = cause(write(tmp_path / "sizes", entries))
    assert stall.fault is Fault.SIZE


def test_a_rank_without_a_dump_is_reported_to_be_unknown(tmp_path: Path) -> None:
    entries = healthy()
    del entries[1]
    for rank in entries:
        entries[rank].append(open_entry(3, 4))
    found = examine(write(tmp_path / "dumps", entries))
    assert found.absent == (1,)
    assert (found.stalls[0].fault, found.stalls[0].culprits) == (Fault.NO_DUMP, (1,))


def test_the_size_of_a_group_is_known_from_an_all_gather(tmp_path: Path) -> None:
    gathered = {"input_sizes": [[20]], "output_sizes": [[3, 20]]}
    entries = {rank: [entry(0, 1, "all_gather", **gathered), open_entry(1, 2)] for rank in range(2)}
    for number, calls in entries.items():
        dump = {"version": "2.10", "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}, "entries": calls}
        (tmp_path / f"rank_{number}").write_bytes(pickle.dumps(dump))
    found = examine(tmp_path)
    assert found.absent == (2,)
    assert (found.stalls[0].fault, found.stalls[0].culprits) == (Fault.NO_DUMP, (2,))


def test_a_rank_that_came_much_later_is_named(tmp_path: Path) -> None:
    entries = healthy()
    for rank in range(WORLD):
        entries[rank].append(open_entry(3, 4))
    entries[2][-1]["time_created_ns"] += 90_000_000_000
    stall = cause(write(tmp_path / "dumps", entries))
    assert "which all 4 ranks have called alike: the network or a device holds it" in stall.sentence
    assert "rank 2 called it last, 90 s after the first, by its clock" in stall.evidence


def test_ranks_are_counted_up_to_a_size_that_a_job_may_have(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", {999_999_999: [open_entry(0, 1)], 0: [open_entry(0, 1)]})
    assert len(examine(folder).absent) < WORLD


def test_a_ring_that_has_forgotten_the_beginning_still_agrees(tmp_path: Path) -> None:
    entries = {rank: [entry(number, number + 1) for number in range(rank, 9)] for rank in range(WORLD)}
    found = examine(write(tmp_path / "dumps", entries))
    assert found.stalls == ()
    assert found.checked == 6
    assert "no rank waits" in text_of(found, answer_of)


def test_the_json_holds_every_stall_with_its_sentence(tmp_path: Path) -> None:
    entries = healthy()
    entries[0].append(open_entry(3, 4))
    text = json_of(examine(write(tmp_path / "dumps", entries)), answer_of)
    assert '"sentence"' in text
    assert '"fault": "missing"' in text


class Evil:
    """What a hostile pickle would have made."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Evil()),
        pickle.dumps({"entries": [], "pg_config": Evil()}),
        b"",
        b"\x80\x02}q\x00(",
        b"not a dump",
        b"[" * 100_000,
        b"{}",
        pickle.dumps([1, 2]),
        pickle.dumps({"entries": [], "pg_config": {(1, 2): 3}}),
        pickle.dumps({"entries": [], "pg_config": {1, 2}}),
        pickle.dumps({"entries": [], "pg_config": frozenset({1, 2})}, 4),
        b"\x80\x04}]K\x01s.",
        b"\x80\x04]K\x01K\x02s.",
        b"\x80\x04}(K\x01u.",
        b"\x80\x04(K\x01K\x02K\x03d.",
        b"I1\xff\n.",
        b"G1.",
        b"s.",
        b"u.",
        b"\x80\xff.",
    ],
)
def test_what_is_no_dump_is_refused_and_nothing_in_it_runs(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rank_0"
    path.write_bytes(data)
    with pytest.raises(TraceError, match="not a dump of torch's flight recorder"):
        read_dump(path)
    assert not (tmp_path / "pwned").exists()


def test_two_dumps_of_one_rank_and_none_at_all_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", healthy())
    (folder / "copy_0").write_bytes((folder / "nccl_trace_rank_0").read_bytes())
    with pytest.raises(TraceError, match="both from rank 0"):
        read_dumps((str(folder),))
    with pytest.raises(TraceError, match="No dump"):
        read_dumps((str(tmp_path),))


def test_diagnose_sends_those_who_give_it_a_dump_to_the_right_verb(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", healthy())
    with pytest.raises(UsageError, match="steptime hang"):
        diagnose_paths((str(folder / "nccl_trace_rank_0"),))
    write(tmp_path / "json", healthy(), as_json=True)
    with pytest.raises(UsageError, match="steptime hang"):
        diagnose_paths((str(tmp_path / "json" / "rank_0.json"),))


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((), "no rank"),
        ((3,), "rank 3"),
        ((0, 2), "ranks 0 and 2"),
        (range(64), "ranks 0 to 63"),
        (range(0, 40, 2), "ranks 0, 2, 4 and 17 more"),
    ],
)
def test_ranks_are_counted_where_they_are_many(ranks: Any, text: str) -> None:
    assert counted_ranks(ranks) == text


FIELDS = [
    "process_group",
    "collective_seq_id",
    "record_id",
    "profiling_name",
    "time_created_ns",
    "input_sizes",
    "state",
]
FIELDS += ["output_dtypes", "frames", "is_p2p", "rank", "version", "pg_config", "ranks", "entries"]


def nested() -> Any:
    """A list twice in a list, sixty levels deep: two hundred bytes of pickle, and 2**60 elements when spelt out."""
    value: Any = [1, 1]
    for _ in range(60):
        value = [value, value]
    return value


def nested_tuples(levels: int) -> Any:
    """The same of tuples, which Python hashes anew each time."""
    value: Any = (1, 1)
    for _ in range(levels):
        value = (value, value)
    return value


def doubling(opcodes: bytes) -> bytes:
    """A pickle of sixty levels of such tuples, and these opcodes."""
    return b"\x80\x02}K\x01" + b"2\x86" * 60 + opcodes


def test_an_array_of_bytes_that_memory_does_not_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".")
    with pytest.raises(TraceError, match="to read"):
        read_dump(path)


@pytest.mark.usefixtures("in_time")
@pytest.mark.parametrize("opcodes", [b"K\x01s.", b"0\x8f.", b"0(K\x01d."], ids=["a key", "a set", "a value"])
def test_tuples_that_double_in_each_level_are_given_up(
    opcodes: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steptime.hang.dump.BASE_SECONDS", 1)
    path = tmp_path / "rank_0"
    path.write_bytes(doubling(opcodes))
    with pytest.raises(TraceError, match="not a dump of torch's flight recorder"):
        read_dump(path)


@pytest.mark.usefixtures("in_time", "pickles_read_here")
@pytest.mark.parametrize(
    "value", [nested(), nested_tuples(60), 1 << 5000, -1, 2.5, None, "9" * 5000, "\ud800a\nforged", [], {}, [[]]]
)
@pytest.mark.parametrize("field", FIELDS)
def test_a_foreign_value_anywhere_is_a_dump_or_a_sentence(tmp_path: Path, field: str, value: Any) -> None:
    calls = [entry(0, 1), open_entry(1, 2)]
    top = {"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": calls}
    if field in ("rank", *top):
        top[field] = value
    elif field == "ranks":
        top["pg_config"] = {"0": {"ranks": value}}
    else:
        calls[1][field] = value
    (tmp_path / "rank_0").write_bytes(pickle.dumps(top))
    write(tmp_path, {1: [entry(0, 1), open_entry(1, 3)]})
    try:
        found = triage(read_dumps((str(tmp_path),))[0])
    except TraceError:
        return
    assert "\nforged" not in text_of(found, answer_of)
    json.loads(json_of(found, answer_of))


@pytest.mark.usefixtures("in_time")
def test_numbers_of_calls_that_lie_far_apart_are_not_counted_through(tmp_path: Path) -> None:
    folder = write(tmp_path / "dumps", {rank: [entry(0, 1), open_entry(1, 1 << 60)] for rank in range(WORLD)})
    found = examine(folder)
    assert found.checked == 2
    assert [stall.sequence for stall in found.stalls] == [1 << 60]


@pytest.mark.usefixtures("in_time")
def test_a_pipe_is_refused_and_never_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "rank_0"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="it is a pipe"):
        read_dump(pipe)
