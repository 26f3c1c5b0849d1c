"""Closed, full and hung-up standard streams never change how a job ends, and none of our files takes their numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from preloading import steptime_words

from steptime.cli.main import Outlet, lost
from steptime.journal import Journal, Kind

CLOSED = ("2>&-", ">&-", "<&-", "<&- >&- 2>&-", "2>/dev/full")
FULL = ">/dev/full"
QUICK = {"2>&-", "<&- >&- 2>&-", FULL}
STATES = """
import os, sys
states = []
for number in range(3):
    try:
        states.append(str(os.fstat(number).st_rdev))
    except OSError:
        states.append("closed")
with open(sys.argv[1], "w") as file:
    file.write(" ".join(states))
"""


def shell(script: str, folder: Path, *words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A script in which "$@" is a command."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *map(str, words)],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), **variables},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    "streams", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in (*CLOSED, FULL)]
)
def test_a_run_ends_as_its_job(tmp_path: Path, streams: str) -> None:
    for job, status in (("exit 3", 3), ("kill -TERM $$", -15)):
        run = shell(f'exec "$@" {streams}', tmp_path, *steptime_words(), "run", "--", "sh", "-c", job)
        assert run.returncode == status, (job, run.stderr)
        assert "bug" not in run.stderr


@pytest.mark.parametrize("streams", CLOSED[:4])
def test_a_job_finds_closed_what_was_closed(tmp_path: Path, streams: str) -> None:
    job = (sys.executable, "-c", STATES)
    shell(f'exec "$@" {streams}', tmp_path, *job, "alone")
    shell(f'exec "$@" {streams}', tmp_path, *steptime_words(), "run", "--", *job, "watched")
    assert (tmp_path / "watched").read_text() == (tmp_path / "alone").read_text()


@pytest.mark.parametrize("streams", ["2>&-", pytest.param("2>/dev/full", marks=pytest.mark.slow)])
def test_every_verb_ends_as_it_would_have(tmp_path: Path, streams: str) -> None:
    for words, status in (
        (("--help",), 0), (("--version",), 0), (("explain", "ST101"), 0), (("diagnose", "none"), 1),
        (("run", "--nonsense"), 2), (("run", "--", "true"), 0), (("run", "--", "no-such-program"), 127),
    ):  # fmt: skip
        assert shell(f'"$@" {streams}', tmp_path, *steptime_words(), *words).returncode == status, words


def test_a_report_that_nobody_can_read_is_reported(tmp_path: Path) -> None:
    for words in (("explain", "ST101"), ("--help",)):
        full = shell(f'"$@" {FULL}', tmp_path, *steptime_words(), *words)
        assert (full.returncode, full.stderr.count("\n")) == (1, 1), full.stderr
        assert "(No space left on device)" in full.stderr
        read, write = os.pipe()
        os.close(read)  # no reader at all, which is certain; `head -1` may read everything before it ends
        gone = subprocess.run(
            [*steptime_words(), *words], stdout=write, stderr=subprocess.PIPE, cwd=tmp_path, check=False
        )
        os.close(write)
        assert gone.returncode == 1
        assert b"(nobody reads it)" in gone.stderr
        closed = shell('"$@" >&-', tmp_path, *steptime_words(), *words)
        assert (closed.returncode, closed.stderr.count("\n")) == (1, 1), closed.stderr
        assert "(it is closed)" in closed.stderr
    failed = shell(f'"$@" {FULL}', tmp_path, *steptime_words(), "diagnose", "none")
    assert (failed.returncode, failed.stderr.count("\n")) == (1, 1), "nothing was to be printed"


def test_a_reader_that_has_seen_enough_is_not_reported() -> None:
    read, write = os.pipe()
    outlet = Outlet(write, "w")
    outlet.write(b"the first line")
    os.close(read)
    outlet.write(b"the rest")
    assert outlet.failure is not None
    assert lost(outlet) == ""
    outlet.close()


def test_a_pipe_that_does_not_block_gets_everything(tmp_path: Path) -> None:
    reader = "import sys; print(len(sys.stdin.read()))"
    much = (
        "import os; os.set_blocking(1, False)\nfrom steptime.cli.main import secure; secure(); print('x' * 1_000_000)"
    )
    piped = shell(f"{sys.executable} -c \"{much}\" | {sys.executable} -c '{reader}'", tmp_path)
    assert (piped.stdout, piped.stderr) == ("1000001\n", "")


def test_the_journal_takes_no_number_of_a_standard_stream(tmp_path: Path) -> None:
    """Where the job has closed its standard error, what it writes there goes nowhere, not into our file."""
    before = os.dup(2)
    os.close(2)
    try:
        journal = Journal()
        journal.open(str(tmp_path / "journal.bin"))
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(2, b"a line of the job's")
        journal.append(Kind.LOADER_NEXT, 0, 0, 0, 1, 2)
        journal.close()
    finally:
        os.dup2(before, 2)
        os.close(before)
    assert (tmp_path / "journal.bin").stat().st_size == 24
