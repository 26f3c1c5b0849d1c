"""Verdict: the bottleneck of a training step, its line, and the confidence in it.

The answer comes first. Caveats come from outside of the job (other programs, too few steps, no profile), never from
what the job itself does: that is a finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from steptime.advice.evidence import Case
from steptime.advice.models import how_to_record, straggler_name, straggler_reason, straggler_text
from steptime.advice.rule import Finding, Weight
from steptime.advice.run_uses import CategoryUse, MemoryUse, OutlierUse, SegmentUse, StepSummary
from steptime.advice.savings import IDLE, largest, named, ratio, rises, summed
from steptime.advice.segment_evidence import MOST, line_place, lines_text, only_calls
from steptime.analysis.timeline import UNSPLIT_PHASES
from steptime.analysis.what_if.calibrated import DEVICE, HOST
from steptime.quantities import (
    Estimate,
    format_duration,
    format_share,
    format_source,
    format_spread,
    format_times,
)

BALANCED = "balanced"
UNKNOWN = "unknown"
CONFIDENT, LIKELY, UNCLEAR = "confident", "likely", "unclear"
LEAST_SHARE = 0.15
"""Fraction of the step that a category must give back to be its bottleneck. Also the fraction of the run from which on
another activity is named after the headline."""
MOST_OF_IT = 0.5
"""Fraction of the step from which on computing is the bottleneck if nothing else can give back LEAST_SHARE. Also the
fraction of a category that a finding must save to be its headline."""
COMPUTE = "compute"
COMMUNICATION = "communication"
UNRECORDED, UNEXPLAINED = "unrecorded", "unexplained"
WIDEST = 0.3
"""Fraction of the step: a wider interval that overlaps another category's decides nothing."""
CLEARLY = 2
"""Ratio to the second category from which on the first is the largest, however much the steps differ."""
NOT_IN_TRACE = "unrecorded-work"
"""Rule with a caveat on a trace which lacks work of the device."""
MADE_OF = "compute-share"
"""Rule that names the parts of computing."""
FEW_STEPS, OTHER_LOAD, STRAGGLER = "few-steps", "background-load", "straggler"
"""Rules whose caveat leaves an answer likely, because other steps would mostly agree; and the rule of stragglers."""
CALM = 0.1
"""Spread of the steps (interquartile range over median) below which other programs took little from them. On a quiet
machine steps of equal work stay within 0.05."""
FEWEST, EVEN = 6, 0.2
"""Least number of steps, and largest relative half-width of the interval, for confidence; else the answer is likely.
Six is the least number with a 95 % binomial interval of the median."""
MOST_OF_A_LINE = 0.4
"""Fraction of the forward pass from which on one line is named: a model of equal layers has no such line."""
MOST_NAMED = 3
"""Most categories that are named together."""

WORDS = {
    "compute": "computing",
    "communication": "communication",
    "copy": "copies",
    "unrecorded": "device work that the trace lacks",
    "input": "waiting for input",
    "sync": "waiting for reads from the device",
    "compile": "compiling",
    "overhead": "operator overhead",
    "python": "your own Python",
    "unexplained": "unexplained time",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "evaluation": "evaluation in the step",
    "transfer": "moving the batch",
    "rest": "code outside of forward, backward and optimizer",
}
"""Words for a category or phase in a sentence."""


def part_words(name: str) -> str:
    """Words for a phase or a category; any other name means the rest of the step."""
    return WORDS[name] if name in WORDS and name != "rest" else "the rest of the step"


LEAST_DECIDING = 0.03
"""Bound LEAST_SHARE if the CPU decides the step, and the device's part can give back nothing."""
LEAST_REPORTED = 0.005
"""Fraction of the step: less savings by a faster host or GPU count as none."""
RUN = {"rollout": "Rollouts take", "evaluation": "Evaluation takes", "checkpoint": "Writing checkpoints takes"}
"""Words for activities of a run besides training."""
NOTES = {"rollout": "rollout-share", "evaluation": "slow-evaluation", "checkpoint": "slow-checkpoint"}
"""Rules that say what to do about it."""
LARGE_PART = "large-part"
"""The rule that names what no finding is about."""
LEAK, GROWTH = "memory-leak", "steps-changed"
"""Rules of what becomes worse with every step."""
SOON = 86_400e9
"""ns: a leak that fills the memory within a day ends the training before it is over."""
MOST_AHEAD = 100
"""Times the part of the run that was seen: further ahead, growth that nothing was seen to keep may be a buffer that is
full long before the memory is."""
MOST_OF_THE_RUN = 0.5
"""Fraction of the run from which on such an activity is named first, because faster steps change little; below, where
doing it half as often saves more than any finding about the steps."""
HALF = 0.5
OUTLIERS = "outlier-steps"
"""Rule of the steps that take many times as long as the others."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Bottleneck of the step, and how sure that is. share: fraction of the step. decides: as in `ReplayUse`."""

    bottleneck: str
    """Name of a category, "balanced", or "unknown" without a breakdown."""
    sentence: str
    """Answer for a person."""
    share: Estimate | None = None
    """Fraction of the step that could be saved in that category (unit "1")."""
    confidence: str = UNCLEAR
    """"confident", "likely" or "unclear"."""
    reason: str = ""
    """Reason for the confidence, or for its lack; a sentence without its full stop."""
    decides: str = ""
    """Side that decides the length of the step by the calibrated replay: "host", "device" or "both"; "" without
    recorded kernels, or if unknown."""

    @property
    def badge(self) -> str:
        """Confidence with its reason: "Likely: only 5 of 12 steps were steady."; "" for a report without a reason."""
        return f"{self.confidence.capitalize()}: {self.reason[:1].lower()}{self.reason[1:]}." if self.reason else ""


def with_savings(case: Case, findings: Iterable[Finding]) -> Case:
    """The case, in which a perfect fix of computing saves at least as much as the largest saving of a finding in it,
    since a breakdown alone does not show savings within computing."""
    savings = [finding.savings for finding in findings if finding.savings and finding.category == COMPUTE]
    best = max(savings, key=lambda saving: saving.value, default=None)
    if best is None:
        return case
    return replace(case, categories=tuple(_with_saving(use, best) for use in case.categories))


def _with_saving(use: CategoryUse, best: Estimate) -> CategoryUse:
    more = use.name == COMPUTE and best.value > use.recoverable.value
    return replace(use, recoverable=best) if more else use


def verdict(case: Case, findings: Iterable[Finding] = ()) -> Verdict:
    """Verdict on a case: the category with the largest recoverable time; for a straggler, the waiting for it comes
    first."""
    findings = tuple(findings)
    late = case.straggler if case.straggler is not None and case.rank in case.straggler.ranks else None
    found = _decided(_verdict(case, tuple(each for each in findings if late is None or each.name != STRAGGLER)), case)
    worse = worsening(case)
    grows = next((each for each in findings if each.name == worse), None)
    if grows is not None and (worse == LEAK or grows.weight is Weight.FINDING):
        found = replace(found, sentence=f"{_reported(grows)} {found.sentence if worse == LEAK else ''}".rstrip())
    if message := _run_text(case, findings) or _compiling(case, MOST_OF_THE_RUN):
        found = replace(found, sentence=f"{message} {found.sentence}")
    elif message := f"{_besides(case)} {_compiling(case, LEAST_SHARE)}".strip():
        found = replace(found, sentence=f"{found.sentence} {message}")
    if case.outliers is not None and case.outliers.longer and case.outliers.share >= LEAST_SHARE:
        first = case.outliers.share >= MOST_OF_THE_RUN
        parts = (outliers_text(case.outliers) + ".", found.sentence)
        found = replace(found, sentence=" ".join(parts if first else reversed(parts)))
    if late is None:
        return found
    reason = straggler_reason(late)
    reported = straggler_text(late, case.step) + (f": {reason}." if reason else ".")
    return replace(found, sentence=reported if late.category == found.bottleneck else f"{reported} {found.sentence}")


def _decided(found: Verdict, case: Case) -> Verdict:
    """Verdict with the side that decides the step. A host-bound step comes first, because it shows what not to buy or
    try."""
    use = case.replay.calibration if case.replay is not None else None
    if use is None or case.step.untraced or found.bottleneck in (UNKNOWN, UNRECORDED, UNEXPLAINED):
        return found
    step, computing = case.step.duration.value, named(case.categories, COMPUTE)
    device, host = (_saves(each, step) for each in (use.without_device, use.without_host))
    if use.decides == HOST and computing is not None:
        run, whole = format_duration(computing.duration.value), format_duration(step)
        run = run.removesuffix(whole[whole.rindex(" ") :])
        fetching = named(case.categories, "input")
        by_input = fetching is not None and fetching.recoverable.value >= MOST_OF_IT * use.without_host
        bound, waits = ("Input", "the next batch") if by_input else ("Host", "launches")
        message = (
            f"{bound}-bound: kernels run for {run} of {whole} and wait for {waits}; a faster GPU would save {device}."
        )
        return replace(found, sentence=f"{message} {found.sentence}", decides=HOST)
    if found.bottleneck == COMMUNICATION:  # which may be waiting for another rank's host
        return replace(found, decides=use.decides)
    if use.decides == DEVICE:
        message = f"The GPU limits the step: a faster CPU would save {host}."
    elif use.decides:
        message = f"CPU and GPU both limit the step: alone, a faster GPU would save {device}, a faster CPU {host}."
    elif not use.known:
        message = f"Unclear whether CPU or GPU limits the step: the replay misses it by {format_share(use.error)}."
    else:
        message = (
            "The profiler slows the CPU, so a trace cannot show whether CPU or GPU limits the step: use steptime run."
        )
    return replace(found, sentence=f"{found.sentence} {message}", decides=use.decides)


def _saves(most: float, step: float) -> str:
    return f"at most {format_duration(most)}" if most >= LEAST_REPORTED * step else "nothing"


def outliers_text(use: OutlierUse) -> str:
    """Sentence on outliers: "3 of 22 steps took 1.02 s, 10 times the usual 100 ms, excluded here: the forward pass"."""
    took = f"{use.count} of {use.steps} steps took {format_duration(use.duration)}"
    times = (
        f", {format_times(use.duration / use.usual)} times the usual {format_duration(use.usual)}" if use.usual else ""
    )
    if use.rise is not None:
        took, times = (
            f"{use.count} of {use.steps} steps took {rises(use.rise)}",
            f", usually {format_duration(use.usual)}",
        )
    part = f"{use.optimizer}, which steps in no other" if use.optimizer else part_words(use.part)
    part = part if use.part or use.optimizer else "their parts were not timed"
    if use.line is not None:
        part = f"most of it at {format_source(use.line)}"
    if use.passes is not None:
        part = f"{use.passes.count:.0f} backward passes each, at {format_source(use.passes.source)}"
    return f"{took}{times}{', excluded here' if use.left_out and use.rise is None else ''}: {part}"


def _run_text(case: Case, findings: tuple[Finding, ...]) -> str:
    """Sentence on what matters more in the run than training steps: "Rollouts take 91 % of the run: …."; else ""."""
    most = more_than_steps(case, findings)
    if most is None:
        return ""
    lines = lines_text(most, case.step.device)
    small = f", in batches of {most.small.rows} where training has {most.small.usual}" if most.small is not None else ""
    return f"{_takes(most)} {format_share(most.share)} of the run{small}{lines and f': {lines}'}."


def _takes(use: SegmentUse) -> str:
    return "Calls of the models without gradients take" if only_calls(use) else RUN[use.kind]


def worsening(case: Case) -> str:
    """Code of the rule whose finding comes first because its fault worsens with every step; "" if there is none. Either
    steps grow by half within the run, also by a container that is known to grow (a longer run then pays more than was
    seen), or memory will soon be full."""
    if case.change is not None and (case.change.grows_much or case.change.longer or case.change.carried):
        return GROWTH
    left = time_until_full(case.memory, case.step) if case.memory is not None else None
    if case.memory is None or left is None or left > SOON or any(each.most is not None for each in case.memory.holders):
        return ""
    is_held = any(each.name for each in case.memory.holders)
    return LEAK if is_held or left <= MOST_AHEAD * case.step.total * case.step.duration.value else ""


def time_until_full(memory: MemoryUse, step: StepSummary) -> float | None:
    """Time until a leak fills the memory, ns; None if no leak is certain, or the memory's size is unknown."""
    if not memory.grows or memory.growth is None or not memory.capacity or memory.growth.value <= 0:
        return None
    return max(0.0, memory.capacity - memory.peak) / memory.growth.value * step.duration.value


def most_of_the_run(case: Case) -> SegmentUse | None:
    """Segments of the kind that takes most of the run in place of training; None if training does."""
    return next((use for use in case.segments if use.kind in RUN and use.share >= MOST_OF_THE_RUN), None)


def more_than_steps(case: Case, findings: Iterable[Finding]) -> SegmentUse | None:
    """Segments that take most of the run in place of training, else those of which half exceeds the largest saving in
    the steps; None if there are none."""
    savings = [each.savings.value for each in findings if each.weight is Weight.FINDING and each.savings]
    best = ratio(max(savings), case.step.duration.value) if savings else 1.0
    others = (use for use in case.segments if use.kind in RUN and use.share >= LEAST_SHARE)
    return most_of_the_run(case) or next((use for use in others if HALF * use.share > best * (1 - use.share)), None)


def first_note(case: Case, findings: Iterable[Finding]) -> str:
    """Name of the rule whose note about the run comes before all findings about a usual step; "" if there is none."""
    if case.outliers is not None and case.outliers.longer and case.outliers.share >= MOST_OF_THE_RUN:
        return OUTLIERS
    most = more_than_steps(case, findings)
    return NOTES[most.kind] if most is not None else ""


def _besides(case: Case) -> str:
    """Sentences on other segments with a good part of the run: "Writing checkpoints takes 23 % of the run besides."."""
    parts = [f"{_takes(use)} {format_share(use.share)} of the run besides{_at(use)}." for use in case.segments
             if use.kind in RUN and use.share >= LEAST_SHARE]  # fmt: skip
    return " ".join(parts)


def _compiling(case: Case, least: float) -> str:
    """Time that the run lost to the compiler, which no steady step shows; "" for a share below the least."""
    spent, share = case.step.compiling, ratio(case.step.compiling, case.step.run)
    return f"Compiling takes {format_duration(spent)}, {format_share(share)} of the run." if share >= least else ""


def _at(use: SegmentUse) -> str:
    """Line with most of a segment's time, if there is one: ", most of it at ppo.py:21"; else ""."""
    return f", most of it at {line_place(use.lines[0])}" if use.lines and use.lines[0].share >= MOST else ""


def _verdict(case: Case, findings: tuple[Finding, ...]) -> Verdict:
    if not case.categories or case.step.duration.value <= 0:
        return Verdict(UNKNOWN, "steptime could not split the steps into categories.", reason="there is no breakdown")
    if case.step.untraced:
        return _host_alone(case)
    uses = case.categories
    ranked = sorted(uses, key=lambda use: use.recoverable.value, reverse=True)
    first = _share(ranked[0].recoverable, case)
    second = _share(ranked[1].recoverable, case) if len(ranked) > 1 else None
    rivals = second is not None and second.value > 0 and second.high >= first.low
    wide = rivals and second is not None and max(first.high - first.low, second.high - second.low) > WIDEST
    close = wide and second is not None and first.value < CLEARLY * second.value
    varying = (UNCLEAR if close else LIKELY) if wide and first.value >= LEAST_SHARE else ""
    confidence, reason = _confidence(case, findings, varying)
    by_host = case.replay is not None and case.replay.decides == HOST
    computing, made_of = named(uses, COMPUTE), "" if by_host else _made_of(findings)
    computes = _share(computing.duration, case).value if computing is not None else 0.0
    lost, unexplained = named(uses, UNRECORDED), named(uses, UNEXPLAINED)
    least = max(first.value, LEAST_SHARE, _share(unexplained.duration, case).value if unexplained is not None else 0.0)
    if lost is not None and _share(lost.duration, case).value >= least:
        sentence = f"{_amount(lost, case)}. {how_to_record(case.step)}"
        if made_of and computes > _share(lost.duration, case).value:
            sentence = f"{made_of}. {sentence}"
        return Verdict(UNRECORDED, sentence, first, UNCLEAR, "what ran in that time is unknown")
    if LEAST_DECIDING <= first.value < LEAST_SHARE and by_host and ranked[0].name in IDLE:
        return Verdict(ranked[0].name, _headline(ranked[0], findings, case), first, confidence, reason)
    if first.value < LEAST_SHARE:
        name, sentence = _nothing_to_recover(uses, first, case, findings)
        sentence = _worth_more(findings, first, case) or sentence
        return Verdict(name, sentence, first, confidence, reason)
    least = max(LEAST_SHARE, first.value / CLEARLY)
    matter = [use for use in ranked[:MOST_NAMED] if _share(use.recoverable, case).value >= least]
    alone = len(matter) == 1 or _most_of(matter, findings)
    sentence = _headline(ranked[0], findings, case) if alone else _several(matter, findings, case)
    if made_of and made_of not in sentence and computes >= CLEARLY * first.value:  # that is what takes the time
        others = [use for use in matter if use.name != COMPUTE]
        if not alone and others:
            sentence = _several(others, findings, case) if len(others) > 1 else _headline(others[0], findings, case)
        sentence = f"{made_of}. {sentence}"
    return Verdict(BALANCED if rivals and not wide else ranked[0].name, sentence, first, confidence, reason)


def _host_alone(case: Case) -> Verdict:
    """Verdict on a job whose device was not recorded."""
    most = max(case.categories, key=lambda use: use.duration.value)
    amount = _amount(most, case)
    message = f"The device was not recorded. On the CPU, {amount[:1].lower()}{amount[1:]}."
    return Verdict(UNKNOWN, message, reason="the trace has calls for a device but no kernels")


def _confidence(case: Case, findings: tuple[Finding, ...], varying: str) -> tuple[str, str]:
    """(confidence, reason), from the gravest caveat. varying: confidence if steps vary so much that the intervals of
    the two largest categories are wide and overlap, else ""."""
    caveats = [(_grade(finding, case), finding.summary) for finding in findings if finding.weight is Weight.CAVEAT]
    if varying:
        caveats.append((varying, f"{steps_text(case.step)}; measure more of them"))
    if any(use.name in UNSPLIT_PHASES for use in case.categories):
        caveats.append((LIKELY, "no step was profiled, so the categories within each phase are unknown"))
    if caveats:
        return min(caveats, key=lambda caveat: caveat[0] == LIKELY)
    step = case.step.duration
    sure = case.step.steady >= FEWEST and (step.high - step.low) / 2 <= EVEN * step.value
    return CONFIDENT if sure else LIKELY, steps_text(case.step)


def steps_text(step: StepSummary) -> str:
    """Text on the steps behind the mean: "58 steps, ± 3.1 ms"; for few steps, their shortest and longest time."""
    if step.steady == 1:
        return "one step: others may differ"
    if step.steady < FEWEST and step.longest:
        return f"{step.steady} steps, {format_duration(step.shortest)} to {format_duration(step.longest)} long"
    return f"{step.steady} steps, {format_spread(step.duration)}"


def background_load(findings: Iterable[Finding]) -> Finding | None:
    """Caveat that other programs used the CPUs, so that the times of two runs cannot be compared; None without it."""
    return next((each for each in findings if each.name == OTHER_LOAD and each.weight is Weight.CAVEAT), None)


def _grade(caveat: Finding, case: Case) -> str:
    if caveat.name == FEW_STEPS:
        return LIKELY
    even = case.contention is not None and case.contention.spread <= CALM
    return LIKELY if caveat.name == OTHER_LOAD and even else UNCLEAR


def _made_of(findings: tuple[Finding, ...]) -> str:
    """Parts of computing from a note, "" without one."""
    return next((each.summary for each in findings if each.name == MADE_OF), "")


def _nothing_to_recover(
    uses: tuple[CategoryUse, ...], first: Estimate, case: Case, findings: tuple[Finding, ...]
) -> tuple[str, str]:
    """(bottleneck, sentence): the longest phase if no step was profiled; unexplained time or computing if that is most
    of the step; else balanced."""
    unsplit = [use for use in uses if use.name in UNSPLIT_PHASES]
    if unsplit:
        largest = max(unsplit, key=lambda use: use.duration.value)
        return largest.name, f"{_amount(largest, case)}."
    unexplained = named(uses, UNEXPLAINED)
    if unexplained is not None and _share(unexplained.duration, case).value >= MOST_OF_IT:
        record = "The trace does not show what the CPU did then: record whole steps, with CPU operators."
        return UNEXPLAINED, f"{_amount(unexplained, case)}. {record}"
    compute = named(uses, COMPUTE)
    share = _share(compute.duration, case) if compute is not None else None
    if compute is None or share is None or share.value < MOST_OF_IT:
        return BALANCED, f"Balanced: no category offers more than {format_share(first.value)}."
    most = max((_share(use.duration, case).value for use in uses if use is not compute), default=0.0)
    where = _hottest_forward(case) or (f"; nothing else takes more than {format_share(most)}" if most else "")
    made_of = _made_of(findings)
    return COMPUTE, f"{made_of}{_hottest_forward(case)}." if made_of else f"{_amount(compute, case)}{where}."


def _worth_more(findings: tuple[Finding, ...], recoverable: Estimate, case: Case) -> str:
    """Sentence of the first finding if it saves more than any category could give back by itself, "" otherwise: work
    that runs well but is unnecessary is above no roofline."""
    first = next((each for each in findings if each.weight is Weight.FINDING and each.savings is not None), None)
    if first is None or first.savings is None:
        return ""
    share = ratio(first.savings.value, case.step.duration.value)
    if share < max(LEAST_SHARE, recoverable.value):
        return ""
    return _reported(first)


def _reported(finding: Finding) -> str:
    """Sentence of a finding, with its line."""
    place = format_source(finding.source) if finding.source is not None else ""
    return f"{finding.summary}{f', at {place}' if place and place not in finding.summary else ''}."


def _most_of(uses: list[CategoryUse], findings: tuple[Finding, ...]) -> bool:
    """True if the first finding is about no single category, and saves most of what these could give back together."""
    first = next((each for each in findings if each.weight is Weight.FINDING), None)
    saved = first.savings.value if first is not None and first.savings is not None and not first.category else 0.0
    return saved >= MOST_OF_IT * sum(use.recoverable.value for use in uses)


def _headline(use: CategoryUse, findings: tuple[Finding, ...], case: Case) -> str:
    """Sentence of the first finding that saves most of the category, with its line; else one about the category."""
    about = [each for each in findings if each.category in (use.name, "") and each.weight is Weight.FINDING]
    about += [each for each in findings if each.category == use.name and each.weight is Weight.NOTE]
    most = MOST_OF_IT * use.recoverable.value
    first = next((each for each in about if each.savings and each.savings.value >= most), next(iter(about), None))
    hottest = _hottest_forward(case) if use.name == COMPUTE else ""
    amount = (_made_of(findings) if use.name == COMPUTE else "") or _amount(use, case)
    if first is None:
        return f"{amount}{hottest}."
    place = format_source(first.source) if first.source is not None else ""
    if first.savings is not None and first.savings.value >= most:
        return _reported(first)
    if first.savings is None or not place or hottest:
        return f"{amount}{hottest}."
    whose = "of it" if first.category else "of the step"
    return f"{amount}; {format_duration(first.savings.value)} {whose} could be saved at {place}."


def _hottest_forward(case: Case) -> str:
    """Text "; 92 % of the forward pass at model.py:27" if one user line in the model takes most of it, else "".
    Backward's part has no line, and a model's only line shows nothing. On a device the CPU's lines show where it
    waits, not what takes long. Where updating takes longer than forward and backward, the optimizer is named."""
    if case.step.device != "cpu":
        return ""
    times = {use.name: use.duration.value for use in case.phases}
    if case.optimizers and times.get("optimizer", 0.0) > times.get("forward", 0.0) + times.get("backward", 0.0):
        kind, taken = largest(summed((each.type, each.duration.value) for each in case.optimizers))
        return f"; {kind} takes {format_share(min(1.0, ratio(taken, case.step.duration.value)))} of the step"
    paths = [path for path in case.paths if path.part == "forward" and path.lines]
    spent = summed((format_source(path.lines[0]), path.duration) for path in paths)
    place, most = largest(spent)
    share = ratio(most, sum(spent.values()))
    reported = len(spent) > 1 and share >= MOST_OF_A_LINE
    return f"; {format_share(share)} of the forward pass at {place}" if reported else ""


def _several(uses: list[CategoryUse], findings: tuple[Finding, ...], case: Case) -> str:
    """Headline for several categories: "Waiting for input: 59 ms of 178 ms per step (33 %). Next to it: computing 99 ms
    (56 %)." The first one has its first finding, with the line, if that is most of it."""
    first, *others = uses
    parts = []
    for use in others:
        took = format_duration(use.duration.value)
        best = max((each.savings.value for each in findings if each.category == COMPUTE and each.savings), default=0.0)
        behind = use.name == COMPUTE and best >= MOST_OF_IT * use.recoverable.value > 0
        saved = f", of which {format_duration(use.recoverable.value)} could be saved" if behind else ""
        parts.append(f"{_words(use, case)} {took} ({format_share(_share(use.duration, case).value)}{saved})")
    return f"{_headline(first, findings, case)} Also: {' and '.join(parts)}."


def _amount(use: CategoryUse, case: Case) -> str:
    """Amount of a category: "Waiting for input: 70.1 ms of 91 ms per step (77 %)"; for a trace of one step, "in this
    step"."""
    took, step = format_duration(use.duration.value), format_duration(case.step.duration.value)
    words, share = _words(use, case), format_share(_share(use.duration, case).value)
    when = "in this step" if case.step.steady == 1 else "per step"
    return f"{words[:1].upper()}{words[1:]}: {took} of {step} {when} ({share})"


def _share(part: Estimate, case: Case) -> Estimate:
    """Fraction of the step with its interval. The step counts as exact, because both were measured in the same steps.
    With one step, the interval is the measured value."""
    step = case.step.duration.value
    if case.step.steady == 1:
        part = replace(part, low=part.value, high=part.value)
    value, low, high = (min(ratio(each, step), 1.0) for each in (part.value, part.low, part.high))
    return Estimate(value, low, high, part.samples, "1")


def _words(use: CategoryUse, case: Case) -> str:
    """Words for a category; communication of a rank that waits for a straggler is that waiting."""
    if use.name == COMMUNICATION and case.straggler is not None and case.rank not in case.straggler.ranks:
        return f"waiting for {straggler_name(case.straggler)}"
    return WORDS.get(use.name, use.name)
