"""How long a dataset is, without running code of the user's that does more than count."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    ConcatDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from steptime.probe.datasets import counted_length  # noqa: E402

ROWS = 12


class Held:
    CONSTANT = 12

    def __init__(self) -> None:
        self.items, self.window, self.array = list(range(14)), 2, np.zeros((12, 3))
        self.tensor, self.inner, self.files = torch.zeros(12), [range(6), range(6)], dict.fromkeys(range(12), "")


def counting(source: str) -> Any:
    """A dataset whose __len__ has this body."""
    names: dict[str, Any] = {"Held": Held, "ROWS": ROWS, "asked": []}
    code = compile(f"class Kind(Held):\n    def __len__(self):\n        {source}\n", __file__, "exec")
    exec(code, names)
    found = names["Kind"]()
    found.kept = names["asked"]
    return found


@pytest.mark.parametrize(
    "source",
    [
        "return len(self.items) - self.window",
        "return self.CONSTANT",
        "return ROWS",
        "return 12",
        "return self.array.shape[0]",
        "return self.tensor.size(0)",
        "return len(self.files)",
        "return min(len(self.files), len(self.items))",
        "return len(self.items) if self.window is None else len(self.items) - self.window",
        "return int(len(self.items) // self.window + 5)",
        "return len(self.inner[0]) * self.window",
    ],
)
def test_a_length_that_is_counted_is_known(source: str) -> None:
    dataset = counting(source)
    assert counted_length(dataset) == 12
    assert counted_length(Subset(dataset, range(4))) == 4
    assert counted_length(ConcatDataset([dataset, TensorDataset(torch.zeros(3))])) == 15
    assert counted_length(BatchSampler(RandomSampler(dataset), 5, drop_last=False)) == 3


@pytest.mark.parametrize(
    "source",
    [
        "asked.append(1); return 12",
        "self.window += 1; return 12",
        "return sum(1 for _ in open(__file__))",
        "print('asked'); return 12",
        "return len(list(map(asked.append, self.items)))",
        "return self.missing",
    ],
)
def test_code_of_the_users_that_does_more_is_not_run(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = counting(source)
    for held in (dataset, SequentialSampler(dataset), BatchSampler(SequentialSampler(dataset), 2, drop_last=True)):
        assert counted_length(held) is None
    assert (dataset.kept, dataset.window, capsys.readouterr().out) == ([], 2, "")


def test_what_a_property_gives_is_not_asked_for() -> None:
    class Kind(Held):
        asked = 0

        @property
        def count(self) -> int:
            type(self).asked += 1
            return 12

        def __len__(self) -> int:
            return self.count

    assert counted_length(Kind()) is None
    assert not Kind.asked


def test_what_has_no_length_has_none() -> None:
    assert counted_length(Held()) is None
    assert counted_length(None) is None
