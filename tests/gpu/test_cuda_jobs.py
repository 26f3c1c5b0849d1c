"""Jobs on a CUDA device: they stay as they are, their account sums up, and planted faults are found on their lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from steptime.recording.load import load

pytestmark = pytest.mark.gpu
SCRIPTS = Path(__file__).parent / "scripts"
MARK = "# fault"
STEPTIME = (sys.executable, "-c", "from steptime.cli.main import entry; entry()")


Done = subprocess.CompletedProcess[str]


def job(script: str, *arguments: str) -> list[str]:
    return [sys.executable, str(SCRIPTS / f"{script}.py"), *arguments]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def watched(recording: Path, words: list[str]) -> subprocess.CompletedProcess[str]:
    return run([*STEPTIME, "run", "--no-progress", "--recording", str(recording), "--", *words])


def report_of(recording: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(run([*STEPTIME, "diagnose", str(recording), "--json", "--full"]).stdout)
    return report


def found_in(report: dict[str, Any]) -> list[dict[str, Any]]:
    process = report["processes"][0]
    assert process["failed"] == []
    return [finding for finding in process["findings"] if finding["weight"] == "finding"]


def marked_lines(script: str) -> set[int]:
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(text, 1) if MARK in line}


@pytest.fixture(scope="module")
def convolutions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Done, Path]:
    """(the bare job, the watched one, its recording)."""
    recording = tmp_path_factory.mktemp("runs") / "convolutions"
    bare = run(job("convolutions"))
    return bare, watched(recording, job("convolutions")), recording


def test_losses_and_memory_counters_are_those_of_the_bare_job(convolutions: tuple[Done, Done, Path]) -> None:
    bare, with_steptime, _ = convolutions
    assert with_steptime.stdout == bare.stdout
    assert "Warning" not in with_steptime.stderr.replace(bare.stderr, "")


def test_the_most_memory_is_what_the_allocator_says(convolutions: tuple[Done, Done, Path]) -> None:
    _, with_steptime, recording = convolutions
    most = int(with_steptime.stdout.splitlines()[-1].split()[0])
    assert report_of(recording)["processes"][0]["peak_bytes"] == most


def test_every_step_is_seen_and_its_category_is_the_devices(convolutions: tuple[Done, Done, Path]) -> None:
    report = report_of(convolutions[2])
    process = report["processes"][0]
    assert len(process["step_ns"]) == 120
    assert report["environment"]["device"]
    categories = {use["name"]: use["duration"]["value"] for use in process["case"]["categories"]}
    assert categories["compute"] > 0
    assert process["case"]["step"]["device"] == "cuda"
    assert process["case"]["kernels"], "the kernels were not traced"
    assert sum(categories.values()) == pytest.approx(process["case"]["step"]["duration"]["value"], rel=0.2)


def test_nothing_of_ours_waits_for_the_device(tmp_path: Path) -> None:
    """In the job, torch raises where it would wait. All of our windows come and go."""
    watched(tmp_path / "watched", job("sync", "--healthy", "--never-wait"))
    (process,) = report_of(tmp_path / "watched")["processes"]
    assert process["case"]["kernels"]
    assert process["case"]["lines"]


@pytest.mark.parametrize(
    ("script", "rule", "with_line"),
    [
        ("sync", "host-sync", True),
        ("small_kernels", "overhead-bound", False),
        ("pageable", "slow-transfer", True),
        ("single_precision", "tensor-cores-unused", False),
    ],
)
def test_a_planted_fault_is_found_and_its_twin_is_let_off(
    script: str, rule: str, with_line: bool, tmp_path: Path
) -> None:
    """First or second: how much of such a step is launching depends on the host."""
    watched(tmp_path / "fault", job(script))
    found = found_in(report_of(tmp_path / "fault"))
    first = [finding for finding in found[:2] if finding["name"] == rule]
    assert first, [finding["summary"] for finding in found]
    if with_line:
        assert first[0]["source"]["line"] in marked_lines(script)
    watched(tmp_path / "twin", job(script, "--healthy"))
    assert rule not in {finding["name"] for finding in found_in(report_of(tmp_path / "twin"))}


def test_float32_on_matrix_units_is_reported_where_bfloat16_is_faster(tmp_path: Path) -> None:
    watched(tmp_path / "tf32", job("single_precision", "--tf32"))
    assert "single-precision" in {finding["name"] for finding in found_in(report_of(tmp_path / "tf32"))}
    watched(tmp_path / "twin", job("single_precision", "--healthy"))
    assert "single-precision" not in {finding["name"] for finding in found_in(report_of(tmp_path / "twin"))}


def test_a_device_that_runs_full_leaves_its_state_and_three_lines_behind_the_jobs_own_error(tmp_path: Path) -> None:
    words = [*STEPTIME, "run", "--no-progress", "--no-peaks", "--recording", str(tmp_path / "full")]
    alone = subprocess.run(job("out_of_memory"), capture_output=True, text=True, check=False, timeout=300)
    done = subprocess.run(
        [*words, "--", *job("out_of_memory")], capture_output=True, text=True, check=False, timeout=300
    )
    assert alone.returncode == done.returncode == 1
    assert "torch.OutOfMemoryError: CUDA out of memory" in done.stderr
    assert "steptime: Out of memory on cuda: allocating 512 MiB failed" in done.stderr
    (process,) = load(tmp_path / "full").processes
    assert (process.folder / "memory-full.pickle").is_file()
    reported = run([*STEPTIME, "memory", str(tmp_path / "full"), "--json"])
    failures = [device["failure"] for device in json.loads(reported.stdout)["devices"] if device["failure"]]
    assert [failure["asked"] for failure in failures] == [512 << 20]
    assert failures[0]["source"]["line"] in marked_lines("out_of_memory")


def test_telemetry_is_of_the_device_that_the_job_works_on(convolutions: tuple[Done, Done, Path]) -> None:
    recording = load(convolutions[2])
    own = {each.uuid for each in recording.processes[0].devices}
    assert len(own) == 1, "the job has a context on one device, however many there are"
    seen = [each for sample in recording.telemetry for each in sample.devices]
    assert {each.uuid.partition("-")[2] for each in seen} == own
    assert max(each.utilization or 0.0 for each in seen) > 0
