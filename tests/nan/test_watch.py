"""The watch: the job computes what it would compute alone, and what the watch sees is what there is."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

torch = pytest.importorskip("torch")

from steptime.launcher.launch import (  # noqa: E402
    ProbeOptions,
    probe_environment,
)
from steptime.launcher.outcome import NumericsOptions  # noqa: E402
from steptime.nan.nonfinite import read_numerics  # noqa: E402
from steptime.probe import backwards  # noqa: E402
from steptime.probe.numerics.job import GrowingNumerics, Job  # noqa: E402
from steptime.probe.numerics.monitor import HOPELESS, Monitor, Readings, gradient_norm  # noqa: E402

JOBS = Path(__file__).parent / "jobs"


def run(script: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python(), script],
        cwd=JOBS,
        env={**environment, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_watched_job_computes_saves_compiles_and_fails_as_it_does_alone(tmp_path: Path) -> None:
    alone = run("observed.py", {**os.environ, "PYTHONHASHSEED": "0"})
    options = ProbeOptions(profile=False, numerics=NumericsOptions("watch", 7))
    watched = run("observed.py", probe_environment(tmp_path, options))
    assert alone.returncode == watched.returncode == 0, watched.stderr
    assert watched.stdout == alone.stdout
    assert watched.stderr == alone.stderr
    (process,) = read_numerics(tmp_path)
    assert process.steps == 12
    assert process.trigger is None
    losses = [float.fromhex(line.split()[1]) for line in alone.stdout.splitlines()[:12]]
    assert [loss for _, loss, _ in process.history[:12]] == pytest.approx(losses)
    norms = [float.fromhex(line.split()[2]) for line in alone.stdout.splitlines()[:12]]
    assert [norm for _, _, norm in process.history[:12]] == pytest.approx(norms), "clipping's own norm is taken"


class Kept:
    """An account and an ending in memory."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.folder = "somewhere"
        self.ended: list[int] = []

    def open(self) -> None:
        """Nothing to open."""

    def write(self) -> None:
        json.dumps(self.facts)

    def boundary(self, step: int) -> None:
        """No other rank."""

    def end(self, step: int) -> None:
        self.ended.append(step)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def watch(kept: Kept) -> Monitor:
    return Monitor({"go_on": False}, kept, kept)  # type: ignore[arg-type]


def test_the_job_is_ended_behind_the_step_whose_loss_is_not_finite(watch: Monitor, kept: Kept) -> None:
    for step, loss in enumerate((1.0, 0.5, math.nan), start=1):
        watch.losses(step, [torch.tensor(loss, requires_grad=True)])
        watch.boundary(step)
    assert kept.ended == [3]
    assert kept.facts["trigger"] == {
        "kind": "loss",
        "step": 3,
        "value": "nan",
        "first_module": "",
        "modules_looked_at": 0,
        "steps_before": 4,
    }
    assert kept.facts["history"] == [[1, 1.0, None], [2, 0.5, None]]


def test_what_cannot_be_written_down_never_reaches_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = GrowingNumerics(str(tmp_path), "watch")
    account.open()
    Path(account.folder).rename(tmp_path / "gone")
    monkeypatch.setattr(sys, "stderr", None)
    Monitor({"go_on": False}, account, Kept()).failed(OSError(28, "No space left on device"))  # type: ignore[arg-type]
    assert account.facts["notes"] == ["the watch was switched off: OSError: [Errno 28] No space left on device"]


def test_losses_that_can_be_gone_through_once_are_left_to_torch(watch: Monitor) -> None:
    weight = torch.ones(3, requires_grad=True)
    job = Job(watch)
    backwards.install()
    backwards.observe(job)
    try:
        torch.autograd.backward(each * weight[0] for each in weight)
        torch.autograd.backward([weight.sum()])
    finally:
        backwards.unobserve(job)
        backwards.remove_if_idle()
    assert weight.grad is not None
    assert weight.grad.tolist() == [5.0, 2.0, 2.0]
    assert [len(values) for _, values in watch._readings.ready()] == []


def test_updates_that_a_scaler_leaves_out_are_counted_and_end_nothing(watch: Monitor, kept: Kept) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for step in range(1, HOPELESS):
        watch.losses(step, [torch.tensor(1.0)])
        watch.skipped(step, optimizer)
        watch.boundary(step)
    watch.finish()
    assert kept.ended == []
    assert kept.facts["skipped_steps"] == HOPELESS - 1
    assert kept.facts["trigger"] is None


def test_a_scaler_that_skips_every_step_hides_something(watch: Monitor, kept: Kept) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    for step in range(1, HOPELESS + 1):
        watch.skipped(step, optimizer)
        watch.losses(step, [torch.tensor(1.0)])
        watch.boundary(step)
    assert kept.ended == [HOPELESS]
    assert kept.facts["trigger"]["kind"] == "skipped"


def test_a_fused_optimizer_that_skips_on_the_device_is_believed(watch: Monitor, kept: Kept) -> None:
    parameter = torch.zeros(1, requires_grad=True)
    parameter.grad = torch.full((1,), math.inf)
    optimizer = torch.optim.SGD([parameter])
    optimizer.found_inf = torch.ones(1)
    watch.losses(1, [torch.tensor(1.0)])
    watch.updated(4, optimizer)
    watch.boundary(4)
    watch.finish()
    assert kept.facts["skipped_steps"] == 1
    assert kept.facts["trigger"] is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_the_norm_of_gradients_does_not_overflow_before_they_do(dtype: Any) -> None:
    large = torch.finfo(dtype).max / 4
    if dtype is torch.float64:
        large = 1e100
    gradients = [torch.full((3, 2), large, dtype=dtype), torch.zeros(4), None]
    assert float(gradient_norm(gradients)) == pytest.approx(large * math.sqrt(6), rel=1e-2)
    gradients[1][0] = math.nan
    assert math.isnan(float(gradient_norm(gradients)))


def test_the_norm_of_sparse_gradients() -> None:
    table = torch.nn.Embedding(10, 2, sparse=True)
    table(torch.tensor([1, 1, 3])).sum().backward()
    assert float(gradient_norm([table.weight.grad])) == pytest.approx(math.sqrt(10))


def test_gradients_without_values_are_left_out_of_the_norm() -> None:
    gradients = [torch.tensor([3.0 + 4.0j]), torch.ones(2, device="meta"), torch._efficientzerotensor(2)]
    assert float(gradient_norm(gradients)) == pytest.approx(5.0)
    gradients[0][0] = complex(math.inf, 0.0)
    assert math.isinf(float(gradient_norm(gradients)))


def test_a_loss_that_has_no_single_value_ends_no_watch() -> None:
    readings = Readings()
    readings.add("meta", torch.ones((), device="meta"))

    def one_of_many(loss: Any) -> Any:
        readings.add("one of many", loss)
        return loss

    torch.func.vmap(one_of_many)(torch.ones(3))
    readings.add("complex", torch.tensor(complex(3.0, 4.0)))
    readings.close(1)
    assert list(readings.ready()) == [(1, [("complex", 5.0)])]


def test_readings_come_back_in_order_with_their_steps() -> None:
    readings = Readings()
    for step in (1, 2):
        readings.add("loss", torch.tensor(float(step)))
        readings.add("gradient", torch.tensor(10.0 * step))
        readings.close(step)
    readings.close(3)
    assert list(readings.ready()) == [
        (1, [("loss", 1.0), ("gradient", 10.0)]),
        (2, [("loss", 2.0), ("gradient", 20.0)]),
    ]


@pytest.mark.gpu
def test_readings_of_a_device_do_not_wait_for_it() -> None:
    readings = Readings()
    readings.add("loss", torch.tensor(math.nan, device="cuda"))
    readings.add("gradient", torch.tensor(2.0, device="cuda", dtype=torch.bfloat16))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it is a prototype, torch says
        torch.cuda.set_sync_debug_mode("error")
    try:
        readings.close(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    ((step, values),) = readings.ready(wait=True)
    assert step == 1
    assert math.isnan(values[0][1])
    assert values[1] == ("gradient", 2.0)
