"""The device's allocator: `empty_cache` in the loop is found with its line, and segments that grow are tried against
fragments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from advice.test_memory_evidence import ALLOCATED, ALLOCATED_PEAK, RESERVED, RESERVED_PEAK, RESIDENT, job_on_a_device
from traces import called, kernel, launch, operator, python, step

from steptime.advice.assemble import assemble
from steptime.advice.engine import examine
from steptime.advice.fix import Goal
from steptime.advice.propose import propose
from steptime.analysis.layout import lay_out_whole
from steptime.changes import Change
from steptime.diagnosis import diagnose_paths
from steptime.quantities import SourceLine

SEGMENTS = (("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),)


def test_a_cache_that_is_emptied_in_each_step_is_found_with_its_line(tmp_path: Path) -> None:
    """The device is idle while the host gives memory back, in a third of each of six steps."""
    events: list[dict[str, Any]] = []
    for at in range(0, 60_000, 10_000):
        events += [step(at, at + 10_000, number=at // 10_000), python("train.py(30): main", at, at + 9_990)]
        events += [python("torch/cuda/memory.py(200): empty_cache", at + 6_000, at + 9_500)]
        events += [called("cudaFree", at + 6_001, at + 9_499)]
        events += [
            operator("aten::mm", at + 10, at + 30),
            launch(at + 1, at + 15, at + 20),
            kernel(at + 1, at + 40, at + 6_000),
        ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    (process,) = diagnose_paths([str(path)]).processes
    (found,) = [each for each in process.findings if each.code == "ST306"]
    assert "cudaFree" in found.summary
    assert "empty_cache() out of the loop" in found.advice
    assert found.source == SourceLine("train.py", 30, "main")


def test_segments_that_grow_are_proposed_where_memory_lies_in_pieces(tmp_path: Path) -> None:
    samples = ((RESIDENT, 3000), (ALLOCATED, 439), (RESERVED, 20_000), (ALLOCATED_PEAK, 9_000), (RESERVED_PEAK, 20_000))
    process = job_on_a_device(tmp_path / "r", *samples, device="cuda")
    case = assemble(process, lay_out_whole(process))
    findings = examine(case).findings
    assert "ST703" in [each.code for each in findings]
    (tried,) = [each for each in propose(case, findings, goal=Goal.MEMORY) if each.fix.code == "RM403"]
    assert tried.option.changes == (Change("environment", arguments=SEGMENTS),), "a variant, with what it needs"
    assert "RM403" in [each.fix.code for each in propose(case, findings)]
