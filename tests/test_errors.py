"""Errors are one line, whatever a file's name or another library's words hold."""

from __future__ import annotations

import pickle

import pytest

from steptime.errors import TraceError


@pytest.mark.parametrize("words", ["a\nb", "a\r\nb", "a\x0bb", "a\u2028b"])
def test_a_sentence_is_one_line(words: str) -> None:
    error = TraceError("trace-damaged", f"{words} cannot be read.")
    assert error.sentence == "a b cannot be read."
    assert pickle.loads(pickle.dumps(error)).sentence == error.sentence
