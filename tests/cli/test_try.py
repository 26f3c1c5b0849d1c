"""`steptime try` and `steptime lab` at the door: what they refuse before anything is run."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.cli.main import main


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["try"], "usage"),
        (["try", "--resume", "x", "runs/y"], "usage"),
        (["try", "--budget", "soon", "x"], "usage"),
        (["try", "--resume", "nowhere"], "no-results"),
        (["try", "-o", "x.pdf", "nowhere"], "output-format"),
        (["try", "-o", "gone/x.txt", "nowhere"], "output-unwritable"),
        (["try", "."], "no-recording"),
        (["try", "no-such-program"], "command-not-found"),
        (["lab"], "usage"),
        (["lab", "--batch-sizes", "16,x", "runs/y"], "usage"),
        (["lab", "--batch-sizes", "0", "runs/y"], "usage"),
    ],
)
def test_what_cannot_be_followed_is_one_sentence(
    words: list[str], slug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) in (1, 2, 127)
    told = capsys.readouterr()
    assert told.out == ""
    assert f"({slug})" in told.err.splitlines()[-1]
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("code", ["RM101", "rm101", "fitting-workers"])
def test_a_remedy_is_explained(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 0
    assert "What it promises" in capsys.readouterr().out
