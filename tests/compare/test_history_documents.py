"""The history as JSON: versioned, and as its published schema says."""

from __future__ import annotations

import json as standard_json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from journals import MS, JournalBuilder

from steptime.answer.json import document as as_json
from steptime.compare.history import SCHEMA_VERSION, History
from steptime.compare.history_index import read_history
from steptime.report.json import schema_text

SCHEMA = Path(__file__).resolve().parent.parent.parent / "docs" / "history-schema.json"


def history(folder: Path) -> History:
    """Six recordings of one job, the last three of them slower, and one without steps."""
    for number in range(6):
        builder = JournalBuilder()
        for _ in range(20):
            builder.forward((10 + 5 * (number > 2)) * MS).backward(5 * MS).step(MS)
        path = builder.write(folder / f"run-{number}")
        manifest = standard_json.loads((path / "manifest.json").read_text())
        manifest["started_epoch_ns"] += number * 10**9
        (path / "manifest.json").write_text(standard_json.dumps(manifest))
    JournalBuilder().write(folder / "empty")
    return read_history(folder)


def test_the_published_schema_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == schema_text(History), "make docs writes it anew"


def test_a_history_follows_the_published_schema(tmp_path: Path) -> None:
    found = history(tmp_path / "runs")
    assert found.tracks[0].levels, "a change of level is in it"
    document = standard_json.loads(as_json(found))
    schema = standard_json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document)
    assert document["schema_version"] == SCHEMA_VERSION
    assert msgspec.json.decode(as_json(found), type=History) == found


def test_names_that_no_json_can_hold_are_escaped(tmp_path: Path) -> None:
    found = replace(history(tmp_path / "runs"), folder="runs-\udcff")
    assert standard_json.loads(as_json(found))["folder"] == "runs-\\udcff"
