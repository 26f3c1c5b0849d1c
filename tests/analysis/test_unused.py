"""Backward time of what nobody uses, in a profile of real training that the observers have seen before."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from steptime.analysis.step_context import StepContext, step_context
from steptime.analysis.timeline import Phase
from steptime.analysis.trace_steps import steps_of
from steptime.analysis.unused import UnusedPass, picked_uses, unread_uses, unused_passes
from steptime.intervals import union
from steptime.recording.recording import UseFacts
from steptime.trace.reader import read
from steptime.trace.vendors import matching

torch = pytest.importorskip("torch")
nn = torch.nn

from torch.optim.optimizer import register_optimizer_step_pre_hook  # noqa: E402

from steptime.probe import backwards, calls  # noqa: E402
from steptime.probe.modules import ModuleRanges, named_modules  # noqa: E402
from steptime.probe.used import UseObserver  # noqa: E402

STEPS, WIDTH, HEIGHT = 3, 160, 128
Reading = Callable[[Any], object]


class Job:
    """A painter of most of the work, and a small critic."""

    def __init__(self, *, detached: bool, reading: Reading = bool) -> None:
        torch.manual_seed(0)
        self.detached, self.reading = detached, reading
        self.painter = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH))
        self.critic = nn.Linear(WIDTH, 1)
        self.attend = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.optimizers = [
            torch.optim.SGD([*self.painter.parameters(), *self.attend.parameters()], lr=1e-3),
            torch.optim.SGD(self.critic.parameters(), lr=1e-3),
        ]

    @property
    def named(self) -> list[tuple[str, Any]]:
        return list(named_modules([self.painter, self.critic, self.attend]))

    def step(self) -> None:
        paint, judge = self.optimizers
        images = self.painter(torch.randn(HEIGHT, WIDTH))
        judge.zero_grad()
        with torch.profiler.record_function("backward of the critic"):
            self.critic(images.detach() if self.detached else images).mean().backward(retain_graph=True)
        judge.step()
        self.reading(self.painter)
        paint.zero_grad()
        rows = images.view(4, -1, WIDTH)
        seen, _ = self.attend(rows, rows, rows)
        with torch.profiler.record_function("backward of the painter"):
            self.critic(seen)[:, -1].mean().backward()
        paint.step()


def seen(job: Job) -> UseFacts:
    calls.install()
    backwards.install()
    observer = UseObserver(job.named, 10**10)
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: observer.gradients.update(optimizer))
    observer.start()
    try:
        for _ in observer.steps_of(len(job.optimizers)):
            job.step()
    finally:
        hook.remove()
        found = observer.stop(job.optimizers)
        calls.remove_if_idle()
        backwards.remove_if_idle()
    return msgspec.convert(found, UseFacts)


def profiled(job: Job, folder: Path) -> StepContext:
    ranges = ModuleRanges(job.named)
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True, schedule=schedule) as profiler:
        for step in range(STEPS + 1):
            if step:
                ranges.start()
            job.step()
            ranges.end()
            profiler.step()
    calls.remove_if_idle()
    path = folder / "trace.json.gz"
    profiler.export_chrome_trace(str(path))
    trace = read(path)
    phases = {}
    names = {Phase.BACKWARD: "backward of", Phase.FORWARD: "nn.Module: ", Phase.OPTIMIZER: r"Optimizer\.step#"}
    for phase, start in names.items():
        chosen = matching(trace, re.compile(start).match)
        phases[phase] = union(trace.events.start[chosen], trace.events.end[chosen])
    return step_context(trace, steps_of(trace), phases=phases)


def spent(job: Job, folder: Path) -> tuple[UnusedPass, ...]:
    return unused_passes(profiled(job, folder), seen(job).passes)


def test_the_profiled_pass_of_the_same_graph_has_the_time(tmp_path: Path) -> None:
    found = spent(Job(detached=False), tmp_path)
    of_painter = max(found, key=lambda use: use.nothing)
    assert 0.05 < of_painter.nothing < 0.75, "one of its two backwards, beside the attention's"
    assert of_painter.facts.path == "Sequential"
    assert sum(use.nothing + use.partly for use in found) < 1


def test_a_detached_one_has_none(tmp_path: Path) -> None:
    assert all(use.nothing < 0.1 for use in spent(Job(detached=True), tmp_path)), "the critic's, in the painter's pass"


@pytest.mark.parametrize(
    "reading",
    [
        lambda painter: [each.grad.norm() for each in painter.parameters() if each.grad is not None],
        lambda painter: torch._foreach_norm([each.grad for each in painter.parameters() if each.grad is not None]),
    ],
)
def test_gradients_that_an_operator_reads_are_used(reading: Reading, tmp_path: Path) -> None:
    assert all(use.nothing < 0.1 for use in spent(Job(detached=False, reading=reading), tmp_path))


def test_weights_that_nobody_reads_have_a_time(tmp_path: Path) -> None:
    job = Job(detached=True)
    steps = profiled(job, tmp_path)
    [use] = unread_uses(steps, seen(job).unread)
    assert use.facts.type == "MultiheadAttention"
    assert use.facts.calls == 1
    assert 0 < use.spent < 0.5
    assert 0 < use.around < 0.8
    assert unread_uses(steps, ()) == ()


def test_rows_that_the_loss_leaves_out_have_a_time_in_both_directions(tmp_path: Path) -> None:
    job = Job(detached=True)
    [use] = picked_uses(profiled(job, tmp_path), seen(job).passes)
    assert use.facts.kept == pytest.approx(4 / HEIGHT)
    assert 0 < use.spent < 0.3
