"""Findings with a source line for editors and code review, in SARIF 2.1.0 (OASIS), with the pages of their rules."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from steptime._version import __version__
from steptime.advice.explain import find_rule, page_of
from steptime.advice.rule import Finding, Weight
from steptime.answer.answer import Answer
from steptime.answer.json import document
from steptime.answer.printable import one_line, reachable
from steptime.quantities import SourceLine, format_duration, format_share

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
LEVELS = {Weight.FINDING: "warning", Weight.NOTE: "note", Weight.CAVEAT: "note"}


def as_sarif(answer: Answer) -> str:
    """Findings as SARIF text. Paths below the current folder are relative to it, so write it at a repository's root."""
    found = [(each, each.source) for each in answer.findings if each.source is not None and each.source.line > 0]
    names = {each.code: each.name for each, _ in reversed(found)}
    codes = tuple(dict.fromkeys(each.code for each, _ in found))
    rules = [_rule(code, names[code]) for code in codes]
    results = [_result(each, source, codes, answer.step) for each, source in found]
    run = {"tool": {"driver": {"name": "steptime", "version": __version__, "rules": rules}}, "results": results}
    return document({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _rule(code: str, name: str) -> dict[str, Any]:
    """Description of a rule; only its name for a plug-in's rule that is not installed here."""
    rule = find_rule(code)
    if rule is None:
        return {"id": code, "name": name}
    page = page_of(rule)
    return {
        "id": code,
        "name": name,
        "shortDescription": {"text": rule.page.title},
        "help": {"text": page, "markdown": page},
    }


def _result(finding: Finding, source: SourceLine, codes: Sequence[str], step: float) -> dict[str, Any]:
    saving, properties = "", {}
    if finding.savings is not None and step:
        value = finding.savings.value
        saving = f" Saves {format_duration(value)} per step ({format_share(value / step)})."
        properties = {"properties": {"savings_ns": round(value), "share": round(value / step, 4)}}
    snippet = {"snippet": {"text": source.text}} if source.text else {}
    location = {"artifactLocation": _artifact(source.file), "region": {"startLine": _line_now(source), **snippet}}
    return {
        "ruleId": finding.code,
        "ruleIndex": codes.index(finding.code),
        "level": LEVELS[finding.weight],
        "message": {"text": f"{one_line(finding.summary).rstrip('.')}.{saving} {one_line(finding.advice)}"},
        "locations": [{"physicalLocation": location}],
        **properties,
    }


def _line_now(source: SourceLine) -> int:
    """Number of the line in the file as it is now: where it was edited since, of the nearest line of the same text."""
    same, path = list[int](), Path(reachable(source.file))
    with contextlib.suppress(OSError, ValueError):
        if source.text and path.is_file():  # the recording may name a pipe or a device, which would hold us for ever
            texts = path.read_text(encoding="utf-8").splitlines()
            same = [number for number, text in enumerate(texts, 1) if text.strip() == source.text]
    return min(same, key=lambda number: abs(number - source.line), default=source.line)


def _artifact(file: str) -> dict[str, str]:
    """URI of a file, relative if it is below the current folder."""
    path = reachable(file) or file
    if PurePosixPath(path).is_absolute():
        return {"uri": f"file://{quote(path, errors='replace')}"}
    return {"uri": quote(path, errors="replace"), "uriBaseId": "%SRCROOT%"}
