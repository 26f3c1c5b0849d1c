"""The report in short, for programs."""

from __future__ import annotations

import json as standard_json
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from documents import json_of
from report.stored_reports import BUSY, QUIET, stored

from steptime.analysis.modules import ModuleUse
from steptime.errors import RecordingError
from steptime.report import compact, json
from steptime.report.compact import CompactReport
from steptime.report.json import without_sources
from steptime.report.report import Report

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "compact-schema.json"
FIELDS = Path(__file__).with_name("compact_fields.txt")


def document(report: Report) -> Any:
    return standard_json.loads(json_of(report))


def test_the_published_schema_is_current() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == json.schema_text(CompactReport), "make docs"


def test_its_records_are_its_own() -> None:
    """A type within steptime that is renamed, or gets another field, changes nothing in it."""
    records: list[type] = [CompactReport]
    seen = set[type]()
    while records:
        record = records.pop()
        assert record.__module__ == compact.__name__, record
        seen.add(record)
        inner = [part for hint in get_type_hints(record).values() for part in (hint, *flattened(hint))]
        records += [part for part in inner if is_dataclass(part) and isinstance(part, type) and part not in seen]
    assert len(seen) > 5


def flattened(hint: Any) -> Iterator[Any]:
    for part in get_args(hint):
        yield from (part, *flattened(part))


def test_a_field_of_a_version_stays_as_long_as_the_version() -> None:
    """Where this fails, COMPACT_VERSION grows, and its fields are listed anew."""
    records = standard_json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]
    fields = {f"{record}.{field}" for record, schema in records.items() for field in schema["properties"]}
    version, *kept = FIELDS.read_text(encoding="utf-8").split()
    assert int(version) == compact.COMPACT_VERSION
    assert set(kept) - fields == set()


@pytest.mark.parametrize("name", [*QUIET, *BUSY])
def test_it_follows_the_schema_and_is_small(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = standard_json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(document(stored(name)))
    assert len(json_of(stored(name))) < 8192


def test_the_largest_modules_are_reported_as_far_as_there_is_room(report: Report) -> None:
    modules = tuple(ModuleUse(f"Net.{'layer.' * 40}{n}", "Linear", 41, 1.0, 1e6 * n, 2e6 * n, 0.03) for n in range(90))
    process = replace(report.processes[0], case=replace(report.processes[0].case, modules=modules))
    reported = replace(report, processes=(process,))
    found = document(reported)
    assert found["modules"][0]["path"].endswith("89")
    assert found["modules"][0]["forward_ns"] == 89_000_000
    assert len(found["modules"]) + found["more_modules"] == 90
    assert len(json_of(reported)) <= compact.LARGEST


def test_it_says_what_a_person_is_displayed(report: Report) -> None:
    found = document(report)
    assert (found["schema"], found["schema_version"]) == ("steptime-compact", 2)
    assert found["headline"] == report.processes[0].verdict.sentence
    assert found["next"] == report.next_command
    assert found["problems"] == ["trace 2 is cut"]
    assert found["step"] == {
        "duration_ns": {"value": 96_200_000, "low": 93_314_000, "high": 99_086_000},
        "steps": 58,
        "warm_up": 3,
        "excluded": 19,
    }
    assert [category["name"] for category in found["categories"]][:2] == ["input", "compute"]
    assert sum(category["share"] for category in found["categories"]) == pytest.approx(1, abs=0.001)
    first = found["findings"][0]
    assert first["line"] == {
        "file": "/home/ada/train.py",
        "line": 88,
        "function": "main",
        "text": "for images, labels in loader:",
    }
    assert first["savings_ns"]["value"] == 60_000_000
    assert first["next"] == "steptime explain ST102"
    assert [finding["weight"] for finding in found["findings"]] == ["finding"] * 3 + ["note", "caveat"]


def test_a_finding_that_a_fix_answers_names_it_and_the_trial() -> None:
    report = replace(stored("quiet-1"), source="runs/my job")
    tried = [each for each in document(report)["findings"] if each["fixes"]]
    assert tried
    assert {each["next"] for each in tried} == {"steptime try 'runs/my job'"}


def test_many_findings_and_problems_are_counted_and_not_listed(report: Report) -> None:
    process = replace(report.processes[0], findings=report.processes[0].findings * 10)
    found = document(replace(report, processes=(process,), problems=("a sentence",) * 100))
    assert (len(found["findings"]), found["more_findings"]) == (12, 38)
    assert (len(found["problems"]), found["more_problems"]) == (8, 92)


def test_it_is_not_read_back_and_says_what_is(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json_of(replace(report, source="runs/a b")), encoding="utf-8")
    assert json.is_report(path)
    with pytest.raises(RecordingError, match=r"steptime report 'runs/a b' -o r\.json --full --force") as refused:
        json.read_file(path, "r.json")
    assert refused.value.slug == "report-compact"


def test_it_has_no_source_where_none_is_wanted(report: Report) -> None:
    text = json_of(without_sources(report))
    assert "train.py:88" not in text
    assert "for images" not in text
    assert "/home/ada" not in text
