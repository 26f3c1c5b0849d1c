"""Variants on a Ray cluster, and in the lanes that run them there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE

from steptime.advice.fix import Promise
from steptime.changes import Change, VariantOptions
from steptime.errors import SteptimeError, UsageError
from steptime.trials import conduct
from steptime.trials.cluster import ClusterReply, Order, answer, decode, encode
from steptime.trials.conduct import TrialRunner
from steptime.trials.containment import Workspace
from steptime.trials.execute import ScheduledRun
from steptime.trials.results import Plan, append_result, read_results
from steptime.trials.trial import BASELINE, CONTROL, TrialVerdict, Variant
from steptime.trials.working_copy import Outputs

pytest.importorskip("torch")

JOB = """
    import os
    with open({note!r}, "a") as note:
        note.write(f"{{os.getpid()}} {{os.environ.get('CUDA_VISIBLE_DEVICES')}} {{os.environ.get('MINE')}}\\n")
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({steps}):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def note_of(tmp_path: Path) -> Path:
    """Shared memory, the one place on this machine that a process of a trial writes to for good."""
    return Path("/dev/shm") / f"steptime-test-{os.getpid()}-{tmp_path.name}"


@pytest.fixture(autouse=True)
def _no_notes(tmp_path: Path) -> Iterator[None]:
    yield
    note_of(tmp_path).unlink(missing_ok=True)


def workspace(tmp_path: Path, steps: int = 10**9) -> Workspace:
    job, folder = tmp_path / "job", tmp_path / "trial"
    job.mkdir()
    folder.mkdir()
    (job / "train.py").write_text(textwrap.dedent(JOB).format(note=str(note_of(tmp_path)), steps=steps))
    return Workspace((sys.executable, "train.py"), folder, job)


def notes(tmp_path: Path) -> list[list[str]]:
    """(pid, devices, MINE) of the processes of the job."""
    path = note_of(tmp_path)
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def gone(pid: int) -> bool:
    for _ in range(1200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_an_order_and_its_answer_survive_the_pipe(tmp_path: Path) -> None:
    variant = Variant("RM101", (Change("loader", arguments=(("num_workers", 2),)),), promise=Promise.SAME_CURVE)
    order = Order(
        Workspace(("python",), tmp_path, tmp_path, Outputs(frozenset({Path("a")}), frozenset()), (tmp_path / "b",)),
        ScheduledRun(variant, 1, 2, 3, VariantOptions(5), until_epoch=7.0),
    )
    assert decode(encode(order), Order) == order
    reported = ClusterReply(refusal=("no-room", "none"))
    assert decode(encode(reported), ClusterReply) == reported


def test_a_folder_that_a_machine_of_the_cluster_does_not_have_is_reported(tmp_path: Path) -> None:
    here = Workspace(("python",), tmp_path / "trial", tmp_path / "gone")
    reported = answer(Order(here, ScheduledRun(Variant(BASELINE), 0, 0, 0, VariantOptions(5))))
    assert reported.refusal is not None
    assert reported.refusal[0] == "folder-gone"
    assert "share" in reported.refusal[1]


@pytest.mark.parametrize("shell", [[], ["sh", "-c", 'trap "" INT; exec "$0" "$@"']], ids=["alone", "in the background"])
def test_a_lane_whose_pipe_ends_takes_its_job_with_it(tmp_path: Path, shell: list[str]) -> None:
    order = Order(workspace(tmp_path), ScheduledRun(Variant(BASELINE), 0, 0, 0, VariantOptions(10**9)))
    worker = subprocess.Popen(
        [*shell, sys.executable, "-m", "steptime.trials.cluster"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert worker.stdin is not None
    worker.stdin.write(encode(order))
    worker.stdin.flush()
    for _ in range(1200):
        if notes(tmp_path):
            break
        time.sleep(0.05)
    worker.stdin.close()
    assert worker.wait(PATIENCE) in (0, 130)
    assert worker.stdout is not None
    worker.stdout.close()
    assert gone(int(notes(tmp_path)[0][0]))
    assert not (tmp_path / "trial" / "copies").exists()


def test_without_ray_the_option_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from steptime.trials.cluster import RayExecutor

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'steptime\[ray\]'.*\(ray-missing\)"):
        RayExecutor(0)


@pytest.fixture
def ray() -> Iterator[Any]:
    """A real Ray on this machine that believes in two accelerators."""
    module = pytest.importorskip("ray", reason="Ray is not installed")
    from steptime.clusters import _start_own

    _start_own(module, {"num_cpus": 2, "num_gpus": 2, "log_to_driver": False, "logging_level": "ERROR"})
    yield module
    module.shutdown()


def listening() -> set[str]:
    """Addresses, other than loopback, at which a process of this user's Ray listens."""
    import psutil

    ours = {process.pid for process in psutil.Process().children(recursive=True)}
    found = [each for each in psutil.net_connections("inet") if each.pid in ours and each.status == psutil.CONN_LISTEN]
    return {each.laddr.ip for each in found} - {"127.0.0.1", "::1", "::ffff:127.0.0.1"}  # type: ignore[union-attr]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_real_ray_runs_every_variant_on_a_device_of_its_own(
    ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from steptime.trials.cluster import RayExecutor

    monkeypatch.setenv("MINE", "yes")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(conduct, "MAX_ROUNDS", 2)
    monkeypatch.setattr(conduct, "SECONDS", 0.1)
    variant = Variant("env", (Change("environment", arguments=(("NOTHING", "1"),)),), "RM999")
    plan = Plan((sys.executable, "train.py"), str(tmp_path / "job"), "", (variant,), 0.03)
    where = workspace(tmp_path)
    append_result(where.folder, plan=plan)
    executor = RayExecutor(1)
    try:
        assert executor.width == 2
        assert not listening()
        trial = TrialRunner(where, plan, executor=executor)
        (judgement,) = trial.conduct(0, (variant,))
    finally:
        executor.close()
    assert judgement.verdict in {TrialVerdict.NO_EFFECT, TrialVerdict.UNDECIDED, TrialVerdict.SLOWER}
    timed = [run for run in trial.runs if not run.rehearsal]
    assert len({run.place for run in timed}) == 2
    for run in timed:
        here = sorted(
            (each.position, each.variant) for each in timed if (each.place, each.round) == (run.place, run.round)
        )
        assert [name for _, name in here] in (
            [BASELINE, "env", CONTROL, BASELINE],
            [BASELINE, CONTROL, "env", BASELINE],
        )
    assert {(devices, mine) for _, devices, mine in notes(tmp_path)} == {("0", "yes"), ("1", "yes")}
    assert read_results(where.folder).runs == tuple(trial.runs)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_interrupted_trial_leaves_no_job_on_the_cluster(ray: Any, tmp_path: Path) -> None:
    from steptime.trials.cluster import RayExecutor

    executor = RayExecutor(1)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    scheduled = ScheduledRun(Variant(BASELINE), 0, 0, 0, VariantOptions(10**9, limit_seconds=10**6))
    signal.setitimer(signal.ITIMER_REAL, 15.0)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(executor.run(workspace(tmp_path), [[scheduled]], lambda *_: None))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        executor.close()
    assert gone(int(notes(tmp_path)[0][0]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_lane_that_is_lost_ends_the_trial_with_a_sentence(ray: Any, tmp_path: Path) -> None:
    from steptime.trials.cluster import RayExecutor

    executor = RayExecutor(1)
    scheduled = ScheduledRun(Variant(BASELINE), 0, 0, 0, VariantOptions(10**9, limit_seconds=10**6))
    workers = dict(executor._workers)

    def lose(*_: object) -> None:
        for worker in workers.values():
            ray.kill(worker)

    try:
        with pytest.raises(SteptimeError, match="worker-lost"):
            list(executor.run(workspace(tmp_path), [[scheduled]], lose))
    finally:
        executor.close()
    assert json.dumps(notes(tmp_path)) == "[]"
