"""Loading recordings: whole, damaged, refused."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings, strategies as st
from journals import EPOCH, MS, START, JournalBuilder

from steptime.analysis.layout import lay_out
from steptime.errors import RecordingError
from steptime.journal import FORMAT_VERSION, RECORD, Kind
from steptime.recording.load import facts_of, load
from steptime.recording.packed import LAYOUT, decode, pack
from steptime.recording.recording import IntervalTable, LoaderFacts


def encode(table: IntervalTable) -> bytes:
    """The bytes of a table: each record where a probe would have written it, at its end, children before parents."""
    records = np.empty(len(table.start), LAYOUT)
    for name in LAYOUT.names or ():
        records[name] = getattr(table, name)
    return records[::-1].tobytes()


def built() -> JournalBuilder:
    job = JournalBuilder()
    job.fact("optimizer", identity=1, type="SGD", parameters=2, elements=10)
    job.fact("note", text="another profiler was recording: ours stayed off")
    job.fact("settings", intra_op_threads=2, inter_op_threads=2, usable_cpus=2, logical_cpus=2)
    job.samples.append({"monotonic_ns": START + MS, "job_cpu": 1, "other_cpu": 0.5, "resident_bytes": 7})
    for _ in range(5):
        job.next(MS).forward(MS).backward(MS).step(MS)
    return job


def process_folder(recording: Path) -> Path:
    return recording / "process-17"


def test_a_whole_recording(tmp_path: Path) -> None:
    recording = built().recording(tmp_path / "recording")
    process = recording.processes[0]
    assert recording.manifest.command == ("python", "train.py")
    assert len(process.intervals.start) == 20
    assert process.optimizers[0].type == "SGD"
    assert process.settings is not None
    assert process.notes == ("another profiler was recording: ours stayed off",)
    assert recording.telemetry[0].job_cpu == 1.0


def test_what_was_freed_after_it_was_reported_is_not_held_and_no_names_are_all_names(tmp_path: Path) -> None:
    job, leak = built(), {"tensors": 1.0, "bytes": 4.0, "graphs": 1.0, "nodes": 9.0, "steps": 4}
    job.facts += [
        {"fact": "leak", "kind": "variable", "name": "hidden", **leak},
        {"fact": "growing", "kind": "list", "name": "rows", "entries": 1.0},
        {"fact": "freed", "names": ()},
        {"fact": "leak", "kind": "variable", "name": "hidden", **leak},
        {"fact": "leak", "kind": "list", "name": "outputs", **leak},
        {"fact": "freed", "names": ("outputs",)},
    ]
    (process,) = job.recording(tmp_path / "recording").processes
    assert [each.name for each in process.leaks] == ["hidden"]
    assert process.growing == ()


def test_columns_are_read_only_and_parents_come_first(tmp_path: Path) -> None:
    job = JournalBuilder()
    with job.within(Kind.OPTIMIZER_STEP, 1):
        job.step(MS, 2)
    table = job.process(tmp_path / "recording").intervals
    assert table.identity.tolist() == [1, 2]  # both start and end at the same time; the parent was written last
    with pytest.raises(ValueError, match="read-only"):
        table.start[0] = 0


def test_a_later_fact_of_the_same_identity_replaces_the_earlier_one(tmp_path: Path) -> None:
    job = built().fact("loader", identity=3, loader=1, dataset="A").fact("loader", identity=3, loader=1, dataset="B")
    assert job.process(tmp_path / "recording").loaders == (LoaderFacts(3, 1, "B"),)


@pytest.mark.parametrize("identity", [-1, 2**40])
def test_an_impossible_identity_of_a_spawned_loader_does_no_harm(tmp_path: Path, identity: int) -> None:
    job = built().fact("loader", identity=identity, loader=1, dataset="A", seed=2**50)
    job.worker(Kind.FETCH, START, START + MS)
    assert job.process(tmp_path / "recording").workers.identity.tolist() == [1]


def test_a_torn_end_is_dropped_and_reported(tmp_path: Path) -> None:
    path = built().write(tmp_path / "recording")
    journal, facts = process_folder(path) / "journal.bin", process_folder(path) / "facts.jsonl"
    journal.write_bytes(journal.read_bytes()[:-5])
    facts.write_bytes(facts.read_bytes()[:-9])
    recording = load(path)
    assert len(recording.processes[0].intervals.start) == 19
    assert recording.processes[0].settings is None
    assert recording.problems == (
        "process-17/facts.jsonl: the last line is incomplete and was skipped.",
        "process-17/journal.bin: the last record is incomplete and was skipped.",
    )


def test_records_that_make_no_sense_are_left_out_and_counted(tmp_path: Path) -> None:
    job = built()
    job.records += [
        RECORD.pack(99, 0, 0, 1, START, START + 1),  # a kind of the future
        RECORD.pack(Kind.FORWARD, 0, 0, 1, START + 5, START),  # ends before it starts
        RECORD.pack(Kind.FORWARD, 0, 0, 1, 7, START),  # long before the process
        RECORD.pack(Kind.FORWARD, 0, 0, 1, START, 2**62),  # never
        RECORD.pack(Kind.FORWARD, 0, 0, 1, -5, START),
        RECORD.pack(Kind.MEMORY, 0, 0, 1, START, 4096),  # a value, not a time: good
        RECORD.pack(Kind.QUEUE, 0, 0, 1, START, 2),  # likewise
    ]
    recording = load(job.write(tmp_path / "recording"))
    assert recording.problems == ("process-17/journal.bin: 5 of 27 records are invalid and were skipped.",)
    assert len(recording.processes[0].intervals.start) == 22


def test_facts_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    path = built().write(tmp_path / "recording")
    with (process_folder(path) / "facts.jsonl").open("ab") as facts:
        facts.write(b"not json\n")
        facts.write(b'{"fact": "optimizer", "identity": "one", "type": "SGD", "parameters": 1, "elements": 1}\n')
        facts.write(b'{"fact": "prophecy"}\n')
        facts.write(b'{"fact": "root", "identity": 1e300, "type": "Net", "parameters": 1, "parameter_bytes": 1}\n')
        facts.write(b'{"fact": "root", "identity": 99999999999999999999, "type": "N", "parameters": 1}\n')
        facts.write(b"[" * 100_000 + b"\n")
        facts.write(b"\xff\xfe\n\n")
        facts.write(b'{"fact": "padding", "share": 5, "batches": 2}\n')
    recording = load(path)
    assert recording.problems == ("process-17/facts.jsonl: 8 of 12 lines cannot be read and were skipped.",)
    assert recording.processes[0].top_modules == ()
    assert recording.processes[0].settings is not None


@pytest.mark.parametrize("name", ["journal.bin", "loader.bin", "facts.jsonl"])
@pytest.mark.parametrize("remove", [True, False])
def test_missing_and_empty_files_are_no_problem(tmp_path: Path, name: str, remove: bool) -> None:
    path = built().write(tmp_path / "recording")
    if remove:
        (process_folder(path) / name).unlink()
    else:
        (process_folder(path) / name).write_bytes(b"")
    recording = load(path)
    assert recording.problems == ()
    lay_out(recording.processes[0])


def test_a_manifest_or_process_that_cannot_be_read_is_reported_and_the_steps_are_kept(tmp_path: Path) -> None:
    path = built().write(tmp_path / "recording")
    (path / "manifest.json").write_text('{"format_version": 1, "steptime":')
    (process_folder(path) / "process.json").write_text("[]")
    recording = load(path)
    assert len(recording.problems) == 2
    assert recording.problems[0].startswith("manifest.json cannot be read")
    assert recording.processes[0].facts.pid == 17
    assert len(lay_out(recording.processes[0]).steps.end) == 5


def test_a_trace_is_found_compressed_and_never_outside_of_its_folder(tmp_path: Path) -> None:
    times = {"start": 1, "end": 2, "steps": 1, "stacks": False, "epoch_ns": 1, "monotonic_ns": 1}
    job = built()
    for number, name in enumerate(
        ("trace-1.json", "trace-2.json", "../../manifest.json", "/etc/passwd", "a\0b", "a" * 300)
    ):
        job.fact("trace", number=number, path=name, **times)
    path = job.write(tmp_path / "recording")
    (process_folder(path) / "trace-1.json.gz").write_bytes(b"")
    recording = load(path)
    assert [trace.path for trace in recording.processes[0].traces] == ["trace-1.json.gz"]
    assert len(recording.problems) == 5


def test_of_two_windows_that_were_written_over_one_another_the_last_is_meant(tmp_path: Path) -> None:
    """As where a job evaluates for long before it trains: what ends its steps changes, and the windows start again."""
    job = built()
    for start in (1, 5):
        times = {"start": start, "end": start + 1, "steps": 1, "stacks": False, "epoch_ns": 1, "monotonic_ns": 1}
        job.fact("trace", number=3, path="trace-3.json", **times)
    path = job.write(tmp_path / "recording")
    (process_folder(path) / "trace-3.json").write_bytes(b"")
    assert [trace.start for trace in load(path).processes[0].traces] == [5]


def test_processes_are_sorted_by_rank(tmp_path: Path) -> None:
    for pid, rank in ((17, 1), (18, 0), (19, None)):
        job = built()
        job.process_facts.update(pid=pid, rank=rank)
        job.write(tmp_path / str(pid))
    for pid in (18, 19):
        (tmp_path / str(pid) / "process-17").rename(tmp_path / "17" / f"process-{pid}")
    assert [process.facts.pid for process in load(tmp_path / "17").processes] == [18, 17, 19]


def refused(path: Path) -> str:
    with pytest.raises(RecordingError) as caught:
        load(path)
    assert "\n" not in caught.value.sentence
    return caught.value.slug


def test_who_the_processes_are_is_reported_without_reading_what_they_did(tmp_path: Path) -> None:
    path = built().write(tmp_path / "recording")
    (process_folder(path) / "journal.bin").unlink()
    other = path / "process-18"
    other.mkdir()
    (other / "process.json").write_text("not json", encoding="utf-8")
    assert [facts.pid for facts in facts_of(path)] == [17]


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "file", tmp_path / "empty"):
        assert refused(path) == "no-recording"
    assert refused(tmp_path / "absent") == "no-such-file"
    assert refused(Path("a\0b")) in ("no-such-file", "recording-unreadable")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = built().write(tmp_path / "recording")
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format_version": FORMAT_VERSION + 1, "steptime": []}))
    assert refused(path) == "recording-newer"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read_is_refused(tmp_path: Path) -> None:
    path = built().write(tmp_path / "recording")
    (process_folder(path) / "journal.bin").chmod(0)
    assert refused(path) == "recording-permission"


OF_A_PROCESS = ("process.json", "journal.bin", "facts.jsonl")
FILES = ("manifest.json", "telemetry.jsonl", *(f"process-17/{name}" for name in OF_A_PROCESS))
quick = settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(name=st.sampled_from(FILES), data=st.binary(max_size=400), at=st.floats(0, 1), replace=st.booleans())
def test_garbage_anywhere_is_refused_in_words_or_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: bytes, at: float, replace: bool
) -> None:
    path = built().write(tmp_path_factory.mktemp("garbage") / "recording")
    whole = (path / name).read_bytes()
    cut = int(at * len(whole))
    (path / name).write_bytes(data if replace else whole[:cut] + data + whole[cut + len(data) :])
    try:
        recording = load(path)
    except RecordingError:
        return
    for process in recording.processes:
        timeline = lay_out(process)
        assert np.array_equal(timeline.steps.phases.sum(axis=1), timeline.steps.duration)
        assert (timeline.steps.phases >= 0).all()


records = st.lists(
    st.tuples(
        st.sampled_from([int(kind) for kind in Kind if kind not in (Kind.MEMORY, Kind.QUEUE)]),
        st.integers(0, 255),
        st.integers(0, 3),
        st.integers(0, 4),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    max_size=60,
)


@quick
@given(records)
def test_what_is_written_is_what_is_loaded(drawn: list[tuple[int, int, int, int, int, int]]) -> None:
    data = b"".join(
        RECORD.pack(kind, flags, thread, identity, START + start, START + start + length)
        for kind, flags, thread, identity, start, length in drawn
    )
    decoded = decode([data], None)
    assert (decoded.torn, decoded.senseless) == (0, 0)
    again = decode([encode(decoded.table)], None)
    for name in IntervalTable.__slots__:
        assert np.array_equal(getattr(again.table, name), getattr(decoded.table, name))
    chunks = sorted(data[at : at + RECORD.size] for at in range(0, len(data), RECORD.size))
    written = encode(decoded.table)
    assert sorted(written[at : at + RECORD.size] for at in range(0, len(written), RECORD.size)) == chunks


@quick
@given(records)
def test_any_records_are_laid_out(tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, ...]]) -> None:
    job = JournalBuilder()
    for kind, flags, thread, identity, start, length in drawn:
        job.thread = thread
        job.record(Kind(kind), START + start * MS, START + (start + length) * MS, identity, flags)
    process = job.process(tmp_path_factory.mktemp("any") / "recording")
    steps = lay_out(process).steps
    assert np.array_equal(steps.phases.sum(axis=1), steps.duration)
    assert (steps.phases >= 0).all()
    assert (steps.end >= steps.start).all()


def test_a_journal_of_many_records_is_laid_out(tmp_path: Path) -> None:
    step = JournalBuilder()
    step.next(MS, 3).forward(MS).backward(MS).step(MS)
    table = decode([b"".join(step.records)], None).table
    count = 50_000
    shift = np.repeat(np.arange(count) * 4 * MS, 4)
    whole = IntervalTable(
        kind=np.tile(table.kind, count),
        flags=np.tile(table.flags, count),
        thread=np.tile(table.thread, count),
        identity=np.tile(table.identity, count),
        start=np.tile(table.start, count) + shift,
        end=np.tile(table.end, count) + shift,
    )
    path = step.write(tmp_path / "recording")
    (process_folder(path) / "journal.bin").write_bytes(encode(whole))
    steps = lay_out(load(path).processes[0]).steps
    assert len(steps.end) == count
    assert steps.duration[7] == 4 * MS


def test_a_clock_that_was_set_back_costs_no_records(tmp_path: Path) -> None:
    job = built()
    job.process_facts["process_started_epoch_ns"] = EPOCH + 3600 * 1000 * MS
    assert len(job.process(tmp_path / "recording").intervals.start) == 20


def test_a_journal_with_a_hole_of_gigabytes_takes_no_room_in_memory(tmp_path: Path) -> None:
    recording = built().write(tmp_path / "recording")
    journal = process_folder(recording) / "journal.bin"
    known = len(load(recording).processes[0].intervals.start)
    os.truncate(journal, 24 * 12_000_000)
    (process_folder(recording) / "loader.packed").write_bytes(pack(bytes(24 * 200_000)))
    tracemalloc.start()
    try:
        process = load(recording).processes[0]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(process.intervals.start) == known
    assert len(process.workers.start) == 0
    assert peak < 64 << 20
