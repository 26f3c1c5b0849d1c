"""What steptime says of a case and of its twin: a run of each, with the usual options."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.clinic.diagnosed import MADE_OF
from benchmarks.reports.truth import Truth
from benchmarks.started import steptime

TIMEOUT = 400
FIRST = 3


@dataclass(frozen=True)
class Told:
    """A finding. text: all its words; place: (line of the script or 0, its text); share: fraction of the step that it
    says can be saved, 0 where it says nothing."""

    code: str
    text: str
    advice: str
    line: int
    source: str
    share: float


@dataclass(frozen=True)
class Answered:
    """findings: the first ones, as the report orders them. step_ms: the step time that it reports. confidence: its
    word for how sure it is."""

    findings: tuple[Told, ...]
    step_ms: float
    confidence: str

    @staticmethod
    def of(kept: dict[str, Any]) -> Answered:
        """From the fields that `asdict` made."""
        told = tuple(Told(**each) for each in kept["findings"])
        return Answered(told, kept["step_ms"], kept["confidence"])


def environment() -> dict[str, str]:
    """One thread and no accelerator: on shared CPUs, threads of one job that wait for each other are all that a
    measurement shows. MKL's variable does that for torch's own operators, too, and is none that a user's shell or
    torchrun sets, of which a finding would have to be."""
    kept = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    return {**kept, "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def answered(truth: Truth, name: str) -> Answered:
    """Runs a script of a case under steptime and reads the report. Raises JobFailed."""
    with tempfile.TemporaryDirectory() as folder:
        script, report = Path(folder) / name, Path(folder) / "report.json"
        script.write_text(truth.script(name), encoding="utf-8")
        options = ["-o", str(report), "--full", "--no-progress", "--recording", str(Path(folder) / "recording")]
        words = ["run", *options, "--", sys.executable, str(script)]
        steptime(*words, folder=Path(folder), environment=environment(), seconds=TIMEOUT)
        return answer_of(json.loads(report.read_text(encoding="utf-8")), name)


def answer_of(report: dict[str, Any], name: str) -> Answered:
    """The findings that a reader sees first: those that are charged to steps, and a note that stands before them. What
    computing consists of is no finding."""
    process = report["processes"][0]
    step = process["case"]["step"]["duration"]["value"]
    charged = [
        each for number, each in enumerate(process["findings"])
        if each["weight"] == "finding" or (not number and each["weight"] == "note" and each["name"] != MADE_OF)
    ]  # fmt: skip
    told = tuple(_told(each, step, name) for each in charged[: 2 * FIRST])
    return Answered(told, step / 1e6, process["verdict"]["confidence"])


def _told(finding: dict[str, Any], step: float, name: str) -> Told:
    source, savings = finding["source"], finding["savings"]
    here = source is not None and Path(source["file"]).name == name
    line, text = (source["line"], source["text"].strip()) if here else (0, "")
    words = [finding["name"], finding["summary"], finding["advice"], *finding["evidence"]]
    share = savings["value"] / step if savings and step else 0.0
    return Told(finding["code"], "\n".join(words), finding["advice"], line, text, round(share, 4))


def kept(answer: Answered) -> dict[str, Any]:
    """As JSON, of which `Answered.of` makes it again."""
    return asdict(answer)


__all__ = ["FIRST", "Answered", "Told", "answer_of", "answered", "environment", "kept"]
