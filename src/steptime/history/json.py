"""The history as JSON, for programs: every field, versioned. Its JSON Schema is docs/history-schema.json."""

from __future__ import annotations

import msgspec

from steptime.history.history import History
from steptime.report.json import document


def render(history: History) -> str:
    """One indented JSON document and a line feed. Halves of surrogate pairs, which no JSON can hold, are escaped."""
    return document(history)


def schema_text() -> str:
    """The JSON Schema (2020-12) as docs/history-schema.json has it."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(History)}
    return msgspec.json.format(msgspec.json.encode(schema), indent=1).decode() + "\n"
