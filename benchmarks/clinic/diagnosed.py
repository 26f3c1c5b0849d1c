"""What steptime says of a job, in the terms that the clinic scores."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.clinic.cases import Case
from benchmarks.clinic.truth import TIMEOUT, command, environment
from benchmarks.started import steptime

MADE_OF = "compute-share"


@dataclass(frozen=True)
class Reported:
    """bottleneck: what the step is bound by. causes: names of the findings that are charged to steps, the largest
    first. shares: of a step to be saved in each, (value, low, high). lines: (file, line) of each, None without.
    step_ns: the step time that the tool reports."""

    bottleneck: str
    causes: tuple[str, ...] = ()
    shares: tuple[tuple[float, float, float], ...] = ()
    lines: tuple[tuple[str, int] | None, ...] = ()
    notes: tuple[str, ...] = ()
    step_ns: float = 0.0
    problems: tuple[str, ...] = field(default=())


def steptime_says(case: Case, amount: int) -> Reported:
    """Runs the job under steptime, unmodified. Raises JobFailed."""
    with tempfile.TemporaryDirectory() as folder:
        message = Path(folder) / "said.json"  # a job prints what it likes
        options = ["run", "-o", str(message), "--full", "--no-progress", "--recording", str(Path(folder) / "recording")]
        words = [*options, "--", *command(case, amount)]
        steptime(*words, folder=Path(folder), environment=environment(), seconds=2 * TIMEOUT)
        report: dict[str, Any] = json.loads(message.read_text(encoding="utf-8"))
    return reported_of(report)


def reported_of(report: dict[str, Any]) -> Reported:
    """What a report says, in the terms of the clinic. A note counts where it comes first, before all that is charged to
    steps, as the text tells it in full then; but what a step of computing is made of is no complaint."""
    process = report["processes"][0]
    findings = enumerate(process["findings"])
    reported = [
        (each, not number and each["weight"] == "note" and each["name"] != MADE_OF) for number, each in findings
    ]
    charged = [each for each, leads in reported if leads or each["weight"] == "finding"]
    step = process["case"]["step"]["duration"]["value"]
    withheld = process["verdict"]["confidence"] == "unclear"
    return Reported(
        bottleneck="undecided" if withheld else process["verdict"]["bottleneck"],
        causes=tuple(finding["name"] for finding in charged),
        shares=tuple(_share(finding["savings"], step) for finding in charged),
        lines=tuple(_line(finding["source"]) for finding in charged),
        notes=tuple(finding["name"] for finding in process["findings"] if finding not in charged),
        step_ns=step,
        problems=tuple(name for name, _ in process["failed"]),
    )


def _share(savings: dict[str, float] | None, step: float) -> tuple[float, float, float]:
    if savings is None or not step:
        return 0.0, 0.0, 0.0
    return savings["value"] / step, savings["low"] / step, savings["high"] / step


def _line(source: dict[str, Any] | None) -> tuple[str, int] | None:
    return (Path(source["file"]).name, source["line"]) if source else None
