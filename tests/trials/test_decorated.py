"""A function next to the model, compiled where it is defined: what is written runs, and only where that is plain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from advice.healthy import HEALTHY, MS, line, operator

from steptime.advice.evidence import Case
from steptime.advice.explain import find_fix
from steptime.advice.fix import DecoratorEdit, JointEdit, Proposal, Snippet
from steptime.analysis.lines import LineRoleName
from steptime.quantities import SourceLine
from steptime.trials.edits import apply_edit
from steptime.trials.plan import plan_variants, writable

JOB = """\
import torch as t

# Both of them.

# A loss.
def contrast(scores, target):
    p = t.sigmoid(scores)
    return (p * target).mean()


class Loss:
    def __call__(self, x):
        return x.exp().sum()  # summed
"""


def compiled(source: str, text: str, function: str) -> str | None:
    lines = source.split("\n")
    (number,) = (number for number, each in enumerate(lines, 1) if text in each)
    return apply_edit(
        DecoratorEdit(SourceLine("train.py", number, function, lines[number - 1].strip()), function), source
    )


def test_a_function_or_a_method_gets_the_decorator_beneath_its_comments() -> None:
    assert compiled(JOB, "p = t", "contrast") == JOB.replace("def contrast", "@t.compile\ndef contrast")
    assert compiled(JOB, "# summed", "__call__") == JOB.replace("    def __call__", "    @t.compile\n    def __call__")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import torch as t", "from torch import *"),
        ("def contrast", "@t.no_grad()\ndef contrast"),
        ("def contrast", "async def contrast"),
        ("    return (p", "    yield p\n    return (p"),
        ("    return (p", "    def inner(): return p\n    return (p"),
        ("def contrast", "def contrary"),
        ("p = t.sigmoid(scores)", "q = p = t.sigmoid(scores)"),
    ],
)
def test_what_is_not_plain_is_not_written(old: str, new: str) -> None:
    changed = JOB.replace(old, new)
    place = SourceLine(
        "train.py", changed.split("\n").index(next(x for x in changed.split("\n") if "t.sigmoid" in x)) + 1
    )
    edit = DecoratorEdit(replace(place, text="p = t.sigmoid(scores)"), "contrast")
    assert apply_edit(edit, changed) is None


def test_a_function_in_a_function_is_made_anew_each_time_and_not_compiled() -> None:
    nested = "import torch\ndef outer():\n    def contrast(x):\n        return x.exp()\n    return contrast\n"
    assert compiled(nested, "x.exp()", "contrast") is None


def case(*phases: str, share: float = 1.0, function: str = "contrast", role: LineRoleName = "python") -> Case:
    """Of a job whose loss takes 8 of 20 ms in pointwise operators."""
    place = SourceLine("train.py", 6, function)
    chain = tuple(operator("mul", 9, share * 4 * MS, "memory", phase, bytes=1e6, source=place) for phase in phases)
    timed = replace(
        line("p = t.sigmoid(scores)", MS, role=role),
        source=SourceLine("train.py", 7, function, "p = t.sigmoid(scores)"),
    )
    return replace(HEALTHY, operators=(*HEALTHY.operators, *chain), lines=(*HEALTHY.lines, timed))


def test_the_function_alongside_the_model_that_takes_most_is_compiled(tmp_path: Path) -> None:
    fix = find_fix("RM310")
    assert fix is not None
    (option,) = fix(case("rest", "backward"))
    assert (option.label, option.as_written) == ("@torch.compile contrast", True)
    assert option.saving is not None
    assert 2 * MS < option.saving.value < option.saving.high < 9 * MS
    assert isinstance(option.edit, JointEdit)
    (tmp_path / "train.py").write_text(JOB)
    (proposal,) = writable((Proposal(fix, option, "ST207"),), tmp_path, ("python", "train.py"))
    (variant,) = plan_variants((proposal,), 6, 20 * MS, tmp_path, ("python", "train.py"))
    assert variant.sources == (("train.py", JOB.replace("def contrast", "@t.compile\ndef contrast")),)
    elsewhere = writable((proposal,), tmp_path, ("python", "-m", "other"))
    (tmp_path / "train.py").write_text(JOB.replace("import torch as t", ""))
    (reported,) = writable(elsewhere, tmp_path, ("python", "train.py"))
    assert reported.advice_only
    assert isinstance(reported.option.edit, Snippet)


@pytest.mark.parametrize(
    "known",
    [
        case("forward", "rest"),
        case("backward"),
        case("rest", share=0.1),
        case("rest", role="backward"),
        case("rest", function="<module>"),
    ],
)
def test_what_the_model_runs_what_is_small_and_the_loop_itself_are_left_alone(known: Case) -> None:
    fix = find_fix("RM310")
    assert fix is not None
    assert fix(known) == ()
