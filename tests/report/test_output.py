"""Reports on their way to a file."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from documents import json_of, markdown_of, sarif_of, text_of

from steptime.answer.output import check, write
from steptime.cli.options import REPORT_FORMATS
from steptime.errors import OutputError
from steptime.report import json
from steptime.report.answer import answer_of
from steptime.report.page import page
from steptime.report.report import Report


@pytest.mark.parametrize(
    ("name", "render"),
    [
        ("a.md", markdown_of),
        ("b.TXT", text_of),
        ("c.json", json_of),
        ("s.sarif", sarif_of),
        ("d.html", page.render),
    ],
)
def test_the_format_follows_from_the_extension(report: Report, tmp_path: Path, name: str, render: object) -> None:
    write(answer_of(report), str(tmp_path / name), REPORT_FORMATS, force=False)
    assert (tmp_path / name).read_text(encoding="utf-8") == render(report)  # type: ignore[operator]


def test_json_can_have_everything(report: Report, tmp_path: Path) -> None:
    write(answer_of(report, full=True), str(tmp_path / "r.json"), REPORT_FORMATS, force=False)
    assert json.read_file(tmp_path / "r.json", "r.json") == report


def test_folders_on_the_way_are_made_and_the_file_is_as_open_as_any_other(report: Report, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    write(answer_of(report), str(tmp_path / "new" / "folder" / "r.md"), REPORT_FORMATS, force=False)
    made = tmp_path / "new" / "folder" / "r.md"
    assert stat.S_IMODE(made.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


@pytest.mark.parametrize(
    ("name", "slug", "words"),
    [
        ("r.pdf", "output-format", "must end in one of .txt, .md, .speedscope.json, .json"),
        ("noextension", "output-format", "must end in one of"),
        (".", "output-folder", "is a folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_job(tmp_path: Path, name: str, slug: str, words: str) -> None:
    if name == ".":
        (tmp_path / "folder.md").mkdir()
        name = "folder.md"
    with pytest.raises(OutputError, match=words) as refused:
        check(str(tmp_path / name), REPORT_FORMATS, force=True)
    assert refused.value.slug == slug


def test_nothing_is_overwritten_unasked(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.md"
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(OutputError, match=r"--force.*\(output-exists\)"):
        write(answer_of(report), str(path), REPORT_FORMATS, force=False)
    assert path.read_text(encoding="utf-8") == "mine"
    write(answer_of(report), str(path), REPORT_FORMATS, force=True)
    assert path.read_text(encoding="utf-8") == markdown_of(report)


def test_a_failing_disk_leaves_no_half_file(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.md"
    path.write_text("old", encoding="utf-8")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OutputError, match=r"No space left on device.*\(output-unwritable\)"):
        write(answer_of(report), str(path), REPORT_FORMATS, force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["r.md"]
    assert path.read_text(encoding="utf-8") == "old"
