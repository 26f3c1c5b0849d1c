"""Loops over small operators: whose rounds can be computed at once, and what that saves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from advice.healthy import MS, about
from advice.planted import PLANTED

from steptime.advice.evidence import LineUse, PathUse
from steptime.advice.loops import is_carried, siblings
from steptime.advice.rule import Finding
from steptime.advice.rules.overhead import dispatch_loop
from steptime.quantities import SourceLine


def found(name: str) -> Finding:
    (finding,) = dispatch_loop(PLANTED["dispatch-loop"][name])
    return finding


@pytest.mark.parametrize(
    "texts",
    [
        ["x = x + block(x)"],
        ["h, c = self.cell(x[:, t], (h, c))"],
        ["y = self.norm(x)", "x = x + self.attend(y)"],
        ["state = torch.tanh(state @ weight + inputs[t])"],
        ["total = total + block("],  # the rest of the statement is not known
    ],
)
def test_a_round_that_needs_the_one_before_is_carried(texts: list[str]) -> None:
    assert is_carried(texts)


@pytest.mark.parametrize(
    "texts",
    [
        ["for i, expert in enumerate(self.experts):", "out = out + expert(x[i])"],
        ["rows = (chosen == i).nonzero()", "out = out.index_add(0, rows, expert(x[rows]))"],
        ["y = head(x)", "found.append(y)"],
        ["found = torch.cat([found, head(x)])"],
        ["loss += criterion(out[i], wanted[i])"],
    ],
)
def test_sums_and_lists_of_rounds_are_not_carried(texts: list[str]) -> None:
    assert not is_carried(texts)


def test_modules_one_by_one_are_grouped_and_save_most_of_the_loop() -> None:
    finding = found("fires-on-modules-one-by-one")
    assert "Group the 64 modules Expert" in finding.advice
    assert "updates 256 tensors" in finding.evidence[-1]
    saving, dispatched = finding.savings, 384 * 7 / 8 * 5e3
    assert saving is not None
    assert saving.low == pytest.approx(dispatched)
    assert 2 * dispatched < saving.value < 12 * MS
    assert 15 * MS < saving.high < 18 * MS  # forward and backward of the loop, and the update


def test_lines_say_which_operators_a_loop_has_where_no_profile_has_stacks() -> None:
    assert "Group the 64 modules Expert" in found("fires-on-modules-of-unknown-callers").advice


def test_a_body_that_a_chain_of_blocks_calls_is_not_independent() -> None:
    case = PLANTED["dispatch-loop"]["fires-on-modules-of-unknown-callers"]
    body = SourceLine("net.py", 5, "Block.forward", "return self.up(x).relu()")
    chain = SourceLine("net.py", 9, "Net.forward", "x = block(x)")
    lines = tuple(LineUse(source, "forward", about(4 * MS), about(0.0), 64.0) for source in (body, chain))
    paths = (PathUse(4 * MS, "forward", (body, chain)),)
    (finding,) = dispatch_loop(replace(case, lines=(*lines, *case.lines[1:]), paths=paths))
    assert "Group" not in finding.advice


def test_blocks_in_a_row_are_not_grouped() -> None:
    finding = found("fires-on-blocks-in-a-row")
    assert "Group" not in finding.advice
    assert finding.savings is not None
    assert finding.savings.high < 5 * MS
    assert siblings(PLANTED["dispatch-loop"]["fires-on-blocks-in-a-row"]) == (64, "Expert")
