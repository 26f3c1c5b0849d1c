"""The comparison as Markdown: for a pull request, an issue, or the summary of a CI step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from steptime.comparison.cause import relative, relative_interval
from steptime.comparison.comparison import Comparison, Difference, Piece, Ruling, Run
from steptime.comparison.text import signed
from steptime.quantities import format_bytes, format_duration, format_share
from steptime.report.markdown import prose, table_lines
from steptime.report.printable import printable, shorten

_SHOWN = 15
_LONGEST = 100
_MARKS = {
    Ruling.PASSED: "passed",
    Ruling.BREACHED: "**breached**",
    Ruling.UNDECIDED: "undecided",
}


def render(comparison: Comparison) -> str:
    """The whole document."""
    first, last = comparison.runs[0], comparison.runs[-1]
    lines = [f"# steptime: {prose(first.label)} against {prose(last.label)}", ""]
    lines += [f"**{prose(comparison.sentence)}**", ""]
    lines += _gate(comparison)
    lines += _settings(comparison)
    if len(comparison.runs) > 2:
        lines += _runs(comparison)
    lines += _differences(comparison)
    lines += _pieces(comparison.pieces)
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


def _settings(comparison: Comparison) -> Iterator[str]:
    rows = ((each.name, each.before, each.after) for each in comparison.settings)
    yield from _titled("Set otherwise", ("", "before", "now"), rows)


def _runs(comparison: Comparison) -> Iterator[str]:
    rows = (_run(number, run) for number, run in enumerate(comparison.runs, 1))
    yield from _titled("Runs", ("", "run", "commit", "a step", "against the first", "bound by", "memory"), rows)
    if comparison.trend is not None:
        yield from (prose(comparison.trend.sentence), "")


def _run(number: int, run: Run) -> tuple[str, ...]:
    against = ""
    if run.against_first is not None:
        against = f"{relative_interval(run.against_first)}: {_outcome(run.against_first)}"
    memory = format_bytes(run.peak_bytes) if run.peak_bytes is not None else ""
    return str(number), run.label, run.commit, format_duration(run.step.value), against, run.regime, memory


def _differences(comparison: Comparison) -> Iterator[str]:
    every = (comparison.step, comparison.sample, *comparison.parts, comparison.memory)
    rows = (_row(each) for each in every if each is not None)
    yield from _titled(
        "Step, accounts and memory" if comparison.by == "accounts" else "Step, phases and memory",
        ("", "before", "now", "change", "95 % interval", "", ""),
        rows,
    )


def _row(difference: Difference) -> tuple[str, ...]:
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


def _pieces(pieces: Sequence[Piece]) -> Iterator[str]:
    rows = (
        (
            piece.fate.value,
            piece.kind,
            shorten(piece.name, _LONGEST),
            format_duration(piece.before) if piece.before is not None else "",
            format_duration(piece.after) if piece.after is not None else "",
            _calls(piece),
        )
        for piece in pieces[:_SHOWN]
    )
    yield from _titled("Parts of the step", ("", "kind", "name", "before", "now", "calls a step"), rows)


def _calls(piece: Piece) -> str:
    told = [f"{calls:.4g}" if calls is not None else "–" for calls in (piece.calls_before, piece.calls_after)]
    return " → ".join(told) if told[0] != told[1] else told[0]


def _findings(comparison: Comparison) -> Iterator[str]:
    rows = ((each.fate.value, f"{each.code} {each.name}", each.summary) for each in comparison.findings)
    yield from _titled("Findings", ("", "finding", ""), rows)
