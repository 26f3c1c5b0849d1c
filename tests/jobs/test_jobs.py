"""End to end: each job has one planted fault, which is found first and on its line; its healthy twin is let off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent / "faults" / "scripts"
MARK = "# fault"
OURS = "too-few-threads"
"""Every job is held to one thread of torch's own, as the faults are not about threads: this one is the test's."""


@dataclass(frozen=True)
class Planted:
    """A job. rule: what must be found first. also: rules that say the same in other words on some machines.
    with_line: the finding must point at the marked line. note: it is a note, charged to no step. own_process: the
    finding rests on the CPU time of the job's processes, and a preloaded Python's are no children of the run."""

    script: str
    rule: str
    also: tuple[str, ...] = ()
    with_line: bool = True
    note: bool = False
    own_process: bool = False


QUICK = (Planted("slow_items", "too-few-workers"),)
LONG = (
    Planted("per_sample_fetch", "per-sample-fetch"),
    Planted("python_time", "python-time"),
    Planted("checkpoint_in_step", "checkpoint-in-step"),
    Planted("dispatch_loop", "dispatch-loop"),
    Planted("single_tensor_optimizer", "single-tensor-optimizer"),
    Planted("detect_anomaly", "detect-anomaly", with_line=False),
    Planted("heavy_items", "input-wait", also=("too-many-workers",)),
    Planted("too_many_workers", "too-many-workers"),
    Planted("workers_restarted", "workers-restarted"),
    Planted("slow_collate", "slow-collate"),
    Planted("batch_preparation", "batch-preparation"),
    Planted("garbage_collection", "garbage-collection"),
    Planted("logging_in_step", "logging-in-step"),
    Planted("metrics_in_step", "metrics-in-step", ("dispatch-loop",)),
    Planted("list_conversion", "list-conversion"),
    Planted("pointwise_chain", "memory-bound-pointwise"),
    Planted("optimizer_share", "optimizer-share"),
    Planted("dense_embedding", "dense-embedding-gradient"),
    Planted("profiler_left_on", "profiler-left-on", with_line=False),
    Planted("tracer_left_on", "tracer-left-on"),
    Planted("deterministic_left_on", "deterministic-left-on", with_line=False),
    Planted("recompute", "recompute"),
    Planted("undetached_images", "gradients-for-nothing"),
    Planted("recompilation", "recompilation", with_line=False),
    Planted("too_many_threads", "thread-oversubscription", with_line=False, own_process=True),
    Planted("slow_evaluation", "slow-evaluation", with_line=False, note=True),
    Planted("copies_and_casts", "copies-and-casts"),
    Planted("exploding_gradient", "exploding-gradient", with_line=False, note=True),
)


def marked_lines(script: str) -> set[int]:
    """Numbers of the lines with the mark: a fault may be a call or what it calls."""
    text = (SCRIPTS / f"{script}.py").read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(text, 1) if MARK in line}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that remembers what this machine can do, once the first job has measured it."""
    return tmp_path_factory.mktemp("measured")


@pytest.fixture(autouse=True)
def machine(request: pytest.FixtureRequest, measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found in most of the long jobs depends on what the machine can do."""
    if request.node.get_closest_marker("slow"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(measured))


def run(script: str, folder: Path, *arguments: str, executable: str | None = None, **variables: str) -> dict[str, Any]:
    """The report of a job. executable: its Python, a preloaded one by default. variables: of its environment."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    steptime = [python(), "-m", "steptime"]
    command = [*steptime, "run", "--json", "--full", "--no-progress", "--recording", str(folder)]
    job = [executable or python(), str(SCRIPTS / f"{script}.py"), *arguments]
    done = subprocess.run(
        [*command, "--", *job], capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def findings(report: dict[str, Any], *weights: str) -> list[dict[str, Any]]:
    process = report["processes"][0]
    assert process["failed"] == []
    return [each for each in process["findings"] if each["weight"] in weights and each["name"] != OURS]


@pytest.mark.parametrize(
    "job",
    [*QUICK, *(pytest.param(job, marks=pytest.mark.slow) for job in LONG)],
    ids=lambda job: job.script,
)
def test_a_planted_fault_comes_first_on_its_line_and_its_twin_is_let_off(job: Planted, tmp_path: Path) -> None:
    executable = sys.executable if job.own_process else None
    found = findings(run(job.script, tmp_path / "fault", executable=executable), "note" if job.note else "finding")
    assert found, "nothing was found"
    assert found[0]["name"] in (job.rule, *job.also), [finding["summary"] for finding in found]
    if job.with_line:
        source = found[0]["source"]
        assert source is not None, found[0]["summary"]
        assert Path(source["file"]).name == f"{job.script}.py"
        assert source["line"] in marked_lines(job.script), found[0]["summary"]
    twin = findings(run(job.script, tmp_path / "twin", "--healthy", executable=executable), "finding", "note")
    assert job.rule not in {finding["name"] for finding in twin}, [finding["summary"] for finding in twin]


def test_a_debugging_variable_that_was_left_on_is_reported(tmp_path: Path) -> None:
    found = findings(run("detect_anomaly", tmp_path, "--healthy", PYTHONMALLOC="debug"), "note")
    (reported,) = [each for each in found if each["name"] == "debug-switch"]
    assert reported["summary"].startswith("PYTHONMALLOC=debug is set: ")
