"""How much of a batch only fills it up: what looks like tokens, and what only looks like padding."""

from __future__ import annotations

import subprocess
from collections import UserDict
from typing import Any

import pytest
from patience import PATIENCE
from preloading import python

torch = pytest.importorskip("torch")

from steptime.probe.datasets import padded_share  # noqa: E402
from steptime.probe.discovery import Discovery  # noqa: E402

LENGTHS = (3, 12, 6, 3)


def tokens(filler: int = 0, *, front: bool = False, dtype: Any = None) -> Any:
    """Four rows of the lengths above: half of the 48 places are words."""
    rows = torch.full((len(LENGTHS), max(LENGTHS)), filler, dtype=dtype or torch.long)
    for row, length in zip(rows, LENGTHS, strict=True):
        words = torch.arange(1, length + 1) * 7
        row[-length:] = words if front else row[-length:]
        row[:length] = row[:length] if front else words
    return rows


@pytest.mark.parametrize(
    "batch",
    [
        tokens(),
        tokens(-100),
        tokens(front=True),
        tokens(dtype=torch.int32),
        {"input_ids": tokens()},
        [torch.randn(4, 12), (tokens(), torch.arange(4))],
        UserDict(input_ids=tokens()),
        {"attention_mask": (tokens() > 0).long(), "input_ids": tokens()},
    ],
    ids=["end", "labels", "front", "int32", "dictionary", "tuples", "user dictionary", "with a mask"],
)
def test_rows_that_are_filled_up_are_counted(batch: object) -> None:
    found = padded_share(batch)
    assert found is not None
    assert found[:2] == (0.5, (4, 12))


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(48).reshape(4, 12),
        torch.eye(12, dtype=torch.long),
        torch.cat((torch.eye(12, dtype=torch.long), torch.full((1, 12), 2))),
        torch.tensor([[0, 5, 0, 3, 0, 4, 0, 0], [7, 0, 2, 0, 0, 0, 0, 0]]),
        torch.cat((tokens(), torch.zeros(1, 12, dtype=torch.long))),
        torch.randn(4, 12),
        torch.zeros(4, 12, 12, dtype=torch.long),
        tokens()[:1],
        "no batch",
        StopIteration(),
        None,
    ],
    ids=["text", "labels", "classes", "a filler in between", "an empty row", "numbers", "images", "one row", "a string",
         "the end", "nothing"],
)  # fmt: skip
def test_what_is_no_padding_is_not_counted(batch: object) -> None:
    assert (padded_share(batch) or (0.0,))[0] < 0.1  # the last words of a few rows may be alike


def test_a_filler_that_starts_all_rows_is_no_word() -> None:
    rows = torch.cat((torch.zeros(4, 1, dtype=torch.long), tokens()), 1)
    found = padded_share(rows)
    assert found is not None
    assert (found[0], found[3]) == (24 / 52, 0.0)


def test_what_no_row_of_the_batch_needs_is_told_from_what_some_need() -> None:
    found = padded_share(torch.cat((tokens(), torch.zeros(4, 12, dtype=torch.long)), 1))
    assert found is not None
    assert (found[0], found[3]) == (0.75, 0.5)


def test_a_tensor_whose_storage_is_gone_is_not_read() -> None:
    gone = tokens()
    gone.untyped_storage().resize_(0)
    assert padded_share(gone) is None
    found = padded_share([gone, torch.eye(12).long().to_sparse(), tokens()])
    assert found is not None
    assert found[:2] == (0.5, (4, 12))


class Asked(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor of a user's class, which must not be asked for anything."""

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(function)


def test_a_tensor_of_the_users_own_class_is_not_asked() -> None:
    assert padded_share(tokens().as_subclass(Asked)) is None


def test_a_mode_of_the_users_sees_no_operator_of_ours() -> None:
    job = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from steptime.probe.datasets import padded_share
class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        raise AssertionError(function)
batch = torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 0, 0, 0, 0, 0, 0]])
with Mode():
    print(padded_share(batch))
"""
    done = subprocess.run([python(), "-c", job], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout.strip() == "(0.375, (2, 8), (0, 8), 0.0)"


class Model(torch.nn.Module):  # type: ignore[misc,name-defined]
    """Reads its batch in one of several ways."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.embedding, self.positions, self.reads = torch.nn.Embedding(100, 4), torch.nn.Embedding(12, 4), reads
        self.linear = torch.nn.Linear(12, 4)

    def forward(self, batch: Any) -> Any:
        if self.reads == "tokens":
            return self.embedding(batch) + self.positions(torch.arange(12))
        if self.reads == "all but the last":
            return self.embedding(batch[:, :-1])
        if self.reads == "in one row":
            return self.embedding(batch.flatten())
        if self.reads == "column by column":
            return sum(self.embedding(column) for column in batch.T)
        if self.reads == "features":
            return self.linear(batch.float())
        return self.linear(batch.float()) + self.positions(torch.arange(12)).sum(0)


@pytest.mark.parametrize(
    ("reads", "are_tokens"),
    [("tokens", True), ("all but the last", True), ("in one row", True), ("column by column", False),
     ("features with positions", False)],
)  # fmt: skip
def test_tokens_are_what_an_embedding_reads(reads: str, are_tokens: bool) -> None:
    assert bool(found_in(Model(reads))) == are_tokens


def test_compiled_code_reads_tokens_where_its_model_has_a_vocabulary_for_them() -> None:
    """It calls no function of Python in which its embedding could be seen."""
    features = torch.nn.Sequential(torch.nn.Linear(12, 4))
    assert found_in(Model("features")) == [(0.5, 48, 0.0)]
    assert found_in(features, lambda batch: features(batch.float())) == []


def found_in(model: Any, call: Any = None) -> list[tuple[float, float, float]]:
    """Share, tokens and share beyond of what discovery takes for tokens in a step of a loop over a loader."""
    discovery = Discovery()
    loader = iter(torch.utils.data.DataLoader(tokens(), batch_size=4))
    assert discovery.start()
    (call or model)(next(loader))
    facts = [fact for kind, fact in discovery.stop().facts if kind == "padding"]
    return [(fact["share"], fact["tokens"], fact["beyond"]) for fact in facts]
