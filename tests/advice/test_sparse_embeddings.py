"""Sparse gradients of embeddings: proposed where they train the same, written, and not taken for another training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import MS, optimizer
from advice.planted import PLANTED
from probe.variants import run

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.fix import Option
from steptime.advice.propose import propose
from steptime.trials.patch import make_patch

torch = pytest.importorskip("torch")

JOB = """
import torch
from torch import nn

torch.manual_seed(0)
table, head = nn.Embedding(500, 8), nn.Linear(8, 1)
model = nn.Sequential(table, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    loss = model(torch.randint(500, (6,))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def case(kind: str, **more: bool) -> Case:
    """Most of the update is that of a table, of which few rows are looked up."""
    use = optimizer(6 * MS, elements=2_000_000, type=kind, dense_embedding_elements=1_900_000, **more)
    return replace(PLANTED["dense-embedding-gradient"]["fires"], optimizers=(use,))


def offered(of: Case) -> Option | None:
    return next((each.option for each in propose(of, examine(of).findings) if each.fix.code == "RM204"), None)


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
def test_a_table_is_made_sparse_where_the_update_stays_what_it_was(kind: str) -> None:
    option = offered(case(kind))
    assert option is not None
    assert option.as_written
    assert option.saving is not None
    assert option.saving.value > 4 * MS


def test_what_fills_a_dense_gradient_is_no_chain_of_pointwise_operators() -> None:
    filled = PLANTED["dense-embedding-gradient"]["fires-with-what-backward-takes"]
    found = {each.name: each for each in examine(filled).findings}
    dense = found["dense-embedding-gradient"]
    assert dense.summary.startswith("Backward and Adam")
    assert dense.savings is not None
    assert dense.savings.value > 6 * MS
    assert dense.savings.samples == filled.optimizers[0].duration.samples
    assert "memory-bound-pointwise" not in found
    more = tuple(replace(use, bytes=4 * use.bytes if use.name == "aten::fill_" and use.bytes else use.bytes)
                 for use in filled.operators)  # fmt: skip
    (less,) = [each for each in examine(replace(filled, operators=more)).findings if each.name == dense.name]
    assert less.savings is not None
    assert less.savings.value < 4 * MS, "of all that is filled, the gradient's part"


def test_with_adam_it_is_another_training_and_advice_alone() -> None:
    option = offered(case("Adam"))
    assert option is not None
    assert not option.as_written
    assert "another training" in option.advice


def test_a_fused_optimiser_takes_no_sparse_gradient() -> None:
    assert offered(case("SGD", fused=True)) is None


def test_the_patch_trains_the_same_and_its_gradients_have_the_same_directions(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(JOB)
    option = offered(case("SGD"))
    assert option is not None
    assert option.edit is not None
    plain = run(tmp_path, file)
    patch = make_patch((option.edit,), tmp_path, Path("train.py"))
    assert "nn.Embedding(500, 8, sparse=True)" in patch.files[0][2]
    file.write_text(patch.files[0][2])
    sparse = run(tmp_path, file)
    assert sparse.status == 0, sparse.output
    assert sparse.losses == pytest.approx(plain.losses, rel=1e-6)
    assert sparse.process.parity is not None
    assert plain.process.parity is not None


def test_a_sketch_of_rows_is_that_of_the_whole_tensor() -> None:
    from steptime.probe.changes import sketches as work

    for rows, width in ((1000, 8), (200_000, 32)):  # of the second one every so manieth number is looked at
        looked_up = torch.arange(0, rows, 379).repeat(2)
        dense, sparse = torch.nn.Embedding(rows, width), torch.nn.Embedding(rows, width, sparse=True)
        sparse.weight.data.copy_(dense.weight.data)
        for table in (dense, sparse):
            table(looked_up).square().sum().backward()
        assert sparse.weight.grad is not None
        assert sparse.weight.grad.is_sparse
        assert torch.allclose(work.sketch(dense.weight.grad), work.sketch(sparse.weight.grad))
