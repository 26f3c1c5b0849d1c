"""Facts: JSON lines beside the journal that say what its identities mean. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from steptime.journal import append_to


class Facts:
    """Appends one JSON object a line to facts.jsonl: a killed job tears at most the last line.

    `kind` names the type in `steptime.recording` without its ending Facts: "optimizer", "root", "loader", "code",
    "site", "settings", "compilation", "trace"; and "note" with a `text`. A later fact of the same identity replaces
    the earlier one.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def write(self, kind: str, /, **fields: Any) -> None:
        """Raises OSError when the line cannot be written whole."""
        self.write_all([(kind, fields)])

    def write_all(self, facts: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Several at once. Raises OSError when they cannot be written whole."""
        lines = (json.dumps({"fact": kind, **fields}, default=str).encode() + b"\n" for kind, fields in facts)
        append_to(self._path, b"".join(lines))


def source_line(file: str, line: int, function: str = "", text: str = "") -> dict[str, Any]:
    """A `SourceLine` as facts carry it."""
    return {"file": file, "line": line, "function": function, "text": text}
