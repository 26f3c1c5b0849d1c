"""Formulas of activations are known by their values, however they are written, and become the one function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from advice.healthy import HEALTHY, MS, about, operator

from steptime.advice.activations import activation_in, activation_of
from steptime.advice.evidence import LineUse
from steptime.advice.fix import ActivationEdit, JointEdit
from steptime.advice.fixes import CATALOGUE
from steptime.quantities import SourceLine
from steptime.trials.edits import apply_edit

TANH = 'gelu(x, approximate="tanh")'
WRITTEN = {
    "0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))": TANH,
    "0.5 * x * (1 + torch.tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))": TANH,
    "(x.pow(3) * 0.044715 + x).mul": None,
    "x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))": "gelu(x)",
    "x / 2 * (1 + (x * 0.70710678).erf())": "gelu(x)",
    "x * torch.sigmoid(x)": "silu(x)",
    "x / (1 + torch.exp(-x))": "silu(x)",
    "x * torch.tanh(F.softplus(x))": None,
    "x / 2 * (1 + torch.tanh(torch.log(1 + torch.exp(x))))": None,
    "x * torch.exp(-torch.log1p(torch.exp(-x)))": "silu(x)",
    "x * torch.sigmoid(1.702 * x)": None,
    "x * torch.sigmoid(y)": None,
    "torch.sigmoid(x)": None,
    "x * np.tanh(np.log(1 + np.exp(x)))": None,
    "x * torch.sigmoid(x, out=x)": None,
    "x ** x ** x ** 999999": None,
    "(" * 90 + "x" + ")" * 90: None,
    "x * (": None,
    "x * torch.sigmoid(x)" + " + 0" * 100: None,
}


@pytest.mark.parametrize(("formula", "call"), WRITTEN.items())
def test_a_formula_is_known_by_its_values(formula: str, call: str | None) -> None:
    found = activation_of(formula)
    assert (found.call if found is not None else None) == call
    again = activation_in(f"hidden = self.proj({formula}) + 1")
    assert (again.call if again is not None else None) == call


@pytest.mark.parametrize("formula", [formula for formula, call in WRITTEN.items() if call])
def test_torch_computes_the_same_by_it_and_the_same_gradient(formula: str) -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"torch": torch, "math": __import__("math"), "F": torch.nn.functional}
    results = []
    for text in (formula, f"torch.nn.functional.{WRITTEN[formula]}"):
        x = torch.linspace(-4, 4, 65, dtype=torch.float64, requires_grad=True)
        value = eval(text, names, {"x": x})
        (gradient,) = torch.autograd.grad(value.sum(), x)
        results.append((value.detach(), gradient))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


SOURCE = """import math
import torch

class Act(torch.nn.Module):
    def forward(self, x):
        # as in the paper
        return self.drop(x / 2 * (1 + torch.erf(x / math.sqrt(2.0)))) + 0 * x
"""
LINE = SourceLine("model.py", 7, "Act.forward", SOURCE.split("\n")[6].strip())


def test_the_formula_alone_is_written_anew() -> None:
    written = apply_edit(ActivationEdit(LINE), SOURCE)
    assert written == SOURCE.replace("x / 2 * (1 + torch.erf(x / math.sqrt(2.0)))", "torch.nn.functional.gelu(x)")
    assert apply_edit(ActivationEdit(replace(LINE, text="another line")), SOURCE) is None
    assert apply_edit(ActivationEdit(replace(LINE, line=1, text="import math")), SOURCE) is None
    renamed = SOURCE.replace("import torch\n", "import torch as t\n").replace("torch.", "t.")
    text = renamed.split("\n")[6].strip()
    assert "t.nn.functional.gelu(x)" in (apply_edit(ActivationEdit(replace(LINE, text=text)), renamed) or "")


def test_it_is_proposed_where_an_operator_stands_on_such_a_line() -> None:
    (fix,) = (each for each in CATALOGUE if each.code == "RM311")
    use = replace(operator("mul", 4, 9 * MS, "memory"), source=replace(LINE, line=5), line=LINE)
    line = LineUse(LINE, "forward", about(3 * MS), about(0.1 * MS), 4.0)
    case = replace(HEALTHY, operators=(use,), lines=(line,))
    (option,) = fix(case)
    assert isinstance(option.edit, JointEdit)
    assert option.edit.parts == (ActivationEdit(LINE),)
    assert option.as_written
    assert option.saving is not None
    assert option.saving.value == 3 * MS
    assert [each.saving for each in fix(replace(case, lines=()))] == [None]
    assert fix(replace(case, lines=(), operators=(replace(use, line=replace(LINE, text="return x * 2")),))) == ()
