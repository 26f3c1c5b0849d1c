"""Parameters and modules are read without calling a method that may be the user's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from steptime.probe.objects import files_of_modules, parameters_of  # noqa: E402


class Building(torch.nn.Linear):  # type: ignore[misc,name-defined]
    """Makes something when it is asked for its parameters, as layers of Keras do."""

    asked = 0

    def parameters(self, recurse: bool = True) -> object:
        self.asked += 1
        return super().parameters(recurse)

    named_parameters = parameters


def test_the_modules_own_methods_are_not_called() -> None:
    layer = Building(3, 2)
    assert [id(each) for each in parameters_of(torch.nn.Sequential(layer))] == [id(layer.weight), id(layer.bias)]
    assert layer.asked == 0


def test_what_is_shared_counts_once_and_order_is_torchs() -> None:
    shared = torch.nn.Linear(4, 4)
    model = torch.nn.Sequential(
        shared, torch.nn.LayerNorm(4), torch.nn.Sequential(shared, torch.nn.Linear(4, 2, bias=False))
    )
    model[2][1].bias = None
    assert [id(each) for each in parameters_of(model)] == [id(each) for each in model.parameters()]


def test_tied_weights_count_once() -> None:
    model = torch.nn.ModuleDict({"table": torch.nn.Embedding(7, 3), "head": torch.nn.Linear(3, 7, bias=False)})
    model["head"].weight = model["table"].weight
    assert len(list(parameters_of(model))) == 1


def test_a_module_without_parameters_has_none() -> None:
    assert list(parameters_of(torch.nn.ReLU())) == []


def test_a_module_that_is_imported_later_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_one.py").write_text("READ = True")
    specification = importlib.util.spec_from_file_location("slow_one", tmp_path / "slow_one.py")
    assert specification is not None
    assert specification.loader is not None
    specification.loader = importlib.util.LazyLoader(specification.loader)
    lazy = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "slow_one", lazy)
    specification.loader.exec_module(lazy)
    assert str(tmp_path / "slow_one.py") in files_of_modules()
    assert "READ" not in object.__getattribute__(lazy, "__dict__")
    assert lazy.READ
