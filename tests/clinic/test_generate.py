"""Jobs composed from a seed: reproducible, with a twin that lacks the fault, and scored by cause and line."""

from __future__ import annotations

import ast
import difflib
from typing import Any

import pytest
from example_counts import examples

from benchmarks.clinic.compose import design, written
from benchmarks.clinic.generate import alarms, is_on_line, listing, place_of, table

SEEDS = (*range(examples(300)), *range(10_000, 10_000 + examples(100)))
"""The later ones have faults of structure, too."""


def test_a_seed_is_one_job() -> None:
    assert [design(seed) for seed in SEEDS] == [design(seed) for seed in SEEDS]


@pytest.mark.parametrize("amount", [0, 1, 7])
def test_every_job_is_a_program(amount: int) -> None:
    for seed in SEEDS:
        job = design(seed)
        for text in written(job, [amount] * len(job.planted)).files.values():
            ast.parse(text)


def test_no_fault_stands_in_a_job_twice() -> None:
    """Both would use one table, and none of the two would cost what it costs alone."""
    for seed in SEEDS:
        names = [planted.fault.name for planted in design(seed).planted]
        assert len(set(names)) == len(names), seed


def test_the_culprits_are_lines_that_the_twin_lacks() -> None:
    for seed in SEEDS:
        job = design(seed)
        ill, twin = (written(job, [amount] * len(job.planted)) for amount in (3, 0))
        for planted, culprits in zip(job.planted, ill.culprits, strict=True):
            lines = {ill.files[file].split("\n")[number - 1].strip() for file, number in culprits}
            healthy = {line.strip() for text in twin.files.values() for line in text.split("\n")}
            function = {line for line in lines if line.startswith(f"use_{planted.fault.name.replace(' ', '_')}")}
            shared = {line for line in lines if line in planted.fault.setup}
            assert lines - function - shared, seed
            assert not (lines - function - shared) & healthy, (seed, lines & healthy)
        assert not any(twin.culprits)


def test_a_job_and_its_twin_differ_in_the_fault_only() -> None:
    for seed in SEEDS:
        job = design(seed)
        ill, twin = (written(job, [amount] * len(job.planted)) for amount in (1, 0))
        changed = sum(
            line.startswith("+ ")
            for file in ill.files
            for line in difflib.ndiff(twin.files[file].split("\n"), ill.files[file].split("\n"))
        )
        assert changed <= 12 * len(job.planted), seed


def row(*findings: tuple[str, float, tuple[str, int] | None], withheld: bool = False, twin: Any = None) -> Any:
    fault = {
        "rules": ["metrics-in-step"],
        "lines": [["train.py", 7]],
        "share": {"value": 0.4, "low": 0.38, "high": 0.42},
    }
    return {
        "seed": 1,
        "faults": [fault],
        "said": {"steptime": message(*findings, bottleneck="undecided" if withheld else "python")},
        "said_of_twin": {"steptime": twin or message()},
    }


def message(*findings: tuple[str, float, tuple[str, int] | None], bottleneck: str = "compute") -> dict[str, Any]:
    return {
        "bottleneck": bottleneck,
        "causes": [name for name, _, _ in findings],
        "shares": [[share, share - 0.01, share + 0.01] for _, share, _ in findings],
        "lines": [line for _, _, line in findings],
    }


def test_a_finding_on_the_line_is_right_whatever_its_name() -> None:
    only = row(("python-time", 0.4, ("train.py", 7)))
    assert place_of(only["faults"][0], only["said"]["steptime"]) == 0
    assert is_on_line(only["faults"][0], only["said"]["steptime"], 0)


def test_a_finding_of_the_cause_is_right_without_its_line() -> None:
    only = row(("input-wait", 0.1, None), ("metrics-in-step", 0.4, ("train.py", 3)))
    assert place_of(only["faults"][0], only["said"]["steptime"]) == 1
    assert not is_on_line(only["faults"][0], only["said"]["steptime"], 1)


def test_a_tool_that_names_no_line_is_right_where_it_blames_the_part_of_the_fault() -> None:
    only = row(("part: input", 0.1, None), ("part: loop", 0.4, None))
    fault = {**only["faults"][0], "part": "loop"}
    assert place_of(fault, only["said"]["steptime"]) == 1
    parts = {planted.part for seed in SEEDS for planted in design(seed).planted}
    assert parts == {"input", "loop", "model", "optimizer"}


def test_a_withheld_verdict_is_not_right() -> None:
    reported = table([row(("metrics-in-step", 0.4, ("train.py", 7)), withheld=True)])
    assert "| right cause first, of all | 0 | 1 |" in reported
    assert "| line, of all | 0 | 1 |" in reported
    assert "| verdicts withheld | 1 | 1 |" in reported


def test_a_fault_that_bare_runs_may_not_feel_is_no_truth() -> None:
    felt = row(("metrics-in-step", 0.4, ("train.py", 7)))
    felt["faults"][0]["share"]["low"] = -0.1
    assert "| right cause first, of all | 0 | 0 |" in table([felt])


def test_a_share_outside_of_the_interval_is_not_covered() -> None:
    reported = table([row(("metrics-in-step", 0.2, None)), row(("metrics-in-step", 0.4, None))])
    assert "| planted share within the interval | 1 | 2 |" in reported


def test_a_small_finding_of_a_twin_is_no_alarm() -> None:
    assert alarms(message(("python-time", 0.04, None), ("input-wait", 0.06, None))) == ["input-wait 6%"]


def test_every_job_has_a_row_that_says_what_came_of_it() -> None:
    fault = {"name": "xml", "place": "item"}
    right, wrong, withheld = (
        row(("python-time", 0.4, ("train.py", 7))),
        row(("input-wait", 0.4, None)),
        row(("python-time", 0.4, ("train.py", 7)), withheld=True),
    )
    for each in (right, wrong, withheld):
        each["faults"][0] |= fault
        each |= {"loop": "plain", "model": "mlp"}
    text = listing([right, wrong, withheld, {"seed": 9, "failed": "no steps"}])
    assert [line.split(" | ")[5] for line in text.split("\n")[2:5]] == ["cause and line", "no", "withheld"]
    assert "no steps" in text


def test_what_is_true_of_the_twin_as_well_does_not_hide_what_was_planted() -> None:
    slow = ("overhead-bound", 0.5, ("model.py", 3))
    hidden = row(slow, ("metrics-in-step", 0.4, ("train.py", 7)), twin=message(slow))
    missed = row(slow, ("input-wait", 0.4, None), ("metrics-in-step", 0.1, None), twin=message(slow))
    reported = table([hidden, missed])
    assert "| right cause first, of all | 0 | 2 |" in reported
    assert "| the same, without what its twin is told, too | 1 | 2 |" in reported
