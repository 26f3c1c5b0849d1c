"""The report as text: at most 25 lines, and one for each other device that was asked for, ending with the next command
to paste. Lines are as long as what they say; a terminal wraps them (`cli.screen`).

One law: what has the most savings is said first; what does not fit is in the report of the recording named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from steptime.advice.kernels import by_name, short_kernel
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import in_step, per_step
from steptime.advice.verdict import MADE_OF, NOT_IN_TRACE, UNRECORDED
from steptime.quantities import format_duration, format_share
from steptime.report.json import sources_of
from steptime.report.printable import one_line, printable, shorten_middle
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import (
    bounds_text,
    cost_text,
    elsewhere_text,
    from_here,
    gpu_busy_text,
    left_out_text,
    prediction_text,
    predictions,
    price_text,
    reached_text,
    source_text,
    step_text,
    throughput_text,
)

LINES = 25
COLUMNS = 80
_ALONGSIDE = 44
"""Columns beside a bar."""
_CATEGORIES = 6
_FINDINGS = 3
_SHORTEST_JOB = 40
"""Columns that a job's command has on a screen at least: the line is wrapped then."""
_KERNELS = 3
ASKED_FOR = "caught-steps"
"""A note on what was asked for (run --catch) comes before the others."""
PROFILER = "ProfilerStep"
"""In words on how steps were found: nothing that needs to be said."""
_ROOM = 8
"""Lines that findings are left, so that the first can be told in full."""
_WORD, _HEAD = 6, 2
"""Columns that a wrapped line leaves free at its end, on average; lines above the step."""
_ASIDES = ("Note:", "Doubt:")
"""What leaves a screen first, the notes before the doubts, of which the confidence has told the gravest."""
_MARGINS = 2
"""Empty lines around the findings."""
_LEAST_COMPUTE = 0.2
"""Of the step: where the device computes less, its roofline is not what to look at."""
_SMALLEST_SHARE = 0.005
"""Categories below half a percent of the step are summed up in one row."""


def render(report: Report, columns: int = COLUMNS, screen: tuple[int, int] | None = None) -> str:
    """The whole text, with a line feed at its end. columns: that bars and titles are laid out for. screen: columns and
    rows of the terminal that it is read on, which wraps long lines: the step stays in view above the prompt."""
    displayed = report.processes[0]
    category = [_header(report, columns, screen), "", *_step(report, displayed), *_breakdown(displayed, columns)]
    verdict = ["", *_bottleneck(displayed)]
    asked = _elsewhere(displayed)
    bottom = [*_footnotes(report, displayed), f"Next:  {one_line(report.next_command)}"]
    roofline = _roofline(displayed)
    room = _left([*category, *roofline, *verdict, *bottom], screen)
    top = [*category, *(roofline if room >= _ROOM or not displayed.findings else ()), *verdict]
    middle = _findings(displayed, _left([*top, *bottom], screen), columns, screen)
    for aside in [line for line in reversed(bottom) if line.startswith(_ASIDES)]:
        if screen is not None and _left([*top, *middle, *bottom], screen) < 0:
            bottom.remove(aside)
    for more in (_what_if(displayed, columns), _kernels(displayed)):
        if _left([*top, *middle, *bottom], screen) >= _height(more, screen):
            bottom = [*more, *bottom]
    # What was asked for takes the place of nothing: the text is longer by it.
    document = "".join(f"{printable(line)}\n" for line in (*top, *middle, *bottom[:-1], *asked, bottom[-1]))
    return from_here(document, sources_of(displayed))


def _height(lines: Sequence[str], screen: tuple[int, int] | None) -> int:
    """Rows that lines take; a sentence is wrapped between words."""
    if screen is None:
        return len(lines)
    return sum(max(1, -(-len(line) // max(screen[0] - _WORD, 1))) if len(line) > screen[0] else 1 for line in lines)


def _left(lines: Sequence[str], screen: tuple[int, int] | None) -> int:
    """Lines that there is room for besides; on a screen the first line and the blank below it may leave it."""
    if screen is None:
        return LINES - len(lines)
    return min(LINES - len(lines), screen[1] - 1 + _HEAD - _height(lines, screen))


def _header(report: Report, columns: int, screen: tuple[int, int] | None) -> str:
    """The job as it was typed; on a screen it is cut in its middle where it is too long."""
    environment = report.environment
    facts = [f"torch {environment.torch}" if environment.torch else "", environment.device]
    facts.append(environment.ended)
    if environment.ranks > 1:
        facts.append(f"{report.processes[0].name} of {environment.ranks}")
    tail = " · ".join(one_line(fact) for fact in facts if fact)
    head = f"steptime {environment.steptime} · "
    room = columns - len(head) - len(tail) - 3
    job = one_line(environment.command or report.source)
    return f"{head}{shorten_middle(job, max(room, _SHORTEST_JOB)) if screen is not None else job} · {tail}"


def _step(report: Report, process: ProcessReport) -> list[str]:
    """The step, and what the steps of a trace were found by, where it does not mark them."""
    step = process.case.step
    left_out = left_out_text(process)
    aside = f" (left out: {left_out})" if left_out else ""
    found = one_line(step.how).partition(", because")[0]
    how = [f"Steps: {found}"] if found and PROFILER not in found else []
    reported = (throughput_text(process.throughput, step.device), gpu_busy_text(process.case))
    rates, price = "; ".join(filter(None, reported)), price_text(report)
    lines = [*([rates] if rates else []), *([f"Price: {price}"] if price else [])]
    return [f"Step {step_text(step)}{aside}", *how, *lines]


def _breakdown(process: ProcessReport, columns: int) -> list[str]:
    step = process.case.step.duration.value
    ordered = sorted(process.case.categories, key=lambda category: -category.duration.value)
    large = [category for category in ordered if category.duration.value >= _SMALLEST_SHARE * step][:_CATEGORIES]
    rows = [_bar(category.name, category.duration.value, step, columns) for category in large]
    rest = sum(category.duration.value for category in ordered[len(large) :])
    if rest >= _SMALLEST_SHARE * step:
        rows.append(_bar("other", rest, step, columns))
    return rows


def _bar(name: str, duration: float, step: float, columns: int) -> str:
    width = max(columns - _ALONGSIDE, 0)
    share = duration / step if step else 0.0
    filled = min(width, round(share * width))
    return f"  {name:<14}{'█' * filled}{'░' * (width - filled)}{format_duration(duration):>10}{format_share(share):>8}"


def _roofline(process: ProcessReport) -> list[str]:
    """What the device's computing is bound by and what it reached, where that is a considerable part of the step."""
    roofline = process.case.roofline
    compute = next((use.duration.value for use in process.case.categories if use.name == "compute"), 0.0)
    if roofline is None or compute < _LEAST_COMPUTE * process.case.step.duration.value:
        return []
    texts = (bounds_text(roofline, process.case), reached_text(process.case))
    return [f"  {one_line(text)}" for text in texts if text]


def _kernels(process: ProcessReport) -> list[str]:
    """The names with most of the kernels' time, where the device's computing is a considerable part of the step."""
    step = process.case.step.duration.value
    compute = next((use.duration.value for use in process.case.categories if use.name == "compute"), 0.0)
    named = by_name(
        replace(use, name=short_kernel(use.name)) for use in process.case.kernels if use.bound != "communication"
    )[:_KERNELS]
    if compute < _LEAST_COMPUTE * step or not named:
        return []
    reported = ", ".join(f"{each.name} {format_duration(each.duration)}" for each in named)
    return [one_line(f"Kernels: {reported} {per_step(process.case.step)}")]


def _what_if(process: ProcessReport, columns: int) -> list[str]:
    """The predictions of the replay, as many as one line holds."""
    step, line = process.case.step.duration.value, ""
    for prediction in predictions(process.case.replay, step):
        longer = (
            f"{line}; {prediction_text(prediction, step)}" if line else f"If:    {prediction_text(prediction, step)}"
        )
        if len(longer) > columns:
            break
        line = longer
    return [line] if line else []


def _elsewhere(process: ProcessReport) -> list[str]:
    """The step on other devices, where that was asked for."""
    replay, step = process.case.replay, process.case.step.duration.value
    return [f"On {elsewhere_text(each, step)}" for each in (replay.elsewhere if replay is not None else ())]


def _bottleneck(process: ProcessReport) -> list[str]:
    return [one_line(text) for text in (process.verdict.sentence, process.verdict.badge) if text]


def _findings(process: ProcessReport, room: int, columns: int, screen: tuple[int, int] | None) -> list[str]:
    """The findings with the most to be saved: each in short, and in full, the first one first, as far as there is
    room."""
    found = _reported(process)

    def fit(blocks: list[list[str]]) -> bool:
        return sum(_height(block, screen) for block in blocks) <= room - _MARGINS

    blocks = [_finding(finding, process, columns, full=not number) for number, finding in enumerate(found)]
    while len(blocks) > 1 and not fit(blocks):
        blocks.pop()
    if blocks and not fit(blocks) and screen is None:
        blocks = [_finding(found[0], process, columns, full=False)]
        blocks = blocks if fit(blocks) else []
    for number, finding in enumerate(found[: len(blocks)]):
        whole = [*blocks[:number], _finding(finding, process, columns, full=True), *blocks[number + 1 :]]
        blocks = whole if fit(whole) else blocks
    return ["", *(line for block in blocks for line in block), *([""] if blocks else [])]


def _reported(process: ProcessReport) -> list[Finding]:
    """Those that are told with what to do; a note where it comes first, and what most of the step is made of where no
    finding shortens that much."""
    first = [each for each in process.findings[:1] if each.weight is Weight.NOTE and each.name != MADE_OF]
    found = first + [each for each in process.findings if each.weight is Weight.FINDING]
    made_of = [each for each in process.findings if each.name == MADE_OF]
    return [*found[: _FINDINGS - len(made_of)], *made_of]


def _finding(finding: Finding, process: ProcessReport, columns: int, *, full: bool) -> list[str]:
    """A finding with what it would save; what the headline has said is not said again."""
    title = f"{finding.code} {finding.name}"
    if finding.savings is not None:
        worth = f"up to {in_step(finding.savings.value, process.case.step)}"
        title = f"{title:<{max(columns - len(worth) - 1, 0)}} {worth}"
    lines = [title]
    if finding.summary not in process.verdict.sentence:
        lines.append(f"  {one_line(finding.summary)}")
    elif not full:  # what is left to say is what to do
        return [*lines, f"  → {one_line(finding.advice)}"]
    if finding.source is not None:
        lines.append(f"  {source_text(finding.source)}")
    return [*lines, f"  → {one_line(finding.advice)}"] if full else lines


def _kept_indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())] + one_line(line)


def _footnotes(report: Report, process: ProcessReport) -> list[str]:
    lines = []
    reported_already = process.verdict.bottleneck == UNRECORDED  # by the headline, in its own words
    asides = [each for each in process.findings if each.weight is not Weight.FINDING and each not in _reported(process)
              and not (reported_already and each.name == NOT_IN_TRACE)]  # fmt: skip
    for weight, word in ((Weight.CAVEAT, "Doubt"), (Weight.NOTE, "Note")):
        reported = f"{process.verdict.reason} {process.verdict.sentence}".lower()
        displayed = [aside for aside in asides if aside.weight is weight and aside.summary.lower() not in reported]
        displayed.sort(key=lambda aside: aside.name != ASKED_FOR)
        texts = [f"{aside.code} {one_line(aside.summary)}" for aside in displayed]
        if texts:
            more = f" (and {len(texts) - 1} more)" if len(texts) > 1 else ""
            lines.append(f"{word}:  {texts[0]}{more}")
    if report.problems:
        more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
        lines.append(f"Left out: {one_line(report.problems[0])}{more}")
    if report.trials is not None:
        from steptime.report.trial_text import trial_lines  # brings all of the trials' room

        lines += map(_kept_indent, trial_lines(report.trials))
    if process.cost is not None:
        lines.append(f"Cost:  {cost_text(process.cost, process.case.step.duration.value)}")
    lines.append(f"From:  {one_line(report.source)}")
    return lines
