"""A variant ends at its step with status 0, from the same seeds, and leaves what it computed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from probe.variants import JOBS, STEPS, ZOO, Variant, change, run

from steptime.analysis.layout import lay_out
from steptime.changes import Change
from steptime.trials.execute import gradients_of

torch = pytest.importorskip("torch")

IMAGES, BLOCKS = JOBS / "images.py", JOBS / "blocks.py"
WORKERS_THAT_ARE_MISSED = """
import multiprocessing, signal, time, torch

def missed(*_):
    raise RuntimeError("DataLoader worker is killed by signal: Killed.")

class Worker(multiprocessing.get_context("fork").Process):
    def kill(self):
        super().kill()
        self.join()  # so that its end is heard of at once

signal.signal(signal.SIGCHLD, missed)
Worker(target=time.sleep, args=(60,), daemon=True).start()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(64):
    loss = model(torch.ones(2, 4)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_it_ends_at_its_step_without_the_jobs_own_end(tmp_path: Path) -> None:
    variant = run(tmp_path, IMAGES)
    whole = run(tmp_path, IMAGES, variant=None)
    assert variant.status == whole.status == 0
    assert len(variant.seen) == STEPS.warm_up + STEPS.steps - 1  # the last step ends before its line is printed
    assert len(whole.seen) == 64
    assert "the job's own end" in whole.output
    assert "the job's own end" not in variant.output
    values = [each["value"] for each in whole.seen]
    parity = variant.process.parity
    assert parity is not None
    assert parity.step.tolist() == list(range(1, STEPS.warm_up + STEPS.steps + 1))
    assert parity.loss.tolist() == values[: STEPS.warm_up + STEPS.steps]
    assert parity.backwards.tolist() == [1] * 8
    assert (parity.peak_bytes > 1e6).all()
    assert len(lay_out(variant.process).steps.end) == 8
    assert variant.process.notes == ()
    assert whole.process.parity is None


def test_the_same_seeds_twice_and_others_with_an_offset(tmp_path: Path) -> None:
    first, again = run(tmp_path, IMAGES), run(tmp_path, IMAGES)
    other = run(tmp_path, IMAGES, variant=replace(STEPS, seed_offset=1))
    assert first.losses == again.losses
    assert [each["random"] for each in first.seen] == [each["random"] for each in again.seen]
    assert not set(first.losses) & set(other.losses)
    assert first.seen[0]["random"] != other.seen[0]["random"]


def test_gradient_norms_are_those_before_clipping_and_without_the_scale(tmp_path: Path) -> None:
    variant = run(tmp_path, BLOCKS)
    parity = variant.process.parity
    assert parity is not None
    assert len(parity.gradients) == STEPS.fingerprint_steps
    for line, gradients in zip(variant.seen, parity.gradients, strict=False):
        norms = dict(gradients)
        assert norms["head.weight"] == pytest.approx(line["norm"], rel=1e-6)
        assert len(norms) == 14
    assert torch.isfinite(torch.tensor(parity.norm)).tolist() == [True] * 7 + [False]
    assert parity.loss.tolist()[:7] == [each["value"] for each in variant.seen]


def test_time_that_is_up_ends_it_too(tmp_path: Path) -> None:
    variant = run(tmp_path, BLOCKS, variant=replace(STEPS, steps=1000, limit_seconds=0.0))
    assert variant.status == 0
    assert variant.process.parity is not None
    assert variant.process.parity.step.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("name", "backwards"),
    [
        ("lbfgs", 5),
        ("manual_update", 1),
        pytest.param("optimizer_in_backward", 1, marks=pytest.mark.slow),
        pytest.param("nested_optimizers", 1, marks=pytest.mark.slow),
    ],
)
def test_steps_of_other_shapes(tmp_path: Path, name: str, backwards: int) -> None:
    variant = run(tmp_path, ZOO / f"{name}.py")
    parity = variant.process.parity
    assert variant.status == 0
    assert parity is not None
    assert set(parity.backwards.tolist()[2:]) == {backwards}
    assert parity.step.tolist() == list(range(1, 9))
    assert torch.isfinite(torch.tensor(parity.norm)).any()
    assert torch.isfinite(torch.tensor(parity.loss.tolist())).all()


@pytest.mark.parametrize("name", ["threads", pytest.param("rollouts", marks=pytest.mark.slow)])
def test_a_loop_outside_of_the_main_thread_and_rollouts_before_the_first_training(tmp_path: Path, name: str) -> None:
    variant = run(tmp_path, ZOO / f"{name}.py", change("autocast"))
    parity = variant.process.parity
    assert variant.status == 0
    assert parity is not None
    assert set(parity.backwards.tolist()[2:]) == {1}
    assert variant.change("autocast").exercised


def test_a_parent_that_waits_for_its_trainers_results_ends_with_them(tmp_path: Path) -> None:
    variant = run(tmp_path, ZOO / "spawned.py")
    assert variant.status == 0
    steps = [process.parity.step.tolist() for process in variant.recording.processes if process.parity is not None]
    assert steps == [list(range(1, 9))] * 2


def test_ranks_end_together_and_their_parent_sees_success(tmp_path: Path) -> None:
    variant = run(tmp_path, ZOO / "distributed.py", change("ddp", bucket_cap_mb=1), words=TORCHRUN)
    assert variant.status == 0, variant.output
    assert len(variant.recording.processes) == 2
    for process in variant.recording.processes:
        assert process.parity is not None
        assert process.parity.step.tolist() == list(range(1, 9))
        assert process.changes[0].exercised, process.changes


def test_replicas_are_split_over_the_ranks_and_train_the_same(tmp_path: Path) -> None:
    """ZeroRedundancyOptimizer: half of AdamW's state in each rank; fully_shard: half of the weights, too. An optimizer
    that holds the weights from before is found out."""
    job, words = JOBS / "replicated.py", TORCHRUN
    plain = run(tmp_path, job, words=words)
    whole = plain.seen[-1]
    for kind, weights in (("shard-optimizer", 1.0), ("shard-model", 0.5)):
        variant = run(tmp_path, job, Change(kind), words=words)
        assert variant.status == plain.status == 0, variant.output
        kept = {(each["state"], each["weights"]) for each in variant.seen[-2:]}
        assert max(state for state, _ in kept) < 0.7 * whole["state"]
        assert max(each for _, each in kept) == pytest.approx(weights * whole["weights"], rel=0.1)
        for process, before in zip(variant.recording.processes, plain.recording.processes, strict=True):
            assert process.changes[0].exercised, process.changes
            assert process.parity is not None
            assert before.parity is not None
            assert process.parity.loss == pytest.approx(before.parity.loss, rel=1e-4)
            assert process.parity.backwards.tolist() == before.parity.backwards.tolist()
        ranks = [each.parity for each in variant.recording.processes if each.parity is not None]
        norms, whole_norms = (
            [value for _, value in gradients_of(ranks, each.recording.processes[0])[0]] for each in (variant, plain)
        )
        assert norms
        assert norms == pytest.approx(whole_norms, rel=1e-3), "of all parts of a gradient"
    late = run(tmp_path, job, Change("shard-model"), words=words, given=("early",))
    found = {(each.exercised, each.detail) for process in late.recording.processes for each in process.changes}
    assert found == {(False, "the optimizer was made before the model was sharded")}


@pytest.mark.parametrize(
    ("way", "setting"),
    [
        ("", "prefetch"),
        pytest.param("", "keep", marks=pytest.mark.slow),
        pytest.param("wrapped", "keep", marks=pytest.mark.slow),
    ],
)
def test_a_sharded_model_computes_the_same_with_its_parameters_kept_or_asked_for_early(
    tmp_path: Path, way: str, setting: str
) -> None:
    job, words = JOBS / "sharded.py", TORCHRUN
    plain = run(tmp_path, job, words=words, given=(way,))
    variant = run(tmp_path, job, Change("sharding", "", ((setting, True),)), words=words, given=(way,))
    assert variant.status == plain.status == 0, variant.output
    assert variant.seen[-1][setting]
    assert not plain.seen[-1][setting]
    assert len(variant.recording.processes) == 2
    for process, before in zip(variant.recording.processes, plain.recording.processes, strict=True):
        assert process.changes[0].exercised, process.changes
        assert process.parity is not None
        assert before.parity is not None
        assert process.parity.loss.tolist() == before.parity.loss.tolist()
        assert len(process.parity.loss) == 8


def test_ranks_whose_time_is_up_end_at_one_step(tmp_path: Path) -> None:
    variant = run(
        tmp_path, ZOO / "distributed.py", variant=replace(STEPS, steps=1000, limit_seconds=0.0), words=TORCHRUN
    )
    assert variant.status == 0, variant.output
    steps = [process.parity.step.tolist()[-1] for process in variant.recording.processes if process.parity is not None]
    assert len(steps) == 2
    assert steps[0] == steps[1] < 40


def test_the_end_of_its_workers_is_no_failure_of_the_job(tmp_path: Path) -> None:
    """torch raises in the main thread when a worker is killed, which its own end does."""
    script = tmp_path / "train.py"
    script.write_text(WORKERS_THAT_ARE_MISSED)
    variant = run(tmp_path, script)
    assert (variant.status, variant.process.notes) == (0, ()), variant.output


def test_workers_of_a_loader_do_not_hold_the_output_open(tmp_path: Path) -> None:
    """`run` reads to the end of the output, which workers would keep open for five seconds after their parent."""
    variant = run(tmp_path, ZOO / "accumulation_scaler.py", variant=replace(STEPS, steps=3))
    assert variant.status == 0
    parity = variant.process.parity
    assert parity is not None
    assert parity.step.tolist() == [1, 2, 3, 4, 5]
    assert parity.backwards.tolist() == [4] * 5
    assert parity.loss.tolist()[2] == float("inf")  # the third step overflows, and JSON has no infinity


@pytest.mark.slow
def test_dead_gradients_of_compiled_code_are_seen(tmp_path: Path) -> None:
    """torch 2.13 compiles this network for a CPU, at batches of 64, into one whose convolutions learn nothing; its loss
    is right."""
    script = tmp_path / "job.py"
    script.write_text(DIGITS)
    still = replace(STEPS, steps=2, dropout=False)
    plain, variant = run(tmp_path, script, variant=still), run(tmp_path, script, change("compile"), variant=still)
    assert variant.change("compile").exercised, variant.change("compile")
    assert variant.losses[0] == pytest.approx(plain.losses[0], rel=1e-4)
    norms, expected = _norms(variant), _norms(plain)
    assert min(value for value in expected.values() if value is not None) > 0
    dead = {name for name, value in norms.items() if not value}
    if torch.__version__.startswith("2.13.0"):
        assert dead == {"first.weight", "first.bias", "second.weight", "second.bias"}
    else:
        assert norms == pytest.approx(expected, rel=0.01)


def _norms(variant: Variant) -> dict[str, float | None]:
    parity = variant.process.parity
    assert parity is not None
    return dict(parity.gradients[0])


DIGITS = """
import torch
from torch import nn
from torch.nn import functional

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.third, self.fourth = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, given):
        given = functional.relu(self.second(functional.relu(self.first(given))))
        given = torch.flatten(functional.max_pool2d(given, 2), 1)
        return functional.log_softmax(self.fourth(functional.relu(self.third(given))), 1)

torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(50):
    optimizer.zero_grad()
    functional.nll_loss(net(torch.randn(64, 1, 28, 28)), torch.randint(0, 10, (64,))).backward()
    optimizer.step()
"""
