"""What collectives and compiled kernels carry beyond the columns, and allocations: read in the one pass."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from traces import kernel, operator, write

from steptime.trace.columns import DETAILS, KEYS
from steptime.trace.reader import read
from steptime.trace.table import details_of
from steptime.trace.windows import join

FILES = (
    "aorta/mi350x_repeated_correlation.pt.trace.json",
    "hta/triton_example/triton_example.json.gz",
    "hta/nccl_parser_config/nccl_data.json.gz",
    "tracelens/b200/eager_trace.json.gz",
    "tracelens/torch_compile_triton/trace.json.gz",
    "param/dlrm_kineto/worker1_step_12.1694128201556.pt.trace.json.gz",
)
KEPT = [KEYS[name] for name in DETAILS]
MARK = (
    '{"ph": "i", "name": "[memory]", "pid": %s, "tid": 7, "ts": %s, "args": {"Bytes": %s, "Addr": %d, "Device Id": 0}}'
)


@pytest.mark.parametrize("file", FILES)
def test_details_are_those_of_a_plain_reader(shared_data: Path, file: str) -> None:
    path = shared_data / file
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    plain = [event for event in json.loads(text)["traceEvents"] if event.get("ph") == "X"]
    found = details_of(trace := read(path), np.arange(len(plain)))
    assert len(plain) == len(trace.events)
    for event, details in zip(plain, found, strict=True):
        given = event.get("args", {})
        marked = "Collective name" in given or "kernel_file" in given
        assert details == ({key: given[key] for key in KEPT if key in given} if marked else {})


def test_braces_in_texts_and_inner_objects_do_not_mislead(tmp_path: Path) -> None:
    inner = {"note": [{"a": 1}, {"args": 5}], "Collective name": "all{reduce}", "Group size": 4, "last": {"b": {}}}
    compiled = operator("g", 3, 4, kernel_file="x}.py", num_warps=4)
    trace = write([operator("f<{lambda}>", 1, 2) | {"args": inner}, compiled], tmp_path)
    expected = {"Collective name": "all{reduce}", "Group size": 4}, {"kernel_file": "x}.py"}
    assert details_of(trace, np.array([0, 1])) == expected


def test_details_of_joined_files_are_those_of_each(tmp_path: Path) -> None:
    traces = []
    for start, name in ((0, "first"), (1000, "second")):
        (tmp_path / name).mkdir()
        nccl = operator("nccl", start + 60, start + 70) | {"args": {"Collective name": name}}
        traces.append(write([kernel(1, start, start + 50, "x"), nccl], tmp_path / name))
    first, second = {"Collective name": "first"}, {"Collective name": "second"}
    assert details_of(join(traces), np.array([3, 1, 0])) == (second, first, {})


@pytest.mark.parametrize("damage", ["", '{"ph": "X", "name": "torn", "ts": NaN},'])
def test_allocations_are_kept_in_order_from_whole_and_damaged_stretches(tmp_path: Path, damage: str) -> None:
    marks = [MARK % ('"12"', "1000.125", 512, 64), MARK % (12, 1001, -512, 64), MARK % (12, "1002", '"all"', 2**63)]
    event = '{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 999, "dur": 1}'
    path = tmp_path / "trace.json"
    path.write_text(f'{{"traceEvents": [{damage} {", ".join([event, *marks])}]}}')
    found = read(path).allocations
    assert found.time.tolist() == [1000125, 1001000, 1002000]
    assert found.process.tolist() == [12, 12, 12]
    assert found.bytes.tolist() == [512, -512, -1]
    assert found.address.tolist() == [64, 64, -1]
    assert found.reserved.tolist() == [-1, -1, -1]
