"""What every planted case is asked: one test for each question, which reports all cases with a wrong answer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from advice.planted import PLANTED

from steptime.advice.engine import examine
from steptime.advice.evidence import Case
from steptime.advice.rule import Examination
from steptime.advice.rules import CATALOGUE

Planted = tuple[str, str]
"""Name of the rule, name of the case."""
ALL: list[Planted] = sorted((rule, name) for rule, cases in PLANTED.items() for name in cases)
FIRING = [each for each in ALL if each[1].startswith("fires")]
CLEAN = [each for each in ALL if each[1].startswith("clean")]


@functools.cache
def examined(rule: str, name: str) -> Examination:
    """What all rules find in a planted case."""
    return examine(PLANTED[rule][name], CATALOGUE)


def check_all(law: Callable[[str, str, Case], None], planted: Sequence[Planted] = ALL) -> None:
    """Fails with every case in which `law(rule, name, case)` raises, and what it raised."""
    assert planted
    wrong = [f"{rule}/{name}: {error}" for rule, name in planted if (error := _error(law, rule, name))]
    assert not wrong, "\n".join(wrong)


def _error(law: Callable[[str, str, Case], None], rule: str, name: str) -> str:
    try:
        law(rule, name, PLANTED[rule][name])
    except Exception as error:  # noqa: BLE001 - reported with its case, after all others
        return f"{type(error).__name__}: {error}"
    return ""
