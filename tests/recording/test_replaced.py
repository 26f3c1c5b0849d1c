"""A recording that takes the place of an earlier one: one of them is readable at every moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.recording import inventory
from steptime.recording.inventory import set_aside, take_place
from steptime.recording.manifest import start_manifest


def recording(folder: Path, word: str, *, steps: bool = True) -> Path:
    folder.mkdir(parents=True)
    start_manifest(folder, (word,), {})
    if steps:
        (folder / "process-1").mkdir()
        (folder / "process-1" / "process.json").write_text("{}")
    return folder


@pytest.mark.parametrize("at_once", [True, False], ids=["exchanged", "on a file system that cannot"])
def test_the_new_one_is_there_and_the_old_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    if not at_once:
        monkeypatch.setattr(inventory, "_exchange", lambda *_: False)
    old, new = recording(tmp_path / "r", "old"), recording(tmp_path / "r-2", "new")
    take_place(new, old)
    assert '"new"' in (tmp_path / "r" / "manifest.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["r"]


def test_one_that_is_set_aside_comes_back_without_another(tmp_path: Path) -> None:
    old, other = recording(tmp_path / "watch", "old"), tmp_path / "instrumented"
    with set_aside([old, other]):
        assert not old.exists()
        recording(tmp_path / "watch", "new", steps=False)
        other.mkdir()
    assert '"old"' in (old / "manifest.json").read_text()
    with pytest.raises(KeyError), set_aside([old]):
        raise KeyError
    assert '"old"' in (old / "manifest.json").read_text()
    with set_aside([old]):
        recording(tmp_path / "watch", "new")
    assert '"new"' in (old / "manifest.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["instrumented", "watch"]


def test_what_is_set_aside_is_no_folder_of_anybody_elses(tmp_path: Path) -> None:
    mine = recording(tmp_path / "watch", "old")
    (mine / "thesis.tex").write_text("mine")
    with set_aside([mine]):
        assert (mine / "thesis.tex").exists()
