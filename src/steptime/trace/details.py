"""Details of rare events beyond the columns: parameters of a collective, source file of a compiled kernel."""

from __future__ import annotations

import json
from typing import Any

from steptime.arrays import Int32, Int64
from steptime.trace.cached_per_trace import cached_per_trace
from steptime.trace.table import Trace

Details = dict[str, Any]


def details_of(trace: Trace, rows: Int64 | Int32) -> tuple[Details, ...]:
    """Details of some events, by Kineto's names; {} for an event without any."""
    known = (*_decoded(trace), Details())  # ABSENT is the last
    return tuple(known[max(number, -1)] for number in trace.events.details[rows].tolist())


@cached_per_trace
def _decoded(trace: Trace) -> tuple[Details, ...]:
    return tuple(map(_parsed, trace.details))


def _parsed(text: str) -> Details:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
