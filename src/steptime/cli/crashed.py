"""What `run` says behind a job that crashed after it was profiled: that the profile may be the cause."""

from __future__ import annotations

import signal
from pathlib import Path

from steptime.capture.outcome import Outcome

CRASHES = (signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV)
"""Signals of a program's own fault. A shell or a launcher passes them on as a status of 128 and more."""


def crashed_after_profile(outcome: Outcome, folder: Path) -> tuple[str, ...]:
    """One sentence, or none where the job did not crash or no trace of it was begun."""
    found = next((crash for crash in CRASHES if outcome.status == 128 + crash), None)
    if found is None or not any(folder.glob("process-*/trace-*")):
        return ()
    return (
        f"The job died of {found.name} after torch's profiler had recorded some of its steps, which may be the cause: "
        "run it with --no-profile to be sure. (crashed-after-profile)",
    )
