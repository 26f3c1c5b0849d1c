"""Reports that pages are tried with: a stranger's strings everywhere, kernels on a machine with round peaks."""

from __future__ import annotations

from dataclasses import replace

from steptime.advice.device_uses import MachineUse
from steptime.analysis.roofline import KernelUse
from steptime.quantities import SourceLine
from steptime.report.report import Report

HOSTILE = (
    "</script><img src=x onerror=\"document.title='taken'\">",
    "<script>document.title='taken'</script>",
    "javascript:alert(1)",
    '"><svg onload="document.title=\'taken\'">',
    "{{ 7 * 7 }}{% raw %}",
    "a\u2028b\u202ec\x1b[31m",
    "\u05d0\u05d1\u05d2 (\u05d3) 12",
    "x" * 10_000,
)


def with_hostile_strings(report: Report) -> Report:
    """The report with a stranger's worst in every place that a stranger can fill."""
    bad = HOSTILE[0]
    process = report.processes[0]
    source = SourceLine(bad, 1, bad, bad)
    kernels = tuple(
        KernelUse(text, text, 1.0, 1e6, "memory", text, text, 1e9, 1e8, 5e5, None, (text,), source) for text in HOSTILE
    )
    case = replace(
        process.case,
        kernels=kernels,
        operators=tuple(replace(process.case.operators[0], name=text, source=source) for text in HOSTILE),
        categories=(*process.case.categories, replace(process.case.categories[0], name=bad)),
        lines=(replace(process.case.lines[0], source=source),),
    )
    findings = tuple(
        replace(finding, code=bad, name=bad, summary=bad, advice=bad, source=source, evidence=HOSTILE)
        for finding in process.findings
    )
    verdict = replace(process.verdict, bottleneck=bad, sentence=bad)
    process = replace(process, name=bad, case=case, findings=findings, verdict=verdict, notes=HOSTILE)
    environment = replace(report.environment, command=bad, host=bad, device=bad, torch=bad)
    return replace(report, source=bad, environment=environment, processes=(process,), next_command=bad, problems=(bad,))


def of_kernels(report: Report) -> Report:
    """The report with three kernels on a machine with round peaks: 10 TFLOP/s, 1 TB/s."""
    machine = MachineUse("Round 1", True, 1e13, 1e12, None, (("float32", 1e13),))
    kernels = (
        KernelUse("gemm", "aten::mm", 2.0, 1e6, "compute", "[[64, 64]]", "float32", 5e9, 1e8),
        KernelUse("relu", "aten::relu", 2.0, 25e4, "memory", "[[64, 64]]", "float32", 1e7, 1e8),
        KernelUse("copy", "aten::copy_", 2.0, 25e4, "unmodelled"),
    )
    process = report.processes[0]
    return replace(report, processes=(replace(process, case=replace(process.case, machine=machine, kernels=kernels)),))
