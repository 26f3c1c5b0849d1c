"""Trials of real jobs on this machine. Its speed is nobody's to promise: asserted is what was run, and what is kept."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from preloading import python
from trials.shared_machine import SharedMachine, run

from steptime.advice.fix import Promise
from steptime.changes import Change
from steptime.errors import NothingMeasuredError
from steptime.quantities import Estimate
from steptime.trials import executor
from steptime.trials.conduct import Notice, TrialRunner, combine, timed_steps, together, usual_seconds
from steptime.trials.containment import Layer, Workspace
from steptime.trials.execute import ScheduledRun
from steptime.trials.executor import Block, LocalExecutor, Notify
from steptime.trials.plan import NO_INPUT, batch_variant, groups, lab_variants, over, points_of, workspace_for
from steptime.trials.results import Plan, append_result, read_results
from steptime.trials.trial import (
    AS_IT_IS,
    BASELINE,
    CONTROL,
    MIN_ROUNDS,
    Agreement,
    AppliedChange,
    Budget,
    Judgement,
    Run,
    TrialVerdict,
    Variant,
    batch_of,
)

pytest.importorskip("torch")

WORKERS = Variant(
    "RM101", (Change("loader", arguments=(("num_workers", 1),)),), "RM101", "num_workers=1", other_data=True
)
PLAIN = """
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(400):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "last.pt")
"""
LOADED = """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    if __name__ == "__main__":
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(6400, 8), torch.randn(6400, 1))
        loader = DataLoader(data, batch_size=16, shuffle=True)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for inputs, targets in loader:
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def bench(tmp_path: Path, script: str, *variants: Variant) -> TrialRunner:
    """A trial of a script in a folder of its own."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(textwrap.dedent(script))
    command = (python(), "train.py")
    plan = Plan(command, str(job), "", variants, 0.03)
    append_result(tmp_path / "trial", plan=plan)
    return TrialRunner(Workspace(command, tmp_path / "trial", job), plan)


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_without_a_loader_nothing_is_exercised_and_nothing_of_the_users_is_touched(tmp_path: Path) -> None:
    trial = bench(tmp_path, PLAIN, WORKERS)
    mine = tmp_path / "job" / "last.pt"
    mine.write_bytes(b"my checkpoint")
    (judgement,) = trial.conduct(0, (WORKERS,))
    assert judgement.verdict is TrialVerdict.NOT_EXERCISED
    assert [run.rehearsal for run in trial.runs] == [True, True]
    assert mine.read_bytes() == b"my checkpoint"
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["last.pt", "train.py"]
    assert not list((tmp_path / "trial" / "copies").iterdir())


def test_what_a_job_writes_later_than_it_was_recorded_for_is_not_the_users(tmp_path: Path) -> None:
    """Links in the copy become files of the variant's own when they are written to."""
    writing = """
        if step % 3 == 0:
            torch.save(model.state_dict(), "late.pt")
            with open("checkpoints/log.txt", "a") as log:
                log.write(str(step))
    """
    script = PLAIN.replace("optimizer.step()\n", "optimizer.step()\n" + writing.strip("\n") + "\n", 1)
    trial = bench(tmp_path, script, WORKERS)
    job = tmp_path / "job"
    (job / "checkpoints").mkdir()
    mine = [job / "late.pt", job / "checkpoints" / "log.txt"]
    for path in mine:
        path.write_text("mine")
    trial.conduct(0, (WORKERS,))
    assert [path.read_text() for path in mine] == ["mine", "mine"]
    assert {run.failure for run in trial.runs} == {""}
    assert {run.outside for run in trial.runs} == {()}


def test_a_job_that_dies_is_reported_with_its_last_words(tmp_path: Path) -> None:
    trial = bench(tmp_path, "raise SystemExit('no data at all')", WORKERS)
    with pytest.raises(NothingMeasuredError, match="no data at all"):
        trial.conduct(0, (WORKERS,))
    assert len(read_results(tmp_path / "trial").runs) == 1


def test_a_variant_that_dies_has_failed_and_costs_no_round(tmp_path: Path) -> None:
    dying = Variant("env", (Change("environment", arguments=(("STOP", "1"),)),), "RM999")
    script = "import os\nif os.environ.get('STOP'): raise MemoryError('too large')\n" + textwrap.dedent(PLAIN)
    trial = bench(tmp_path, script, dying)
    (judgement,) = trial.conduct(0, (dying,))
    assert judgement.verdict is TrialVerdict.FAILED
    assert "MemoryError: too large" in judgement.sentence
    assert len(trial.runs) == 2


def test_gradients_that_die_in_a_variant_break_its_promise_before_anything_is_timed(tmp_path: Path) -> None:
    deadly = Variant("env", (Change("environment", arguments=(("DEAD", "1"),)),), "RM999", promise=Promise.SAME_CURVE)
    script = """
        import os
        import torch

        torch.manual_seed(0)
        first, second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)
        model = torch.nn.Sequential(first, second)
        if os.environ.get("DEAD"):
            first.weight.register_hook(torch.zeros_like)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(400):
            loss = model(torch.randn(4, 8)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
    trial = bench(tmp_path, script, deadly)
    (judgement,) = trial.conduct(0, (deadly,))
    assert (judgement.verdict, judgement.agreement) == (TrialVerdict.BROKE_PROMISE, Agreement.DEAD_GRADIENTS)
    assert "0.weight" in judgement.sentence
    assert [(run.variant, run.rehearsal) for run in trial.runs] == [
        (name, True) for name in (BASELINE, "env", BASELINE)
    ]


class Rehearsing(LocalExecutor):
    """Runs rehearsals, each with another seed in place of the clock's, and makes up what would be timed."""

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        for scheduled in (scheduled for block in blocks for scheduled in block):
            os.environ["CLOCK"] = str(scheduled.position)
            if scheduled.rehearsal:
                yield from super().run(workspace, [[scheduled]], notify)
            else:
                steps = (20_000_000 if scheduled.variant.changes else 40_000_000,) * 30
                changes = tuple(AppliedChange(change.kind, True, True) for change in scheduled.variant.changes)
                made = run(
                    scheduled.variant.name, scheduled.position, steps, changes=changes, seed=scheduled.options.seed
                )
                yield replace(made, stage=scheduled.stage, round=scheduled.round)


def test_a_harmless_change_of_a_job_that_the_clock_seeds_is_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCK", "0")
    harmless = Variant(
        "env", (Change("environment", arguments=(("HARMLESS", "1"),)),), "RM999", promise=Promise.SAME_CURVE
    )
    script = """
        import os
        import torch

        torch.manual_seed(int(os.environ["CLOCK"]))
        model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(400):
            inputs = torch.randn(256, 16)
            loss = (model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
    trial = bench(tmp_path, script, harmless)
    trial._executor = Rehearsing()
    (judgement,) = trial.conduct(0, (harmless,))
    assert judgement.verdict is TrialVerdict.ADOPT
    assert (
        "the job does not reproduce its own losses (seeded by the clock?): gradients compared within ±"
        in judgement.sentence
    )


@pytest.mark.slow
def test_more_workers_on_tensors_in_memory_are_never_adopted(tmp_path: Path) -> None:
    trial = bench(tmp_path, LOADED, WORKERS)
    (judgement,) = trial.conduct(0, (WORKERS,))
    assert judgement.verdict in {TrialVerdict.SLOWER, TrialVerdict.NO_EFFECT, TrialVerdict.UNDECIDED}
    timed = [run for run in trial.runs if not run.rehearsal]
    assert {run.variant for run in timed} == {BASELINE, CONTROL, "RM101"}
    assert timed[0].variant == timed[-1].variant == BASELINE
    assert all(len(run.step_ns) >= 5 for run in timed)
    kept = read_results(tmp_path / "trial")
    assert kept.runs == tuple(trial.runs)
    assert kept.judgements == ((0, judgement),)
    seeded = [run.losses for run in timed if run.seed == 0]
    assert all(losses[:20] == seeded[0][:20] for losses in seeded)
    again = TrialRunner(trial.workspace, kept.plan, kept.runs)
    assert again.conduct(0, (WORKERS,))[0].verdict is judgement.verdict
    assert len(again.runs) <= len(trial.runs) + 3 * 4


@pytest.mark.slow
def test_a_trial_that_is_interrupted_leaves_no_process_and_keeps_what_was_run(tmp_path: Path) -> None:
    pids = Path("/dev/shm") / f"steptime-test-{os.getpid()}"
    script = f"import os\nopen({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n')\n" + textwrap.dedent(PLAIN)
    trial = bench(tmp_path, script.replace("range(400)", "range(10**9)"), WORKERS)
    slow = Variant("env", (Change("environment", arguments=(("X", "1"),)),))

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 4.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            trial.conduct(0, (slow,))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert read_results(tmp_path / "trial").runs == tuple(trial.runs)
    started = pids.read_text().split()
    pids.unlink()
    for pid in map(int, started):
        assert _ends(pid)


def _ends(pid: int) -> bool:
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_job_recorded_in_a_folder_that_is_gone_cannot_be_tried(tmp_path: Path) -> None:
    from steptime.errors import UsageError
    from steptime.recording.recording import Manifest

    manifest = Manifest(1, "0", ("python",), str(tmp_path / "gone"), "host", 0)
    with pytest.raises(UsageError, match="folder-gone"):
        workspace_for(manifest, tmp_path / "runs" / "a", tmp_path / "runs" / "b", uncontained=False)


def test_what_trains_something_else_is_never_promised_to_be_the_same() -> None:
    variants = (*lab_variants(compile_modes=True, on_cuda=True), batch_variant(16), batch_variant(32))
    assert [batch_of(variant) for variant in variants if batch_of(variant)] == [16, 32]
    assert all(
        variant.promise is Promise.NEW_TRAINING for variant in variants if variant.name == NO_INPUT or batch_of(variant)
    )
    assert len({variant.name for variant in variants}) == len(variants)
    assert not any(variant.foreign for variant in variants), "that a lab repeats a batch is no cheating"


def test_batch_sizes_are_tried_to_the_plateau_and_not_beyond() -> None:
    assert list(groups((32, 16), go_on=False)) == [(16, 32)]
    assert list(groups((16,), go_on=True))[:2] == [(16, 32), (64, 128)]

    def judged(size: int, speed: float | None) -> Judgement:
        verdict = TrialVerdict.UNDECIDED if speed else TrialVerdict.FAILED
        estimate = Estimate(speed, speed, speed, 2, "1") if speed else None
        return Judgement(batch_variant(size), verdict, Agreement.NOT_JUDGED, "CUDA out of memory", estimate)

    assert not over(points_of([judged(32, 0.6)], 1e8, 16), go_on=True)
    flat = points_of([judged(32, 0.501)], 1e8, 16)
    assert over(flat, go_on=True)
    assert not over(flat, go_on=False)
    memory = points_of([judged(32, None)], 1e8, 16)
    assert over(memory, go_on=False)
    assert [point.out_of_memory for point in memory] == [False, True]


class FakeBudget(Budget):
    """Seconds that only processes take."""

    def __init__(self, seconds: float) -> None:
        self.time = 0.0
        super().__init__(seconds)

    def now(self) -> float:
        return self.time


class FakeMachine:
    """An executor on which every process takes ten seconds of a budget, those of dear variants more, and none is
    started."""

    width, forking, at_once = 1, False, 1
    alternating = False
    resident: int | None = None

    def __init__(self, budget: FakeBudget) -> None:
        self.budget = budget
        self.turns: list[ScheduledRun] = []
        self.dear: dict[str, float] = {}
        self._machine = SharedMachine(0, change=0.0, stalls=0.0)

    def run(self, workspace: Workspace, blocks: Sequence[Block], notify: Notify) -> Generator[Run, None, None]:
        for scheduled in (scheduled for block in blocks for scheduled in block):
            notify(scheduled, None)
            self.turns.append(scheduled)
            seconds = self.dear.get(scheduled.variant.name, 10.0)
            self.budget.time += seconds
            steps = () if scheduled.rehearsal else self._machine.process(self.speed(scheduled))
            changes = tuple(AppliedChange(change.kind, True, True) for change in scheduled.variant.changes)
            made = run(
                scheduled.variant.name, scheduled.position, steps, rehearsal=scheduled.rehearsal, changes=changes
            )
            more: dict[str, Any] = {
                "stage": scheduled.stage,
                "round": scheduled.round,
                "seed": scheduled.options.seed,
                "exact": scheduled.options.exact,
            }
            yield replace(made, seconds=seconds, **more)

    def alternates(self, workspace: Workspace, step_seconds: float, peak: int, processes: int) -> bool:
        return self.alternating and executor.may_alternate(workspace, step_seconds, peak, processes, self.resident)

    def speed(self, scheduled: ScheduledRun) -> float:
        """Of the second variant twice the baseline's, of the fourth nobody knows."""
        uncertain = 1.25 if scheduled.round % 2 else 0.95
        return {"RM2": 2.0, "RM4": uncertain}.get(scheduled.variant.name, 1.0)

    def close(self) -> None:
        pass


LABELS = {2: "twice"}


def clock(tmp_path: Path, seconds: float, variants: int) -> tuple[TrialRunner, tuple[Variant, ...]]:
    tried = tuple(
        replace(WORKERS, name=f"RM{number}", label=LABELS.get(number, "")) for number in range(1, variants + 1)
    )
    plan = Plan(("python",), str(tmp_path), "", tried, 0.03)
    budget = FakeBudget(seconds)
    workspace = Workspace(("python",), tmp_path, tmp_path)
    return TrialRunner(workspace, plan, budget=budget, executor=FakeMachine(budget)), tried


def test_processes_are_timed_behind_the_warm_up_of_the_plan(tmp_path: Path) -> None:
    trial, variants = clock(tmp_path, 300, 1)
    trial.plan = replace(trial.plan, warm_up=30)
    trial.conduct(0, variants)
    machine = trial._executor
    assert isinstance(machine, FakeMachine)
    assert {
        scheduled.options.warm_up
        for scheduled in machine.turns
        if scheduled.variant.name == BASELINE and not scheduled.rehearsal
    } == {30}


@pytest.mark.parametrize(
    ("step", "start", "timed"),
    [(0.005, 0.4, 120), (0.005, 2.0, 200), (0.005, 9.0, 600), (0.1, 60.0, 50), (2.0, 60.0, 24)],
)
def test_a_process_that_is_long_in_starting_is_timed_for_more_steps(
    tmp_path: Path, step: float, start: float, timed: int
) -> None:
    trial, variants = clock(tmp_path, 300, 1)
    trial.plan = replace(trial.plan, step_seconds=step, start_seconds=start)
    machine = trial._executor
    assert isinstance(machine, FakeMachine)
    trial._round(0, 0, variants, AS_IT_IS)
    assert {scheduled.options.steps for scheduled in machine.turns} == {timed}


@pytest.mark.parametrize(("recorded", "usual"), [(0.012, 0.012), (0.1, 0.1), (0.001, 0.01), (0.0, 0.01)])
def test_a_step_is_as_long_as_recorded_unless_that_was_elsewhere(tmp_path: Path, recorded: float, usual: float) -> None:
    trial, _ = clock(tmp_path, 300, 1)
    trial.plan = replace(trial.plan, step_seconds=recorded)
    assert trial._usual() == recorded
    trial.runs.append(run(BASELINE, 0, [10_000_000] * 5, rehearsal=True))
    assert trial._usual() == usual


@pytest.mark.parametrize(
    ("free", "step", "layer", "taken"),
    [
        (1 << 40, 0.01, Layer.OVERLAY, True),
        (0, 0.01, Layer.OVERLAY, False),
        (1 << 40, 5.0, Layer.OVERLAY, False),
        (1 << 40, 0.01, Layer.COPY, False),
    ],
)
def test_processes_take_turns_where_there_is_room_and_a_slice_holds_their_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, step: float, layer: Layer, taken: bool
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    monkeypatch.setattr(executor, "ground_of", lambda _: SimpleNamespace(layer=layer))
    trial, variants = clock(tmp_path, 300, 2)
    trial.plan = replace(trial.plan, step_seconds=step)
    machine = trial._executor
    assert isinstance(machine, FakeMachine)
    machine.alternating = True
    trial._round(0, 0, variants, AS_IT_IS)
    names = [scheduled.variant.name for scheduled in machine.turns]
    assert names == [BASELINE, "RM1", *(["RM2", CONTROL] if taken else [CONTROL, "RM2", BASELINE])]
    assert {scheduled.options.alternating for scheduled in machine.turns} == {taken}


@pytest.mark.parametrize(
    ("device", "host", "taken"),
    [(64 << 30, 64 << 30, True), (20 << 30, 64 << 30, False), (64 << 30, 20 << 30, False), (None, 64 << 30, False)],
)
def test_on_a_device_they_take_turns_where_both_memories_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: int | None, host: int, taken: bool
) -> None:
    free = {"own": device or 0, "a stranger's": 1 << 20}
    monkeypatch.setattr(executor, "free_bytes", lambda uuids: min(free[each] for each in uuids))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=host))
    monkeypatch.setattr(executor, "ground_of", lambda _: SimpleNamespace(layer=Layer.OVERLAY))
    runner = LocalExecutor(alternating=True, resident=4 << 30, devices=["own"])
    workspace = clock(tmp_path, 300, 1)[0].workspace
    assert runner.alternates(workspace, 0.01, peak=4 << 30, processes=4) == taken


def test_rehearsals_run_at_the_same_time_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "usable_cpus", lambda: 2)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10 << 30))
    monkeypatch.setattr(executor, "ground_of", lambda _: SimpleNamespace(layer=Layer.OVERLAY))
    trial = clock(tmp_path, 300, 1)[0]
    made, workspace = [trial._rehearsal(0, each, 0) for each in (AS_IT_IS, Variant("diff-1"))], trial.workspace
    blocks = [[each] for each in made]
    assert LocalExecutor(alternating=True, host=1 << 30)._joined(workspace, blocks) == [made]
    assert LocalExecutor(alternating=True, host=3 << 30)._joined(workspace, blocks) == blocks
    assert LocalExecutor(alternating=True, resident=1)._joined(workspace, blocks) == blocks
    twice = [[made[0]], [made[0]]]
    assert LocalExecutor(alternating=True, host=1 << 30)._joined(workspace, twice) == twice


def test_the_length_of_a_process_follows_the_steps_that_were_timed() -> None:
    rehearsed = run(BASELINE, 0, (90_000_000, 30_000_000), rehearsal=True)
    assert usual_seconds(0.02, [rehearsed]) == 0.02
    assert usual_seconds(0.01, [rehearsed]) == 0.03
    timed = run(BASELINE, 1, (12_000_000,) * 30)
    assert usual_seconds(0.01, [rehearsed, timed]) == 0.012
    assert timed_steps(0.01, 1.0, among=3) == 200
    assert timed_steps(0.5, 1.0, among=3) == 24


def test_a_loaders_full_queue_is_let_go_before_steps_are_timed(tmp_path: Path) -> None:
    trial, (first, *_) = clock(tmp_path, 300, 1)
    workers = replace(first, changes=(Change("loader", "", (("num_workers", 8), ("prefetch_factor", 3))),))
    trial.conduct(0, (workers,))
    machine = trial._executor
    assert isinstance(machine, FakeMachine)
    timed = {
        scheduled.variant.name: scheduled.options.warm_up for scheduled in machine.turns if not scheduled.rehearsal
    }
    assert timed[workers.name] == trial.plan.warm_up + 24
    assert timed["baseline"] == trial.plan.warm_up


@pytest.mark.parametrize("seconds", [5, 60, 150, 300, 1000])
def test_a_budget_is_kept(tmp_path: Path, seconds: float) -> None:
    trial, variants = clock(tmp_path, seconds, 6)
    judgements = trial.conduct(0, variants, later=9)
    assert trial.budget.left() >= -10  # a process that is about to end is cut short by `execute`, not here
    assert len(judgements) == 6
    untried = [each for each in judgements if "budget" in each.sentence]
    assert all(each.verdict is TrialVerdict.UNDECIDED for each in untried)
    assert bool(untried) == (seconds < 1000)


@pytest.mark.parametrize(
    "seconds", [pytest.param(each, marks=() if each % 60 == 30 else pytest.mark.slow) for each in range(150, 500, 20)]
)
def test_a_variant_is_begun_only_where_a_second_round_can_follow(tmp_path: Path, seconds: float) -> None:
    trial, (_, _, dear, uncertain) = clock(tmp_path, seconds, 4)
    machine = trial._executor
    assert isinstance(machine, FakeMachine)
    machine.dear[dear.name] = 60.0
    trial.conduct(0, (uncertain, dear))
    timed = [run.variant for run in trial.runs if not run.rehearsal]
    assert timed.count(dear.name) != 1


def test_where_two_rounds_are_too_long_one_shows_how_long_steps_take(tmp_path: Path) -> None:
    trial, variants = clock(tmp_path, 75, 2)
    judgements = trial.conduct(0, variants)
    timed = [run.variant for run in trial.runs if not run.rehearsal]
    assert timed.count(variants[0].name) == 1
    assert timed.count(variants[1].name) == 0
    assert all(each.verdict is TrialVerdict.UNDECIDED for each in judgements)
    assert judgements[0].step_ns is not None


@pytest.mark.parametrize(("turns", "at_once", "seconds"), [(False, 2, 36.0), (True, 1, 36.0), (True, 2, 26.0)])
def test_a_round_takes_as_long_as_starts_at_the_same_time_and_steps_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: bool, at_once: int, seconds: float
) -> None:
    trial, (variant, *_) = clock(tmp_path, 300, 1)
    monkeypatch.setattr(trial._executor, "at_once", at_once)
    monkeypatch.setattr(trial, "_alternating", lambda _: turns)
    timed = [replace(run(name, 0, [100_000_000] * 20), seconds=12.0) for name in (BASELINE, variant.name, CONTROL)]
    trial.runs += timed
    assert trial._round_seconds(0, [variant]) == pytest.approx(seconds)


def test_a_budget_leaves_something_for_the_patch(tmp_path: Path) -> None:
    trial, variants = clock(tmp_path, 400, 6)
    trial.conduct(0, variants, later=9)
    assert trial.budget.left() >= 90


def test_every_variant_stands_between_baselines_and_the_order_turns(tmp_path: Path) -> None:
    trial, variants = clock(tmp_path, 1000, 2)
    judgements = trial.conduct(0, variants)
    timed = [run.variant for run in trial.runs if not run.rehearsal]
    assert timed[:9] == [BASELINE, "RM1", CONTROL, "RM2", BASELINE, "RM2", CONTROL, "RM1", BASELINE]
    assert timed[-1] == BASELINE
    assert [each.verdict for each in judgements] == [TrialVerdict.UNDECIDED, TrialVerdict.ADOPT]
    assert judgements[0].sentence == "It gains less than twice"


def test_time_is_not_spent_on_a_setting_that_a_better_one_has_overtaken(tmp_path: Path) -> None:
    trial, variants = clock(tmp_path, 10_000, 4)
    judgements = trial.conduct(0, variants)
    assert [each.verdict for each in judgements[1::2]] == [TrialVerdict.ADOPT, TrialVerdict.UNDECIDED]
    assert judgements[3].rounds == MIN_ROUNDS + 1
    assert judgements[3].sentence == "It gains less than twice"
    alone = replace(variants[3], changes=(Change("threads"),))
    apart, _ = clock(tmp_path, 10_000, 4)
    assert apart.conduct(0, (variants[1], alone))[1].rounds > MIN_ROUNDS


def test_the_time_to_go_is_that_of_the_rounds_that_are_needed(tmp_path: Path) -> None:
    reported: list[Notice | None] = []
    trial, variants = clock(tmp_path, 10_000, 2)
    trial = TrialRunner(
        trial.workspace, trial.plan, budget=trial.budget, executor=trial._executor, notify=reported.append
    )
    (judgement,) = trial.conduct(0, variants[1:])
    assert judgement.rounds == MIN_ROUNDS
    left = [notice.eta for notice in reported if notice is not None and not notice.scheduled.rehearsal]
    assert left == [70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 10.0]


def test_what_adds_nothing_is_left_out_of_the_combination(tmp_path: Path) -> None:
    trial, variants = clock(tmp_path, 10_000, 2)
    other = replace(variants[0], changes=(Change("threads"),))
    judgements = trial.conduct(0, variants)
    best = judgements[1]
    also = replace(judgements[0], variant=other, verdict=TrialVerdict.ADOPT, speed=best.speed)
    assert combine(trial, (best, also)) == best.variant
    assert {run.stage for run in trial.runs} == {0, 1}


def test_edits_that_are_tried_as_they_are_written_go_into_the_combination(tmp_path: Path) -> None:
    trial, (first, *_) = clock(tmp_path, 10_000, 2)
    written = Variant("RM106", (), "RM106", sources=(("train.py", "pass"),))
    both = together(written, first)
    assert (both.changes, both.sources) == (first.changes, written.sources)
    assert not written.rivals(first)
    assert written.rivals(replace(written, name="RM310"))
    best, also = (
        Judgement(each, TrialVerdict.ADOPT, Agreement.SAME_BITS, "", speed)
        for each, speed in ((written, Estimate(2.0, 1.9, 2.1, 3, "1")), (first, Estimate(1.5, 1.4, 1.6, 3, "1")))
    )
    combine(trial, (best, also))
    machine = trial._executor
    assert isinstance(machine, FakeMachine)
    assert {scheduled.variant.sources for scheduled in machine.turns if scheduled.stage == 1} == {written.sources}


def test_changes_that_somebody_handed_in_are_all_rehearsed_before_any_is_timed(tmp_path: Path) -> None:
    handed = tuple(Variant(f"diff-{number}", sources=(("train.py", str(number)),)) for number in range(1, 5))
    trial, _ = clock(tmp_path, 155, 1)
    judgements = trial.conduct(0, handed)
    order = [run.variant for run in trial.runs]
    first = next(number for number, run in enumerate(trial.runs) if not run.rehearsal)
    assert {each.name for each in handed} <= set(order[:first])
    timed = [run.variant for run in trial.runs if not run.rehearsal]
    assert timed, "the budget pays for one of them"
    assert all(each.sentence != "The budget ended before its turn" for each in judgements)
    assert "too short for 1 round of" in judgements[0].sentence


def test_what_somebody_handed_in_is_judged_by_itself_though_it_changes_the_same_file() -> None:
    one, other = (Variant(f"diff-{number}", sources=(("train.py", str(number)),)) for number in (1, 2))
    assert not one.rivals(other)
    assert replace(one, proposal="RM305").rivals(replace(other, proposal="RM306"))
