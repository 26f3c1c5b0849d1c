"""Flame graph in the file format of speedscope (https://www.speedscope.app/file-format-schema.json): a profile for each
thread and stream, with its stacks and times in order of their first appearance."""

from __future__ import annotations

from steptime._version import __version__
from steptime.answer.json import document
from steptime.errors import OutputError
from steptime.report.flame import FlameThread, stacks_of
from steptime.report.report import Report

SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def render(report: Report) -> str:
    """Flame graph of a report in speedscope's format, as JSON. Raises OutputError if no step was profiled."""
    flame = report.processes[0].flame
    if flame is None or not flame.threads:
        raise OutputError("no-flame-graph", "No step was profiled, so there is no flame graph to write.")
    frames = [
        {"name": label.name} | ({"file": label.source.file, "line": label.source.line} if label.source else {})
        for label in flame.labels
    ]
    return document({
        "$schema": SCHEMA,
        "name": report.environment.command or report.source,
        "exporter": f"steptime {__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": frames},
        "profiles": [_profile(thread) for thread in flame.threads],
    })  # fmt: skip


def _profile(thread: FlameThread) -> dict[str, object]:
    parent, label, own = stacks_of(thread)
    paths: list[list[int]] = []
    for stack, caller in enumerate(parent):
        paths.append([*(paths[caller] if caller >= 0 else []), label[stack]])
    taken = [stack for stack, spent in enumerate(own) if spent > 0]
    return {
        "type": "sampled",
        "name": thread.name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(own),
        "samples": [paths[stack] for stack in taken],
        "weights": [own[stack] for stack in taken],
    }
