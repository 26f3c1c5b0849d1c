"""What the user is told while the job runs: that the probe has given up. Standard library only."""

from __future__ import annotations

import sys


def switched_off(reason: str) -> None:
    """One line on standard error, where there is one: a job may have closed it, or put something of its own there."""
    try:
        sys.stderr.write(f"steptime: switched off: {reason}; the job goes on\n")
    except Exception:  # noqa: BLE001 - the probe's boundary: nothing of ours may raise into the user's program
        return
