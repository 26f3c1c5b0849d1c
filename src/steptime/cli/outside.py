"""Answer on a process that is sampled from outside: the lines of its main thread."""

from __future__ import annotations

import linecache

from steptime.answer.answer import Answer
from steptime.answer.tables import share, table_of, word
from steptime.launcher.py_spy import LinesFromOutside
from steptime.quantities import format_bytes, format_share
from steptime.report.sentences import place_text

DISPLAYED = 10
"""Most lines that a terminal shows."""


def answer_of(pid: int, command: str, found: LinesFromOutside) -> Answer:
    """Answer on the samples of a process: its most frequent lines first."""
    lines = [
        (f"{place_text(source)}: {linecache.getline(source.file, source.line).strip() or source.function}", looks)
        for source, looks in found.lines
    ]
    cpus = f"CPU: this job {found.job_cpus:.1f} cores, other processes {found.other_cpus:.1f}; " if (
        found.job_cpus is not None) else ""  # fmt: skip
    most = "No line was sampled."
    if lines:
        most = f"{lines[0][0]}: the main thread was there in {format_share(lines[0][1] / found.looks)} of the samples."
    return Answer(
        title=f"Process {pid}",
        headline=most,
        badge="Lines only: from outside, steptime sees neither steps nor their breakdown.",
        head=(f"Process {pid} · {command}", f"{cpus}{format_bytes(found.memory or 0)} of memory"),
        parts=(
            table_of(
                "lines", f"Main thread by line ({found.looks:,} samples, waiting included)", "", lines,
                share("share", "share", lambda line: line[1] / found.looks),
                word("line", "line", lambda line: line[0], kind="source"),
                first=DISPLAYED,
            ),
        ),
        next_command="install gdb, or start the job with STEPTIME_STANDBY=1; then attach again",
    )  # fmt: skip
