"""Traces on the command line: what is read, what is refused in one sentence, and where it stops."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from steptime.cli.main import main
from steptime.cli.options import size
from steptime.trace import cache, entries

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]


def complete(event_kind: str, name: str, start: int, duration: int) -> dict[str, Any]:
    return {"ph": "X", "cat": event_kind, "name": name, "pid": 5, "tid": 5, "ts": start, "dur": duration}


def step(number: int) -> list[dict[str, Any]]:
    start = 1000 * number
    return [
        complete("user_annotation", f"ProfilerStep#{number}", start, 900),
        complete("cpu_op", "aten::mm", start + 10, 700),
    ]


def steps(first: int, count: int = 4) -> list[dict[str, Any]]:
    return [event for number in range(first, first + count) for event in step(number)]


def written(path: Path, events: list[dict[str, Any]], **around: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**around, "traceEvents": events}))
    return path


def refusal(run: subprocess.CompletedProcess[str], slug: str) -> str:
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1, run.stderr
    assert run.stderr.startswith("steptime: ")
    assert run.stderr.endswith(f"({slug})\n")
    return run.stderr


def test_a_bomb_stops_at_the_limit(steptime: Steptime, tmp_path: Path) -> None:
    event = json.dumps(step(1)[1]) + ","
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b'{"traceEvents": [' + event.encode() * 400_000, compresslevel=9))
    assert bomb.stat().st_size < 200_000
    run = steptime("diagnose", bomb, "--max-size", "20MB", "-o", "report.md")
    assert "more than 20 MB of JSON" in refusal(run, "trace-too-large")
    assert "--max-size" in run.stderr
    assert list((tmp_path / "work").iterdir()) == [], "nothing half-written"


def test_the_limit_can_be_raised_and_has_units(steptime: Steptime, tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", steps(1))
    refusal(steptime("diagnose", trace, "--max-size", "500"), "trace-too-large")
    assert steptime("diagnose", trace, "--max-size", "2MB", "--no-cache").returncode == 0
    assert steptime("report", trace, "--max-size", "0.002GiB", "-o", "-").returncode == 0
    run = steptime("diagnose", trace, "--max-size", "many")
    assert run.returncode == 2
    assert "such as 8GB" in run.stderr


@pytest.mark.parametrize(
    ("text", "amount"),
    [("8GB", 8 * 10**9), ("500 mb", 5 * 10**8), ("2GiB", 2**31), ("1.5k", 1500), ("77", 77), ("1TiB", 2**40)],
)
def test_sizes(text: str, amount: int) -> None:
    assert size(click.Context(click.Command("x")), click.Option(["--x"]), text) == amount


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "1e9", "8 XB", "8iB", "nan"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(click.BadParameter):
        size(click.Context(click.Command("x")), click.Option(["--x"]), text)


@pytest.mark.parametrize(
    ("content", "slug"),
    [(b"", "trace-empty"), (b"hello", "trace-not-a-trace"), (b'{"nodes": [1]}', "trace-not-a-trace"),
     (b"\x1f\x8b\x08garbage", "trace-not-a-trace"), (b'{"traceEvents": [{"ph": "X", "na', "trace-not-a-trace")],
)  # fmt: skip
def test_what_is_no_trace_is_refused(steptime: Steptime, tmp_path: Path, content: bytes, slug: str) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(content)
    assert str(path) in refusal(steptime("diagnose", path), slug)


def test_a_trace_that_is_compressed_twice_is_reported_so(steptime: Steptime, tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", steps(1))
    path.write_bytes(gzip.compress(gzip.compress(path.read_bytes())))
    assert "it is compressed twice" in refusal(steptime("diagnose", path), "trace-not-a-trace")


def test_a_trace_in_which_nothing_took_time_has_no_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    launched = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "args": {"correlation": 1}}
    ran = {"cat": "kernel", "name": "gemm", "args": {"correlation": 1, "device": 0, "stream": 7}}
    events = [*steps(1), *({"ph": "X", "pid": 5, "tid": 5, **each} for each in (launched, ran))]
    trace = written(tmp_path / "t.json", [each | {"ts": 100, "dur": 0} for each in events])
    assert main(["diagnose", str(trace)]) == 1
    assert "holds no step" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_file_without_permission_is_refused(steptime: Steptime, tmp_path: Path) -> None:
    path = written(tmp_path / "t.json", steps(1))
    path.chmod(0)
    assert "Permission denied" in refusal(steptime("diagnose", path), "trace-unreadable")


def test_a_folder_of_cycles_is_one_rank_with_more_steps(steptime: Steptime, tmp_path: Path) -> None:
    for first in (10, 50, 90):
        written(tmp_path / "logs" / f"host_5.{first}.pt.trace.json", steps(first))
    (tmp_path / "logs" / "config.json").write_text("{}")
    report = json.loads(steptime("diagnose", tmp_path / "logs", "--json", "--full").stdout)
    (process,) = report["processes"]
    assert process["step_ns"] == [900_000] * 12
    assert any("1 of 4 files are not traces" in problem for problem in report["problems"])


def test_a_quoted_pattern_is_a_job_of_several_ranks(steptime: Steptime, tmp_path: Path) -> None:
    for rank in range(3):
        events = [{**event, "pid": 50 + rank} for event in steps(1)]
        written(tmp_path / f"rank{rank}" / "t.json", events, distributedInfo={"rank": rank, "world_size": 3})
    for paths in ((tmp_path / "rank*" / "t.json",), (tmp_path,), sorted(tmp_path.glob("rank*"))):
        report = json.loads(steptime("diagnose", *paths, "--json", "--full").stdout)
        assert sorted(process["rank"] for process in report["processes"]) == [0, 1, 2]


def test_traces_of_different_jobs_are_refused(steptime: Steptime, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", steps(1), distributedInfo={"rank": 0, "world_size": 2})
    other = written(tmp_path / "b.json", steps(1), distributedInfo={"rank": 1, "world_size": 4})
    assert "different jobs" in refusal(steptime("diagnose", one, other), "mixed-traces")


def test_traces_of_processes_that_never_ran_together_are_no_job(steptime: Steptime, tmp_path: Path) -> None:
    one = written(tmp_path / "a.json", steps(1))
    other = written(tmp_path / "b.json", [{**event, "pid": 7} for event in steps(5_000)])
    message = refusal(steptime("diagnose", one, other), "mixed-traces")
    assert "were recorded at different times" in message
    assert "steptime compare" in message


def test_a_folder_of_batch_sizes_is_a_sweep(steptime: Steptime, tmp_path: Path) -> None:
    for number, batch in enumerate((8, 64, 16)):
        events = [{**event, "pid": 50 + number} for event in steps(1 + 5_000 * number)]
        written(tmp_path / f"bs{batch}.json", events)
    done = steptime("diagnose", tmp_path)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines() if line.strip()[:1].isdigit()]
    assert [(row[0], row[1:3], row[4:6]) for row in rows] == [
        ("8", ["900", "µs"], ["12", "%"]), ("16", ["900", "µs"], ["25", "%"]), ("64", ["900", "µs"], ["100", "%"]),
    ]  # fmt: skip


def test_a_sweep_has_a_page_with_throughput_over_batch_size(steptime: Steptime, tmp_path: Path) -> None:
    for number, batch in enumerate((8, 64, 16)):
        events = [{**event, "pid": 50 + number} for event in steps(1 + 5_000 * number)]
        written(tmp_path / f"bs{batch}.json", events)
    page, table = tmp_path / "sweep.html", tmp_path / "sweep.md"
    done = steptime("diagnose", tmp_path, "--json", "-o", page, "-o", table)
    assert done.returncode == 0
    sizes = json.loads(done.stdout)["sizes"]
    assert [each["batch"] for each in sizes] == [8, 16, 64]
    drawn = page.read_text()
    assert "Throughput over batch size" in drawn
    (points,) = re.findall(r'<polyline class="course owner0" points="([^"]+)"', drawn)
    rates = [[float(number) for number in each.split(",")] for each in points.split()]
    assert [x for x, _ in rates] == sorted(x for x, _ in rates)
    assert [y for _, y in rates] == sorted((y for _, y in rates), reverse=True), "more samples a second is higher"
    assert table.read_text().startswith("# steptime: A sweep over batch sizes\n\n**Batches of 64 reach")


def test_a_diagnosis_in_text_imports_nothing_that_is_for_pages_trials_or_masked_arrays(tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", steps(1, 10))
    code = "import sys; from steptime.cli.main import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", str(trace)], capture_output=True, text=True, check=True
    )
    assert not {"libcst", "jinja2", "numpy.ma", "torch"} & set(done.stderr.split())


def test_a_damaged_trace_is_diagnosed_and_the_damage_reported(steptime: Steptime, tmp_path: Path) -> None:
    trace = written(tmp_path / "t.json", steps(1, 40))
    trace.write_text(trace.read_text()[:-300].replace('"ProfilerStep#20"', '"Profiler"Step#20"'))
    report = json.loads(steptime("diagnose", trace, "--json", "--full").stdout)
    message = " ".join(report["processes"][0]["notes"])
    assert (
        "it is cut short, perhaps because the job was killed while writing it; 1 part could not be understood"
        in message
    )


def test_a_second_look_comes_from_the_cache_unless_it_is_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: the file was written just now, and is small."""
    monkeypatch.setenv("STEPTIME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(cache, "LEAST_SIZE", 0)
    monkeypatch.setattr(entries, "QUIET_NS", -(10**18))
    trace = str(written(tmp_path / "t.json", steps(1, 10)))
    assert main(["diagnose", trace, "--no-cache"]) == 0
    first = capsys.readouterr().out
    assert not (tmp_path / "cache").exists()
    assert main(["diagnose", trace]) == 0
    assert capsys.readouterr().out == first
    made = sorted((tmp_path / "cache" / "traces").iterdir(), key=lambda entry: entry.suffix)
    assert [entry.suffix for entry in made] == [".answer", ".columns"]
    monkeypatch.setattr(cache, "read", None)  # would be called where the cache has nothing
    assert main(["diagnose", trace]) == 0
    assert capsys.readouterr().out == first
    made[0].unlink()
    assert main(["diagnose", trace]) == 0
    assert capsys.readouterr().out == first
    assert main(["report", trace, "-o", "-"]) == 0
