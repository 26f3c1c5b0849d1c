"""What can be kept of a stretch of a trace that does not parse: all but the events that are broken themselves."""

from __future__ import annotations

import json
import re
from decimal import Decimal

from steptime.kineto.events import Event, decode_one, lenient

SEPARATOR = re.compile(rb"\}\s*(,)\s*\{")
"""Between two events, in all the layouts that Kineto and rewriters use. Inside an event only between listed objects."""
LONGEST_JOIN = 16
"""An event that holds objects in a list is split at them; so many pieces are put together again before giving up."""


class Salvaged:
    """events: kept. damaged: stretches given up. refused: JSON, but without a usable time or name."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.damaged = 0
        self.refused = 0


def salvage(text: bytes, *, exactly: bool) -> Salvaged:
    """Reads events separated by commas one by one. `text` starts and ends with an event, brackets stripped."""
    found = Salvaged()
    borders = [match.start(1) for match in SEPARATOR.finditer(text)]
    starts, stops = [0, *(border + 1 for border in borders)], [*borders, len(text)]
    piece = 0
    while piece < len(starts):
        piece += _take(text, starts, stops, piece, found, exactly=exactly)
    return found


def _take(text: bytes, starts: list[int], stops: list[int], piece: int, found: Salvaged, *, exactly: bool) -> int:
    """Takes one event; returns of how many pieces it consisted."""
    for joined in range(1, min(LONGEST_JOIN, len(starts) - piece) + 1):
        part = text[starts[piece] : stops[piece + joined - 1]]
        try:
            event = decode_one(part, exactly=exactly)
        except ValueError as error:
            if "truncated" in str(error):
                continue
            return _take_leniently(part, joined, found, exactly=exactly)
        if event is not None:
            found.events.append(event)
        return joined
    found.damaged += 1
    return 1


def _take_leniently(part: bytes, joined: int, found: Salvaged, *, exactly: bool) -> int:
    """JSON that the typed parser refused (NaN, an odd type, invalid UTF-8), or no JSON at all."""
    try:
        value = json.loads(part.decode("utf-8", "replace"), parse_float=Decimal)
    except (ValueError, RecursionError):
        found.damaged += 1
        return joined
    if not isinstance(value, dict) or value.get("ph", "X") != "X":
        found.refused += not isinstance(value, dict)
        return joined
    event = lenient(value, exactly=exactly)
    if event is None:
        found.refused += 1
    else:
        found.events.append(event)
    return joined
