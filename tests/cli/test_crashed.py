"""A job that crashed after it was profiled: that this may be the cause is said, and how to run without."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptime.cli.after_run import crashed_after_profile
from steptime.launcher.outcome import Outcome


@pytest.mark.parametrize(
    ("status", "file", "message"),
    [
        (139, "trace-1.json.gz", "SIGSEGV"),
        (134, "trace-2.json.partial", "SIGABRT"),
        (139, "journal.bin", ""),
        (137, "trace-1.json.gz", ""),
        (1, "trace-1.json.gz", ""),
    ],
)
def test_only_a_crash_after_a_profile_is_reported(tmp_path: Path, status: int, file: str, message: str) -> None:
    (tmp_path / "process-7").mkdir()
    (tmp_path / "process-7" / file).touch()
    outcome = Outcome(tmp_path, status, status - 128 if status > 128 else None, 1.0, True, True, True)
    sentences = crashed_after_profile(outcome, tmp_path)
    assert len(sentences) == bool(message)
    assert all(message in sentence and "--no-profile" in sentence for sentence in sentences)
