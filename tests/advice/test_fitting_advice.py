"""Advice fits the job: nothing is advised that torch refuses, or that each update needs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from advice.every_case import FIRING, check_all
from advice.healthy import MS, line, phases
from advice.planted import BASE, PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.propose import propose
from steptime.advice.rules import CATALOGUE


def test_where_gradients_are_taken_of_gradients_nobody_is_told_to_compile() -> None:
    def law(_rule: str, _name: str, case: Case) -> None:
        findings = examine(replace(case, second_order=True), CATALOGUE).findings
        assert not [each.advice for each in findings if re.search(r"\b[Cc]ompile\b(?! refuses)", each.advice)]
        options = propose(replace(case, second_order=True), findings)
        assert not [each for each in options if "compile" in each.option.label]

    check_all(law, [each for each in FIRING if not PLANTED[each[0]][each[1]].compiled])


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
