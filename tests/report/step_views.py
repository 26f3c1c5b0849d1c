"""Step views as a reader has them: events with their places, names and times, from the columns of text."""

from __future__ import annotations

from dataclasses import dataclass

from steptime.report.step_view import Detail, StepView


@dataclass(frozen=True)
class Seen:
    """An event as it is drawn. row: of its track, from 0; start, end: ns from the step view's time 0."""

    track: str
    kind: str
    row: int
    name: str
    colour: str
    start: int
    end: int
    detail: Detail


def events_of(step_view: StepView) -> list[Seen]:
    """All events, row after row. Fails where a row overlaps itself or a column is of another length."""
    columns = (step_view.gap_column, step_view.duration_column, step_view.label_column, step_view.detail_column)
    gaps, durations, labels, details = ([int(each) for each in column.split()] for column in columns)
    assert len(gaps) == len(durations) == len(labels) == len(details) == step_view.events
    found, at = [], 0
    for track in step_view.tracks:
        for row, count in enumerate(track.rows):
            time = 0
            for place in range(at, at + count):
                assert place == at or gaps[place] >= 0, f"{track.name}, row {row} overlaps itself"
                start = time + gaps[place]
                time = start + durations[place]
                label = step_view.labels[labels[place]]
                detail = step_view.details[details[place]]
                found.append(Seen(track.name, track.kind, row, label.name, label.kind, start, time, detail))
            at += count
    return found
