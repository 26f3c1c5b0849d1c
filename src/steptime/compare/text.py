"""The comparison in a terminal: at most 25 lines of 80 columns, ending with the next command to paste.

What was set otherwise comes first; then the step and its categories side by side, what appeared and vanished, and the
whole in one sentence.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from steptime.compare.cause import relative, relative_interval
from steptime.compare.comparison import (
    Check,
    ComparedRun,
    Comparison,
    Difference,
    DifferenceOutcome,
    Fate,
    Piece,
    Ruling,
    Setting,
)
from steptime.quantities import format_bytes, format_duration, format_share
from steptime.report.markdown import prose, table_lines
from steptime.report.printable import one_line, printable, shorten

LINES = 25
COLUMNS = 80
_LEAST = (1, 2, 2, 0)
_MOST = (6, 9, 6, 4)
"""Rows of what was set otherwise, of runs, of categories and of parts: at least, and where there is room."""
_MOST_VERDICTS = 3
_SIGNS = {Fate.APPEARED: "new", Fate.VANISHED: "gone", Fate.GREW: "grew", Fate.SHRANK: "shrank"}


def render_text(comparison: Comparison) -> str:
    """The whole text, with a line feed at its end."""
    head = [*_heading(comparison), ""]
    tail = ["", *_wrapped(comparison.sentence, 4), *_verdicts(comparison), *_remarks(comparison)]
    tail += [f"Next:  {one_line(comparison.next_command)}"] if comparison.next_command else []
    settings, runs, parts, pieces = _shares(comparison, LINES - len(head) - len(tail))
    body = [
        *_settings_text(comparison.settings, settings),
        *_runs_text(comparison, runs),
        *_differences_text(comparison, parts),
        *_pieces_text(comparison.pieces, pieces),
    ]
    return "".join(f"{printable(line)}\n" for line in (*head, *body, *tail))


def _shares(comparison: Comparison, room: int) -> tuple[int, int, int, int]:
    """Rows of settings, runs, categories and pieces: each its least, then more of each in turn, as there is room."""
    several = len(comparison.runs) if len(comparison.runs) > 2 else 0
    has = (len(comparison.settings), several, len(comparison.parts), len(comparison.pieces))
    most = [min(limit, count) for limit, count in zip(_MOST, has, strict=True)]
    given = [min(limit, count) for limit, count in zip(_LEAST, has, strict=True)]
    others = (comparison.sample, comparison.memory)
    room -= 2 + sum(each is not None for each in others) + (2 if several else 0) + (not comparison.settings)
    room -= any(_moved(part) for part in comparison.parts[_MOST[2] :])
    while sum(given) < room and given != most:
        for place in range(len(given)):
            if given[place] < most[place] and sum(given) < room:
                given[place] += 1
    return given[0], given[1], given[2], given[3]


def _moved(difference: Difference) -> bool:
    return difference.outcome in (DifferenceOutcome.MORE, DifferenceOutcome.LESS)


def _heading(comparison: Comparison) -> list[str]:
    first, last = comparison.runs[0], comparison.runs[-1]
    title = f"steptime {comparison.steptime} · comparison"
    if len(comparison.runs) > 2:
        return [f"{title} of {len(comparison.runs)} runs: the last against the first"]
    return [title, *(_side(letter, run) for letter, run in (("A", first), ("B", last)))]


def _side(letter: str, run: ComparedRun) -> str:
    commit = f" · {run.commit}" if run.commit else ""
    steps = f" · {run.steady} step{'s' if run.steady > 1 else ''}{commit}"
    return f"{letter}  {shorten(one_line(run.label), COLUMNS - 3 - len(steps))}{steps}"


def _settings_text(settings: Sequence[Setting], room: int) -> list[str]:
    if not settings:
        return ["Set otherwise: nothing that is known"]
    lines = []
    for number, setting in enumerate(settings[:room]):
        left_out = len(settings) - room
        more = f" (and {left_out} more)" if number == room - 1 and left_out > 0 else ""
        name = f"{'Set otherwise: ' if not number else ' ' * 15}{setting.name}"
        both = f"{one_line(setting.before)} → {one_line(setting.after)}"
        lines.append(shorten(f"{name}  {both}", COLUMNS - len(more)) + more)
    return lines


def _runs_text(comparison: Comparison, room: int) -> list[str]:
    """Every run's step; of many the first and the last ones."""
    if not room:
        return []
    runs = list(enumerate(comparison.runs, 1))
    shown = runs if len(runs) <= room else [runs[0], *runs[len(runs) - room + 1 :]]
    lines = [f"    {'run':<36}{'commit':<13}{'step':>9}{'against 1':>15}"]
    for number, run in shown:
        change = relative(run.against_first) if run.against_first is not None else None
        told = "" if change is None else _change(change.value, run.against_first)
        label, commit = shorten(one_line(run.label), 35), shorten(one_line(run.commit), 12)
        lines.append(f"{number:>3} {label:<36}{commit:<13}{format_duration(run.step.value):>9}{told:>15}".rstrip())
    if len(runs) > len(shown):
        lines.append(f"    ({len(runs) - len(shown)} runs between them are left out)")
    return lines


def _change(value: float, difference: Difference | None) -> str:
    text = f"{'+' if value > 0 else '-'}{format_share(abs(value))}"
    outcome = difference.outcome if difference is not None else DifferenceOutcome.UNDECIDED
    return f"{text}  " if outcome in (DifferenceOutcome.MORE, DifferenceOutcome.LESS) else f"({text}) "


def _differences_text(comparison: Comparison, room: int) -> list[str]:
    """The step, the time of a sample, the categories and the memory, side by side."""
    lines = [f"  {'':<14}{'A':>10}{'B':>10}{'change':>11}{'95 % interval':>21}"]
    rows = [comparison.step, *([comparison.sample] if comparison.sample else []), *comparison.parts[:room]]
    lines += [_row_text(row) for row in rows]
    rest = comparison.parts[_MOST[2] :]
    if any(map(_moved, rest)):
        lines.append(f"    (and {len(comparison.parts) - room} more, {sum(map(_moved, rest))} of them beyond noise)")
    if comparison.memory is not None:
        lines.append(_row_text(comparison.memory))
    return lines


def _row_text(difference: Difference) -> str:
    name = difference.name if difference.kind in ("step", "sample", "memory") else f"  {difference.name}"
    before, after, change = difference.before, difference.after, difference.change
    if before is None or after is None or change is None:
        return f"  {name:<14}{'not measured on both sides':>30}"
    told = f"{signed(change.value, change.unit)}"
    interval = f"{signed(change.low, change.unit)} to {signed(change.high, change.unit)}"
    row = f"{shorten(name, 15):<16}{_size(before.value, before.unit):>10}{_size(after.value, after.unit):>10}"
    return f"{row}{told:>11}  {shorten(interval, 22):<22} {_mark(difference)}"


def _mark(difference: Difference) -> str:
    more, less = ("more", "less") if difference.kind == "memory" else ("longer", "shorter")
    words = {
        DifferenceOutcome.MORE: more,
        DifferenceOutcome.LESS: less,
        DifferenceOutcome.NONE: "none",
        DifferenceOutcome.UNDECIDED: "?",
    }
    return words[difference.outcome]


def _size(value: float, unit: str) -> str:
    return format_bytes(value) if unit == "bytes" else format_duration(value)


def signed(value: float, unit: str) -> str:
    """ "+1.2 ms", "-3.4 MiB", "0"."""
    return f"{'+' if value > 0 else '-' if value < 0 else ''}{_size(abs(value), unit)}"


def _pieces_text(pieces: Sequence[Piece], room: int) -> list[str]:
    lines = []
    for piece in pieces[:room]:
        calls = _calls_text(piece)
        head = f"  {_SIGNS[piece.fate]:<7}{piece.kind:<9}"
        tail = f"{calls} {signed(piece.change, 'ns')}"
        room_left = COLUMNS - len(head) - len(tail)
        lines.append(f"{head}{shorten(one_line(piece.name), room_left):<{room_left}}{tail}")
    return lines


def _calls_text(piece: Piece) -> str:
    """How often a step has it, where that changed; no load of the machine does."""
    before, after = piece.calls_before, piece.calls_after
    if before is not None and after is not None:
        return f" ({before:.3g} → {after:.3g} a step)" if before != after else ""
    only = after if piece.fate is Fate.APPEARED else before
    return f" ({only:.3g} a step)" if only is not None else ""


def _verdicts(comparison: Comparison) -> list[str]:
    """The gate, a line for each bound that does not hold; where all do, one for all."""
    lines = [check_line(check) for check in comparison.checks if check.ruling is not Ruling.PASSED]
    if comparison.checks and not lines:
        lines = [f"Gate:  {len(comparison.checks)} of {len(comparison.checks)} bounds hold"]
    left_out = len(lines) - _MOST_VERDICTS
    more = f" (and {left_out} more)" if left_out > 0 else ""
    shown = [shorten(line, COLUMNS) for line in lines[:_MOST_VERDICTS]]
    return [*shown[:-1], shorten(shown[-1], COLUMNS - len(more)) + more] if shown else []


def check_line(check: Check) -> str:
    """One bound of the gate as one line."""
    return f"{check.ruling.value.upper()}  {one_line(check.bound)}: {one_line(check.sentence)}"


def _remarks(comparison: Comparison) -> list[str]:
    lines = []
    if comparison.trend is not None:
        lines += _wrapped(f"Trend: {comparison.trend.sentence}", 1)
    lines += [shorten(f"Mind:  {one_line(caveat)}", COLUMNS) for caveat in comparison.caveats[:1]]
    noise = comparison.noise
    known = "measured" if noise.measured else "assumed; see --repeat"
    return [*lines, f"Noise: {format_share(noise.floor)} of a step is allowed for between runs ({known})"]


def _wrapped(text: str, lines: int) -> list[str]:
    wrapper = textwrap.TextWrapper(COLUMNS, max_lines=lines)
    wrapper.placeholder = " …"
    return wrapper.wrap(one_line(text))


_SHOWN = 15
_LONGEST = 100
_MARKS = {
    Ruling.PASSED: "passed",
    Ruling.BREACHED: "**breached**",
    Ruling.UNDECIDED: "undecided",
}


def render_markdown(comparison: Comparison) -> str:
    """The whole document."""
    first, last = comparison.runs[0], comparison.runs[-1]
    lines = [f"# steptime: {prose(first.label)} against {prose(last.label)}", ""]
    lines += [f"**{prose(comparison.sentence)}**", ""]
    lines += _gate(comparison)
    lines += _settings_markdown(comparison)
    if len(comparison.runs) > 2:
        lines += _runs_markdown(comparison)
    lines += _differences_markdown(comparison)
    lines += _pieces_markdown(comparison.pieces)
    lines += _findings(comparison)
    lines += [f"- {prose(sentence)}" for sentence in (*comparison.caveats, comparison.noise.sentence)]
    return printable("\n".join(lines)) + "\n"


def _titled(title: str, header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    rows = tuple(rows)
    if rows:
        yield from (f"## {title}", "", *table_lines(header, rows), "")


def _gate(comparison: Comparison) -> Iterator[str]:
    if comparison.checks:
        yield from ("## Gate", "", "| bound | ruling | |", "| --- | --- | --- |")
        for check in comparison.checks:
            yield f"| {prose(check.bound)} | {_MARKS[check.ruling]} | {prose(check.sentence)} |"
        yield ""


def _settings_markdown(comparison: Comparison) -> Iterator[str]:
    rows = ((each.name, each.before, each.after) for each in comparison.settings)
    yield from _titled("Set otherwise", ("", "before", "now"), rows)


def _runs_markdown(comparison: Comparison) -> Iterator[str]:
    rows = (_run(number, run) for number, run in enumerate(comparison.runs, 1))
    yield from _titled("Runs", ("", "run", "commit", "a step", "against the first", "bound by", "memory"), rows)
    if comparison.trend is not None:
        yield from (prose(comparison.trend.sentence), "")


def _run(number: int, run: ComparedRun) -> tuple[str, ...]:
    against = ""
    if run.against_first is not None:
        against = f"{relative_interval(run.against_first)}: {_outcome(run.against_first)}"
    memory = format_bytes(run.peak_bytes) if run.peak_bytes is not None else ""
    return str(number), run.label, run.commit, format_duration(run.step.value), against, run.bottleneck, memory


def _differences_markdown(comparison: Comparison) -> Iterator[str]:
    every = (comparison.step, comparison.sample, *comparison.parts, comparison.memory)
    rows = (_row_markdown(each) for each in every if each is not None)
    yield from _titled(
        "Step, categories and memory" if comparison.by == "categories" else "Step, phases and memory",
        ("", "before", "now", "change", "95 % interval", "", ""),
        rows,
    )


def _row_markdown(difference: Difference) -> tuple[str, ...]:
    before, after, change = difference.before, difference.after, difference.change
    if before is None or after is None or change is None:
        return difference.name, "", "", "", "", "", "not measured on both sides"
    size = format_bytes if change.unit == "bytes" else format_duration
    interval = f"{signed(change.low, change.unit)} to {signed(change.high, change.unit)}"
    ratio = relative(difference)
    share = f"{'+' if ratio.value > 0 else '-'}{format_share(abs(ratio.value))}" if ratio is not None else ""
    told = signed(change.value, change.unit)
    return difference.name, size(before.value), size(after.value), told, interval, share, _outcome(difference)


def _outcome(difference: Difference) -> str:
    return difference.reason or difference.outcome.value


def _pieces_markdown(pieces: Sequence[Piece]) -> Iterator[str]:
    rows = (
        (
            piece.fate.value,
            piece.kind,
            shorten(piece.name, _LONGEST),
            format_duration(piece.before) if piece.before is not None else "",
            format_duration(piece.after) if piece.after is not None else "",
            _calls_markdown(piece),
        )
        for piece in pieces[:_SHOWN]
    )
    yield from _titled("Parts of the step", ("", "kind", "name", "before", "now", "calls a step"), rows)


def _calls_markdown(piece: Piece) -> str:
    told = [f"{calls:.4g}" if calls is not None else "–" for calls in (piece.calls_before, piece.calls_after)]
    return " → ".join(told) if told[0] != told[1] else told[0]


def _findings(comparison: Comparison) -> Iterator[str]:
    rows = ((each.fate.value, f"{each.code} {each.name}", each.summary) for each in comparison.findings)
    yield from _titled("Findings", ("", "finding", ""), rows)
