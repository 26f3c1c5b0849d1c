"""Processes that the kernel has killed because memory ran out: counters of Linux, read before a job and after it."""

from __future__ import annotations

from pathlib import Path

EVENTS = Path("/sys/fs/cgroup/memory.events")
"""Of our own control group (version 2), which a container sees as the root."""
MACHINE = Path("/proc/vmstat")
"""Of the whole machine; in a container, too: its counter may have risen for a stranger."""


def kernel_kills() -> int | None:
    """Kills so far, of our control group where it counts them, else of the machine; None where nothing counts."""
    for path in (EVENTS, MACHINE):
        try:
            text = path.read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            continue
        for line in text.splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill" and count.strip().isdigit():
                return int(count)
    return None
