"""Advice fits the job: nothing is advised that torch refuses, or that each update needs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from advice.healthy import MS, line, phases
from advice.planted import BASE, PLANTED

from steptime.advice.engine import examine
from steptime.advice.propose import propose
from steptime.advice.rules import CATALOGUE

CASES = [(rule, name) for rule, cases in PLANTED.items() for name in cases if name.startswith("fires")]


@pytest.mark.parametrize(("rule", "name"), CASES, ids=[f"{rule}/{name}" for rule, name in CASES])
def test_where_gradients_are_taken_of_gradients_nobody_is_told_to_compile(rule: str, name: str) -> None:
    case = replace(PLANTED[rule][name], second_order=True)
    if case.compiled:
        return
    findings = examine(case, CATALOGUE).findings
    assert not [each.advice for each in findings if re.search(r"\b[Cc]ompile\b(?! refuses)", each.advice)]
    assert not [each for each in propose(case, findings) if "compile" in each.option.label]


@pytest.mark.parametrize("host", [1.0, 0.1], ids=["in Python", "in operators"])
def test_gradients_are_clipped_at_each_update(host: float) -> None:
    clipping = line(
        "clip_grad_norm_(net.parameters(), 1.0)",
        6 * MS,
        host * 6 * MS,
        calls="torch.nn.utils.clip_grad.clip_grad_norm_",
    )
    around = phases(forward=7 * MS, backward=5 * MS, optimizer=MS, rest=7 * MS)
    found = [
        each
        for each in examine(replace(BASE, lines=(clipping,), phases=around), CATALOGUE).findings
        if each.source == clipping.source
    ]
    assert found
    for each in found:
        assert "n-th" not in each.advice
        assert "less often" not in each.advice
