"""Reports without source lines and paths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from documents import markdown_of, text_of
from report.timelines import with_trials

from steptime.analysis.roofline import KernelUse
from steptime.quantities import SourceLine
from steptime.report import json
from steptime.report.json import without_sources
from steptime.report.page import page
from steptime.report.report import Report

SECRET = SourceLine("/home/ada/secret project/models.py", 7, "forward", "x = self.secret_layer(x)")


@pytest.fixture
def leaky(report: Report) -> Report:
    """A report with a secret in every place that a source line or a path can reach."""
    process = report.processes[0]
    kernel = KernelUse("ampere_sgemm_64x32_nn", "aten::mm", 1.0, 1e6, "compute", "[[8, 8], [8, 8]]", source=SECRET)
    findings = tuple(
        replace(
            finding,
            summary=f"{finding.summary} in models.py:7 ({SECRET.text})",
            evidence=(f"called at {SECRET.file}:7", "torch/nn/modules/secret.py(1773): _call_impl"),
            source=SECRET,
        )
        for finding in process.findings
    )
    lines = tuple(replace(line, source=SECRET) for line in process.case.lines)
    case = replace(process.case, kernels=(kernel,), lines=lines)
    process = replace(process, case=case, findings=findings, notes=("read /data/secret/set.bin",))
    environment = replace(report.environment, command="/opt/secret/bin/python /home/ada/train.py --epochs 3")
    return replace(
        report,
        processes=(process,),
        environment=environment,
        source="/scratch/secret/runs/train",
        next_command="steptime report /scratch/secret/runs/train -o report.md",
        problems=(r"C:\Users\secret\trace.json is cut",),
    )


@pytest.mark.parametrize("render", [page.render, markdown_of, json.render, text_of])
def test_no_format_shows_a_source_line_or_a_path(leaky: Report, render: object) -> None:
    displayed = render(without_sources(leaky))  # type: ignore[operator]
    for word in ("secret", "/home", "/ada", "/scratch", "models.py", "C:"):
        assert word not in displayed, word


def test_what_is_no_source_stays_as_it_was(leaky: Report) -> None:
    kept = without_sources(leaky)
    process = kept.processes[0]
    assert process.case.kernels[0].name == "ampere_sgemm_64x32_nn"
    assert process.case.kernels[0].shapes == "[[8, 8], [8, 8]]"
    assert process.case.categories == leaky.processes[0].case.categories
    assert process.verdict == leaky.processes[0].verdict
    assert kept.environment.command == "python train.py --epochs 3"
    assert kept.source == "train"
    assert kept.next_command == "steptime report train -o report.md"
    assert [each.code for each in process.findings] == [each.code for each in leaky.processes[0].findings]
    assert json.read(json.render(kept).encode(), "r.json") == kept


@pytest.mark.parametrize("sentence", ["12 TFLOP/s and 3 GB/s", "img/s or tokens/s", "a 50/50 chance", "n/a"])
def test_a_slash_makes_no_path(report: Report, sentence: str) -> None:
    assert without_sources(replace(report, problems=(sentence,))).problems == (sentence,)


def test_a_trials_patch_and_what_the_job_reported_go(report: Report) -> None:
    known = with_trials(report).trials
    assert known is not None
    variants = tuple(replace(variant, sentence="Traceback: secret = hunter2()") for variant in known.variants)
    reported = replace(
        known, variants=variants, diff="-secret = 1\n", folder="/home/ada/runs/t", command="python /home/ada/x.py"
    )
    trials = without_sources(replace(report, trials=reported)).trials
    assert trials is not None
    assert trials.diff == ""
    assert [variant.sentence for variant in trials.variants if variant.verdict == "failed"] == [""]
    assert (trials.folder, trials.command) == ("t", "python x.py")
    assert trials.variants[0].speed == known.variants[0].speed
