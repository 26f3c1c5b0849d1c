"""What a rehearsal counts in its last step, and the memory that a variant's steps leave behind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from probe.variants import STEPS, run

torch = pytest.importorskip("torch")

from steptime.probe.changes.launches import counts_of  # noqa: E402
from steptime.trials.execute import growth_per_step  # noqa: E402

JOB = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), *[torch.nn.ReLU() for _ in range(int(sys.argv[1]))])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for _ in range(64):
    loss = model(torch.ones(4, 8)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    kept.append(bytearray(int(sys.argv[2])))
"""


def test_a_rehearsal_counts_operators_of_one_step_and_a_timed_run_none(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    (tmp_path / "runs").mkdir()
    counted = []
    for layers in ("3", "9"):
        variant = run(tmp_path / "runs", script, given=(layers, "0"))
        parity = variant.process.parity
        assert parity is not None
        assert [step.operators for step in parity.work[:-1]] == [None] * (len(parity.work) - 1)
        counted.append(parity.work[-1].operators or 0)
        assert (parity.work[-1].kernels, parity.work[-1].launches) == (0, 0), "there is no device"
        assert variant.process.notes == ()
        assert not list(tmp_path.rglob("trace-*")), "what was counted leaves no trace"
    assert counted[1] - counted[0] == 6 * 2, "a relu is called in the forward and in the backward pass"
    timed = run(tmp_path / "runs", script, variant=replace(STEPS, fingerprint_steps=0), given=("3", "0"))
    assert timed.process.parity is not None
    assert {step.operators for step in timed.process.parity.work} == {None}


def test_memory_that_steps_leave_behind_is_a_growth_and_a_steady_job_has_none(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    (tmp_path / "runs").mkdir()
    steps = replace(STEPS, steps=50, fingerprint_steps=0)
    leaks, steady = (
        growth_per_step(run(tmp_path / "runs", script, variant=steps, given=("1", size)).process.parity)
        for size in (str(1 << 20), "0")
    )
    assert leaks == pytest.approx(1 << 20, rel=0.2)
    assert steady == 0
    assert growth_per_step(None) is None


@dataclass
class DeviceEvent:
    """An event as torch's profiler gives it for a device, of which this machine has none."""

    kind: str
    correlation: int

    def name(self) -> str:
        return "at::native::vectorized_elementwise_kernel"

    def activity_type(self) -> str:
        return self.kind

    def device_type(self) -> Any:
        return torch.autograd.DeviceType.CUDA

    def correlation_id(self) -> int:
        return self.correlation


def test_kernels_of_a_graph_have_one_launch_and_copies_are_no_kernels() -> None:
    alone = [DeviceEvent("kernel", number) for number in range(3)]
    graph = [DeviceEvent("concurrent_kernel", 17) for _ in range(40)]
    others = [DeviceEvent("gpu_memcpy", 18), DeviceEvent("gpu_user_annotation", 19)]
    assert counts_of([*alone, *graph, *others]) == {"kernels": 43, "launches": 4, "operators": 0}
