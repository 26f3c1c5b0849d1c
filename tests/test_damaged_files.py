"""Whatever the bytes of a file from outside are: an answer or one sentence. More of them: benchmarks/faults."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.fuzz import attempt, damaged
from benchmarks.faults.targets import Target, recorder_dump, snapshots
from steptime.errors import RecordingError
from steptime.report.json import read as read_report
from steptime.trace.reader import read as read_trace

DEEP = b"[" * 3000
EVENT = b'{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":%d,"dur":2,"args":{"External id":%s}}'


def trace_of(*numbers: bytes) -> bytes:
    events = b",".join(EVENT % (10 + place, number) for place, number in enumerate(numbers))
    return b'{"schemaVersion":1,"traceEvents":[' + events + b"]}"


def test_a_report_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(RecordingError, match="is no report that this steptime reads"):
        read_report(b'{"schema_version":3,"processes":' + DEEP, "report.json")


@pytest.mark.parametrize("value", [b"1e999999999", b"1e308", b"-1e400", b"0.5", DEEP, b"1" + b"0" * 400, b"NaN"])
def test_a_trace_with_a_value_that_fits_nowhere_is_read_around_it(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace_of(b"1", b"2", value, b"4"))
    assert len(read_trace(path).events.start) >= 2


def test_a_small_journal_is_read_where_memory_is_scarce(tmp_path: Path) -> None:
    (tmp_path / "facts.jsonl").write_bytes(b'{"fact":"note","text":"x"}\n')
    limit = (
        "import resource, sys, pathlib\n"
        "from steptime.recording.documents import read_bytes\n"
        "pages = int(open('/proc/self/statm').read().split()[0])\n"
        "most = pages * resource.getpagesize() + (64 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "print(len(read_bytes(pathlib.Path(sys.argv[1]), 1 << 30, [])))\n"
    )
    words = [sys.executable, "-c", limit, str(tmp_path / "facts.jsonl")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "27"), done.stderr
    assert resource.getrlimit(resource.RLIMIT_AS)  # ours is as it was


def test_the_same_number_damages_a_file_in_the_same_way() -> None:
    target = Target("any", snapshots(), lambda name, data: None)
    assert damaged(target, 0, 7) == damaged(target, 0, 7)
    assert damaged(target, 0, 7) != damaged(target, 0, 8)


def test_a_reader_that_raises_anything_else_is_a_fault() -> None:
    def careless(name: str, data: bytes) -> object:
        raise KeyError("segments")

    def refusing(name: str, data: bytes) -> object:
        raise RecordingError("no-recording", "There is none.")

    assert "KeyError" in str(attempt(Target("any", (), careless), "file", b""))
    assert attempt(Target("any", (), refusing), "file", b"") == "refused no-recording"
    assert attempt(Target("any", (), lambda name, data: recorder_dump()), "file", b"") is None
