"""The results of a trial, as a stranger may have left them."""

from __future__ import annotations

import json
import math
import os
import resource
from pathlib import Path

import pytest

from steptime.errors import RecordingError, UsageError
from steptime.recording.parity import StepWork
from steptime.trials.results import NAME, Plan, append_result, read_results
from steptime.trials.trial import Run

PLAN: dict[str, dict[str, str]] = {"plan": {}}


def refusal(folder: Path) -> str:
    with pytest.raises(RecordingError) as refused:
        read_results(folder)
    return refused.value.slug


@pytest.mark.parametrize(
    ("lines", "slug"),
    [
        ((), "no-results"),
        ((b"",), "no-results"),
        ((b"[" * 100_000,), "no-results"),
        ((b"\xff\xfe", b"null", b"5"), "no-results"),
        ((json.dumps(PLAN).encode(),), "results-damaged"),
        ((b'{"plan": 5}',), "results-damaged"),
    ],
)
def test_what_is_no_plan_is_a_sentence(tmp_path: Path, lines: tuple[bytes, ...], slug: str) -> None:
    (tmp_path / NAME).write_bytes(b"\n".join(lines))
    assert refusal(tmp_path) == slug


@pytest.mark.parametrize("stage", [None, "x", [1, 2], {}, "absent"])
def test_a_judgement_without_its_stage_is_a_sentence(tmp_path: Path, stage: object) -> None:
    plan = {"recording": "r", "command": ["true"], "directory": "/", "variants": [], "min_gain": 0.03}
    judgement = {"judgement": {}} if stage == "absent" else {"judgement": {}, "stage": stage}
    (tmp_path / NAME).write_text("".join(json.dumps(each) + "\n" for each in ({"plan": plan}, judgement)))
    assert refusal(tmp_path) == "results-damaged"


def test_a_job_whose_names_are_no_unicode_is_refused_before_anything_is_kept(tmp_path: Path) -> None:
    plan = Plan(("python", "caf\udce9.py"), "/", "", (), 0.03)
    with pytest.raises(UsageError, match="not-unicode"):
        append_result(tmp_path / "trial", plan=plan)
    assert not (tmp_path / "trial").exists()


def test_a_run_whose_gradients_are_not_finite_is_read_back(tmp_path: Path) -> None:
    work = StepWork(batches=(((1.0, math.nan),),), directions=(("weight", (math.inf, 2.0)),))
    run = Run("bf16", 0, 0, 0, 0, True, "", 1.0, work=(work,))
    append_result(tmp_path, plan=Plan(("python",), "/", "", (), 0.03))
    append_result(tmp_path, run=run)
    (found,) = read_results(tmp_path).runs
    (((one, other),),) = found.work[0].batches
    assert one == 1.0
    assert math.isnan(other)
    ((name, values),) = found.work[0].directions
    assert (name, values[1]) == ("weight", 2.0)
    assert math.isnan(values[0])


@pytest.mark.usefixtures("in_time")
def test_a_pipe_in_the_place_of_the_results_is_never_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    assert refusal(tmp_path) == "no-results"


def test_a_line_for_which_there_is_no_room_leaves_nothing_of_itself(tmp_path: Path) -> None:
    append_result(tmp_path, plan=Plan(("python",), "/", "", (), 0.03))
    before = (tmp_path / NAME).read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="No space left"):
            append_result(tmp_path, run=Run("bf16", 0, 0, 0, 0, True, "", 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / NAME).read_bytes() == before


def test_a_line_follows_one_that_was_torn(tmp_path: Path) -> None:
    append_result(tmp_path, plan=Plan(("python",), "/", "", (), 0.03))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"run": {"vari')
    append_result(tmp_path, run=Run("bf16", 0, 0, 0, 0, True, "", 1.0))
    assert [run.variant for run in read_results(tmp_path).runs] == ["bf16"]
