"""Answer of a report: where the time of a step goes, what to change, and how certain that is."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from steptime.advice.kernels import by_name, short_kernel
from steptime.advice.rule import Finding, Weight
from steptime.advice.savings import in_step, per_step
from steptime.advice.verdict import MADE_OF, NOT_IN_TRACE, UNRECORDED
from steptime.answer.answer import Answer, Item, Part, Section
from steptime.answer.printable import one_line
from steptime.answer.tables import Table, table_of, word
from steptime.quantities import format_duration
from steptime.report import json
from steptime.report.compact import compact
from steptime.report.gain import gain_of
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import (
    balance_text,
    bounds_text,
    elsewhere_text,
    gpu_busy_text,
    interval_text,
    left_out_text,
    own_cost_text,
    place_text,
    placed,
    prediction_text,
    predictions,
    price_text,
    reached_text,
    roofline_sentences,
    source_text,
    step_text,
    throughput_text,
)
from steptime.report.tables import (
    MOST_RANKS,
    case_tables,
    category_table,
    category_tables,
    process_table,
    rank_tables,
    replay_tables,
    trial_table,
)

PICTURES = (".speedscope.json", ".html", ".svg", ".png")
"""File endings of formats that show a step's timeline and memory over time."""
ASKED_FOR = "caught-steps"
"""Note on an explicit request (run --catch), which comes before the others."""
PROFILER = "ProfilerStep"
"""Usual way to find steps, which needs no mention."""
FIRST_KERNELS = 3
"""Kernels that a terminal shows."""
LEAST_COMPUTE = 0.2
"""Fraction of the step that computing must take for its roofline to be shown."""


def show_pictures(outputs: Iterable[str], *, full: bool) -> bool:
    """True if an output format shows a step's timeline and memory over time."""
    return full or any(each.lower().endswith(PICTURES) for each in outputs)


def answer_of(report: Report, *, full: bool = False) -> Answer:
    """Answer of a report. full: the JSON holds everything and can be read back."""
    process = placed(report.processes[0])
    return Answer(
        title=one_line(report.environment.command or report.source),
        headline=process.verdict.sentence,
        badge=process.verdict.badge,
        gain=gain_of(report),
        head=(_header(report), *_step(report, process)),
        parts=(
            _displayed_categories(process),
            _sentences("", _computing(process)),
            Section("", tuple(_finding(each, process) for each in _reported(process))),
            Section("", tuple(_asides(report, process))),
            *_trials(report),
        ),
        notes=(*([f"Cost: {own_cost_text(process)}"] if process.cost is not None else []), f"From: {report.source}"),
        more=f"steptime report {shlex.quote(report.source)} -o report.html",
        next_command=report.next_command,
        details=partial(_details, report),
        data=partial(json.without_contents if full else compact, report),
        findings=report.processes[0].findings,
        step=process.case.step.duration.value,
        exports={each: partial(_exported, each, report) for each in PICTURES},
    )


def _exported(extension: str, report: Report) -> str | bytes:
    from steptime.report import speedscope
    from steptime.report.page import page, pictures  # templates take a while to import

    if extension == ".png":
        return pictures.render_png(report)
    text = {".html": page.render, ".svg": pictures.render_svg, ".speedscope.json": speedscope.render}
    return text[extension](report)


def _header(report: Report) -> str:
    environment = report.environment
    facts = [f"steptime {environment.steptime}", environment.command or report.source]
    facts += [f"torch {environment.torch}" if environment.torch else "", environment.device, environment.ended]
    if environment.ranks > 1:
        facts.append(f"{report.processes[0].name} of {environment.ranks}")
    return " · ".join(filter(None, facts))


def _step(report: Report, process: ProcessReport) -> Iterator[str]:
    """Lines on the step, on how a trace's steps were found if it does not mark them, on throughput and price."""
    step = process.case.step
    left_out = left_out_text(process)
    yield f"Step {step_text(step)}{f' (excluded: {left_out})' if left_out else ''}"
    found = one_line(step.how).partition(", because")[0]
    if found and PROFILER not in found:
        yield f"Steps: {found}"
    rates = filter(
        None, (throughput_text(process.throughput, step.device, report.environment.ranks), gpu_busy_text(process.case))
    )
    yield from filter(None, ("; ".join(rates), f"Price: {price}" if (price := price_text(report)) else ""))


def _displayed_categories(process: ProcessReport) -> Table:
    """Table of the categories that take time, longest first."""
    spent = [use for use in process.case.categories if use.duration.value > 0]
    longest = sorted(spent, key=lambda use: -use.duration.value)
    return category_table("categories", "", "category", longest, process.case)


def _sentences(title: str, sentences: Iterable[str]) -> Section:
    return Section(title, tuple(Item(each) for each in sentences))


def _computing(process: ProcessReport) -> Iterator[str]:
    """Sentences on the device's computing if that is a good part of the step, on the replay, and on other devices."""
    case, step = process.case, process.case.step.duration.value
    compute = next((use.duration.value for use in case.categories if use.name == "compute"), 0.0)
    if compute >= LEAST_COMPUTE * step:
        if case.roofline is not None:
            yield from filter(None, (bounds_text(case.roofline, case), reached_text(case), balance_text(case)))
        named = by_name(
            replace(use, name=short_kernel(use.name)) for use in case.kernels if use.bound != "communication"
        )[:FIRST_KERNELS]
        reported = ", ".join(f"{each.name} {format_duration(each.duration)}" for each in named)
        yield from [f"Kernels: {reported} {per_step(case.step)}"] if reported else []
    reported = "; ".join(prediction_text(each, step) for each in predictions(case.replay, step)[:FIRST_KERNELS])
    yield from [f"If: {reported}"] if reported else []
    yield from (f"On {elsewhere_text(each, step)}" for each in (case.replay.elsewhere if case.replay else ()))


def _reported(process: ProcessReport) -> list[Finding]:
    """Findings with their advice, a note if it comes first, and the parts of computing."""
    first = [each for each in process.findings[:1] if each.weight is Weight.NOTE and each.name != MADE_OF]
    found = first + [each for each in process.findings if each.weight is Weight.FINDING]
    return found + [each for each in process.findings if each.name == MADE_OF]


def _finding(finding: Finding, process: ProcessReport) -> Item:
    """Item for a finding with its savings, without repeating the headline."""
    saving, step = finding.savings, process.case.step
    worth = f"saves {in_step(saving.value, step)}" if saving is not None else ""
    return Item(
        f"{finding.code} {finding.name}",
        worth,
        finding.summary if finding.summary not in process.verdict.sentence else "",
        source_text(finding.source) if finding.source is not None else "",
        finding.advice,
        details=(*([f"Savings: {format_duration(saving.value)} ({interval_text(saving)})"] if saving else ()),
                 *finding.evidence),
    )  # fmt: skip


def _asides(report: Report, process: ProcessReport) -> Iterator[Item]:
    """Caveats, then notes that no headline contains; explicitly requested ones come first."""
    reported, verdict = _reported(process), process.verdict
    message = f"{verdict.reason} {verdict.sentence}".lower()
    asides = [each for each in process.findings if each.weight is not Weight.FINDING and each not in reported
              and not (verdict.bottleneck == UNRECORDED and each.name == NOT_IN_TRACE)]  # fmt: skip
    for weight, word_ in ((Weight.CAVEAT, "Caveat"), (Weight.NOTE, "Note")):
        displayed = [each for each in asides if each.weight is weight and each.summary.lower() not in message]
        for aside in sorted(displayed, key=lambda each: each.name != ASKED_FOR):
            place = place_text(aside.source) if aside.source is not None else ""
            at = f"{place}: " if place not in aside.summary else ""
            yield Item(f"{word_}: {aside.code} {at}{aside.summary}", details=(aside.advice, *aside.evidence))
    yield from (Item(f"Left out: {problem}") for problem in report.problems)


def _trials(report: Report) -> Iterator[Part]:
    trials = report.trials
    if trials is None:
        return
    from steptime.report.trial_answer import trial_items  # brings all of the trials' room

    yield Section("Tried", trial_items(trials))


def _details(report: Report) -> Iterator[Part]:
    yield _environment(report)
    several = len(report.processes) > 1
    if several:
        yield from (process_table(report), *rank_tables(report.ranks, len(report.processes)))
    for number, process in enumerate(map(placed, report.processes[:MOST_RANKS])):
        if several and not number:  # the parts of the answer report it
            yield _sentences(f"{process.name}, further", [])
        elif several:
            verdict = process.verdict
            lines = (f"Step {step_text(process.case.step)}", verdict.sentence, verdict.badge)
            yield _sentences(process.name, filter(None, lines))
            yield from category_tables(process.case)[:1]
            yield Section("Findings", tuple(_finding(each, process) for each in process.findings))
        yield from _of_process(process)
    if report.trials is not None:
        yield trial_table(report.trials)


def _of_process(process: ProcessReport) -> Iterator[Part]:
    case = process.case
    yield from category_tables(case)[1:]
    yield _sentences("", roofline_sentences(case))
    yield from (*case_tables(case), *replay_tables(case))
    lists = (
        ("Notes", process.notes),
        ("Not examined", [f"{code}: {reason}" for code, reason in process.not_examined]),
        ("Rules and plug-ins that failed", [f"{code}: {why}" for code, why in process.failed]),
    )
    for title, sentences in lists:
        if sentences:
            yield _sentences(title, sentences)


def _environment(report: Report) -> Table:
    environment, step = report.environment, report.processes[0].case.step
    facts = (
        ("Source", report.source), ("Host", environment.host), ("Device", environment.device),
        ("Python", environment.python), ("torch", environment.torch), ("steptime", environment.steptime),
        ("Ranks", str(environment.ranks)), ("Job", environment.ended), ("Number of steps", str(step.total)),
        ("Boundaries", step.how or step.mode), ("Price", price_text(report)),
    )  # fmt: skip
    return table_of(
        "environment", "Environment", "", [fact for fact in facts if fact[1]],
        word("", "what", lambda fact: fact[0]),
        word(" ", "value", lambda fact: fact[1]),
    )  # fmt: skip
