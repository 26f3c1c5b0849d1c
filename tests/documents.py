"""Results of every verb as documents, by way of their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from steptime.answer.answer import Answer
from steptime.answer.output import rendered
from steptime.report.answer import answer_of as answer_of_report


def text_of(found: Any, answer_of: Callable[[Any], Answer] = answer_of_report) -> str:
    """What a terminal shows of a report, or of something else that has an answer."""
    return str(rendered(answer_of(found), ".txt"))


def markdown_of(found: Any, answer_of: Callable[[Any], Answer] = answer_of_report) -> str:
    """The same as Markdown."""
    return str(rendered(answer_of(found), ".md"))


def html_of(found: Any, answer_of: Callable[[Any], Answer] = answer_of_report) -> str:
    """The same as a page."""
    return str(rendered(answer_of(found), ".html"))


def sarif_of(found: Any, answer_of: Callable[[Any], Answer] = answer_of_report) -> str:
    """The same for editors."""
    return str(rendered(answer_of(found), ".sarif"))


def json_of(found: Any, answer_of: Callable[[Any], Answer] = answer_of_report) -> str:
    """The same as JSON."""
    return str(rendered(answer_of(found), ".json"))
