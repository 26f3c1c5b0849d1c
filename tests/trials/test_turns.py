"""Processes of a round take turns: one runs, the others stand still, and what cannot be stopped runs alone."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import psutil
import pytest
from hypothesis import given, strategies as st
from patience import PATIENCE
from trials.shared_machine import run
from trials.test_step_times import MS, timeline

from steptime.changes import VariantOptions
from steptime.intervals import measure, union
from steptime.launcher.turns import CannotAlternateError, Turns, TurnsEndedError, stamps_in
from steptime.launcher.variant import VariantPlace, end_job, start_kept
from steptime.quantities import Estimate
from steptime.trials import execute, executor
from steptime.trials.containment import Workspace, leave
from steptime.trials.execute import ScheduledRun, turn_times
from steptime.trials.executor import LocalExecutor
from steptime.trials.judge import comparisons_of, judge, speed_up
from steptime.trials.trial import (
    AS_IT_IS,
    BASELINE,
    CONTROL,
    MAX_ROUNDS,
    MIN_ROUNDS,
    Run,
    TrialVerdict,
    Variant,
    in_turns,
    processes_of,
)

JOB = """
    import signal
    import sys
    import torch

    if "fragile" in sys.argv:
        signal.signal(signal.SIGCONT, lambda *_: sys.exit("I was stopped"))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100_000):
        loss = model(torch.randn(64, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


DEVICE = """
    import queue
    import threading
    import time
    import types
    import torch

    from steptime.probe import identity
    from steptime.probe.changes import parity, variant

    work = queue.Queue(40)

    def device():
        while True:
            work.get()
            begin = time.perf_counter_ns()
            time.sleep(0.003)
            print("WORKED", begin, time.perf_counter_ns())
            work.task_done()

    threading.Thread(target=device, daemon=True).start()
    identity.device_of = lambda modules: ("cuda", "a queue")
    variant._drain_of_device = lambda: work.join
    parity.device = types.SimpleNamespace(in_use=lambda: True, drained=work.join)
    torch.Tensor.__float__ = lambda tensor: (work.join(), tensor.item())[1]
"""
"""What works off a queue while the host runs ahead of it, as far as steptime lets it: it waits where a loss is read."""


def played(
    tmp_path: Path, runner: LocalExecutor, *words: str, job_text: str = JOB, steps: int = 400
) -> tuple[Workspace, list[Run]]:
    """A round of the job and its control, which take turns where they can."""
    job = tmp_path / "job"
    job.mkdir()
    (job / "train.py").write_text(textwrap.dedent(job_text))
    workspace = Workspace((sys.executable, "train.py", *words), tmp_path / "trial", job, keep=True)
    options = VariantOptions(steps, alternating=True)
    block = [ScheduledRun(variant, 0, 0, place, options) for place, variant in enumerate((AS_IT_IS, Variant(CONTROL)))]
    try:
        return workspace, list(runner.run(workspace, [block], lambda *_: None))
    finally:
        runner.close()
        leave(workspace)


@pytest.mark.parametrize("host", [pytest.param(None, marks=pytest.mark.slow), 1])
def test_no_step_of_one_is_taken_while_another_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: int | None
) -> None:
    """They start one by one, or at the same time."""
    pytest.importorskip("torch")
    monkeypatch.setattr(executor, "usable_cpus", lambda: 2)
    monkeypatch.setattr(executor, "SPARE", 1 << 62)  # no second server for a round that does not follow
    workspace, runs = played(tmp_path, LocalExecutor(alternating=True, host=host, forking=True))
    assert [(run.variant, run.failure, run.alternated) for run in runs] == [(BASELINE, "", True), (CONTROL, "", True)]
    first, second = (_running(workspace, run) for run in runs)
    assert not measure(first, second.start, second.end).any()
    began = [_stamps(workspace, run) for run in runs]
    assert max(each[0] for each in began) < min(each[3] for each in began), "all have started before one goes on"
    assert all(0 < len(run.step_ns) < 400 for run in runs), "those that held a rest are left out"
    assert all(sum(run.turns) == len(run.step_ns) and len(run.turns) > 1 for run in runs)
    assert all(run.turns[0] == 0 for run in runs), "others may have started meanwhile"


def _running(workspace: Workspace, run: Run):  # type: ignore[no-untyped-def]
    """When a process was at its steps behind its first rest: from where it went on to where it rested again."""
    stamps = _stamps(workspace, run)
    return union(stamps[3:-1:2], stamps[4::2])


def _stamps(workspace: Workspace, run: Run):  # type: ignore[no-untyped-def]
    return np.array(stamps_in(workspace.folder / "variants" / run.folder / "rests"), np.int64)


@pytest.mark.slow
def test_what_bears_no_stop_is_run_alone_from_there_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    runner = LocalExecutor(alternating=True)
    _, runs = played(tmp_path, runner, "fragile")
    assert [(run.variant, run.failure, run.alternated) for run in runs] == [(BASELINE, "", False), (CONTROL, "", False)]
    assert not runner.alternating


def test_a_job_on_a_device_rests_when_the_device_has_done_its_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has launched would go on next to the next one's."""
    pytest.importorskip("torch")
    monkeypatch.setattr(executor, "SLICE", 0.03)
    monkeypatch.setattr(executor, "SPARE", 1 << 62)  # no second server for a round that does not follow
    text = textwrap.dedent(DEVICE) + textwrap.dedent(JOB) + "    work.put(None)\n"
    workspace, runs = played(tmp_path, LocalExecutor(alternating=True, forking=True), job_text=text, steps=150)
    assert [(run.variant, run.failure, run.alternated) for run in runs] == [(BASELINE, "", True), (CONTROL, "", True)]
    first, second = (_running(workspace, run) for run in runs)
    assert not measure(first, second.start, second.end).any()
    assert all(0 < len(run.step_ns) < 150 for run in runs), "those that held a rest are left out"
    first, second = (_worked(workspace, run) for run in runs)
    assert len(first.start) > 75 < len(second.start)
    assert not measure(first, second.start, second.end).any()
    for each in runs:
        stamps = stamps_in(workspace.folder / "variants" / each.folder / "rests")
        assert len(stamps) > 8
        assert len(stamps) % 2 == 0
        assert fmean(each.step_ns) > 2.9 * MS, "a step is as long as its work, however far the host runs ahead"


def _worked(workspace: Workspace, run: Run):  # type: ignore[no-untyped-def]
    """When its device was at work."""
    message = (workspace.folder / "variants" / run.folder / "output.log").read_text().split("\n")
    times = np.array([line.split()[1:] for line in message if line.startswith("WORKED ")], np.int64)
    return union(times[:, 0], times[:, 1])


def test_a_job_is_not_asked_to_rest_where_nobody_waits_any_more(tmp_path: Path) -> None:
    turns, here = Turns(0.0), Path("/proc/self/ns/pid").stat().st_ino
    first, second = turns.turn(), turns.turn()
    job = subprocess.Popen(["sleep", "600"])
    first.starts(os.getpid(), tmp_path)
    (tmp_path / "warm").write_text(f"{job.pid}\n{here}\n1\n")
    (tmp_path / "rests").write_text("1\n2\n")
    assert not first.over(tmp_path), "it has not answered"
    assert (tmp_path / "rest-request").exists()
    second.leave()
    assert not first.over(tmp_path)
    assert not (tmp_path / "rest-request").exists()
    job.kill()
    job.wait()


def test_a_job_in_another_namespace_is_not_stopped_nor_what_is_none_of_the_jobs(tmp_path: Path) -> None:
    turns, here = Turns(0.1), Path("/proc/self/ns/pid").stat().st_ino
    first, _ = turns.turn(), turns.turn()
    first.starts(os.getpid(), tmp_path)
    assert not first.over(tmp_path), "it is not warm"
    (tmp_path / "warm").write_text("1\n")
    assert not first.over(tmp_path), "the mark is not whole"
    for message in ("2\n1\n", f"-1\n{here}\n", f"{1 << 80}\n{here}\n", f"{os.getpid()}\n{here}\n", f"1\n{here}\n"):
        (tmp_path / "warm").write_text(f"{message}0\n")
        with pytest.raises(CannotAlternateError):
            first.over(tmp_path)
    turns.end()
    with pytest.raises(TurnsEndedError):
        first.over(tmp_path)


def test_what_has_left_its_job_stands_still_with_it(tmp_path: Path) -> None:
    """A process in a session of its own, whose parent has ended."""
    leaving = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork():\n        os._exit(0)\n"
    leaving += "    open('daemon', 'w').write(str(os.getpid()) + '.')\n    time.sleep(600)\ntime.sleep(600)"
    turns = Turns(0.01)
    first, second = turns.turn(), turns.turn()
    job = start_kept(VariantPlace(tmp_path), (sys.executable, "-c", leaving), os.environ, subprocess.DEVNULL, 2)
    until = time.monotonic() + PATIENCE
    while not (tmp_path / "daemon").exists() or not (tmp_path / "daemon").read_text().endswith("."):
        assert time.monotonic() < until
        time.sleep(0.01)
    daemon = psutil.Process(int((tmp_path / "daemon").read_text()[:-1]))
    try:
        first.starts(job.pid, tmp_path)
        seen = []

        def other() -> None:
            second.start()
            until = time.monotonic() + PATIENCE  # a signal is taken when its process runs next
            while daemon.status() != psutil.STATUS_STOPPED and time.monotonic() < until:
                time.sleep(0.001)
            seen.append((daemon.status(), psutil.Process(job.pid).status() == psutil.STATUS_STOPPED))
            second.leave()

        thread = threading.Thread(target=other)
        thread.start()
        first.rest()
        thread.join()
        assert seen == [(psutil.STATUS_STOPPED, False)], "a keeper that is stopped could end nothing"
        assert daemon.status() != psutil.STATUS_STOPPED
    finally:
        end_job(job)
    assert not daemon.is_running()


def test_a_rest_between_two_steps_is_nobodys_time_and_the_short_ones_behind_it_do_not_count() -> None:
    stamps = [49 * MS, 50 * MS, 100 * MS, 104 * MS, 150 * MS, 162 * MS, 200 * MS, 200 * MS]
    times, turns = turn_times(timeline(20, []), 5, stamps)
    assert times == [10 * MS] * (10 - 3 - 4)
    assert sum(turns) == len(times)
    assert len(turns) == len(stamps) // 2


def test_a_long_step_counts_without_the_rest_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "LONG", 6 * MS)
    times, turns = turn_times(timeline(20, []), 5, [50 * MS, 50 * MS, 100 * MS, 104 * MS])
    assert times == [10 * MS] * 5 + [6 * MS] + [10 * MS] * 9
    assert turns == (5, 10)


def test_turns_are_compared_in_pairs_so_that_what_the_machine_does_to_both_is_no_noise() -> None:
    pace = np.repeat(np.exp(np.random.default_rng(3).normal(0, 0.7, 20)), 2)
    base, faster = (tuple((each * MS * pace).astype(int).tolist()) for each in (10, 8))
    runs = []
    for number in range(2):
        for place, (name, steps) in enumerate(((BASELINE, base), ("RM1", faster[:30]), (CONTROL, base))):
            made = run(name, 3 * number + place, steps, round=number, alternated=True)
            runs.append(replace(made, turns=(2,) * (len(steps) // 2)))
    found = speed_up(comparisons_of("RM1", runs), comparisons_of(CONTROL, runs))
    assert found.low == pytest.approx(1.25, rel=1e-6)
    assert found.high == pytest.approx(1.25, rel=1e-6)


def test_what_stalls_now_and_then_is_no_faster_in_pairs() -> None:
    """A mean of ratios would call it 1.10 times as fast."""
    base, stalling = (10 * MS,) * 40, (8 * MS, 8 * MS, 8 * MS, 16 * MS) * 10
    made = [
        replace(run(name, place, steps, alternated=True), turns=(1,) * 40)
        for place, (name, steps) in enumerate(((BASELINE, base), ("RM1", stalling)))
    ]
    assert [each.log_ratio() for each in comparisons_of("RM1", made)] == [pytest.approx(0.0)]


def test_a_run_is_compared_with_the_baseline_of_its_own_round() -> None:
    def round_of(number: int, base: int) -> list[Run]:
        names = (BASELINE, "RM1", CONTROL)
        return [
            run(name, 3 * number + place, [base] * 30, round=number, alternated=True)
            for place, name in enumerate(names)
        ]

    runs = [*round_of(0, 10 * MS), *round_of(1, 20 * MS)]
    assert [float(each.log_ratio()) for each in comparisons_of("RM1", runs)] == [0.0, 0.0]
    alone = [run(BASELINE, 6, [5 * MS] * 30, round=2), run("RM1", 7, [5 * MS] * 30, round=2)]
    assert len(comparisons_of("RM1", [*runs, *alone])) == 2, "no baseline is behind it yet"


@given(st.integers(1, 12), st.booleans())
def test_a_round_in_turns_has_one_baseline_and_a_control(count: int, reverse: bool) -> None:
    going = [Variant(f"RM{number}") for number in range(count)]
    names = _names(in_turns(going, Variant(BASELINE), Variant(CONTROL), reverse=reverse))
    assert names[-1 if reverse else 0] == BASELINE
    assert sorted(names) == sorted([BASELINE, CONTROL, *(variant.name for variant in going)])
    assert len(names) == processes_of(count, alternating=True)


def _names(variants: Sequence[Variant]) -> list[str]:
    return [variant.name for variant in variants]


FEW = Variant("diff-1", command=("python", "other.py"), speed_alone=True)


def in_pairs(seed: int, gain: float, rounds: int = MAX_ROUNDS) -> list[Run]:
    """Rounds of a machine whose pace changes by a third from turn to turn, of processes that differ by 2 %."""
    draw, runs = np.random.default_rng(seed), list[Run]()
    for number in range(rounds):
        pace = draw.normal(0, 0.3, 24)
        for name in (BASELINE, FEW.name, CONTROL):
            own = draw.normal(0, 0.02) - np.log(gain if name == FEW.name else 1.0)
            steps = 40 * MS * np.exp(own + np.repeat(pace, 3) + draw.normal(0, 0.03, 72))
            made = run(name, len(runs), steps.astype(int).tolist(), round=number, seed=number, alternated=True)
            runs.append(replace(made, turns=(3,) * 24))
    return runs


def decided(runs: list[Run]) -> tuple[TrialVerdict, Estimate, int]:
    """As a trial ends: looked at after each round, until it is decided."""
    for rounds in range(MIN_ROUNDS, MAX_ROUNDS + 1):
        found = judge(FEW, [each for each in runs if each.round < rounds])
        if found.verdict is not TrialVerdict.UNDECIDED:
            break
    assert found.speed is not None
    return found.verdict, found.speed, rounds


def test_a_job_against_itself_in_turns_is_never_faster_and_a_gain_is_seen_at_once() -> None:
    nothing = [decided(in_pairs(seed, 1.0)) for seed in range(20)]
    assert {verdict for verdict, _, _ in nothing} <= {TrialVerdict.UNDECIDED, TrialVerdict.NO_EFFECT}
    assert sum(speed.low <= 1 <= speed.high for _, speed, _ in nothing) >= 18
    gain = [decided(in_pairs(seed, 1.14)) for seed in range(6)]
    assert {verdict for verdict, _, _ in gain} == {TrialVerdict.ADOPT}
    assert all(speed.low <= 1.14 <= speed.high and rounds <= 5 for _, speed, rounds in gain)
