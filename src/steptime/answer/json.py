"""Answers and other values as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from steptime.answer.answer import Answer


def as_json(answer: Answer) -> str:
    """Data of an answer for programs, as JSON."""
    return document(answer.data() if callable(answer.data) else answer.data)


def document(value: Any) -> str:
    """Any value as indented JSON with a line feed. Halves of surrogate pairs, which no JSON can hold, are escaped."""
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(msgspec.to_builtins(value)))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encodable(item) for item in value]
    return value
