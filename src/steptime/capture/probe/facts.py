"""Facts: JSON lines beside the journal that say what its identities mean. Standard library only."""

from __future__ import annotations

import json
import os
from typing import Any


class Facts:
    """Appends one JSON object a line to facts.jsonl, each with one write: a killed job tears at most the last line.

    `kind` names the type in `steptime.recording` without its ending Facts: "optimizer", "root", "loader", "code",
    "site", "settings", "compilation", "trace"; and "note" with a `text`. A later fact of the same identity replaces
    the earlier one.
    """

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, kind: str, /, **fields: Any) -> None:
        """Raises OSError when the line cannot be written whole."""
        line = json.dumps({"fact": kind, **fields}, default=str).encode() + b"\n"
        if os.write(self._file, line) != len(line):
            raise OSError(28, "no room for a line of facts")

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def source_line(file: str, line: int, function: str = "", text: str = "") -> dict[str, Any]:
    """A `SourceLine` as facts carry it."""
    return {"file": file, "line": line, "function": function, "text": text}
