"""Reports as Markdown and JSON."""

from __future__ import annotations

import json as standard_json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from documents import markdown_of

from steptime.advice.rule import Weight
from steptime.answer.json import document as as_json
from steptime.diagnosis import diagnose_paths
from steptime.errors import RecordingError
from steptime.quantities import SourceLine
from steptime.report import json
from steptime.report.report import SCHEMA_VERSION, Report

SCHEMA = Path(__file__).resolve().parents[2] / "docs" / "report-schema.json"


def test_json_holds_the_whole_report(report: Report) -> None:
    assert json.read(json.render(report).encode(), "r.json") == report


def test_json_survives_names_that_are_no_unicode(report: Report) -> None:
    odd = replace(report, source="runs/\udcff\x1b")
    document = standard_json.loads(json.render(odd))
    assert document["source"] == "runs/\\udcff\x1b"


def test_any_document_survives_names_that_are_no_unicode() -> None:
    names = {"path": "caf\udce9", "\udce9": ["\udce9", 1, None]}
    assert standard_json.loads(as_json(names)) == {"path": "caf\\udce9", "\\udce9": ["\\udce9", 1, None]}


def test_a_report_of_a_newer_version_is_refused_by_name(report: Report) -> None:
    newer = json.render(replace(report, schema_version=SCHEMA_VERSION + 1))
    with pytest.raises(RecordingError, match=r"schema version 4 .* pip install --upgrade steptime.*\(report-newer\)"):
        json.read(newer.encode(), "r.json")


def test_a_report_of_an_older_version_is_refused_with_the_command_that_makes_it_anew() -> None:
    with pytest.raises(RecordingError, match=r"schema version 2, .* steptime report RECORDING .*\(report-older\)"):
        json.read(b'{"schema_version": 2, "source": "r"}', "r.json")


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'{"schema_version": 3}', b"\xff\xfe", b'{"schema_version": "x"}']
)
def test_what_is_no_report_is_refused(text: bytes) -> None:
    with pytest.raises(RecordingError, match="report-unreadable"):
        json.read(text, "r.json")


def test_a_report_of_no_process_is_refused(report: Report) -> None:
    document = {**standard_json.loads(json.render(report)), "processes": []}
    with pytest.raises(RecordingError, match=r"one process at least.*\(report-unreadable\)"):
        json.read(standard_json.dumps(document).encode(), "r.json")


def test_the_published_schema_is_the_one_in_force() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == json.schema_text(), "make docs writes it anew"


def test_the_schema_names_every_field_that_is_written(report: Report) -> None:
    schema = standard_json.loads(json.schema_text())
    document = msgspec.to_builtins(report)
    fields = schema["$defs"]["Report"]["properties"]
    assert set(document) == set(fields)
    assert set(document["processes"][0]["case"]) == set(schema["$defs"]["Case"]["properties"])


def test_markdown_tells_everything(report: Report) -> None:
    text = markdown_of(report)
    for part in (
        "python train.py",
        "- Step 96.2 ms",
        "| input |",
        "### Caveat: ST801 other programs use 1.1 of 2 CPUs",
        "`train.py:88:",
    ):
        assert part in text
    for finding in report.processes[0].findings:
        head = finding.name if finding.weight is Weight.FINDING else finding.summary
        assert f"{finding.code} {head}" in text
        assert finding.advice in text
    for part in ("aten::conv2d", "evaluation", "ST301: no device trace", "trace 2 is cut", "steptime explain ST102"):
        assert part in text


def test_markdown_tables_keep_their_columns_whatever_the_names(report: Report) -> None:
    process = report.processes[0]
    line = replace(process.case.lines[0], source=SourceLine("a|b.py", 1, "", "x = a | b  # `tick` ``two``"))
    case = replace(process.case, lines=(line,), operators=(replace(process.case.operators[0], name="a|*b*<script>"),))
    text = markdown_of(replace(report, processes=(replace(process, case=case),)))
    columns = 0
    for row in text.splitlines():
        if row.startswith("|"):
            cells = len(re.findall(r"(?<!\\)\|", row))
            columns = columns or cells
            assert cells == columns
        else:
            columns = 0
    assert "<script>" not in text.replace("\\<script\\>", "")


def test_a_file_larger_than_any_report_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "LARGEST", 1000)
    path = tmp_path / "report.json"
    path.write_bytes(b'{"schema_version": 3, ' + b" " * 2000)
    with pytest.raises(RecordingError, match="more than 1000 bytes"):
        diagnose_paths((str(path),))


def test_a_report_that_goes_away_meanwhile_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"report.json cannot be read \(No such file"):
        json.read_file(tmp_path / "report.json", "report.json")
