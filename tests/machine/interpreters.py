"""Programs that stand for the user's Python."""

from __future__ import annotations

from pathlib import Path


def interpreter(folder: Path, body: str) -> str:
    """Its path: a shell script that does this."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)
