"""Real reports follow the JSON Schema that is published for them."""

from __future__ import annotations

import json as standard_json
from pathlib import Path
from typing import Any

import pytest
from report.stored_reports import BUSY, QUIET, stored

from steptime.diagnosis import diagnose_paths
from steptime.report import json
from steptime.report.report import Report

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    schema = standard_json.loads((ROOT / "docs" / "report-schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def document(report: Report) -> Any:
    return standard_json.loads(json.render(report))


@pytest.mark.parametrize("name", [*QUIET, *BUSY])
def test_a_recordings_report_follows_the_schema(validator: Any, name: str) -> None:
    validator.validate(document(stored(name)))


@pytest.mark.parametrize(
    "name", ["kineto/resnet50_workers0.pt.trace.json.gz", "tracelens/torch_compile_triton/trace.json.gz"]
)
def test_a_traces_report_follows_the_schema(validator: Any, shared_data: Path, name: str) -> None:
    validator.validate(document(diagnose_paths([str(shared_data / name)], cache=False)))


def test_a_report_of_many_ranks_follows_the_schema(validator: Any, shared_data: Path) -> None:
    ranks = sorted(str(path) for path in (shared_data / "param" / "dlrm_kineto").iterdir())[-2:]
    validator.validate(document(diagnose_paths(ranks, cache=False)))


def test_what_is_no_report_does_not(validator: Any) -> None:
    broken = document(stored("quiet-1"))
    del broken["environment"]
    assert not validator.is_valid(broken)
    broken = document(stored("quiet-1"))
    broken["processes"][0]["case"]["step"]["duration"]["value"] = "long"
    assert not validator.is_valid(broken)
