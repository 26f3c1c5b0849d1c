"""Each change is really in force in the job, seen from inside; and where it cannot be, the recording says why."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from probe.variants import JOBS, STEPS, ZOO, Variant, change, run

pytest.importorskip("torch")

IMAGES, BLOCKS = JOBS / "images.py", JOBS / "blocks.py"
STILL = replace(STEPS, dropout=False)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """The job without changes."""
    return run(tmp_path_factory.mktemp("images"), IMAGES)


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """The same without dropout: other layouts, and compiled code, draw its masks in another order."""
    return run(tmp_path_factory.mktemp("still"), IMAGES, variant=STILL)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    """The job without changes."""
    return run(tmp_path_factory.mktemp("blocks"), BLOCKS)


def test_workers_are_those_of_the_training_loader_and_the_numbers_stay_the_same(
    tmp_path: Path, images: Variant
) -> None:
    variant = run(
        tmp_path,
        IMAGES,
        change("loader", num_workers=2, prefetch_factor=3, pin_memory=True),
        change("optimizer", foreach=True),
        change("gc-freeze"),
        change("environment", STEPTIME_TEST_VARIABLE=7),
    )
    assert images.seen[-1]["workers"] == [0, 0]
    assert images.seen[-1]["foreach"] is None
    assert not images.seen[-1]["frozen"]
    assert variant.seen[-1]["workers"] == [2, 0]
    assert variant.seen[-1]["foreach"] is True
    assert variant.seen[-1]["frozen"]
    assert [each.workers for each in variant.process.loaders] == [2, 0]
    assert variant.process.loaders[0].prefetch_factor == 3
    assert variant.losses == images.losses
    assert all(each.exercised for each in variant.process.changes), variant.process.changes
    assert variant.change("loader").detail == "1 loader changed, 1 left alone"


def test_the_fused_optimiser_steps_and_more_threads_work(tmp_path: Path, images: Variant) -> None:
    variant = run(tmp_path, IMAGES, change("optimizer", fused=True), change("threads", intra_op=2))
    assert variant.seen[-1]["fused"] is True
    assert variant.process.optimizers[0].fused is True
    assert (images.seen[-1]["threads"], variant.seen[-1]["threads"]) == (1, 2)
    assert variant.losses == pytest.approx(images.losses, rel=1e-5)
    assert variant.change("optimizer").detail == "fused=True in 1 optimizer (AdamW)"
    assert variant.change("threads").exercised


def test_autocast_reaches_from_the_forward_over_the_loss_and_evaluations_stay_float32(
    tmp_path: Path, still: Variant
) -> None:
    variant = run(tmp_path, IMAGES, change("autocast", dtype="bfloat16"), change("channels-last"), variant=STILL)
    seen, before = variant.seen[-1], still.seen[-1]
    assert (before["dtype"], before["loss"]) == ("torch.float32", "torch.float32")
    assert (seen["dtype"], seen["loss"]) == ("torch.bfloat16", "torch.float32")  # cross_entropy is autocast to float32
    assert seen["evaluated"] == "torch.float32"
    assert (before["last"], before["weight_last"]) == (False, False)
    assert (seen["last"], seen["weight_last"]) == (True, True)
    assert variant.losses != still.losses
    assert variant.losses == pytest.approx(still.losses, rel=0.02)
    assert variant.change("autocast").exercised
    assert variant.change("channels-last").detail == "1 weight of convolutions"


def test_float16_is_trained_with_a_scaled_loss(tmp_path: Path, images: Variant) -> None:
    variant = run(tmp_path, IMAGES, change("autocast", dtype="float16"))
    parity, before = variant.process.parity, images.process.parity
    assert parity is not None
    assert before is not None
    assert variant.seen[-1]["dtype"] == "torch.float16"
    assert variant.change("autocast").detail == "float16 in 1 top module, 0 overflows"
    assert parity.loss == pytest.approx(before.loss, rel=0.02)
    assert parity.norm[:2] == pytest.approx(before.norm[:2], rel=0.02)


def test_a_cached_batch_comes_again_and_again_over_epochs(tmp_path: Path) -> None:
    variant = run(tmp_path, IMAGES, change("cached-batch"))
    sums = [each["batch"] for each in variant.seen]
    assert sums[0] != sums[1]
    assert set(sums[1:]) == {sums[1]}
    assert variant.change("cached-batch").exercised


def test_a_larger_batch_is_the_training_loaders_only(tmp_path: Path) -> None:
    variant = run(tmp_path, IMAGES, change("batch-size", size=32))
    assert variant.seen[-1]["sizes"] == [32, 16]
    assert variant.seen[-1]["size"] == 32
    lines = IMAGES.read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if "evaluation = DataLoader" in text)
    named = run(tmp_path, IMAGES, change("batch-size", site=f"{IMAGES}:{line}", size=64))
    assert named.seen[-1]["sizes"] == [8, 64]


def test_blocks_are_computed_again_and_switches_are_off(tmp_path: Path, blocks: Variant) -> None:
    variant = run(
        tmp_path,
        BLOCKS,
        change("checkpointing"),
        change("zero-grad"),
        change("gc-freeze"),
        change("anomaly-off"),
        change("deterministic-off"),
    )
    assert [blocks.seen[-1][name] for name in ("calls", "anomaly", "deterministic", "cleared")] == [
        3,
        True,
        True,
        False,
    ]
    assert [variant.seen[-1][name] for name in ("calls", "anomaly", "deterministic", "cleared")] == [
        6,
        False,
        False,
        True,
    ]
    assert variant.losses == blocks.losses
    assert all(each.exercised for each in variant.process.changes), variant.process.changes
    assert variant.change("checkpointing").detail == "3 blocks"
    assert len(variant.process.top_modules) == 1  # what is computed again in the backward is none


def test_what_cannot_be_exercised_says_why(tmp_path: Path, blocks: Variant) -> None:
    variant = run(
        tmp_path,
        BLOCKS,
        change("loader", num_workers=2),
        change("cached-batch"),
        change("channels-last"),
        change("ddp", static_graph=True),
        change("sharding", keep=True),
        change("matmul-precision"),
        change("cudnn-benchmark"),
        change("sdpa-backend", backend="math"),
        change("optimizer-8bit"),
        change("autocast", dtype="nonsense"),
        change("preload", "no-such-allocator"),
        change("unheard-of"),
    )
    details = {each.kind: each.detail for each in variant.process.changes if not each.exercised}
    assert len(details) == 12, variant.process.changes
    assert details["loader"] == details["cached-batch"] == "the job makes no DataLoader"
    assert details["channels-last"] == "no weight of a convolution"
    assert details["ddp"] == "the job makes no DistributedDataParallel"
    assert details["sharding"] == "the job shards no model"
    assert details["matmul-precision"] == "cpu has no TensorFloat-32"
    assert "nonsense" in details["autocast"]
    assert details["unheard-of"] == "this steptime has no such change"
    assert variant.losses == blocks.losses
    assert variant.status == 0


def test_both_roots_of_two_optimisers_are_under_autocast(tmp_path: Path) -> None:
    variant = run(tmp_path, ZOO / "gan.py", change("autocast"), change("optimizer", fused=True))
    assert variant.change("autocast").detail == "bfloat16 in 2 top modules"
    assert variant.change("optimizer").detail == "fused=True in 2 optimizers (Adam)"
    assert variant.process.parity is not None
    assert set(variant.process.parity.backwards.tolist()[2:]) == {3}  # the first cycle is not known as one


def test_a_loader_that_trains_in_order_is_known_by_its_line(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ANEW.replace(", shuffle=True", "").replace("batch_sampler=given.batch_sampler", "batch_size=4"))
    line = next(number for number, text in enumerate(script.read_text().splitlines(), 1) if "again = " in text)
    unknown = run(tmp_path, script, change("loader", num_workers=1))
    variant = run(tmp_path, script, change("loader", num_workers=1, site=f"/elsewhere/job.py:{line}"))
    assert unknown.change("loader").detail == "none of 2 DataLoaders is the one to change"
    assert [each.workers for each in variant.process.loaders] == [1]
    assert variant.change("loader").detail == "1 loader changed, 1 left alone"


def test_batches_of_workers_are_handed_over_in_another_way(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(HANDED_OVER)
    plain = run(tmp_path, script)
    variant = run(tmp_path, script, change("sharing-strategy", strategy="file_system"))
    assert [each.seen[-1]["shared"] for each in (plain, variant)] == ["file_descriptor", "file_system"]
    assert variant.losses == plain.losses
    reported = variant.change("sharing-strategy")
    assert (reported.exercised, reported.detail) == (True, "1 loader changed")
    already = run(tmp_path, script, change("sharing-strategy", strategy="file_descriptor"))
    reported = already.change("sharing-strategy")
    assert (reported.exercised, reported.detail) == (False, "tensors are shared by file_descriptor already")


def test_a_strategy_that_nothing_uses_or_that_the_job_sets_itself_is_not_exercised(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(HANDED_OVER.replace("num_workers=1", "num_workers=0"))
    alone = run(tmp_path, script, change("sharing-strategy", strategy="file_system")).change("sharing-strategy")
    assert (alone.exercised, alone.detail) == (False, "the loader has no workers")
    own = 'torch.multiprocessing.set_sharing_strategy("file_descriptor")'
    script.write_text(HANDED_OVER.replace('if __name__ == "__main__":', f'if __name__ == "__main__":\n    {own}'))
    reset = run(tmp_path, script, change("sharing-strategy", strategy="file_system")).change("sharing-strategy")
    assert (reset.exercised, reset.detail) == (False, "the job has set another strategy")


def test_an_iterable_dataset_gets_no_workers(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ITERABLE)
    variant = run(tmp_path, script, change("loader", num_workers=2))
    assert variant.change("loader").detail.startswith("an IterableDataset without workers")
    assert not variant.change("loader").applied


def test_a_loader_that_a_framework_makes_anew_counts_as_changed(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(ANEW)
    variant = run(tmp_path, script, change("loader", num_workers=1), change("batch-size", size=8))
    assert variant.change("loader").exercised, variant.change("loader")
    assert variant.change("batch-size").exercised
    assert [each.workers for each in variant.process.loaders] == [1]
    assert [each.batch_size for each in variant.process.loaders] == [8]


HANDED_OVER = """
import json, torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    batches = DataLoader(TensorDataset(torch.randn(400, 4)), batch_size=4, shuffle=True, num_workers=1)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        shared = torch.multiprocessing.get_sharing_strategy()
        print("SEEN " + json.dumps({"shared": shared}), flush=True)
"""

ANEW = """
import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    given = DataLoader(TensorDataset(torch.randn(400, 4)), batch_size=4, shuffle=True)
    again = DataLoader(given.dataset, batch_sampler=given.batch_sampler, num_workers=given.num_workers)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (batch,) in again:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""

ITERABLE = """
import torch
from torch.utils.data import DataLoader, IterableDataset

class Stream(IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(4)

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in DataLoader(Stream(), batch_size=4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def test_compiled_roots_make_graphs_and_the_same_gradients(tmp_path: Path, images: Variant, still: Variant) -> None:
    """A Sequential, which torch passes over in place; without dropout, whose masks compiled code draws otherwise."""
    variant = run(tmp_path, IMAGES, change("compile", backend="aot_eager"), variant=STILL)
    assert variant.change("compile").exercised
    assert variant.change("compile").detail.endswith(" graphs, 0 breaks, in 1 top module")  # training, evaluation
    assert variant.change("compile").seconds > 0
    assert still.losses != images.losses  # the dropout was there
    assert variant.losses == pytest.approx(still.losses, rel=1e-5)
    gradients = [parity.gradients for parity in (variant.process.parity, still.process.parity) if parity is not None]
    for (name, norm), (known, expected) in zip(gradients[0][0], gradients[1][0], strict=True):
        assert name == known
        assert norm == pytest.approx(expected, rel=1e-4)


def test_a_compiler_that_gives_up_leaves_the_job_as_it_was(tmp_path: Path, images: Variant) -> None:
    variant = run(tmp_path, IMAGES, change("compile", backend="no-such-backend"))
    assert not variant.change("compile").exercised
    assert "no-such-backend" in variant.change("compile").detail
    assert variant.losses == images.losses


def test_the_environment_of_this_process_is_untouched() -> None:
    assert "STEPTIME_TEST_VARIABLE" not in os.environ
