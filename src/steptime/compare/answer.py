"""The answer of a comparison: changes beyond noise, and their places."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from steptime.answer.answer import Answer, Figure
from steptime.answer.tables import Table, table_of, word
from steptime.compare.comparison import Comparison, DifferenceOutcome, Ruling
from steptime.compare.gate import render_junit
from steptime.compare.tables import difference_tables, runs_table, settings_table
from steptime.quantities import format_bytes, format_change_of, format_share, format_speed
from steptime.report.page.waterfall import Moves, moves_of

SMALLEST = 0.002
"""Fraction of the longer step: categories that changed by less share a row."""


def answer_of(comparison: Comparison) -> Answer:
    """Answer about how the last of the compared runs differs from the first."""
    first, last = comparison.runs[0].label, comparison.runs[-1].label
    several = len(comparison.runs) > 2
    sides = ("the first", "the last") if several else ("before", "now")
    sure = "Unclear" if comparison.step.outcome is DifferenceOutcome.UNDECIDED else "Confident"
    known = "measured" if comparison.noise.measured else "assumed; --repeat measures it"
    settings = settings_table(comparison)
    notes = (comparison.trend.sentence if comparison.trend else "", *comparison.caveats, comparison.noise.sentence)
    return Answer(
        title=f"{first} against {last}",
        headline=comparison.sentence,
        badge=f"{sure}: {format_share(comparison.noise.noise_floor)} of a step is noise ({known}).",
        head=(
            *_of_run(comparison),
            *_launches_and_growth(comparison),
            *(() if settings.rows else ("Settings: no difference is known",)),
        ),
        parts=(_gate(comparison), settings, runs_table(comparison), *difference_tables(comparison)),
        notes=tuple(filter(None, notes)),
        next_command=comparison.next_command,
        figures=(
            Figure("changes", f"One step, from {sides[0]} to {sides[1]}", "differences.html", _moves(comparison)),
        ),
        data=comparison,
        exports={".xml": partial(render_junit, comparison)},
    )


def _of_run(comparison: Comparison) -> Iterator[str]:
    """Sentence on the step's change as a change of the run, if the first or the last run also works between its
    steps."""
    first, last = comparison.runs[0], comparison.runs[-1]
    if first.other.share and last.other.share:
        times = format_change_of(first.run_ns, last.run_ns)
        whole = f"{times} per step with {last.other.name} between the steps"
        yield f"{last.other.part}; of the run, {whole}: some {format_speed(first.run_ns / last.run_ns)}"
        return
    for run in (first, last):
        if run.other.share:
            yield f"{run.label}: {run.other.part[:1].lower()}{run.other.part[1:]}, with {run.other.name} between them"


def _launches_and_growth(comparison: Comparison) -> Iterator[str]:
    """ "Kernels per step: 532 → 48", and whether a leak is gone."""
    first, last = comparison.runs[0], comparison.runs[-1]
    if first.kernels and last.kernels and round(first.kernels) != round(last.kernels):
        yield f"Kernels per step (on a CPU, operators): {first.kernels:,.0f} → {last.kernels:,.0f}"
    if first.growth is not None and last.growth is not None and (first.growth or last.growth):
        growths = (f"{format_bytes(each)}/step" if each else "none for certain" for each in (first.growth, last.growth))
        yield f"Memory growth: {' → '.join(growths)}"


def _gate(comparison: Comparison) -> Table:
    """Table of the bounds, breached ones first."""
    ordered = sorted(comparison.checks, key=lambda check: check.ruling is Ruling.PASSED)
    return table_of(
        "gate", "Gate", "", [
            # Its reason is in the comparison's sentence already.
            replace(check, sentence="for the same reason") if check.sentence in comparison.sentence else check
            for check in ordered
        ],
        word("bound", "bound", lambda check: check.bound),
        word("ruling", "ruling", lambda check: check.ruling.value),
        word("", "sentence", lambda check: check.sentence, room="below"),
    )  # fmt: skip


def _moves(comparison: Comparison) -> Moves:
    """Waterfall chart of the category changes."""
    step = comparison.step
    before, after = (each.value if each is not None else 0.0 for each in (step.before, step.after))
    least = SMALLEST * max(before, after)
    moved = [(part.name, part.change) for part in comparison.parts if part.change is not None]
    return moves_of([(name, change) for name, change in moved if abs(change.value) >= least], before, after)
