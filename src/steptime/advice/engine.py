"""Examination of a case: every rule runs once, then immaterial and redundant findings are removed.

Third-party rules come through the entry point group "steptime.rules". A plug-in with an error and a rule that fails
cost one row, never the diagnosis.

Findings that claim the same time share it, so that together they promise no more than there is. Causes come before
places, and of these the largest first. It reduces the savings of later findings in the same category, at the same line
or of the step. A finding with almost nothing left stays without savings, as a part of the earlier one, because its line
and advice are its own."""

from __future__ import annotations

import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from math import hypot
from types import FrameType

from steptime.advice.evidence import Case
from steptime.advice.hottest_line import at_hottest_line
from steptime.advice.places import with_way_of_line, with_what_runs
from steptime.advice.rule import Examination, Finding, Rule, Weight
from steptime.advice.rules import CATALOGUE
from steptime.advice.run_uses import HolderUse, limit_of_cache
from steptime.advice.savings import WORKING, as_decided, capped, named, ratio, spent_in
from steptime.advice.unclaimed import MOST_UNCLAIMED, notes
from steptime.advice.verdict import GROWTH, LARGE_PART, MOST_OF_THE_RUN, OUTLIERS, first_note, worsening
from steptime.analysis.what_if.calibrated import HOST
from steptime.quantities import Estimate, SourceLine, format_duration, format_source


def shared(findings: Sequence[Finding], case: Case, least: float) -> tuple[Finding, ...]:
    """Findings with savings that do not overlap, in the given order: each keeps what the findings before it leave of
    its savings. least: ns; a finding that is left less has no savings and names the finding that includes them."""
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
            holder = max(earlier, key=lambda each: _closeness(finding, each))
            part = f"{finding.summary}: {format_duration(saving.value)}, included in the savings of {holder.code}"
            kept.append(replace(finding, savings=None, summary=part))
    return tuple(kept)


def _left(finding: Finding, earlier: Iterable[Finding], case: Case) -> float:
    """Savings (ns) that earlier findings leave: of the step, the finding's category, its line and its function."""
    bounds = [case.step.duration.value - _sum(earlier)]
    category = named(case.categories, finding.category)
    if category is not None:
        own = _sum(each for each in earlier if each.category == finding.category)
        bounds.append(_left_by_places(finding.category, category.duration.value, earlier, case) - own)
    here = [each for each in earlier if _same_line(finding, each) and _overlap(finding, each)]
    spent = _time_of(finding.spent_at, case)
    if case.lines and not spent:  # a line outside of the loop made things that cost time in different parts of the step
        here = [each for each in here if each.category == finding.category]
    if here:
        taken = _sum(here)
        bounds.append(max(taken, spent) - taken)
    near = [each for each in earlier if _same_function(finding, each) and _overlap(finding, each)]
    if near and (whole := _time_of_function(finding.spent_at, case)):
        bounds.append(whole - _sum(near))
    return max(0.0, min(bounds))


def _left_by_places(name: str, spent: float, earlier: Iterable[Finding], case: Case) -> float:
    """ns of a category that earlier findings about a place, whose time is of no single category, leave. Those take
    Python's time first, then of all others alike."""
    if name == "python":
        return spent
    others = case.step.duration.value - spent_in(case.categories, "python")
    taken = _sum(each for each in earlier if not each.category) + others - case.step.duration.value
    return spent * (1 - ratio(max(0.0, taken), others))


def _closeness(finding: Finding, other: Finding) -> tuple[bool, bool, bool]:
    """Certainty that another finding includes the time of this one: at its line, in its category, or anywhere in the
    step."""
    overlap = _overlap(finding, other)
    return (
        overlap and _same_line(finding, other),
        bool(finding.category) and finding.category == other.category,
        overlap,
    )


def _overlap(finding: Finding, other: Finding) -> bool:
    """True if both may claim the same time: different categories do not overlap."""
    return not finding.category or not other.category or finding.category == other.category


def _same_line(finding: Finding, other: Finding) -> bool:
    line, its = finding.spent_at, other.spent_at
    return line is not None and its is not None and line.place == its.place


def _same_function(finding: Finding, other: Finding) -> bool:
    line, its = finding.spent_at, other.spent_at
    if line is None or its is None or not line.function:
        return False
    return (line.file, line.function) == (its.file, its.function)


def _time_of_function(source: SourceLine | None, case: Case) -> float:
    """Time per step of a function's lines including callees, ns; 0 if it was not timed."""
    if source is None:
        return 0.0
    own = (source.file, source.function)
    spent = sum(line.duration.value for line in case.lines if (line.source.file, line.source.function) == own)
    paths = (path for path in case.paths if any((line.file, line.function) == own for line in path.lines))
    return max(spent, sum(path.duration for path in paths))


def _time_of(source: SourceLine | None, case: Case) -> float:
    """Time per step of a line including callees, ns; 0 if it was not timed."""
    if source is None:
        return 0.0
    spent = sum(line.duration.value for line in case.lines if line.source.place == source.place)
    below = sum(path.duration for path in case.paths if any(each.place == source.place for each in path.lines))
    return max(spent, below)


def _sum(findings: Iterable[Finding]) -> float:
    return sum(each.savings.value for each in findings if each.savings is not None)


def _reduced(saving: Estimate, left: float) -> Estimate:
    """Savings reduced to `left`; the upper end stays, because the finding alone may still save all."""
    return replace(saving, value=left, low=min(saving.low, left))


GROUP = "steptime.rules"
QUICKER_BY_SAVING, QUICKER_OF_REST = 0.25, 0.1
"""Upper bounds on a further speed-up of a step on a CPU, as fractions of the saving and of the rest: removed work no
longer evicts the rest from caches. In 16 pairs of jobs with and without a fault, the 58 phases without it took 4.7 %
longer next to it in the median, half of them 0 to 13 %, the extremes -25 and 50 % (Xeon, 2 CPUs, torch 2.13)."""
LEAST_SHARE = 0.03
"""Least savings of a finding as a fraction of the step: less is not worth an edit, and two runs of one job differ by as
much."""
FEWEST_FOR_NOTHING = 6
"""Least number of values for an interval down to zero to drop a finding. The interval of fewer values often includes
zero although each is large, so the finding stays, with a remark on their number."""
OF_A_CATEGORY = frozenset(
    {"overhead-bound", "exposed-communication", "too-few-threads", "memory-bound-pointwise", "too-few-workers",
     "too-many-workers", "optimizer-share"}
)  # fmt: skip
"""Names of rules about a whole category of the step, or a setting of the machine: what helps is another way to run the
same work."""
OF_A_PLACE = frozenset(
    {"python-time", "outside-model", "batch-preparation", "dispatch-loop", "dominant-operator", "input-wait"}
)
"""Names of rules that say where the time goes. All others say why."""
COVERED = 0.15
"""Fraction of the step: if no finding saves as much, a fallback finding reports what most of the step consists of.
Equals the least fraction of a category that the verdict names."""
AT_A_PLACE = OF_A_PLACE - {"dominant-operator"} | {
    "optimizer-share", "steps-changed", "too-few-workers", "slow-collate", "slow-sampler", "large-part",
    "list-conversion", "metrics-in-step",
}  # fmt: skip
"""Names of rules whose finding says what runs at its place, and speaks about what takes most of it."""
BY_OPERATORS = frozenset({"memory-bound-pointwise", "copies-and-casts", "work-without-gradient"})
"""Names of rules about operators of a kind, whose finding says what runs at their place."""
BY_THE_LINE = frozenset({"goes-through-all", "logging-in-step", "checkpoint-in-step"})
"""Names of rules whose advice is for all lines of a kind: a better way to write the very line replaces it."""
GENERAL = ("Look ", "Ask ", "Move this out ", "Prepare batches ahead ")
"""Starts of advice that holds for any code."""
OF_A_PLACE_FROM = 0.15
"""Fraction of a place's savings from which on a cause in that place comes before it: a place promises all of its time,
and nobody knows how much of that is needed."""
REPLACES_FROM = 0.5
"""Fraction of a general finding's savings from which on a specific finding about the same category replaces it."""


def plugin_rules(
    taken: Iterable[Rule], found: Iterable[EntryPoint] | None = None
) -> tuple[tuple[Rule, ...], tuple[tuple[str, str], ...]]:
    """(rules of plug-ins, ("plug-in NAME", problem) for each plug-in that cannot be used). taken: rules whose codes and
    names are in use. found: entry points to load, by default the installed ones."""
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
            problem = f"{entry.value} is a {kind}, not a rule. Decorate it with steptime.advice.rule.rule"
        elif loaded.code in codes:
            problem = (
                f"{entry.value} has the code {loaded.code}, which {codes[loaded.code]} already uses. Choose another"
            )
        elif loaded.name in codes.values():
            problem = f"{entry.value} has the name {loaded.name}, which another rule already uses. Choose another"
        else:
            codes[loaded.code] = loaded.name
            rules.append(loaded)
            continue
        problems.append((f"plug-in {entry.name}", problem))
    return tuple(rules), tuple(problems)


def _loaded(entry: EntryPoint) -> object:
    """Object that an entry point names. Output of its module goes to standard error, because standard output may be a
    report.

    Raises ImportError with a sentence for anything that the module raises, including an exit; KeyboardInterrupt if the
    user caused it."""
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
    """Context manager with a list of the user's interrupts inside of the block, which tells them from a module's own
    KeyboardInterrupt."""
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
    """(built-in rules and those of plug-ins, problems of plug-ins that cannot be used)."""
    plugins, problems = plugin_rules(CATALOGUE)
    return CATALOGUE + plugins, problems


def examine(case: Case, rules: Iterable[Rule] | None = None) -> Examination:
    """All findings of a case, by savings, followed by notes and caveats. A finding about most of the run comes first,
    because no saving in a step is worth as much. A rule whose evidence is missing is listed as not examined, with the
    reason; a rule that raises is listed as failed."""
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
"""Rules by name."""


def _material(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings with savings limited to what they shorten the step by, without immaterial ones."""
    return tuple(bounded for each in findings if (bounded := _bounded(each, case)) is not None)


def _without_covered(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings without fallback ones if a finding about the same category, or about no single one, saves a good part of
    the step."""
    least = COVERED * case.step.duration.value
    large = {each.category for each in findings if each.weight is Weight.FINDING and _saving(each) >= least}
    return tuple(
        each for each in findings if not (rules[each.name].fallback and large.intersection((each.category, "")))
    )


def _at_lines(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings moved to the hottest line below their own, except where a rule points to the line of a setting."""
    return tuple(each if rules[each.name].at_setting else at_hottest_line(each, case) for each in findings)


def _with_containers(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings whose line reads a container that becomes longer with each step say so: they cost more with each."""
    held = case.memory.holders if case.memory is not None else ()
    longer = [each for each in held if each.entries]
    lines = [*(use.source for use in case.lines), *(line for use in case.paths for line in use.lines)]
    code = tuple({f" {line.text}" for line in lines if line.text})
    return tuple(_with_container(each, longer, code) for each in findings)


def _with_container(finding: Finding, longer: Sequence[HolderUse], code: tuple[str, ...]) -> Finding:
    """code: texts of lines, behind a space; evidence without one is a sentence, in which a name may be a word."""
    line = finding.source
    if line is None or finding.weight is not Weight.FINDING:
        return finding
    texts = "\n".join((line.text, *(each for each in finding.evidence if f" {each}".endswith(code))))
    for each in longer:
        _, dot, own = each.name.rpartition(".")
        named = rf"\.{re.escape(own)}\b" if dot else rf"(?<![.\w]){re.escape(own)}\b"
        keeps = each.kind == "cache" and each.name == line.function
        if each.source != line and each.name not in finding.summary and (keeps or re.search(named, texts)):
            reads = "Its results stay in" if keeps else "It reads"
            grows = f"{reads} the {each.kind} {each.name}, which grows by {each.entries:,.0f} with each step."
            advice = f"Empty {each.name} after use, limit it, or keep a sum of it."
            if each.kind == "cache":
                advice = limit_of_cache(each.name)
            return replace(finding, advice=f"{finding.advice} {advice}", evidence=(grows, *finding.evidence))
    return finding


def _with_what_runs(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings about a place with what runs there, and a better way to write it."""
    return tuple(
        with_way_of_line(each, case)
        if each.name in BY_THE_LINE
        else with_what_runs(each, case, general=each.advice.startswith(GENERAL), speaks=each.name not in BY_OPERATORS)
        if each.name in AT_A_PLACE | BY_OPERATORS and _is_at_place(each)
        else each
        for each in findings
    )


def _is_at_place(finding: Finding) -> bool:
    """False for a note on an operator: it has said what runs."""
    place = format_source(finding.source) if finding.source is not None else ""
    return finding.name != LARGE_PART or (place != "" and place in finding.summary)


def _without_named_parts(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings without two kinds of notes: those on a part of the step that another finding names by line, function or
    operator; and those on input lines whose time a finding about the input claims."""
    others = [each for each in findings if each.name != LARGE_PART and each.weight is not Weight.CAVEAT]
    claimed = max((_saving(each) for each in others if each.category == "input"), default=0.0) / (1 - MOST_UNCLAIMED)
    inputs = {use.source.place for use in case.lines if use.role == "input" and use.duration.value <= claimed}
    words = set(" ".join(" ".join((each.summary, *each.evidence)) for each in others).replace(":", " ").split())

    def is_named(part: Finding) -> bool:
        here = any(_same_line(part, each) or _same_function(part, each) for each in others)
        loads = part.source is not None and part.source.place in inputs
        return here or loads or part.summary.partition(" ")[0] in words

    return tuple(each for each in findings if each.name != LARGE_PART or not is_named(each))


def _each_line_once(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings without repetitions: for each rule and line, the largest one. Several lines may lead to the same hottest
    line."""
    kept: dict[object, Finding] = {}
    for each in findings:
        kept.setdefault((each.code, each.source.place) if each.source is not None else id(each), each)
    return tuple(kept.values())


def _with_shares(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings with the time that several claim divided between them."""
    return shared(_lines_first(findings), case, LEAST_SHARE * case.step.duration.value)


def _with_the_rest(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings and notes on what could be saved and is in none of them."""
    rule = rules.get(LARGE_PART)
    return (*findings, *(notes(findings, case, rule) if rule is not None else ()))


def _in_order(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings by savings; of two with like savings, the more specific one first. Faults that grow with every step come
    before all, or else parts of the run that matter more than its usual steps (outliers, other parts), unless the cause
    of half of a step is known."""
    worse, half = worsening(case), MOST_OF_THE_RUN * case.step.duration.value
    grows = any(each.name == worse and (worse != GROWTH or each.weight is Weight.FINDING) for each in findings)
    known = any(each.weight is Weight.FINDING and not _vague(each) and _saving(each) >= half for each in findings)
    note = first_note(case, findings)
    first = worse if grows else "" if known and note != OUTLIERS else note
    return tuple(sorted(_lines_first(sorted(findings, key=_rank)), key=lambda each: each.name != first))


def _outcome(rule: Rule, case: Case) -> tuple[tuple[Finding, ...], str, str]:
    """(findings, reason why the rule was not examined, reason why it failed)."""
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
    """Findings with each less specific one moved after the more specific ones with a line, unless it surely saves more.
    A cause comes before a place, because it says what to do; a place comes before a category or a setting. A line is
    changed in minutes, a category by another way of running the model."""
    kept: list[Finding] = []
    for finding in reversed(findings):  # the least first
        alike = (at for at, other in enumerate(kept) if _yields(finding, other))
        kept.insert(next(alike, len(kept)), finding)
    return tuple(reversed(kept))


def _vague(finding: Finding) -> int:
    """0 for a cause, 1 for a place, 2 for a category or a setting."""
    return 2 if finding.name in OF_A_CATEGORY else int(finding.name in OF_A_PLACE)


def _yields(general: Finding, line: Finding) -> bool:
    """True if a finding is less specific than another one, which has a line, and neither's interval excludes the
    other's savings. For a place and a cause in it: if the cause is a good part of it."""
    if _vague(general) <= _vague(line) or line.source is None:
        return False
    if general.savings is None or line.savings is None or general.weight is not line.weight:
        return False
    inside = _overlap(general, line) and (_same_line(general, line) or _same_function(general, line))
    if _vague(general) == 1 and inside and line.savings.value >= OF_A_PLACE_FROM * general.savings.value:
        return True
    return line.savings.high >= general.savings.value and general.savings.low <= line.savings.value


def _bounded(finding: Finding, case: Case) -> Finding | None:
    """Finding with its savings limited to its category (or the step) and to what they shorten the step by; None if not
    material."""
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
    # Steps that grow differ from each other by far more than their mean is uncertain by.
    grows = case.change is not None and finding.savings.low > 0
    nothing = saving.low <= 0 and not grows
    if saving.value < LEAST_SHARE * step or (nothing and few >= FEWEST_FOR_NOTHING):
        return None
    evidence = finding.evidence
    if nothing:
        steps = "one step" if few == 1 else f"{few} steps"
        evidence += (f"Based on {steps}, so there is no interval: the savings may be zero.",)
    return replace(finding, savings=_of_any_run(saving, case, upper_bound.high), evidence=evidence)


def _of_no_use_yet(finding: Finding, case: Case) -> Finding | None:
    """Note from a finding that only shortens the device's work, if the CPU decides the step: it may pay with a faster
    host. None if other work of the device hides it."""
    if case.replay is None or case.replay.decides != HOST:
        return None
    summary = f"{finding.summary}; the CPU limits the step, so faster kernels alone do not shorten it"
    return replace(finding, summary=summary, savings=None, weight=Weight.NOTE)


def _of_any_run(saving: Estimate, case: Case, most: float) -> Estimate:
    """Savings with an interval that covers another run of the job. Variation between runs and between steps is
    independent, so the squares add up. On a CPU the rest may become faster, too. A trace represents only its own steps.

    most: ns that the finding's category may hold."""
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
    """Number of steps behind a saving, where no more are available: for a bare trace all its steps; for a run the few
    in which lines were timed."""
    if case.step.mode == "trace":
        return case.step.steady
    return samples if 0 < samples < case.step.steady else FEWEST_FOR_NOTHING


def _upper_bound(finding: Finding, case: Case) -> Estimate:
    """Upper bound on savings: the category's time, else the step's."""
    category = named(case.categories, finding.category)
    return category.duration if category is not None else case.step.duration


def _without_generalities(findings: Findings, case: Case, rules: Rules) -> Findings:
    """Findings without general ones that a specific finding explains; their summaries become its evidence. By
    savings."""
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
    """True if a specific finding replaces a general one: same category, and same line if both have one."""
    rule = rules.get(finding.name)
    if rule is None or general.name not in rule.supersedes:
        return False
    if finding.weight is not Weight.FINDING:  # of two notes the one with a line stays: the line is what to look at
        whole = rule.fallback and finding.weight is general.weight and general.source is None
        if not whole:
            return False
    if finding.category and general.category and finding.category != general.category:
        return False
    if not finding.category and general.category == "input" and finding.source is not None:
        return False  # a line of the step is not what the loader is waited for
    line, other = (each and each.place for each in (finding.spent_at, general.spent_at))
    if rules[general.name].by_line and other is not None and line != other:
        return False
    return _saving(finding) >= REPLACES_FROM * _saving(general)


def _saving(finding: Finding) -> float:
    return finding.savings.value if finding.savings is not None else 0.0


PASSES: tuple[Callable[[Findings, Case, Rules], Findings], ...] = (
    _material,  # first: all that follows compares savings, or goes by what is worth a finding
    _without_covered,  # before the lines: what makes up a category is reported by no line, and none is looked for
    _at_lines,  # before findings replace one another, as those about lines do so by their lines
    _with_what_runs,  # after the lines, and before all that adds to a summary or to advice
    _with_containers,  # after the lines, which say what they read
    _without_generalities,  # before the sharing: what is reported better elsewhere takes no time from another finding
    _without_named_parts,  # before the sharing: what another finding names needs no note
    _each_line_once,  # after the lines, which may have become one; before the sharing, for the same reason
    _with_shares,  # the last that changes a saving: of all that stays, the largest first
    _with_the_rest,  # after the sharing: what nobody claims is known then
    _in_order,  # by what was left of each
)
"""Passes over the findings of all rules, in this order."""
