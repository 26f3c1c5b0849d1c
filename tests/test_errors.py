"""Errors are one line, whatever a file's name or another library's words hold."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import pytest

from steptime.cli.exit_codes import shield
from steptime.errors import TraceError


@pytest.mark.parametrize("words", ["a\nb", "a\r\nb", "a\x0bb", "a\u2028b"])
def test_a_sentence_is_one_line(words: str) -> None:
    error = TraceError("trace-damaged", f"{words} cannot be read.")
    assert error.sentence == "a b cannot be read."
    assert pickle.loads(pickle.dumps(error)).sentence == error.sentence


@pytest.mark.parametrize(("raised", "status"), [(ZeroDivisionError("0"), 70), (KeyboardInterrupt(), 130)])
def test_a_bug_and_an_interruption_have_statuses_of_their_own(
    raised: BaseException, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> int:
        raise raised

    assert shield(action) == status
    message = capsys.readouterr().err
    assert (message == "") == (status == 130)
    assert "Traceback" not in message


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EMFILE, errno.EAGAIN])
def test_what_the_system_refuses_is_no_bug_of_ours(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> int:
        raise OSError(number, os.strerror(number), str(tmp_path))

    assert shield(action) == 1
    message = capsys.readouterr().err
    assert f"({os.strerror(number)}: {tmp_path})" in message
    assert message.endswith("(system-refused)\n")
    assert len(message.splitlines()) == 1


def test_a_file_that_is_missing_where_we_looked_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shield(lambda: len((tmp_path / "gone").read_bytes())) == 70
    assert "bug of steptime" in capsys.readouterr().err
