"""A copy, or a pickle, of what a trial has changed is what torch's own would be."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from probe.variants import JOBS, run

from steptime.changes import VariantOptions

torch = pytest.importorskip("torch")

from steptime.probe import calls  # noqa: E402
from steptime.probe.changes import models, precision  # noqa: E402


class Block(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Blocks(torch.nn.Module):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture
def model() -> Iterator[Any]:
    torch.manual_seed(0)
    yield Blocks()
    calls._changed.clear()
    calls._watched.clear()
    calls.remove_if_idle()


APPLIERS: dict[str, Any] = {
    "checkpointing": lambda: models.Checkpointing("", {}),
    "compile": lambda: models.Compile("", {"backend": "eager"}),
    "autocast": lambda: precision.Autocast("", {"device": "cpu"}),
}


@pytest.mark.parametrize("kind", APPLIERS)
def test_a_copy_of_a_changed_model_is_torchs_own_and_computes_by_itself(model: Any, kind: str) -> None:
    alone, x = copy.deepcopy(model), torch.ones(2, 4)
    expected = alone(x)
    keys = [sorted(vars(each)) for each in model.modules()]
    applier = APPLIERS[kind]()
    applier.install()
    applier.root(model)
    model(x).sum().backward()
    applier.boundary(1)
    assert applier.applied
    assert applier.exercised
    assert [sorted(vars(each)) for each in model.modules()] == keys
    copied, unpickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    for other in (copied, unpickled):
        assert torch.equal(other(x), expected)
        assert [type(each) for each in other.modules()] == [type(each) for each in alone.modules()]
    assert not torch.equal(model(x).float(), expected)
    applier.boundary(2)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(VariantOptions(100, 5), id="timed"),
        pytest.param(VariantOptions(100, 2, dropout=False, fingerprint_steps=2), id="rehearsal"),
        pytest.param(VariantOptions(100, 2, dropout=False, fingerprint_steps=2, exact=True), id="in float64"),
    ],
)
def test_a_variant_copies_saves_and_traces_its_models_as_without_us(tmp_path: Path, options: VariantOptions) -> None:
    ended = run(tmp_path, JOBS / "copied.py", variant=options)
    assert ended.status == 0
    assert "the end" in ended.output
