"""Examining a case: every rule is asked once, then what is immaterial or said better by another finding goes.

Rules of third parties come through the entry point group "steptime.rules". Errors of theirs, and a rule that fails,
cost one row, never the diagnosis.

Findings that claim the same time share it, so that together they promise no more than there is. The largest comes
first. The savings of a later finding in the same category, at the same line or of the step are reduced by it; where
next to nothing is left, it stays without a saving, as its line and its advice are its own: it is a part of the earlier
one's.
"""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from math import hypot
from types import FrameType

from steptime.advice.evidence import Case
from steptime.advice.hottest_line import at_hottest_line
from steptime.advice.rule import Examination, Finding, Rule, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.savings import WORKING, as_decided, capped, named
from steptime.advice.verdict import NOTES, most_of_the_run
from steptime.analysis.what_if.calibrated import HOST
from steptime.quantities import Estimate, SourceLine, format_duration

Place = tuple[str, int]


def shared(findings: Sequence[Finding], case: Case, least: float) -> tuple[Finding, ...]:
    """The findings with what is left for each, in their order. findings: the largest first. least: ns, less is not
    worth a finding of its own."""
    kept: list[Finding] = []
    for finding in findings:
        saving = finding.savings
        if finding.weight is not Weight.FINDING or saving is None:
            kept.append(finding)
            continue
        earlier = [each for each in kept if each.weight is Weight.FINDING and each.savings is not None]
        left = _left(finding, earlier, case)
        if left >= saving.value:
            kept.append(finding)
        elif left >= least:
            kept.append(replace(finding, savings=_reduced(saving, left)))
        else:
            holder = next((each for each in earlier if _overlap(finding, each)), earlier[0])
            part = f"{finding.summary}: up to {format_duration(saving.value)}, a part of what {holder.code} could save"
            kept.append(replace(finding, savings=None, summary=part))
    return tuple(kept)


def _left(finding: Finding, earlier: Iterable[Finding], case: Case) -> float:
    """ns that earlier findings leave of the step, of the finding's category and of its line."""
    bounds = [case.step.duration.value - _sum(earlier)]
    category = named(case.categories, finding.category)
    if category is not None:
        bounds.append(category.duration.value - _sum(each for each in earlier if each.category == finding.category))
    here = [each for each in earlier if _same_line(finding, each) and _overlap(finding, each)]
    if here:
        taken = _sum(here)
        bounds.append(max(taken, _time_of(finding.source, case)) - taken)
    near = [each for each in earlier if _same_function(finding, each) and _overlap(finding, each)]
    if near and (whole := _time_of_function(finding.source, case)):
        bounds.append(whole - _sum(near))
    return max(0.0, min(bounds))


def _overlap(finding: Finding, other: Finding) -> bool:
    """True if both may be about the same time: what categories keep apart is not."""
    return not finding.category or not other.category or finding.category == other.category


def _same_line(finding: Finding, other: Finding) -> bool:
    return finding.source is not None and other.source is not None and _place(finding.source) == _place(other.source)


def _same_function(finding: Finding, other: Finding) -> bool:
    if finding.source is None or other.source is None or not finding.source.function:
        return False
    return (finding.source.file, finding.source.function) == (other.source.file, other.source.function)


def _time_of_function(source: SourceLine | None, case: Case) -> float:
    """ns per step of the lines of a function, what they call included where that was timed; 0 where they were not."""
    inside = [line for line in case.lines if source is not None and line.source.function == source.function]
    spent = sum(line.duration.value for line in inside if source is not None and line.source.file == source.file)
    below = sum(
        path.duration
        for path in case.paths
        if source is not None and any((e.file, e.function) == (source.file, source.function) for e in path.lines)
    )
    return max(spent, below)


def _place(source: SourceLine) -> Place:
    return source.file, source.line


def _time_of(source: SourceLine | None, case: Case) -> float:
    """ns per step of a line, with what it calls; 0 where it was not timed."""
    if source is None:
        return 0.0
    spent: defaultdict[Place, float] = defaultdict(float)
    for line in case.lines:
        spent[_place(line.source)] += line.duration.value
    below = sum(path.duration for path in case.paths if any(_place(each) == _place(source) for each in path.lines))
    return max(spent[_place(source)], below)


def _sum(findings: Iterable[Finding]) -> float:
    return sum(each.savings.value for each in findings if each.savings is not None)


def _reduced(saving: Estimate, left: float) -> Estimate:
    """Savings that are left, which by themselves may still be all."""
    return replace(saving, value=left, low=min(saving.low, left))


GROUP = "steptime.rules"
QUICKER_BY_SAVING, QUICKER_OF_REST = 0.25, 0.1
"""By how much of a saving, and of what stays, a step on a CPU gets quicker besides, at the most: what goes no longer
takes caches from what stays. In 16 pairs of jobs with and without a fault the 58 phases that it was not in took 4.7 %
longer next to it in the median, half of them 0 to 13 %, the extremes -25 and 50 % (Xeon, 2 CPUs, torch 2.13)."""
LEAST_SHARE = 0.03
"""Fraction of the step: a finding worth less is not worth an edit, and is within what two runs of one job differ by."""
FEWEST_FOR_NOTHING = 6
"""Values: an interval of fewer often reaches down to nothing although each of them is large; that says more about their
number than about the fault, so that a finding is kept, and said to rest on so few."""
OF_A_CATEGORY = frozenset({"overhead-bound", "exposed-communication"})
"""Rules that tell a whole category of the step."""
COVERED = 0.15
"""Fraction of the step: a finding that saves so much says what to do; where none does, it is said what most of the step
is made of. As much as the verdict asks of a category that it names."""
REPLACES_FROM = 0.5
"""A particular finding replaces the general one about the same category when it explains at least half of it."""


def plugin_rules(
    taken: Iterable[Rule], found: Iterable[EntryPoint] | None = None
) -> tuple[tuple[Rule, ...], tuple[tuple[str, str], ...]]:
    """Rules of plugins, and ("plug-in" and its name, what is wrong) for each one that cannot be used.

    taken: rules whose codes and names are in use. found: entry points to load, by default those installed.
    """
    codes = {rule.code: rule.name for rule in taken}
    rules: list[Rule] = []
    problems: list[tuple[str, str]] = []
    for entry in entry_points(group=GROUP) if found is None else found:
        try:
            loaded = _loaded(entry)
        except ImportError as error:
            problems.append((f"plug-in {entry.name}", str(error)))
            continue
        if not isinstance(loaded, Rule):
            kind = type(loaded).__name__
            problem = f"{entry.value} is a {kind}, not a rule: decorate it with steptime.advice.rule.rule"
        elif loaded.code in codes:
            problem = f"{entry.value} has the code {loaded.code}, which {codes[loaded.code]} has already: take another"
        elif loaded.name in codes.values():
            problem = f"{entry.value} has the name {loaded.name}, which another rule has already: take another"
        else:
            codes[loaded.code] = loaded.name
            rules.append(loaded)
            continue
        problems.append((f"plug-in {entry.name}", problem))
    return tuple(rules), tuple(problems)


def _loaded(entry: EntryPoint) -> object:
    """Object that an entry point names. Output of its module goes to standard error: standard output may be a report.

    Raises ImportError, in words, whatever the module raises, an exit too; KeyboardInterrupt where it was the user's.
    """
    with _interrupts() as interrupts, redirect_stdout(sys.stderr):
        try:
            return entry.load()
        except BaseException as error:  # a stranger's module may raise anything, or exit
            if interrupts and isinstance(error, KeyboardInterrupt):
                raise
            reported = traceback.format_exception_only(error)[-1].strip()
            raise ImportError(f"{entry.value} cannot be imported: {reported}") from None


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """The interrupts by the user inside of the block, by which a KeyboardInterrupt is known as theirs."""
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def interrupt(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    if before is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield seen
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


@lru_cache(maxsize=1)
def all_rules() -> tuple[tuple[Rule, ...], tuple[tuple[str, str], ...]]:
    """Built-in rules and those of plugins, and the problems of plugins that cannot be used."""
    plugins, problems = plugin_rules(CATALOGUE)
    return CATALOGUE + plugins, problems


def examine(case: Case, rules: Iterable[Rule] | None = None) -> Examination:
    """All findings of a case, by savings; notes, then caveats after them. A finding about most of the run comes first:
    no saving in a step is worth as much.

    A rule whose needed evidence is missing is listed as not examined with the reason, one that raises as failed.
    """
    chosen, problems = all_rules() if rules is None else (tuple(rules), ())
    findings: list[Finding] = []
    absent: list[tuple[str, str]] = []
    failed = list(problems)
    for rule in chosen:
        found, reason, failure = _outcome(rule, case)
        findings += found
        absent += [(rule.code, reason)] if reason else []
        failed += [(rule.code, failure)] if failure else []
    named, kept = {rule.name: rule for rule in chosen}, tuple(findings)
    for change in PASSES:
        kept = change(kept, case, named)
    return Examination(kept, tuple(absent), tuple(failed))


Findings = tuple[Finding, ...]
Rules = Mapping[str, Rule]
"""By their names."""


def _material(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Each cut to what the step gets shorter by; what is worth nothing goes."""
    return tuple(bounded for each in findings if (bounded := _bounded(each, case)) is not None)


def _without_covered(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Without what a category is made of, where a finding about that category, or about none alone, saves a good part
    of the step."""
    least = COVERED * case.step.duration.value
    large = {each.category for each in findings if each.weight is Weight.FINDING and _saving(each) >= least}
    return tuple(
        each for each in findings if not (rules[each.name].fallback and large.intersection((each.category, "")))
    )


def _at_lines(findings: Findings, case: Case, rules: Rules) -> Findings:
    """At the hottest line below the one that a rule knows, but for the line that sets something."""
    return tuple(each if rules[each.name].at_setting else at_hottest_line(each, case) for each in findings)


def _each_line_once(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Keeps the largest of a rule's findings about one line, as two lines may lead to the same hottest one."""
    kept: dict[object, Finding] = {}
    for each in findings:
        kept.setdefault((each.code, _place(each.source)) if each.source is not None else id(each), each)
    return tuple(kept.values())


def _with_shares(findings: Findings, case: Case, rules: Rules) -> Findings:
    """With what is left for each of the time that several claim."""
    return shared(findings, case, LEAST_SHARE * case.step.duration.value)


def _in_order(findings: Findings, case: Case, rules: Rules) -> Findings:
    """By savings, what tells a line first where two are alike; before all, what is said of most of the run."""
    most = most_of_the_run(case)
    first = NOTES[most.kind] if most is not None else ""
    return tuple(sorted(_lines_first(sorted(findings, key=_rank)), key=lambda finding: finding.name != first))


def _outcome(rule: Rule, case: Case) -> tuple[tuple[Finding, ...], str, str]:
    """(findings, why it was not examined, why it failed)."""
    try:
        missing = rule.evidence.missing_in(case)
        if missing:
            return (), "; ".join(sorted(map(case.why_absent, missing))), ""
        return rule(case), "", ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - some rules are not ours: one row, not the diagnosis
        return (), "", f"{type(error).__name__}: {error}"


def _rank(finding: Finding) -> tuple[int, float, str]:
    return list(Weight).index(finding.weight), -_saving(finding), finding.code


def _lines_first(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """A finding about a category as a whole goes behind one with a line, where the intervals do not say which saves
    more: a line is changed in minutes, a category by another way of running the model."""
    kept: list[Finding] = []
    for finding in reversed(findings):  # the least first
        alike = (at for at, other in enumerate(kept) if _yields(finding, other))
        kept.insert(next(alike, len(kept)), finding)
    return tuple(reversed(kept))


def _yields(general: Finding, line: Finding) -> bool:
    """True if one is of a category and one of a line, and neither's interval excludes what the other saves."""
    if general.name not in OF_A_CATEGORY or line.name in OF_A_CATEGORY or line.source is None:
        return False
    if general.savings is None or line.savings is None or general.weight is not line.weight:
        return False
    return line.savings.high >= general.savings.value and general.savings.low <= line.savings.value


def _bounded(finding: Finding, case: Case) -> Finding | None:
    """The finding with its saving cut to its category (or to the step), and to what the step gets shorter by it; None
    when it is not material."""
    if finding.savings is None:
        return finding
    upper_bound = _upper_bound(finding, case)
    held, step = capped(finding.savings, upper_bound), case.step.duration.value
    saving = as_decided(held, finding.category, case.replay)
    if finding.weight is not Weight.FINDING:
        return replace(finding, savings=saving)
    if saving.value < LEAST_SHARE * step <= held.value and finding.category in WORKING:
        return _of_no_use_yet(finding, case)
    few = _rests_on(finding.savings.samples, case)
    if saving.value < LEAST_SHARE * step or (saving.low <= 0 and few >= FEWEST_FOR_NOTHING):
        return None
    evidence = finding.evidence
    if saving.low <= 0:
        steps = "one step" if few == 1 else f"{few} steps"
        evidence += (f"This rests on {steps}: no interval excludes that it is nothing.",)
    return replace(finding, savings=_of_any_run(saving, case, upper_bound.high), evidence=evidence)


def _of_no_use_yet(finding: Finding, case: Case) -> Finding | None:
    """Turns findings that shorten the device's work alone into notes where the host decides the step: with a faster
    host they may pay. Nothing where other work of the device hides it."""
    if case.replay is None or case.replay.decides != HOST:
        return None
    summary = f"{finding.summary}; the host decides the step, so that faster kernels shorten it by nothing yet"
    return replace(finding, summary=summary, savings=None, weight=Weight.NOTE)


def _of_any_run(saving: Estimate, case: Case, most: float) -> Estimate:
    """The saving with an interval that another run of the job would respect: what runs differ by is independent of what
    steps of one run differ by, so the two add up as squares do. On a CPU what stays may get quicker, too. A trace is
    only asked about its own steps.

    most: ns that the finding's category may hold.
    """
    if case.step.mode == "trace":
        return saving
    between = case.between_runs * case.step.duration.value
    low = saving.value - hypot(saving.value - saving.low, between)
    high = min(saving.value + hypot(saving.high - saving.value, between), max(saving.high, most))
    if case.step.device == "cpu":  # that is outside of the category
        stays = max(0.0, case.step.duration.value - high)
        high += min(QUICKER_BY_SAVING * saving.value, QUICKER_OF_REST * stays)
    return replace(saving, low=max(0.0, low), high=high)


def _rests_on(samples: int, case: Case) -> int:
    """Steps that a saving rests on, where more cannot be had: of a bare trace, whose job is over, all that it holds; of
    a run the few in which lines were timed."""
    if case.step.mode == "trace":
        return case.step.steady
    return samples if 0 < samples < case.step.steady else FEWEST_FOR_NOTHING


def _upper_bound(finding: Finding, case: Case) -> Estimate:
    """No more can be saved than the category holds, nor than the step."""
    category = named(case.categories, finding.category)
    return category.duration if category is not None else case.step.duration


def _without_generalities(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Without general findings that a particular one explains, whose summaries become its evidence; by savings."""
    kept: list[Finding] = []
    absorbed: dict[int, tuple[str, ...]] = {}
    for general in findings:
        better = [finding for finding in findings if _replaces(finding, general, rules)]
        if better:
            best = id(max(better, key=_saving))
            absorbed[best] = (*absorbed.get(best, ()), general.summary)
        else:
            kept.append(general)
    reported = (replace(finding, evidence=finding.evidence + absorbed.get(id(finding), ())) for finding in kept)
    return tuple(sorted(reported, key=_rank))


def _replaces(finding: Finding, general: Finding, rules: Rules) -> bool:
    """True if a particular finding stands for a general one: same category, same line where both are about lines."""
    rule = rules.get(finding.name)
    if rule is None or general.name not in rule.supersedes:
        return False
    if finding.weight is not Weight.FINDING:  # of two notes the one with a line stays: the line is what to look at
        whole = rule.fallback and finding.weight is general.weight and general.source is None
        if not whole:
            return False
    if finding.category and general.category and finding.category != general.category:
        return False
    line, other = (each and (each.file, each.line) for each in (finding.source, general.source))
    if rules[general.name].by_line and other is not None and line != other:
        return False
    return _saving(finding) >= REPLACES_FROM * _saving(general)


def _saving(finding: Finding) -> float:
    return finding.savings.value if finding.savings is not None else 0.0


PASSES: tuple[Callable[[Findings, Case, Rules], Findings], ...] = (
    _material,  # first: all that follows compares savings, or goes by what is worth a finding
    _without_covered,  # before the lines: what makes up a category is told by no line, and none is looked for
    _at_lines,  # before findings replace one another, as those about lines do so by their lines
    _without_generalities,  # before the sharing: what is told better elsewhere takes no time from another finding
    _each_line_once,  # behind the lines, which may have become one; before the sharing, for the same reason
    _with_shares,  # the last that changes a saving: of all that stays, the largest first
    _in_order,  # by what was left of each
)
"""Passes over the findings of all rules, in this order."""
