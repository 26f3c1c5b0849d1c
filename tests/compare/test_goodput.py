"""What of a job's time went into training, over all of its runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from journals import EPOCH, MS, JournalBuilder

from steptime.answer.text import as_text
from steptime.cli.main import main
from steptime.compare import goodput
from steptime.compare.goodput import Goodput, answer_of, goodput_of
from steptime.compare.history import JobHistory
from steptime.compare.history_index import read_history
from steptime.journal import Kind

SECOND = 1000 * MS


def train(built: JournalBuilder, count: int) -> JournalBuilder:
    for _ in range(count):
        built.next(2 * MS).forward(8 * MS).backward(9 * MS).step(MS)
    return built


def write(built: JournalBuilder, folder: Path, began: int, seconds: float, status: int | None = 0) -> None:
    """A run that began `began` seconds after the first, of so many seconds; its journal begins a second later."""
    epoch = EPOCH + began * SECOND
    built.process_facts = {"epoch_ns": epoch + SECOND, "process_started_epoch_ns": epoch}
    built.write(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest |= {"started_epoch_ns": epoch, "ended_epoch_ns": epoch + round(seconds * SECOND), "exit_status": status}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def of(folder: Path) -> Goodput:
    (track,) = read_history(folder).tracks
    found = goodput_of(track)
    assert found is not None
    return found


def test_the_parts_of_a_run_sum_to_its_time(tmp_path: Path) -> None:
    built = train(JournalBuilder(), 100)
    for _ in range(10):
        built.next(MS, iterator=2).evaluate(9 * MS)
    built.span(Kind.CHECKPOINT, 50 * MS)
    train(built, 99).next(2 * MS).forward(108 * MS).backward(9 * MS).step(MS)
    write(built, tmp_path / "a", 0, 6.0)
    found = of(tmp_path)
    assert found.whole == 6 * SECOND
    assert dict(found.parts) == {
        goodput.START: SECOND,
        goodput.PRODUCTIVE: 200 * 20 * MS,
        "evaluation": 100 * MS,
        "checkpoints": 50 * MS,
        goodput.STALLED: 100 * MS,
        goodput.END: 6 * SECOND - SECOND - 4250 * MS,
    }
    assert (found.steps, found.restarts) == (200, 0)
    assert found.share == pytest.approx(4 / 6)


def test_what_a_crash_undid_is_lost_and_the_time_until_the_restart_is_told(tmp_path: Path) -> None:
    built = train(JournalBuilder(), 100).span(Kind.CHECKPOINT, 100 * MS)
    write(train(built, 51), tmp_path / "a", 0, 5.0, status=137)
    write(train(JournalBuilder(), 50), tmp_path / "b", 30, 3.0)
    found = of(tmp_path)
    parts = dict(found.parts)
    assert found.whole == 33 * SECOND
    assert parts[goodput.DOWN] == 25 * SECOND
    assert parts[goodput.LOST] == 50 * 20 * MS, "the step that holds the checkpoint was saved in part"
    assert parts[goodput.PRODUCTIVE] == (151 + 50 - 50) * 20 * MS
    assert (found.steps, found.restarts) == (201, 1)
    assert "2 runs, 1 restart after a failure, 201 steps" in as_text(answer_of([found]))


def test_without_a_checkpoint_all_of_a_crashed_run_is_lost_but_not_of_the_last_one(tmp_path: Path) -> None:
    write(train(JournalBuilder(), 50), tmp_path / "a", 0, 3.0, status=1)
    assert goodput.LOST not in dict(of(tmp_path).parts), "nobody has taken its steps again"
    write(train(JournalBuilder(), 50), tmp_path / "b", 3, 3.0, status=None)
    assert dict(of(tmp_path).parts)[goodput.LOST] == 50 * 20 * MS


def test_runs_that_overlap_are_counted_once(tmp_path: Path) -> None:
    write(train(JournalBuilder(), 50), tmp_path / "a", 0, 10.0)
    write(train(JournalBuilder(), 50), tmp_path / "b", 5, 10.0)
    assert of(tmp_path).whole == 15 * SECOND


def test_a_run_without_a_step_is_all_start_up(tmp_path: Path) -> None:
    write(JournalBuilder(), tmp_path / "a", 0, 4.0)
    assert of(tmp_path).parts == ((goodput.START, 4 * SECOND),)


def test_steps_that_a_thinned_recording_leaves_out_were_productive(tmp_path: Path) -> None:
    built = train(JournalBuilder(), 50)
    begin = built.now
    built.wait(1000 * 20 * MS).record(Kind.THINNED, begin, built.now, 999)
    write(train(built, 50), tmp_path / "a", 0, 30.0)
    found = of(tmp_path)
    assert dict(found.parts)[goodput.PRODUCTIVE] == 1100 * 20 * MS
    assert found.steps == 1099


def test_a_history_that_does_not_sum_is_refused_and_one_without_times_says_nothing() -> None:
    with pytest.raises(ValueError, match="sum"):
        Goodput("a", "b", 5, (("x", 4),), (), 0, 0)
    assert goodput_of(JobHistory("a", "b", (), (), ())) is None


def test_the_command_prints_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(train(JournalBuilder(), 50), tmp_path / "a", 0, 3.0)
    assert main(["history", str(tmp_path), "--goodput"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("train on box, cpu: training steps took 33 % of 3 s.\n")
    assert "1 run, 50 steps" in shown
    assert main(["history", str(tmp_path), "--goodput", "--json"]) == 2
