"""Folder for disposable files: the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path

NOWHERE = Path("/dev/null/steptime")
"""Cache folder of an account without a home: it can be neither read nor written."""


def cache_folder() -> Path:
    """Cache folder: $STEPTIME_CACHE_DIR, else $XDG_CACHE_HOME/steptime, else ~/.cache/steptime (XDG base directory
    specification). It need not exist; relative paths are ignored."""
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
