"""A report without source lines and paths, for readers who must not see them (`--no-source`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any, TypeVar

from steptime.quantities import SourceLine, format_source
from steptime.report.report import Report
from steptime.report.trials import TrialReport

LEFT_OUT = "…"
_SHORTEST = 5
"""Characters: a shorter line of source ("pass") says nothing of its program, but may stand in many sentences."""
_PATH = re.compile(
    r"(?<![\w:.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[\\/][^\s\\/:;,()\[\]<>\"'|]+){2,}[\\/]?(?:[:(]\d+\)?)?"  # /home/ada/x:12
    r"|(?<![\w./\\-])[\w./\\-]{1,300}\.(?:pyx?|ipynb|sh)\b(?:[:(]\d+\)?)?"  # train.py:12, models/net.py(12)
)
_Any = TypeVar("_Any")
_NOTHING = object()


def without_sources(report: Report) -> Report:
    """The report with every source line left out, what cannot be told without one, and paths; of commands and of the
    recording, the last parts of their paths stay: the names of the programs."""
    known = {text for source in _sources(report) for text in (source.file, source.text, format_source(source))}
    secret = sorted((text for text in known if len(text) >= _SHORTEST), key=len, reverse=True)
    cleaned: Report = _clean(report, re.compile("|".join(map(re.escape, secret))) if secret else None)
    return replace(
        cleaned,
        source=_names(report.source),
        next_command=_names(report.next_command),
        environment=replace(cleaned.environment, command=_names(report.environment.command)),
        trials=_without_patch(cleaned.trials, report.trials),
        processes=tuple(replace(process, traces=()) for process in cleaned.processes),
    )


def _without_patch(cleaned: TrialReport | None, trials: TrialReport | None) -> TrialReport | None:
    """Without the diff, which is source, and without what the job itself said as it failed."""
    if cleaned is None or trials is None:
        return None
    arms = tuple(replace(arm, sentence="" if arm.verdict == "failed" else arm.sentence) for arm in cleaned.arms)
    return replace(cleaned, diff="", arms=arms, folder=_names(trials.folder), command=_names(trials.command))


def _sources(value: object) -> Iterator[SourceLine]:
    if isinstance(value, SourceLine):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _sources(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _sources(getattr(value, field.name))


def _clean(value: _Any, secret: re.Pattern[str] | None) -> Any:
    """The value without them; _NOTHING for what is about a source line and nothing else."""
    if isinstance(value, str):
        return _PATH.sub(LEFT_OUT, secret.sub(LEFT_OUT, value) if secret is not None else value)
    if isinstance(value, tuple):
        items = (_clean(item, secret) for item in value)
        return tuple(item for item in items if item is not _NOTHING)
    if isinstance(value, SourceLine):
        return None
    if not is_dataclass(value) or isinstance(value, type):
        return value
    if any(field.default is MISSING and isinstance(getattr(value, field.name), SourceLine) for field in fields(value)):
        return _NOTHING
    return replace(value, **{field.name: _clean(getattr(value, field.name), secret) for field in fields(value)})


def _names(command: str) -> str:
    """Every word without the folders in it."""
    return " ".join(re.sub(r"^.*[\\/](?=[^\\/'\"])", "", word) for word in command.split())
