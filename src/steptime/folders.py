"""Folders for what steptime may lose: the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

NOWHERE = Path("/dev/null/steptime")
"""Nothing can be read from it nor written to it: an account without a home has no cache."""


def cache_folder() -> Path:
    """$STEPTIME_CACHE_DIR, else $XDG_CACHE_HOME/steptime, by the XDG base directory specification ~/.cache/steptime
    where that is unset. It need not exist; relative paths do not count.
    """
    own = Path(os.environ.get("STEPTIME_CACHE_DIR", ""))
    if own.is_absolute():
        return own
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if base.is_absolute():
        return base / "steptime"
    try:
        return Path.home() / ".cache" / "steptime"
    except RuntimeError:  # neither $HOME nor an entry for the user
        return NOWHERE
