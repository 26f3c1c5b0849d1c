"""Findings for editors and code review."""

from __future__ import annotations

import json as standard_json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from documents import sarif_of

from steptime.advice.rule import Finding
from steptime.quantities import SourceLine
from steptime.report.report import Report

# What the standard requires (OASIS SARIF 2.1.0) of the parts that are written here.
TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}}}
STRUCTURE = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {
                                    "rules": {
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {"type": "string"},
                                                "shortDescription": TEXT,
                                                "help": TEXT,
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "results": {
                        "items": {
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": TEXT,
                                "properties": {"type": "object"},
                                "locations": {
                                    "items": {
                                        "additionalProperties": False,
                                        "properties": {
                                            "physicalLocation": {
                                                "required": ["artifactLocation"],
                                                "properties": {
                                                    "artifactLocation": {
                                                        "properties": {
                                                            "uri": {"type": "string", "pattern": r"^[!-~]+$"},
                                                            "uriBaseId": {"type": "string"},
                                                        }
                                                    },
                                                    "region": {
                                                        "properties": {
                                                            "startLine": {"type": "integer", "minimum": 1},
                                                            "snippet": TEXT,
                                                        }
                                                    },
                                                },
                                            }
                                        },
                                    }
                                },
                            },
                        }
                    },
                },
            },
        },
    },
}


def document(report: Report) -> Any:
    return standard_json.loads(sarif_of(report))


def of(report: Report, findings: tuple[Finding, ...]) -> Report:
    return replace(report, processes=(replace(report.processes[0], findings=findings),))


def places(report: Report) -> list[dict[str, str]]:
    results = document(report)["runs"][0]["results"]
    return [each["locations"][0]["physicalLocation"]["artifactLocation"] for each in results]


def test_it_has_the_structure_of_the_standard(report: Report) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator(STRUCTURE).validate(document(report))
    jsonschema.Draft202012Validator(STRUCTURE).validate(document(of(report, ())))


def test_findings_with_a_line_are_results_with_their_rule(report: Report) -> None:
    (run,) = document(report)["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["ST102", "ST201", "ST501"], "the others have no line"
    assert "## What helps" in rules[0]["help"]["markdown"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first = run["results"][0]
    assert first["level"] == "warning"
    assert "Saves 60 ms per step (62 %)." in first["message"]["text"]
    assert first["locations"][0]["physicalLocation"]["region"] == {
        "startLine": 88,
        "snippet": {"text": "for images, labels in loader:"},
    }


def test_paths_are_relative_where_the_file_lies_below(
    report: Report, findings: tuple[Finding, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a net.py").touch()
    monkeypatch.chdir(tmp_path)
    files = (tmp_path / "train.py", Path("/somewhere/else/models/a net.py"), Path("/home/ä/x.py"), Path("<string>"))
    found = tuple(replace(findings[0], source=SourceLine(str(file), 3)) for file in files)
    assert places(of(report, found)) == [
        {"uri": "train.py", "uriBaseId": "%SRCROOT%"},
        {"uri": "models/a%20net.py", "uriBaseId": "%SRCROOT%"},
        {"uri": "file:///home/%C3%A4/x.py"},
        {"uri": "%3Cstring%3E", "uriBaseId": "%SRCROOT%"},
    ]


def test_the_line_is_where_it_is_now(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor shows the file as it is: lines that were put in front since the run do not move the mark."""
    monkeypatch.chdir(tmp_path)
    source = SourceLine(str(tmp_path / "train.py"), 2, "train", "loss.backward()")
    process = report.processes[0]
    found = replace(process.findings[0], source=source)
    now = replace(report, processes=(replace(process, findings=(found,)),))

    def line() -> int:
        (result,) = standard_json.loads(sarif_of(now))["runs"][0]["results"]
        number: int = result["locations"][0]["physicalLocation"]["region"]["startLine"]
        return number

    assert line() == 2, "no such file here"
    (tmp_path / "train.py").write_text("loss.backward()\n\n\n    loss.backward()\n")
    assert line() == 1, "the nearest"
    (tmp_path / "train.py").write_text("import torch\n\nfor x in y:\n    loss.backward()\n")
    assert line() == 4
    (tmp_path / "train.py").write_bytes(b"\xff\n")
    assert line() == 2


def test_a_pipe_by_the_name_of_a_file_is_not_read(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    finding = replace(report.processes[0].findings[0], source=SourceLine("train.py", 3, text="loss.backward()"))
    (result,) = document(of(report, (finding,)))["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == 3


def test_a_rule_that_is_not_known_here_keeps_its_name(report: Report, findings: tuple[Finding, ...]) -> None:
    strange = replace(findings[0], code="XX900", name="of-a-plugin")
    assert document(of(report, (strange,)))["runs"][0]["tool"]["driver"]["rules"] == [
        {"id": "XX900", "name": "of-a-plugin"}
    ]
