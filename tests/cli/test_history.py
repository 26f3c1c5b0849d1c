"""`steptime history` as a user runs it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from journals import MS, JournalBuilder

Steptime = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two recordings of one job in runs/, the second of which is slower, and a folder of somebody else's."""
    folder = tmp_path / "work" / "runs"
    for name, length in (("a", 10), ("b", 15)):
        builder = JournalBuilder()
        for _ in range(20):
            builder.forward(length * MS).backward(5 * MS).step(MS)
        path = builder.write(folder / name)
        manifest = json.loads((path / "manifest.json").read_text())
        manifest["started_epoch_ns"] += ord(name) * 10**9
        (path / "manifest.json").write_text(
            json.dumps({**manifest, "ended_epoch_ns": manifest["started_epoch_ns"] + 1})
        )
    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("mine")
    return folder


def test_the_folder_runs_is_listed_where_none_is_named(steptime: Steptime, runs: Path) -> None:
    run = steptime("history")
    assert run.returncode == 0
    assert "\n2 recordings of 1 job in runs, " in run.stdout
    reported = " ".join(run.stdout.split())
    assert reported.startswith(
        "train on box, cpu: it got slow with b: 16 ms to 21 ms, 31 % longer (the next run will confirm it or not)"
    )
    assert "Next:  steptime compare runs/a runs/b" in run.stdout
    assert steptime("history").stdout == run.stdout
    assert steptime("history", "--rebuild").stdout == run.stdout


def test_it_is_printed_as_json(steptime: Steptime, runs: Path) -> None:
    document = json.loads(steptime("history", "--json").stdout)
    assert document["schema_version"] == 3
    assert [Path(entry["path"]).name for entry in document["tracks"][0]["entries"]] == ["a", "b"]


def test_it_is_narrowed(steptime: Steptime, runs: Path) -> None:
    assert "\n2 recordings of 1 job" in steptime("history", "--job", "train").stdout
    for words in (("--job", "eval"), ("--commit", "abc"), ("--machine", "H100")):
        assert steptime("history", *words).stdout.startswith("0 recordings of 0 jobs in runs")


def test_nothing_is_removed_without_yes(steptime: Steptime, runs: Path) -> None:
    (process,) = (runs / "a").glob("process-*")
    (process / "notes.txt").write_text("mine")
    dry = steptime("history", "--older-than", "1d")
    assert dry.stdout.startswith("Would remove 2 recordings")
    assert (runs / "a" / "manifest.json").is_file()
    done = steptime("history", "--older-than", "1d", "--yes")
    assert done.stdout.startswith("Removed 2 recordings")
    kept = f"{process.name}/notes.txt"
    assert done.stderr == f"steptime: Kept in runs/a, as steptime did not write it: {kept}\n"
    assert {path.relative_to(runs).parts[0] for path in runs.rglob("*")} == {"a", "other"}
    assert [str(path.relative_to(runs / "a")) for path in (runs / "a").rglob("*.*")] == [kept]
    assert (runs / "other" / "file").read_text() == "mine"


@pytest.mark.parametrize("age", ["0s", "0"])
def test_no_age_means_every_recording_that_has_ended(steptime: Steptime, runs: Path, age: str) -> None:
    assert steptime("history", "--older-than", age).stdout.startswith("Would remove 2 recordings")


@pytest.mark.parametrize(
    ("words", "status", "slug"),
    [
        (("nowhere",), 1, "no-such-file"),
        (("--yes",), 2, "usage"),
        (("--older-than", "soon"), 2, "usage"),
        (("--keep-bytes", "much"), 2, "usage"),
    ],
)
def test_what_cannot_be_followed_is_refused_in_a_sentence(
    steptime: Steptime, words: tuple[str, ...], status: int, slug: str
) -> None:
    run = steptime("history", *words)
    assert run.returncode == status
    assert run.stderr.strip().endswith(f"({slug})")
