"""Answers for a conversation: one line of JSON that is cut to fit, with the call that helps next."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from steptime.advice.rule import Finding, Weight
from steptime.answer.answer import Answer
from steptime.answer.printable import one_line, shorten
from steptime.answer.tables import Table
from steptime.quantities import SourceLine, format_duration, format_share

MOST_TOKENS = 1500
"""A document has fewer: what docs/agents.md promises."""
TOKEN = re.compile(r"[A-Za-z]{1,4}|[^\W\d_]|\d{1,2}|[^\w\s]{1,4}|_+")
"""Smaller than those of most language models: four letters of a word, a letter of another script, two digits, signs."""
SIZES = ((8, 1600), (6, 800), (5, 400), (4, 240), (3, 160), (2, 120), (1, 80))
"""(entries of a list, characters of a sentence), tried in order until the document fits."""
WHOLE = frozenset({"next", "recording", "folder", "apply", "patch_file", "code", "fixes"})
"""Keys whose values are never cut."""
Call = Mapping[str, Any]
Document = dict[str, Any]


def as_brief(answer: Answer, next_: Call, fixes: Sequence[str] = (), *, line: str = "", saves: str = "",
             found: Sequence[Document] = (), **more: Any) -> Document:  # fmt: skip
    """Short form of an answer for an agent. next_: call of a tool that helps most now. fixes: codes of the fixes to
    try. found: entries of the findings (`entry_of`); the first supplies the line and the savings if `line` is "". The
    rest comes from the answer: tables by identity, lists by title."""
    first = {"line": line, "saves": saves} if line or saves or not found else found[0]
    parts: Document = {}
    for part in answer.parts:
        if isinstance(part, Table):
            parts |= {part.identity: rows_of(part)} if part.rows else {}
        elif part.title and part.items:
            parts[part.title.lower()] = [one_line(item.title) for item in part.items]
    return {
        "answer": one_line(answer.headline),
        "confidence": one_line(answer.badge),
        "line": first["line"],
        "saves": first["saves"],
        "fixes": list(fixes),
        **({"possible": answer.gain.lines[0]} if answer.gain is not None else {}),
        **({"findings": list(found)} if found else {}),
        **more,
        **parts,
        **{name: list(lines) for name, lines in (("head", answer.head), ("notes", answer.notes)) if lines},
        "next": dict(next_),
    }


def rows_of(table: Table) -> list[Document]:
    """Rows of a table as texts by column title, without the columns that only a page has."""
    places = [place for place, column in enumerate(table.columns) if column.room != "page"]
    return [{table.columns[place].title or table.columns[place].raw: row[place].text for place in places}
            for row in table.rows]  # fmt: skip


def entry_of(finding: Finding, step: float, fixes: Sequence[str] = ()) -> Document:
    """Finding as an entry of a brief. step: duration of the step, ns. fixes: codes of the fixes for it."""
    return {
        "code": finding.code,
        "name": finding.name + ("" if finding.weight is Weight.FINDING else f" ({finding.weight.value})"),
        "line": place_of(finding.source),
        "saves": saves_text(finding.savings.value, step) if finding.savings is not None else "",
        "why": one_line(finding.summary),
        "do": one_line(finding.advice),
        "fixes": list(fixes),
    }


def saves_text(taken: float, step: float) -> str:
    """Time per step as text: "57.5 ms per step (72 %)"."""
    share = f" ({format_share(taken / step)})" if step else ""
    return f"{format_duration(taken)} per step{share}"


def place_of(source: SourceLine | None) -> str:
    """Place and text of a line: "train.py:12: loss.item()"."""
    if source is None:
        return ""
    return one_line(f"{source.file}:{source.line}{f': {source.text}' if source.text else ''}")


def fitted(document: Mapping[str, Any]) -> str:
    """Document as one line of JSON, cut to fewer than MOST_TOKENS."""
    text = ""
    for most, length in SIZES:
        text = json.dumps(_cut(document, most, length), ensure_ascii=False)
        if sum(1 for _ in TOKEN.finditer(text)) < MOST_TOKENS:
            return text
    kept = {key: value for key, value in document.items() if key in ("answer", "confidence", *WHOLE)}
    return json.dumps(_cut(kept, *SIZES[-1]), ensure_ascii=False)


def _cut(value: Any, most: int, length: int) -> Any:
    if isinstance(value, Mapping):
        return {key: each if key in WHOLE else _cut(each, most, length) for key, each in value.items()}
    if isinstance(value, list):
        entries = [_cut(each, most, length) for each in value[:most]]
        return [{key: part for key, part in each.items() if part not in ("", [])} if isinstance(each, dict) else each
                for each in entries]  # fmt: skip
    return shorten(value, length) if isinstance(value, str) else value
