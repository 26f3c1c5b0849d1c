"""Recordings and traces behind URLs: copied when the job has ended, read from there, and refused in a sentence."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from preloading import python

from steptime.cli.main import main
from steptime.errors import OutputError, RecordingError, UsageError
from steptime.remote import check, fetched, is_url, upload

fsspec = pytest.importorskip("fsspec")
JOB = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(60):
    model(torch.randn(256, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID"):
        monkeypatch.delenv(name, raising=False)
    yield
    fsspec.filesystem("memory").store.clear()


def recording(folder: Path, pid: int = 7) -> Path:
    (folder / f"process-{pid}").mkdir(parents=True)
    (folder / "manifest.json").write_text("{}")
    (folder / f"process-{pid}" / "journal.bin").write_bytes(b"x" * 24)
    return folder


@pytest.mark.parametrize(
    ("path", "expected"), [("s3://bucket/run", True), ("memory://a", True), ("runs/a", False), ("C://a", False)]
)
def test_a_url_is_reported_from_a_path(path: str, expected: bool) -> None:
    assert is_url(path) is expected


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    upload(recording(tmp_path / "a"), "memory://runs/a")
    with fetched(("memory://runs/a", "local")) as (copy, local):
        assert local == "local"
        assert (Path(copy) / "process-7" / "journal.bin").read_bytes() == b"x" * 24
    assert not Path(copy).exists()


def test_nodes_that_record_for_themselves_share_one_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload(recording(tmp_path / "a"), "memory://runs/b")
    monkeypatch.setenv("NODE_RANK", "3")
    check("memory://runs/b")  # the first node's recording is no obstacle
    upload(recording(tmp_path / "b"), "memory://runs/b")
    with fetched(("memory://runs/b",)) as (copy,):
        assert sorted(each.name for each in Path(copy).iterdir()) == ["manifest.json", "process-7", "process-7-3"]


def test_traces_are_fetched_by_pattern_and_by_name(tmp_path: Path) -> None:
    for name in ("rank0.json", "rank1.json", "notes.txt"):
        fsspec.filesystem("memory").pipe_file(f"/traces/{name}", name.encode())
    with fetched(("memory://traces/rank*.json", "memory://traces/notes.txt")) as (many, one):
        assert sorted(each.name for each in Path(many).rglob("*") if each.is_file()) == ["rank0.json", "rank1.json"]
        assert Path(one).read_text() == "notes.txt"


def test_a_server_that_lists_what_lies_outside_writes_nothing_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/runs/c/manifest.json", b"{}")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda prefix: str(tmp_path / "copies"))
    monkeypatch.setattr(type(memory), "find", lambda self, path: ["/runs/c/../../../stolen"])
    monkeypatch.setattr(type(memory), "get_file", lambda self, remote, local: Path(local).write_text("stolen"))
    (tmp_path / "copies").mkdir()
    with pytest.raises(RecordingError, match="is outside"), fetched(("memory://runs/c",)):
        raise AssertionError("it was fetched")
    assert not list(tmp_path.iterdir())


def test_a_storage_that_raises_errors_of_its_own_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCredentialsError(Exception):
        pass

    def exists(*_: object) -> bool:
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "exists", exists)
    with pytest.raises(OutputError, match="Unable to locate credentials"):
        check("memory://runs/d")


def test_what_cannot_be_done_is_reported_before_the_job_or_keeps_the_local_recording(tmp_path: Path) -> None:
    upload(recording(tmp_path / "a"), "memory://runs/c")
    with pytest.raises(OutputError, match="already contains a recording"):
        check("memory://runs/c")
    with pytest.raises(UsageError, match="nosuchscheme"):
        check("nosuchscheme://x")
    with pytest.raises(RecordingError, match="cannot be read"), fetched(("memory://not/there",)):
        raise AssertionError("nothing to read")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=f"It is in {tmp_path}"):
        upload(tmp_path / "a", f"file://{tmp_path}/file/below")


def test_a_job_runs_whatever_lies_at_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    upload(recording(tmp_path / "a"), "memory://runs/e")
    assert main(["run", "--recording", "memory://runs/e", "--", "touch", "ran"]) == 0
    assert (tmp_path / "ran").exists()
    assert "The recording stays on this machine. (recording-exists)" in capsys.readouterr().err
    assert len(list((tmp_path / "runs").iterdir())) == 1


@pytest.mark.slow
def test_a_job_is_recorded_here_and_copied_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.py").write_text(JOB)
    url = f"file://{tmp_path}/shared/run"
    options = ["--no-peaks", "--no-progress", "--recording", url]
    assert main(["run", *options, "--", python(), "job.py"]) == 0
    assert f"Wrote {url}" in capsys.readouterr().err
    assert main(["diagnose", url]) == 0
    displayed = capsys.readouterr().out
    assert url in displayed
    assert "Step " in displayed


@pytest.mark.parametrize(
    "scheme", ["reference", "dir", "zip", "tar", "simplecache", "blockcache", "cached", "git", "libarchive"]
)
@pytest.mark.parametrize("rest", ["", "nowhere", "no::where"])
def test_whatever_a_scheme_wants_it_is_refused_in_a_sentence(
    capsys: pytest.CaptureFixture[str], scheme: str, rest: str
) -> None:
    assert main(["diagnose", f"{scheme}://{rest}"]) in (1, 2)
    message = capsys.readouterr().err
    assert message.startswith("steptime: ")
    assert message.count("\n") == 1
    assert "remote-" in message
