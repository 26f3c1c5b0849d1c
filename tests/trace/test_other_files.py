"""What is given as a trace and is none is told by what it holds, with what reads or replaces it."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from steptime.errors import SteptimeError
from steptime.trace.gather import gather

EXECUTION_TRACE = """{
  "schema": "1.0.1", "pid": 59811, "time": "2023-09-07 16:09:59", "start_ts": 6672645,
  "nodes": [
    {"name": "[pytorch|profiler|execution_graph|thread]", "id": 2, "rf_id": 0, "parent": 1, "op_schema": ""}
  ]
}"""
TABLE = """\
-------------  ------------  ------------  ------------  ------------
         Name    Self CPU %      Self CPU     CUDA total    # of Calls
-------------  ------------  ------------  ------------  ------------
     aten::mm        50.43%     934.608ms     934.608ms             1
Self CPU time total: 1.853s
"""
COUNTERS = '==PROF== Connected\n"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'


@pytest.mark.parametrize(
    ("name", "content", "slug", "message"),
    [
        ("et.json", EXECUTION_TRACE.encode(), "execution-trace", "export_chrome_trace"),
        ("et.json.gz", gzip.compress(EXECUTION_TRACE.encode()), "execution-trace", "record_shapes=True"),
        ("table.txt", TABLE.encode(), "operator-table", "prof.export_chrome_trace"),
        ("kernels.csv", COUNTERS.encode(), "counter-table", "--ncu"),
        ("kernels.ncu-rep", b"NVR\0", "nsight-report", "ncu --import"),
        ("job.nsys-rep", b"\0" * 100, "nsight-report", "nsys export -t sqlite"),
        (
            "snapshot.pickle",
            b"\x80\x04}\x94(\x8c\x08segments\x94]\x94(}\x94\x8c\x0eallocated_size",
            "memory-snapshot",
            "memory",
        ),
        ("dump", b"\x80\x04}\x94(\x8c\x09pg_config", "flight-recorder-dump", "steptime hang"),
        ("notes.json", b'{"a": 1}', "trace-not-a-trace", "traceEvents"),
    ],
)
def test_it_is_reported_by_name(tmp_path: Path, name: str, content: bytes, slug: str, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(SteptimeError, match=message) as caught:
        gather([str(file)])
    assert caught.value.slug == slug


def test_what_only_mentions_it_is_still_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "Self CPU % # of Calls", "ts": 1, "dur": 2, "pid": 1, "tid": 1}'
    file.write_text(f'{{"schema": 1, "nodes": [], "traceEvents": [{event}]}}')
    assert len(gather([str(file)]).ranks) == 1
