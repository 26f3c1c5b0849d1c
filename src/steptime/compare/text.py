"""The comparison as Markdown, and as text: at most 25 lines that end with the next command.

What was set otherwise comes first; then the step and its categories side by side, what appeared and vanished, and the
whole in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from steptime.compare.cause import CLEAR, relative
from steptime.compare.comparison import (
    Check,
    Comparison,
    Difference,
    DifferenceOutcome,
    Fate,
    Piece,
    Ruling,
    Setting,
)
from steptime.compare.tables import amount, difference_tables, runs_table, settings_table, signed
from steptime.quantities import format_change, format_duration, format_samples, format_share
from steptime.report.markdown import prose, titled_table
from steptime.report.printable import one_line, printable, shorten
from steptime.report.tables import table_of, word

LINES = 25
_LEAST = (1, 2, 2, 0)
_MOST = (6, 9, 6, 4)
"""Rows of what was set otherwise, of runs, of categories and of parts: at least, and where there is room."""
_MOST_CHECKS = 3
_SIGNS = {Fate.APPEARED: "new", Fate.VANISHED: "gone", Fate.GREW: "grew", Fate.SHRANK: "shrank"}


def render_text(comparison: Comparison) -> str:
    """The whole text, with a line feed at its end."""
    head = [*_heading(comparison), ""]
    tail = ["", one_line(comparison.sentence), *_checks(comparison), *_remarks(comparison)]
    tail += [f"Next:  {one_line(comparison.next_command)}"] if comparison.next_command else []
    settings, runs, parts, pieces = _shares(comparison, LINES - len(head) - len(tail))
    body = [
        *_settings(comparison.settings, settings),
        *_runs(comparison, runs),
        *_differences(comparison, parts),
        *map(_piece, comparison.pieces[:pieces]),
    ]
    return "".join(f"{printable(line)}\n" for line in (*head, *body, *tail))


def _shares(comparison: Comparison, room: int) -> list[int]:
    """Rows of settings, runs, categories and pieces: each its least, then more of each in turn, as there is room."""
    several = len(comparison.runs) if len(comparison.runs) > 2 else 0
    has = (len(comparison.settings), several, len(comparison.parts), len(comparison.pieces))
    most = [min(limit, count) for limit, count in zip(_MOST, has, strict=True)]
    given = [min(limit, count) for limit, count in zip(_LEAST, has, strict=True)]
    others = (comparison.sample, comparison.memory)
    room -= 2 + sum(each is not None for each in others) + (2 if several else 0) + (not comparison.settings)
    room -= any(part.outcome in CLEAR for part in comparison.parts[_MOST[2] :])
    while sum(given) < room and given != most:
        for place in range(len(given)):
            if given[place] < most[place] and sum(given) < room:
                given[place] += 1
    return given


def _heading(comparison: Comparison) -> Iterator[str]:
    title = f"steptime {comparison.steptime} · comparison"
    if len(comparison.runs) > 2:
        yield f"{title} of {len(comparison.runs)} runs: the last against the first"
        return
    yield title
    for letter, run in zip("AB", comparison.runs, strict=True):
        commit = f" · {run.commit}" if run.commit else ""
        rate = f" · {format_samples(run.samples_per_s)}" if run.samples_per_s is not None else ""
        steps = f" · {run.steady} step{'s' if run.steady > 1 else ''}{rate}{commit}"
        yield f"{letter}  {one_line(run.label)}{steps}"


def _settings(settings: Sequence[Setting], room: int) -> Iterator[str]:
    if not settings:
        yield "Settings: no difference is known"
    for number, setting in enumerate(settings[:room]):
        left_out = len(settings) - room
        more = f" (and {left_out} more)" if number == room - 1 and left_out > 0 else ""
        name = f"{'Settings: ' if not number else ' ' * 10}{setting.name}"
        both = f"{one_line(setting.before)} → {one_line(setting.after)}"
        yield f"{name}  {both}{more}"


def _runs(comparison: Comparison, room: int) -> Iterator[str]:
    """Every run's step; of many the first and the last ones."""
    if not room:
        return
    runs = list(enumerate(comparison.runs, 1))
    displayed = runs if len(runs) <= room else [runs[0], *runs[len(runs) - room + 1 :]]
    yield f"    {'run':<36}{'commit':<13}{'step':>9}{'against 1':>15}"
    for number, run in displayed:
        against = _against(run.against_first) if run.against_first is not None else ""
        label, commit = one_line(run.label), shorten(one_line(run.commit), 12)
        yield f"{number:>3} {label:<36}{commit:<13}{format_duration(run.step.value):>9}{against:>15}".rstrip()
    if len(runs) > len(displayed):
        yield f"    ({len(runs) - len(displayed)} runs between them are left out)"


def _against(difference: Difference) -> str:
    """The change relative to the first run; in brackets where noise may explain it."""
    change = relative(difference)
    if change is None:
        return ""
    text = format_change(change.value)
    return f"{text}  " if difference.outcome in CLEAR else f"({text}) "


def _differences(comparison: Comparison, room: int) -> Iterator[str]:
    """The step, the time of a sample, the categories and the memory, side by side."""
    yield f"  {'':<14}{'A':>10}{'B':>10}{'change':>11}{'95 % interval':>21}"
    for row in (comparison.step, comparison.sample, *comparison.parts[:room]):
        if row is not None:
            yield _difference(row)
    moved = sum(part.outcome in CLEAR for part in comparison.parts[_MOST[2] :])
    if moved:
        yield f"    (and {len(comparison.parts) - room} more, {moved} of them beyond noise)"
    if comparison.memory is not None:
        yield _difference(comparison.memory)


def _difference(difference: Difference) -> str:
    name = difference.name if difference.kind in ("step", "sample", "memory") else f"  {difference.name}"
    before, after, change = difference.before, difference.after, difference.change
    if before is None or after is None or change is None:
        return f"  {name:<14}{'not measured on both sides':>30}"
    more, less = ("more", "less") if difference.kind == "memory" else ("longer", "shorter")
    outcomes = {
        DifferenceOutcome.MORE: more,
        DifferenceOutcome.LESS: less,
        DifferenceOutcome.NONE: DifferenceOutcome.NONE.value,
        DifferenceOutcome.UNDECIDED: DifferenceOutcome.UNDECIDED.value,
    }
    sides = f"{amount(before.value, before.unit):>10}{amount(after.value, after.unit):>10}"
    interval = f"{signed(change.low, change.unit)} to {signed(change.high, change.unit)}"
    value = signed(change.value, change.unit)
    return f"{name:<15} {sides}{value:>11}  {interval:<22} {outcomes[difference.outcome]}"


def _piece(piece: Piece) -> str:
    """A part of the step; how often a step has it, where that changed: no load of the machine does."""
    before, after = piece.calls_before, piece.calls_after
    only = after if piece.fate is Fate.APPEARED else before
    calls = f" ({only:.3g} a step)" if only is not None else ""
    if before is not None and after is not None:
        calls = f" ({before:.3g} → {after:.3g} a step)" if before != after else ""
    return f"  {_SIGNS[piece.fate]:<7}{signed(piece.change, 'ns'):>9}  {piece.kind} {one_line(piece.name)}{calls}"


def _checks(comparison: Comparison) -> list[str]:
    """The gate: a line for each bound that does not hold; where all do, one for all. What the sentence has said is not
    said again."""
    checks = comparison.checks
    reported = [
        replace(check, sentence=why(check, comparison)) for check in checks if check.ruling is not Ruling.PASSED
    ]
    lines = [check_line(check) for check in reported]
    if checks and not lines:
        return [f"Gate:  {len(checks)} of {len(checks)} bounds hold"]
    left_out = len(lines) - _MOST_CHECKS
    more = f" (and {left_out} more)" if left_out > 0 else ""
    displayed = lines[:_MOST_CHECKS]
    return [*displayed[:-1], displayed[-1] + more] if displayed else []


def check_line(check: Check) -> str:
    """One bound of the gate as one line."""
    return f"{check.ruling.value.upper()}  {one_line(check.bound)}: {one_line(check.sentence)}"


def why(check: Check, comparison: Comparison) -> str:
    """What a bound came to, beside the comparison's sentence: a reason that this gives is not given again."""
    return "for the same reason" if check.sentence in comparison.sentence else check.sentence


def _remarks(comparison: Comparison) -> Iterator[str]:
    if comparison.trend is not None:
        yield f"Trend: {one_line(comparison.trend.sentence)}"
    yield from (f"Mind:  {one_line(caveat)}" for caveat in comparison.caveats[:1])
    known = "measured" if comparison.noise.measured else "assumed; see --repeat"
    yield f"Noise: {format_share(comparison.noise.noise_floor)} of a step is allowed for between runs ({known})"


def render_markdown(comparison: Comparison) -> str:
    """The whole document."""
    first, last = comparison.runs[0], comparison.runs[-1]
    gate = table_of(
        "gate", "Gate", "", comparison.checks,
        word("bound", "bound", lambda check: check.bound),
        word("ruling", "ruling", lambda check: check.ruling.value),
        word("", "sentence", lambda check: why(check, comparison)),
    )  # fmt: skip
    lines = [f"# steptime: {prose(first.label)} against {prose(last.label)}", ""]
    lines += [f"**{prose(comparison.sentence)}**", "", *titled_table(gate), *titled_table(settings_table(comparison))]
    if len(comparison.runs) > 2:
        lines += titled_table(runs_table(comparison))
    if comparison.trend is not None:
        lines += [prose(comparison.trend.sentence), ""]
    for table in difference_tables(comparison):
        lines += titled_table(table)
    lines += [f"- {prose(sentence)}" for sentence in (*comparison.caveats, comparison.noise.sentence)]
    return printable("\n".join(lines)) + "\n"
