"""What holds of everything that is printed: laws of a report's numbers, and of the words in which they are shown.

`violations` of a report are sentences, none where all laws hold. The same laws of words hold for comparisons, trials
and histories (`sound` renderers), and for whatever the command prints in `tests/cli`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import ParamSpec

import numpy as np
from documents import html_of, markdown_of, text_of

from steptime.advice.evidence import Case
from steptime.advice.rule import Finding, Rule, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.verdict import WORDS
from steptime.answer.json import document as as_json
from steptime.compare.answer import answer_of as answer_of_comparison
from steptime.compare.comparison import Comparison, DifferenceOutcome
from steptime.quantities import format_duration, format_share, format_source
from steptime.report import json
from steptime.report.json import sources_of
from steptime.report.report import ProcessReport, Report
from steptime.report.sentences import from_here

IDLE = ("input", "sync", "compile", "overhead", "python", "unexplained")
"""Categories in which the device does nothing."""
ROUNDING = 0.006
"""Of a number of three digits."""
DURATION = r"(\d+(?:\.\d+)?) (ns|µs|ms|s)\b(?! of)"
UNITS = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}
WHOLES = r"steps|calls|kernels|workers|operators|launches|times|batches|tensors|ranks|gaps|copies|runs|items"
NEVER = {
    r"[-−+](?:0|0\.0) (?:%|ns|B)(?! to)": "a sign of nothing",
    r"(?<![\d.])0 ns (?:longer|shorter|more|less)": "a difference of nothing",
    rf"(?<![\d.,])\b1 (?:{WHOLES})\b": "a plural of one",
    r"\b(?:in|at|by|of|for|with|to) [;.,](?!\w)(?!\.)": "an empty slot",
    r"(?<= )\(\s*\)": "empty brackets",
    r"\b(?:None|nan|inf) (?:ns|µs|ms|s|%|B|KiB|MiB|GiB|of|per step|to|times)(?!\w)": "a value that is none",
    r";\s*;|,\s*,|:\s*\.(?!\w)": "an empty slot",
    r"up to -": "a saving below nothing",
    r"[-−+]<": "a sign of what is too small to print",
    r"(?<![\w.,%/=:\-])-\d[\d.]*\s?(?:%|ns|µs|ms|s|B|KiB|MiB|GiB)(?!\w)": "a hyphen for a minus",
    r"(?<!\S)\?(?!\S)": "a question mark for a value",
}
"""Patterns that are never printed, and what is wrong with them."""


def violations(report: Report) -> list[str]:
    """What is wrong with a report and with each way to show it."""
    found = [f"{process.name}: {message}" for process in report.processes for message in _numbers(process)]
    displayed = rendered(report)
    for form, document in displayed.items():
        found += [f"{form}: {message}" for message in wrong_words(document)]
    found += _one_value(report.processes[0], displayed)
    if json.read(json.render(report).encode(), "report.json") != report:
        found.append("JSON: it does not read back as the report")
    return found


def rendered(report: Report) -> dict[str, str]:
    """Every document of a report as words."""
    return {"text": text_of(report), "Markdown": markdown_of(report), "page": words_of(html_of(report))}


def comparison_violations(comparison: Comparison) -> list[str]:
    """What is wrong with a comparison and with each way to show it."""
    found = [
        f"{each.name}: {each.outcome.value}, {each.change.low:.4g} to {each.change.high:.4g}"
        for each in (comparison.step, comparison.sample, *comparison.parts, comparison.memory)
        if each is not None and each.change is not None and not each.reason
        and (each.outcome is DifferenceOutcome.MORE) != (each.change.low > 0)
    ]  # fmt: skip
    documents = {
        "text": text_of(comparison, answer_of_comparison),
        "Markdown": markdown_of(comparison, answer_of_comparison),
        "page": words_of(html_of(comparison, answer_of_comparison)),
        "JSON": " ".join(re.findall(r'"sentence": "(.*)"', as_json(comparison))),
    }
    for form, document in documents.items():
        found += [f"{form}: {message}" for message in wrong_words(document)]
    return found


Given = ParamSpec("Given")


def sound(render: Callable[Given, str]) -> Callable[Given, str]:
    """A renderer of trials, judgements, comparisons or histories, of which every document is checked."""

    def checked(*arguments: Given.args, **named: Given.kwargs) -> str:
        document = render(*arguments, **named)
        assert wrong_words(document) == []
        return document

    return checked


class _Words(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.silent += tag in ("style", "script", "template")
        self.found.append(" " if tag in ("span", "b", "i", "a", "code") else "\n")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("style", "script", "template")
        self.found.append("" if tag in ("span", "b", "i", "a", "code") else "\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.found.append(data)


def words_of(document: str) -> str:
    """The words that a page shows, a line for each piece of it."""
    parser = _Words()
    parser.feed(document)
    return "\n".join(filter(None, (" ".join(line.split()) for line in "".join(parser.found).split("\n"))))


def wrong_words(document: str) -> list[str]:
    """What is printed and never must be: of each kind the first few places."""
    unwrapped = re.sub(r"\n {2,}(?=[^\s│█░])", " ", document)
    found = list[str]()
    for pattern, what in NEVER.items():
        found += [f"{what}: …{_around(unwrapped, each)}…" for each in re.finditer(pattern, unwrapped)]
    for line in unwrapped.splitlines():
        found += [f"{message}: {line.strip()[:160]}" for message in _wrong_figures(line)]
    return list(dict.fromkeys(found))


def _around(document: str, found: re.Match[str]) -> str:
    return " ".join(document[max(0, found.start() - 40) : found.end() + 20].split())


def _duration(number: str, unit: str) -> float:
    return float(number) * UNITS[unit]


def _differs(one: float, other: float, rounding: float = ROUNDING) -> bool:
    return abs(one - other) > rounding * max(abs(one), abs(other)) + 0.5


def _wrong_figures(line: str) -> Iterator[str]:
    """Products that do not multiply out, parts above their whole, spreads above their value, backward intervals."""
    for part, unit, whole, of, share in re.findall(
        r"([\d.]+) (ns|µs|ms|s) of ([\d.]+) (ns|µs|ms|s)[^().;]{0,30}\(([\d.]+) %", line
    ):
        one, other = _duration(part, unit), _duration(whole, of)
        if one > other * (1 + ROUNDING):
            yield "a part above its whole"
        if abs(100 * one / other - float(share)) > 0.6 + ROUNDING * float(share):
            yield "a share that does not multiply out"
    for count, each, unit, took, of in re.findall(
        r"([\d.]+) \w+ (?:per step, |of )([\d.]+) (ns|µs|ms|s) each(?: take|:) ([\d.]+) (ns|µs|ms|s)", line
    ):
        if _differs(float(count) * _duration(each, unit), _duration(took, of), 0.02):
            yield "a product that does not multiply out"
    for number, unit, spread, of in re.findall(r"([\d.]+) (ns|µs|ms|s) ± ([\d.]+) (ns|µs|ms|s)", line):
        if _duration(spread, of) > _duration(number, unit):
            yield "a spread that reaches below nothing"
    for value, low, high in re.findall(r"(?<![-−+\d.])([\d.]+) %[^()%]{0,20}[(,] ?(-?[\d.]+) to ([\d.]+) %", line):
        if not float(low) - 0.6 <= float(value) <= float(high) + 0.6:
            yield "a value outside of its interval"
        if low == high:
            yield "an interval without a width"
    if re.search(r"does not (?:grow|differ)|[Nn]o difference|keeps its level|within noise", line):
        for low, high in re.findall(r"\((?:[^()]*, )?([-−+]?[\d.]+)(?: \w+)? to ([-−+]?[\d.]+) ", line):
            if float(low.replace("−", "-")) > 0 or float(high.replace("−", "-")) < 0:
                yield "an interval that contradicts its sentence"
    for share in re.findall(r"\((?:up to )?([\d.]+) %\)", line):
        if float(share) > 100 and not re.search(r"longer|slower|more|differ|of the median", line):
            yield "a share above all"


def _numbers(process: ProcessReport) -> Iterator[str]:
    """Laws of what was measured and of what is concluded from it."""
    case = process.case
    step = case.step.duration.value
    spent = {use.name: use.duration.value for use in case.categories}
    if spent and abs(sum(spent.values()) - step) > len(spent):
        yield f"categories sum to {sum(spent.values()):.0f} ns of a step of {step:.0f} ns"
    yield from _above("phases", sum(use.duration.value for use in case.phases), step)
    for use in (*case.categories, *case.phases):
        yield from _above(f"what {use.name} could give back", use.recoverable.value, use.duration.value)
    steady = np.array(process.step_ns)[np.array(process.steady, np.bool_)]
    if len(steady) and abs(steady.mean() - step) > 1:
        yield f"the steady steps take {steady.mean():.0f} ns in the mean, and the step {step:.0f} ns"
    for finding in process.findings:
        if finding.savings is None:
            continue
        yield from _above(f"{finding.code} saves", finding.savings.value, step)
        if finding.category in spent and finding.weight is Weight.FINDING:
            yield from _above(f"{finding.code} saves of {finding.category}", finding.savings.value,
                              spent[finding.category])  # fmt: skip
            held = format_duration(_calling(case, finding.category))
            sentence = f"{finding.code} {finding.summary}".replace(held, "")
            yield from _nearly(sentence, finding.category, spent[finding.category])
    for finding in (each for rule in CATALOGUE for each in _as_ruled(rule, case)):
        whole, found = spent.get(finding.category, step), finding.savings.value if finding.savings else 0.0
        yield from _above(f"{finding.code} finds of {finding.category or 'the step'}", found, whole)
    yield from _parts(case, spent, step)
    yield from _predictions(case, spent, step)


def _as_ruled(rule: Rule, case: Case) -> Iterator[Finding]:
    """What a rule finds to be saved in steps, as its sentence says it: before it is cut to its category."""
    if not rule.evidence.missing_in(case):
        yield from (each for each in rule(case) if each.weight is Weight.FINDING and each.savings is not None)


def _calling(case: Case, category: str) -> float:
    """ns of a category in which the device's memory is asked for: a part of it that is a quantity of its own."""
    return sum(part.value for use in case.allocations for name, part in use.within if name == category)


def _above(what: str, part: float, whole: float) -> Iterator[str]:
    if part > whole * (1 + 1e-6) + 1:
        yield f"{what} {part:.0f} ns, more than the {whole:.0f} ns that there are"


def _nearly(sentence: str, name: str, whole: float) -> Iterator[str]:
    """A duration that is nearly a category's is another value of the same quantity; a single interval is not, nor is
    the making of batches, which with one worker takes about as long as the wait for them."""
    sentence = re.sub(rf"{DURATION} (at once|to make)", "", sentence)
    for number, unit in re.findall(DURATION, sentence):
        found = _duration(number, unit)
        if f"{number} {unit}" != format_duration(whole) and abs(found / whole - 1) < 0.015:
            yield f"{sentence!r} next to {format_duration(whole)} of {name}"


def _parts(case: Case, spent: dict[str, float], step: float) -> Iterator[str]:
    for category in IDLE:
        gaps = sum(use.duration.value for use in case.gaps if use.category == category)
        yield from _above(f"gaps of {category}", gaps, spent.get(category, 0.0))
    yield from _above("exposed copies", sum(use.exposed.value for use in case.copies), spent.get("copy", 0.0))
    exposed = sum(use.exposed.value for use in case.collectives)
    yield from _above("exposed collectives", exposed, spent.get("communication", 0.0))
    for category, duration in spent.items():
        yield from _above(f"calls for memory in {category}", _calling(case, category), duration)
    if case.roofline is not None:
        bounds = case.roofline
        split = bounds.compute + bounds.memory + bounds.latency + bounds.unmodelled
        if abs(split - spent.get("compute", 0.0)) > 4:
            yield f"the roofline splits {split:.0f} ns of {spent.get('compute', 0.0):.0f} ns of computing"
    if case.kernels and case.operators:
        modelled = Counter[str]()
        for kernel in case.kernels:
            modelled[kernel.operator] += round(kernel.duration) * (-1 if kernel.bound == "unmodelled" else 1)
        for use in case.operators:
            if use.bound == "unmodelled" and modelled[use.name] > 0:
                yield f"{use.name} is unmodelled, most of its kernels are not"
    if case.step.device == "cpu" and not case.kernels:
        yield from _above("operators", sum(use.duration for use in case.operators), step)
    for use in case.operators:
        if case.phases and use.phase and use.duration > ROUNDING * step:
            phase = next((each.duration.value for each in case.phases if each.name == use.phase), None)
            if phase is not None and case.step.device == "cpu":
                yield from _above(f"{use.name} in {use.phase}", use.duration, phase)
    if len(case.segments):
        yield from _above("segments (ppm)", 1e6 * sum(use.share for use in case.segments), 1e6)


def _predictions(case: Case, spent: dict[str, float], step: float) -> Iterator[str]:
    """No change of the host's work or of waiting makes a step shorter than what the device has to do in it."""
    for prediction in case.replay.predictions if case.replay is not None else ():
        by_itself = prediction.change.split()[0] in ("roofline:", "kernels", "copies", "communication", "device")
        busy = 0.0 if by_itself else spent.get("compute", 0.0) + spent.get("communication", 0.0)
        busy = spent.get("compute", 0.0) if prediction.change == "communication overlapped" else busy
        yield from _above(f"“{prediction.change}” saves", prediction.saved.value, step - busy)
        yield from _above(f"“{prediction.change}” saves of its cap", prediction.saved.value, prediction.cap)


def _one_value(process: ProcessReport, displayed: dict[str, str]) -> Iterator[str]:
    """The headline, the step and every larger category are the same words everywhere."""
    case = process.case
    step = case.step.duration.value
    reported = [process.verdict.sentence, process.verdict.badge, format_duration(step)]
    reported += [format_duration(use.duration.value) for use in case.categories if use.duration.value > 0.05 * step]
    for form, document in displayed.items():
        words = _plain(document)
        here = [from_here(each, sources_of(process)) for each in reported]
        yield from (f"{form}: it does not say “{each}”" for each in here if each and _plain(each) not in words)
    yield from _one_saving(process, displayed)
    for form in ("text", "Markdown"):  # frames on the page are names as the trace has them, with folders
        yield from (f"{form}: {message}" for message in one_path(process, displayed[form]))
    shares = [format_share(use.duration.value / step) for use in case.categories if use.duration.value > 0.05 * step]
    for form in ("text", "Markdown", "page"):
        yield from (f"{form}: no share of {each}" for each in shares if each not in displayed[form])


def _one_saving(process: ProcessReport, displayed: dict[str, str]) -> Iterator[str]:
    """What the headline says that could be saved is what tables and the page say of the same category."""
    case, sentence = process.case, process.verdict.sentence
    saved = dict(re.findall(r"(\w+) [\d.]+ [nµm]?s \([\d.<]+ %, of which ([^()]+) could be saved\)", sentence))
    for use in case.categories:
        reported = saved.get(WORDS.get(use.name, use.name))
        if reported is None:
            continue
        took, share = format_duration(use.duration.value), format_share(use.duration.value / case.step.duration.value)
        if f"{took} {share} {reported}\n" not in displayed["page"]:
            yield f"page: {use.name} does not save up to {reported}, as the headline says"
        row = next(
            (line for line in displayed["Markdown"].splitlines() if line.startswith(f"| {use.name} | {took}")), ""
        )
        if not row.endswith(f"| {reported} |"):
            yield f"Markdown: {use.name} does not save up to {reported}, as the headline says: {row}"


def one_path(process: ProcessReport, document: str) -> Iterator[str]:
    """A line of the job is written in one way."""
    for source in set(sources_of(process)):
        short = format_source(source)
        ways = set(re.findall(rf"[\w./\\-]*{re.escape(short)}(?!\d)", document))
        if len(ways) > 1 and short in ways:
            yield f"one line in several ways: {', '.join(sorted(ways))}"


def _plain(document: str) -> str:
    return " ".join(document.replace("\\", "").split())
