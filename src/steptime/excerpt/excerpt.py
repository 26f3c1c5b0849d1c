"""One step, cut out of a trace to be looked at: what ran where and when. The room's central type.

Plain data that a report carries. Its columns are text, decimal numbers with a space between them, so that fifty
thousand events are some strings and not a quarter of a million objects.
"""

from __future__ import annotations

from dataclasses import dataclass

from steptime.quantities import SourceLine


@dataclass(frozen=True, slots=True)
class Track:
    """What happened in one place. kind: "account" (what the time is posted to), "phase", "stream", "thread" or
    "worker" (of a loader). rows: how many events lie in each row from the top; those of a row do not overlap."""

    name: str
    kind: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """What an event is called. kind: an account's name for what is posted to one, else "operator", "range", "call",
    "python", "phase" or "other"."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Detail:
    """What else is known of events. operator: that launched it, or in which it was called; shapes, formats: of the
    operator's inputs; source: the user's line; note: a cause, in words."""

    operator: str = ""
    shapes: str = ""
    formats: str = ""
    source: SourceLine | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A step. step: its number in the report's series of steps, -1 where it is in none. how: why this one, in words.

    length: ns that are shown, from time 0. begin, end: of the step itself on that scale; what was launched earlier or
    is still running lies outside. Columns, event by event, row after row and track after track: gaps (ns from the end
    of the event before in the same row; of the first, from time 0), durations (ns), labels and details (numbers in the
    lists; detail 0 says nothing). left_out: events of the step that are not here, the shortest ones.
    """

    step: int
    how: str
    length: int
    begin: int
    end: int
    tracks: tuple[Track, ...]
    labels: tuple[Label, ...]
    details: tuple[Detail, ...]
    gap_column: str
    duration_column: str
    label_column: str
    detail_column: str
    left_out: int = 0

    @property
    def events(self) -> int:
        """How many there are."""
        return sum(sum(track.rows) for track in self.tracks)
