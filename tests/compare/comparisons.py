"""Comparisons that documents are tried with: a plain one, one with everything, and one full of strangers' strings."""

from __future__ import annotations

from dataclasses import replace

from report.report_variants import HOSTILE
from report.stored_reports import case_of, longer_by, stored, with_case, with_environment, with_loader

from steptime.compare.compare import compare
from steptime.compare.comparison import Comparison, Piece, Setting
from steptime.compare.gate import bounds_of, judged


def busy() -> Comparison:
    """One with everything: settings, pieces, a gate, several runs, a caveat."""
    before = stored("quiet-1")
    after = with_loader(longer_by(stored("quiet-2"), "input", -20e6), workers=4, pin_memory=True, dataset="Videos")
    after = with_environment(after, torch="2.12.0", commit="b" * 40, dirty=True, host="other", command="python b.py")
    operators = tuple(replace(use, duration=4 * use.duration) for use in case_of(after).operators)
    after = with_case(after, operators=operators, step=replace(case_of(after).step, mode="trace"))
    middle = [stored("quiet-2")] * 12
    comparison = compare((before, *middle, after), [f"run-{number}" for number in range(14)], next_command="steptime x")
    return judged(comparison, bounds_of("step>5%, memory>10%, input>1ms, compute>1%, python>1us"))


def simple() -> Comparison:
    return compare((stored("quiet-1"), stored("quiet-2")), ("quiet-1", "quiet-2"), next_command="steptime y")


def hostile() -> Comparison:
    comparison = busy()
    bad = HOSTILE[0]
    runs = tuple(replace(run, label=text, source=text, commit=text) for run, text in zip(comparison.runs, HOSTILE * 2))  # noqa: B905
    return replace(
        comparison,
        runs=(*runs, *comparison.runs)[: len(comparison.runs)],
        settings=tuple(Setting("flag", text, text, text) for text in HOSTILE),
        pieces=tuple(Piece("kernel", text, comparison.pieces[0].fate, 1e6, 2e6) for text in HOSTILE),
        parts=tuple(replace(part, name=bad) for part in comparison.parts),
        cause=replace(comparison.cause, sentence=bad),
        sentence=bad,
        caveats=HOSTILE,
        next_command=bad,
        checks=tuple(replace(check, bound=bad, sentence=bad) for check in comparison.checks),
    )
