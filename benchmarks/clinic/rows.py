"""Rows as they are kept in JSON, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from benchmarks.clinic.cases import CASES, Case
from benchmarks.clinic.diagnosed import Reported
from benchmarks.clinic.rivals import RIVALS
from benchmarks.clinic.score import Row
from benchmarks.clinic.truth import Dose

RENAMED = {"late-rank": "straggler"}
"""Rules by the names that they had when results were kept."""


def plain(row: Row) -> dict[str, Any]:
    """A row without its case."""
    message = asdict(row.message) if row.message is not None else None
    dose = {name: None if value != value else value for name, value in asdict(row.dose).items()}
    return {"dose": dose, "said": message, "failed": row.failed}


def row_of(case: Case, kept: Mapping[str, Any], tool: str = "steptime") -> Row:
    """The row that `plain` has made, of steptime or of a rival."""
    figures = {name: float("nan") if value is None else value for name, value in kept["dose"].items()}
    dose = Dose(int(figures.pop("amount")), **figures)
    if tool not in RIVALS:
        return Row(case, dose, _message(kept["said"]), kept["failed"])
    rival = RIVALS[tool]
    return Row(case, dose, _message(kept["said"]), kept["failed"], rival.words_for(case.cause), rival.harmless)


def _message(kept: Mapping[str, Any] | None) -> Reported | None:
    if kept is None:
        return None
    causes = tuple(RENAMED.get(each, each) for each in kept["causes"])
    return Reported(
        kept["bottleneck"], causes, tuple((value, low, high) for value, low, high in kept["shares"]),
        tuple((line[0], line[1]) if line else None for line in kept["lines"]), tuple(kept["notes"]), kept["step_ns"],
        tuple(kept["problems"]),
    )  # fmt: skip


def rows_of(section: Mapping[str, Any], tool: str = "steptime") -> list[Row]:
    """All rows of a tool, in the order of the cases."""
    return [row_of(case, kept, tool) for case in CASES for kept in section.get(case.job, {}).get(tool, ())]
