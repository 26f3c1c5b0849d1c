"""The verdict: what a training step is bound by, where, and how sure that is.

The answer comes first. Doubt comes from what was measured outside of the job (other programs, too few steps, no
profile), never from what the job itself does: that is a finding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from steptime.advice.evidence import Case
from steptime.advice.models import how_to_record, straggler_name, straggler_reason, straggler_text
from steptime.advice.rule import Finding, Weight
from steptime.advice.run_uses import CategoryUse, OutlierUse, SegmentUse, StepSummary
from steptime.advice.savings import IDLE, named, ratio
from steptime.advice.segment_evidence import MOST, line_place, lines_text, only_calls
from steptime.analysis.timeline import UNSPLIT_PHASES
from steptime.analysis.what_if.calibrated import DEVICE, HOST
from steptime.quantities import Estimate, format_duration, format_share, format_source, format_times

BALANCED = "balanced"
UNKNOWN = "unknown"
CONFIDENT, LIKELY, UNCLEAR = "confident", "likely", "unclear"
LEAST_SHARE = 0.15
"""Fraction of the step: when no category can give back more, the step is not bound by any of them. Share of the run:
another part that takes so much is named behind."""
MOST_OF_IT = 0.5
"""Fraction of the step: when computing takes this much and nothing else can give back LEAST_SHARE, computing is the
bottleneck."""
COMPUTE = "compute"
COMMUNICATION = "communication"
UNRECORDED, UNEXPLAINED = "unrecorded", "unexplained"
WIDEST = 0.3
"""Fraction of the step: an interval wider than this decides nothing when another category's interval overlaps it."""
CLEARLY = 2
"""Times the second category: the first one is the largest then, however much the steps differ."""
NOT_IN_TRACE = "unrecorded-work"
"""The rule that doubts a trace in which the device was at work that it does not hold."""
MADE_OF = "compute-share"
"""The rule that says what computing is made of."""
FEW_STEPS, OTHER_LOAD, STRAGGLER = "few-steps", "background-load", "late-rank"
"""Rules whose doubt leaves an answer likely: other steps would mostly say the same."""
CALM = 0.1
"""Spread of the steps (interquartile range over median): other programs that leave them so even took little from
them. On a quiet machine steps of equal work stay within 0.05."""
FEWEST, EVEN = 6, 0.2
"""Steps, and of the step: an interval of fewer steps, or a wider one, leaves the answer likely. Six are the fewest of
which a binomial interval of the median exists at 95 %."""
MOST_OF_A_LINE = 0.4
"""Fraction of the forward pass, in one line: a model of equal layers has none such."""
MOST_NAMED = 3
"""Categories that are named together where several matter."""

WORDS = {
    "compute": "computing",
    "communication": "communication",
    "copy": "copies",
    "unrecorded": "device work that the trace does not hold",
    "input": "waiting for input",
    "sync": "waiting for the device to be read",
    "compile": "compiling",
    "overhead": "operator overhead",
    "python": "your own Python",
    "unexplained": "time that nothing explains",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "evaluation": "evaluation in the step",
    "transfer": "moving the batch",
    "rest": "code outside of forward, backward and optimizer",
}
"""Words for a category in a sentence."""


def part_words(name: str) -> str:
    """A phase or a category where others of the step are told; what is neither is the rest."""
    return WORDS[name] if name in WORDS and name != "rest" else "the rest of the step"


LEAST_DECIDING = 0.03
"""The same where the host decides the step, and nothing of the device's can give back anything."""
LEAST_REPORTED = 0.005
"""Fraction of the step: a faster host or GPU that saves less saves nothing."""
RUN = {"rollout": "Rollouts take", "evaluation": "Evaluation takes", "checkpoint": "Writing checkpoints takes"}
"""Words for what a run can be spent on besides training."""
NOTES = {"rollout": "rollout-share", "evaluation": "slow-evaluation", "checkpoint": "slow-checkpoint"}
"""Rules that say what to do about it."""
MOST_OF_THE_RUN = 0.5
"""Faster steps change little beyond it: it is said before them."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Bottleneck of the step."""

    bottleneck: str
    """Name of a category, "balanced", or "unknown" without a breakdown."""
    sentence: str
    """The answer, for a person."""
    share: Estimate | None = None
    """Fraction of the step that could be saved in that category (unit "1")."""
    confidence: str = UNCLEAR
    """"confident", "likely" or "unclear"."""
    reason: str = ""
    """Why it is not surer, or what the confidence rests on; a sentence without its full stop."""
    decides: str = ""
    """Whose speed the length of the step hangs on, by the calibrated replay: "host", "device" or "both"; "" where no
    kernels were recorded, and where that is not known."""

    @property
    def badge(self) -> str:
        """ "Likely: only 5 of 12 steps were steady."; "" for a report that does not say."""
        return f"{self.confidence.capitalize()}: {self.reason[:1].lower()}{self.reason[1:]}." if self.reason else ""


def with_savings(case: Case, findings: Iterable[Finding]) -> Case:
    """Savings within computing, no breakdown knows: there it is the largest saving that a finding has in it."""
    savings = [finding.savings for finding in findings if finding.savings and finding.category == COMPUTE]
    best = max(savings, key=lambda saving: saving.value, default=None)
    if best is None:
        return case
    return replace(case, categories=tuple(_with_saving(use, best) for use in case.categories))


def _with_saving(use: CategoryUse, best: Estimate) -> CategoryUse:
    more = use.name == COMPUTE and best.value > use.recoverable.value
    return replace(use, recoverable=best) if more else use


def verdict(case: Case, findings: Iterable[Finding] = ()) -> Verdict:
    """The category with the largest recoverable time; for a rank that the others wait for, that is said first."""
    late = case.straggler if case.straggler is not None and case.rank in case.straggler.ranks else None
    found = _decided(_verdict(case, tuple(each for each in findings if late is None or each.name != STRAGGLER)), case)
    if message := _run_text(case):
        found = replace(found, sentence=f"{message} {found.sentence}")
    elif message := _besides(case):
        found = replace(found, sentence=f"{found.sentence} {message}")
    if case.outliers is not None and case.outliers.longer and case.outliers.share >= LEAST_SHARE:
        found = replace(found, sentence=f"{found.sentence} {outliers_text(case.outliers)}.")
    if late is None:
        return found
    reason = straggler_reason(late)
    reported = straggler_text(late, case.step) + (f": {reason}." if reason else ".")
    return replace(found, sentence=reported if late.category == found.bottleneck else f"{reported} {found.sentence}")


def _decided(found: Verdict, case: Case) -> Verdict:
    """The verdict with who decides the step: a host that does comes first, as it says what not to buy or try."""
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
        message = f"{bound}-bound: kernels run {run} of {whole} and wait for {waits}; a faster GPU would save {device}."
        return replace(found, sentence=f"{message} {found.sentence}", decides=HOST)
    if found.bottleneck == COMMUNICATION:  # which may be waiting for another rank's host
        return replace(found, decides=use.decides)
    if use.decides == DEVICE:
        message = f"The GPU decides the step: a faster CPU would save {host}."
    elif use.decides:
        message = f"Host and GPU both decide the step: alone, a faster GPU would save {device}, a faster CPU {host}."
    elif not use.known:
        message = (
            f"Whether host or GPU decides the step is not known: the replay misses it by {format_share(use.error)}."
        )
    else:
        message = "The profiler slows the host: whether it or the GPU decides the step, only steptime run tells."
    return replace(found, sentence=f"{found.sentence} {message}", decides=use.decides)


def _saves(most: float, step: float) -> str:
    return f"at most {format_duration(most)}" if most >= LEAST_REPORTED * step else "nothing"


def outliers_text(use: OutlierUse) -> str:
    """ "3 of 22 steps take 1.02 s, 10 times the usual 100 ms, and are left out of this: the forward pass"."""
    takes = f"{use.count} of {use.steps} steps take{'s' if use.count == 1 else ''} {format_duration(use.duration)}"
    times = (
        f", {format_times(use.duration / use.usual)} times the usual {format_duration(use.usual)}" if use.usual else ""
    )
    return f"{takes}{times}{', left out here' if use.left_out else ''}: {part_words(use.part)}"


def _run_text(case: Case) -> str:
    """Sentence about what most of the run goes to, where that is no training: "Rollouts take 91 % of the run: …."."""
    most = most_of_the_run(case)
    if most is None:
        return ""
    lines = lines_text(most, case.step.device)
    return f"{_takes(most)} {format_share(most.share)} of the run{lines and f': {lines}'}."


def _takes(use: SegmentUse) -> str:
    return "Calls of the models without gradients take" if only_calls(use) else RUN[use.kind]


def most_of_the_run(case: Case) -> SegmentUse | None:
    """Segments that most of the run goes to besides training, if anything does."""
    return next((use for use in case.segments if use.kind in RUN and use.share >= MOST_OF_THE_RUN), None)


def _besides(case: Case) -> str:
    """Further segments that a good part of the run goes to: "Writing checkpoints takes 23 % of the run besides."."""
    parts = [f"{_takes(use)} {format_share(use.share)} of the run besides{_at(use)}." for use in case.segments
             if use.kind in RUN and use.share >= LEAST_SHARE]  # fmt: skip
    return " ".join(parts)


def _at(use: SegmentUse) -> str:
    """Line where most of it is spent, if that is one line: ", most of it at ppo.py:21"."""
    return f", most of it at {line_place(use.lines[0])}" if use.lines and use.lines[0].share >= MOST else ""


def _verdict(case: Case, findings: tuple[Finding, ...]) -> Verdict:
    if not case.categories or case.step.duration.value <= 0:
        return Verdict(UNKNOWN, "The steps could not be split into categories.", reason="there is no breakdown")
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
        return Verdict(UNRECORDED, sentence, first, UNCLEAR, "what ran in that time is not known")
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
    """For a job whose device was not recorded."""
    most = max(case.categories, key=lambda use: use.duration.value)
    amount = _amount(most, case)
    message = f"The device was not recorded. On the host, {amount[:1].lower()}{amount[1:]}."
    return Verdict(UNKNOWN, message, reason="the trace holds calls for a device and no kernel")


def _confidence(case: Case, findings: tuple[Finding, ...], varying: str) -> tuple[str, str]:
    """How sure the answer is, and why: the gravest doubt first. varying: how sure it is where the steps differ so much
    that the intervals of the two largest categories are wide and overlap, else ""."""
    caveats = [(_grade(finding, case), finding.summary) for finding in findings if finding.weight is Weight.CAVEAT]
    if varying:
        caveats.append((varying, f"{steps_text(case.step)}; measure more of them"))
    if any(use.name in UNSPLIT_PHASES for use in case.categories):
        caveats.append((LIKELY, "No step was profiled, so that categories inside of a phase are not known"))
    if caveats:
        return min(caveats, key=lambda caveat: caveat[0] == LIKELY)
    step = case.step.duration
    sure = case.step.steady >= FEWEST and (step.high - step.low) / 2 <= EVEN * step.value
    return CONFIDENT if sure else LIKELY, steps_text(case.step)


def steps_text(step: StepSummary) -> str:
    """Steps that the mean is made of: "58 steps, ± 3.1 ms"; of few steps the shortest and the longest one."""
    if step.steady == 1:
        return "one step: others may differ"
    if step.steady < FEWEST and step.longest:
        return f"{step.steady} steps, {format_duration(step.shortest)} to {format_duration(step.longest)} long"
    return f"{step.steady} steps, ± {format_duration((step.duration.high - step.duration.low) / 2)}"


def disturbance(findings: Iterable[Finding]) -> Finding | None:
    """The doubt that other programs used the CPUs: each of two runs may have waited for one the longer, so that their
    times are not to be compared."""
    return next((each for each in findings if each.name == OTHER_LOAD and each.weight is Weight.CAVEAT), None)


def _grade(caveat: Finding, case: Case) -> str:
    if caveat.name == FEW_STEPS:
        return LIKELY
    even = case.contention is not None and case.contention.spread <= CALM
    return LIKELY if caveat.name == OTHER_LOAD and even else UNCLEAR


def _made_of(findings: tuple[Finding, ...]) -> str:
    """Parts of computing, where a note says that; else ""."""
    return next((each.summary for each in findings if each.name == MADE_OF), "")


def _nothing_to_recover(
    uses: tuple[CategoryUse, ...], first: Estimate, case: Case, findings: tuple[Finding, ...]
) -> tuple[str, str]:
    """The longest phase where no step was profiled; computing, when it is most of the step; else nothing in
    particular."""
    unsplit = [use for use in uses if use.name in UNSPLIT_PHASES]
    if unsplit:
        largest = max(unsplit, key=lambda use: use.duration.value)
        return largest.name, f"{_amount(largest, case)}."
    unexplained = named(uses, UNEXPLAINED)
    if unexplained is not None and _share(unexplained.duration, case).value >= MOST_OF_IT:
        record = "What the host did then is not in the trace: record whole steps, with the CPU's operators."
        return UNEXPLAINED, f"{_amount(unexplained, case)}. {record}"
    compute = named(uses, COMPUTE)
    share = _share(compute.duration, case) if compute is not None else None
    if compute is None or share is None or share.value < MOST_OF_IT:
        return BALANCED, f"Balanced: no category could give back more than {format_share(first.value)}."
    most = max((_share(use.duration, case).value for use in uses if use is not compute), default=0.0)
    where = _hottest_forward(case) or (f"; nothing else takes more than {format_share(most)}" if most else "")
    made_of = _made_of(findings)
    return COMPUTE, f"{made_of}{_hottest_forward(case)}." if made_of else f"{_amount(compute, case)}{where}."


def _worth_more(findings: tuple[Finding, ...], recoverable: Estimate, case: Case) -> str:
    """The first finding, where it saves more than any category could give back by itself: what runs well, but need not
    run, is above no roofline. "" where there is none."""
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
    """True if the first finding is about no category alone, and saves most of what they could give back together."""
    first = next((each for each in findings if each.weight is Weight.FINDING), None)
    saved = first.savings.value if first is not None and first.savings is not None and not first.category else 0.0
    return saved >= MOST_OF_IT * sum(use.recoverable.value for use in uses)


def _headline(use: CategoryUse, findings: tuple[Finding, ...], case: Case) -> str:
    """Sentence of the first finding in the category, with its line, where that is most of it; else the category."""
    about = [each for each in findings if each.category in (use.name, "") and each.weight is Weight.FINDING]
    about += [each for each in findings if each.category == use.name and each.weight is Weight.NOTE]
    first = next(iter(about), None)
    hottest = _hottest_forward(case) if use.name == COMPUTE else ""
    amount = (_made_of(findings) if use.name == COMPUTE else "") or _amount(use, case)
    if first is None:
        return f"{amount}{hottest}."
    place = format_source(first.source) if first.source is not None else ""
    if first.savings is not None and first.savings.value >= MOST_OF_IT * use.recoverable.value:
        return _reported(first)
    if first.savings is None or not place or hottest:
        return f"{amount}{hottest}."
    whose = "of it" if first.category else "of the step"
    return f"{amount}; up to {format_duration(first.savings.value)} {whose} could be saved at {place}."


def _hottest_forward(case: Case) -> str:
    """Text "; 92 % of the forward pass at model.py:27", where one line of the user's in the model takes most of it.
    Backward's part of it has no line, and a model's only line tells nothing. On a device the host's lines say where it
    waits, not what takes long."""
    if case.step.device != "cpu":
        return ""
    spent: dict[str, float] = {}
    for path in case.paths:
        if path.part == "forward" and path.lines:
            place = format_source(path.lines[0])
            spent[place] = spent.get(place, 0.0) + path.duration
    place = max(spent, key=lambda each: spent[each], default="")
    share = ratio(spent.get(place, 0.0), sum(spent.values()))
    reported = len(spent) > 1 and share >= MOST_OF_A_LINE
    return f"; {format_share(share)} of the forward pass at {place}" if reported else ""


def _several(uses: list[CategoryUse], findings: tuple[Finding, ...], case: Case) -> str:
    """ "Waiting for input: 59 ms of 178 ms per step (33 %). Next to it: computing 99 ms (56 %)." The first category is
    told by its first finding, with the line, where that is most of it."""
    first, *others = uses
    parts = []
    for use in others:
        took = format_duration(use.duration.value)
        saved = f", of which {format_duration(use.recoverable.value)} could be saved" if use.name == COMPUTE else ""
        parts.append(f"{_words(use, case)} {took} ({format_share(_share(use.duration, case).value)}{saved})")
    return f"{_headline(first, findings, case)} Next to it: {' and '.join(parts)}."


def _amount(use: CategoryUse, case: Case) -> str:
    """ "Waiting for input: 70.1 ms of 91 ms per step (77 %)"; of a trace of one step, "in this step"."""
    took, step = format_duration(use.duration.value), format_duration(case.step.duration.value)
    words, share = _words(use, case), format_share(_share(use.duration, case).value)
    return f"{words[:1].upper()}{words[1:]}: {took} of {step} {_per(case)} ({share})"


def _per(case: Case) -> str:
    return "in this step" if case.step.steady == 1 else "per step"


def _share(part: Estimate, case: Case) -> Estimate:
    """A part of the step, with its interval. The step is taken as known: both were measured in the same steps. With one
    step, the measured value is all that there is."""
    step = case.step.duration.value
    if case.step.steady == 1:
        part = replace(part, low=part.value, high=part.value)
    value, low, high = (min(ratio(each, step), 1.0) for each in (part.value, part.low, part.high))
    return Estimate(value, low, high, part.samples, "1")


def _words(use: CategoryUse, case: Case) -> str:
    """Words for a category; communication of a rank that mostly waits for a straggler is that waiting."""
    if use.name == COMMUNICATION and case.straggler is not None and case.rank not in case.straggler.ranks:
        return f"waiting for {straggler_name(case.straggler)}"
    return WORDS.get(use.name, use.name)
