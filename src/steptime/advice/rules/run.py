"""ST9xx: what the run spends outside its training steps."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from steptime.advice.device_uses import MachineUse, RooflineUse
from steptime.advice.evidence import Case, LineUse, RunUse, SiteUse
from steptime.advice.kernels import first_source, plain_name, short_kernel, time_in
from steptime.advice.line_evidence import line_times, steady_time
from steptime.advice.models import AT_ONCE, check_time, checks
from steptime.advice.places import short_name
from steptime.advice.rule import LONGEST_SUMMARY, Finding, Part, Weight, rule
from steptime.advice.rules.python import OFTEN, SAVE_WHAT_IS_NEW
from steptime.advice.rules.switches import CHECKS_OFF
from steptime.advice.rules.ways import way_at
from steptime.advice.run_uses import (
    CategoryUse,
    CaughtUse,
    Contention,
    LoaderUse,
    OutlierUse,
    PeriodUse,
    SegmentUse,
    SmallBatches,
    StepSummary,
)
from steptime.advice.savings import in_step, modelled, named, ratio, rises, scaled, spent_in
from steptime.advice.segment_evidence import (
    MOST,
    MOST_SLOWED,
    in_environment,
    is_environment,
    line_place,
    only_calls,
    own_work,
)
from steptime.advice.step_evidence import others_took_cpus
from steptime.advice.unclaimed import ASK, LARGE
from steptime.advice.verdict import outliers_text, part_words
from steptime.analysis.operators import OperatorUse
from steptime.analysis.roofline import KernelUse
from steptime.analysis.step_patterns import LastingChange
from steptime.quantities import SourceLine, format_count, format_duration, format_share, format_source, format_times

LEAST_EVALUATION = 0.1
"""Fraction of the run after the warm-up."""
LEAST_CHECKPOINTS = 0.05
"""Fraction of the run after the warm-up: saving is idle time for every device of the job."""
NO_LONGER = 1.5
"""Times the usual step: steps that take less were caught by their number, not by their length."""
REPORTED_SLOWED = 1.5
"""Times as long as usual while lines were timed: from here on it is reported, as shares of lines are off then."""
HOOKS_OF = "the hooks of "
"""How the hooks of modules are named where they pile up."""
LEAST_ROLLOUTS = 0.2
"""Fraction of the run after the warm-up: a job that learns by acting spends some of it on that; less is worth no
change."""


@rule("ST901", "slow-evaluation", weight=Weight.NOTE)
def slow_evaluation(segments: tuple[SegmentUse, ...]) -> Finding | None:
    """Evaluation takes a large part of the run

    What it means: The run spends its time on validation between training steps. The steps themselves may be healthy:
    this is never charged to them.

    How we know: Forward calls without gradients, or with gradients that no backward uses, and the loaders that feed
    them, are segments of the run of their own. Their total is compared with the run after the warm-up. The batch size
    of some calls is read. Small batches are named as the cause if they have at most a quarter of a training batch's
    rows, and if batches as large as training's would take far less time.

    What helps: torch.no_grad() or inference_mode around it: eval() leaves gradients on, and every activation is
    kept for a backward that never comes. Larger batches: a loader for evaluation needs a batch size of its own.
    Evaluate less often or on a fixed part of the data; use workers for the validation loader; evaluate checkpoints
    in another process. For metrics of the training set, add up loss and accuracy in the training steps.

    When to ignore it: When the measured piece of the run is too short to hold the usual number of training steps per
    evaluation.
    """
    use = _segment(segments, "evaluation", LEAST_EVALUATION)
    if use is None:
        return None
    on = " with gradients on" if use.graphs >= MOSTLY else ""
    summary = f"Evaluation ran {_times(use)}{on} and took {format_share(use.share)} of the run"
    advice = "Evaluate less often, on less data, or with larger batches; take training metrics from the training steps."
    if on:
        advice = f"{NO_GRADIENTS} {advice}"
    given = {**_where(use)} if use.asked is None else {**_where(use), "source": use.asked}
    whole = f"{summary} ({format_duration(use.duration)})"
    if use.small is not None:
        summary, advice = _in_small_batches(use.small)
        given = {
            **_where(use, f"{whole}.", f"A training batch has {use.small.usual} rows."),
            "source": use.small.loader or given["source"],
        }
        return slow_evaluation.finding(summary, advice, **given)
    return slow_evaluation.finding(whole, advice, **given)


NO_GRADIENTS = (
    "Put it under torch.no_grad() or inference_mode: model.eval() leaves gradients on, and all activations are kept "
    "for a backward that never comes."
)
MOSTLY = 0.5
"""Fraction of the forward of evaluations."""


def _in_small_batches(use: SmallBatches) -> tuple[str, str]:
    """Summary and advice."""
    where = f"The evaluation's loader has a batch size of {use.rows}"
    advice = f"Give this loader a batch size of its own, {use.usual} or more"
    if use.loader is None:
        where = f"Without gradients the model gets {format_count(use.rows, 'row')} at a time"
        advice = f"Call it on {use.usual} rows or more at once, unless a call needs what the one before gave"
    passes, fewer = format_count(round(use.calls), "forward pass"), math.ceil(use.calls * use.rows / max(1, use.usual))
    summary = f"{where}: {passes}, {format_duration(use.forward)}; "
    summary += f"{fewer} of {use.usual} rows, some {format_duration(use.batched)}"
    return summary, f"{advice}: a batch without gradients needs less memory than in training."


@rule("ST902", "slow-checkpoint", weight=Weight.NOTE)
def slow_checkpoint(step: StepSummary, segments: tuple[SegmentUse, ...]) -> Finding | None:
    """Writing checkpoints takes a good part of the run

    What it means: Between training steps the job writes its state to disk and waits for it.

    How we know: Each torch.save between steps is timed. Their total is compared with the run after the warm-up; the
    rule fires if it is 5 % or more.

    What helps: Save less often; write from another thread or process (torch.distributed.checkpoint.async_save); keep
    fewer optimizer states.

    When to ignore it: When this run is short and the interval between checkpoints will be longer in production.
    """
    use = _segment(segments, "checkpoint", LEAST_CHECKPOINTS)
    steps = max(1, step.total - step.warm_up)
    if use is None or use.count * OFTEN >= steps:
        return None
    summary = f"Checkpoints were written {_times(use)} and took {format_share(use.share)} of the run"
    summary, advice = f"{summary} ({format_duration(use.duration)})", "Save less often, or asynchronously."
    if use.growth is not None:
        summary, advice = f"{summary}: {rises(use.growth)}", SAVE_WHAT_IS_NEW
    return slow_checkpoint.finding(summary, advice)


MEASURE_AGAIN = "Measure again on a quiet machine first: others used its CPUs."
LEAST_CHECKS = 0.1
"""Fraction of the rollouts: checks of arguments that take so much are the first to go."""
MAKES_TENSORS = re.compile(r"\b(?:as_)?tensor\(")
ON_OWN_WORK = "Neither a model nor an environment takes this time: make this line cheaper, or keep what it makes."
ON_LISTS = (
    "torch.tensor reads each element of a list of arrays: join them first, torch.from_numpy(np.stack(arrays)), or keep "
    "the data as one array."
)


@rule("ST903", "rollout-share", weight=Weight.NOTE)
def rollout_share(
    segments: tuple[SegmentUse, ...], case: Case, sites: tuple[SiteUse, ...] = (), machine: MachineUse | None = None
) -> Finding | None:
    """Collecting experience takes a large part of the run

    What it means: In reinforcement learning the run alternates between rollouts (the model acts in an environment) and
    updates. Where the rollouts dominate, faster training steps change little.

    How we know: A rollout is a series of forward calls without gradients before an update. The rollouts' total time
    is compared with the run after the warm-up; the rule fires from a fifth on. The models' forward is timed in all
    rollouts, and the lines in one. A line's text shows whether it is the environment (`.step(`, `.reset(`) or a
    transfer. The finding is about the first of these cases that holds. Only the models' forward takes time: calls of
    the models (a check, a teacher, a generator of samples). Argument checks of torch.distributions take a tenth of
    the rollouts: these checks (see ST608). The line with most of the time is a slow way to a result: that line (see
    ST421). Most of the time is in lines that run neither a model nor an environment: these lines. No line is an
    environment, and calls have far fewer rows than a training batch: the small calls (see ST901). In all other cases
    the finding is about the rollouts as a whole.

    What helps: If the models take the time, vectorised environments with one batched forward for all. If the
    environment does, a cheaper step of it, or environments in processes of their own. inference_mode while acting.
    If the calls themselves are the cost, fewer of them, or one for a larger batch.

    When to ignore it: When the environment is the point (a real robot).
    """
    use = _segment(segments, "rollout", LEAST_ROLLOUTS)
    if use is None:
        return None
    if only_calls(use):
        times = f"{format_duration(use.duration)} in {format_count(use.count, 'row')} of calls"
        summary = f"Calls of the models without gradients took {format_share(use.share)} of the run ({times})"
        advice = "Call the model less often, or once for one large batch; leave out calls whose result is not needed."
        return rollout_share.finding(summary, advice, **_where(use))
    times = f"{format_duration(use.duration)} in {format_count(use.count, 'rollout')}"
    found = checks(sites)
    count = sum(each.seen if use.every > 1 else each.calls for each in found)  # one rollout was looked at
    part = count * check_time(machine) * use.count / max(1, use.duration)
    if part >= LEAST_CHECKS:
        summary = f"torch.distributions checks its arguments for about {format_share(min(part, 1.0))} of the rollouts, "
        summary += f"{format_share(use.share)} of the run"
        more = f"{count:.3g} checks in a rollout ({times})."
        given = {**_where(use), "source": found[0].source}
        return rollout_share.finding(summary, CHECKS_OFF, **{**given, "evidence": (more, *given["evidence"])})
    hottest = use.lines[0] if use.lines else None
    if hottest is not None and (written := way_at(hottest.within or hottest.source, case)) is not None:
        whole = f"Rollouts took {format_share(use.share)} of the run"
        taken = f"{format_share(hottest.share)} of the rollouts" if use.slowed <= MOST_SLOWED else whole
        return rollout_share.finding(f"{written.way.what}: {taken}", written.better, **_where(use, whole))
    if lines := own_work(use):
        places = " and ".join(map(line_place, lines[:2]))
        taken = format_share(sum(line.share for line in lines[:2]))
        summary = f"{places} take{'s' * (len(lines) == 1)} {taken} of the time between updates, "
        summary += f"{format_share(use.share)} of the run"
        makes = any(MAKES_TENSORS.search((line.within or line.source).text) for line in lines[:2])
        return rollout_share.finding(summary, ON_LISTS if makes else ON_OWN_WORK, **_where(use))
    summary = f"Rollouts took {format_share(use.share)} of the run ({times})"
    if use.small is not None and use.lines and not any(map(is_environment, use.lines)):
        small, better = _in_small_batches(use.small)
        given = _where(use, f"{summary}.", f"A training batch has {use.small.usual} rows.")
        return rollout_share.finding(small, better, **given)
    advice = "Act in many environments at once with one batched forward."
    if in_environment(use) >= MOST:
        advice = "Make the environment's own step cheaper, or run environments in processes of their own."
    return rollout_share.finding(summary, advice, **_where(use))


def _where(use: SegmentUse, *more: str) -> dict[str, Any]:
    """The longest line of what was timed by line, or the one that it leads to, and all of them as evidence. more: of
    it."""
    sure = use.slowed <= MOST_SLOWED
    lines = tuple(
        f"{f'{format_share(line.share)}: ' if sure else ''}{line_place(line)} {line.source.text}".rstrip()
        for line in use.lines
    )
    if lines and use.slowed >= REPORTED_SLOWED:
        reported = f"It took {format_times(use.slowed)} times as long while these lines were timed"
        lines += (f"{reported}, so lines that call much of torch look too long here." if sure else f"{reported}.",)
    forward = (f"{format_share(use.forward)}: the models' forward",) if use.forward else ()
    hottest = next((line.within or line.source for line in use.lines), None)
    return {"source": hottest, "evidence": (*more, *lines, *forward)}


def _segment(segments: tuple[SegmentUse, ...], kind: str, least: float) -> SegmentUse | None:
    """Time that the run spent on something, where that is so much of it."""
    return next((use for use in segments if use.kind == kind and use.share >= least), None)


def _times(use: SegmentUse) -> str:
    return "once" if use.count == 1 else f"{use.count} times"


LEAST_PERIOD = 0.02
"""Fraction of the step, spread over all of them."""
CATEGORY: dict[str, Part] = {"input": "input", "transfer": "copy"}
"""Category of the phases that are one; the others hold several."""


SAVES = re.compile(r"(?i)\bdumps?\(|save|checkpoint|snapshot")
"""A line that saves something."""
COPIES = re.compile(r"\.(?:copy|clone|tolist)\(|\b(?:concatenate|concat|cat|[hv]?stack|deepcopy|append|array|sorted)\(")
"""A line that makes a new array or list of all that it reads."""


@rule("ST904", "steps-changed", supersedes=("unstable-steps",))
def steps_changed(
    step: StepSummary, change: LastingChange, contention: Contention | None = None, runs: tuple[RunUse, ...] = ()
) -> Finding:
    """Steps become longer within the run

    What it means: The job was faster, and one of its parts became permanently slower: a later stage of a
    curriculum, another shard of the data, a schedule that switches something on, a cache that no longer fits. Or it
    becomes slower all the time: hooks that are registered again in each epoch, a list that is searched, a graph
    that is kept.

    How we know: There are two kinds of change. A sudden change: Pettitt's rank test finds the step from which on
    steps are longer. All thirds of the run before it must be faster than the middle, all thirds after it slower. Most
    of the change must be in one phase; if all phases grow alike, the machine became slower. Gradual growth: each
    fifth of the run is slower than the one before, mainly in one phase, by three tenths in total. If steps become
    slower while the job runs, its lines are timed once more, and the finding names the line that grew. For the
    backward pass, it names the line by which the graph of one step reaches the next. The search for leaks finds that
    line; else it is the line with the forward pass, if exactly one variable is both read and bound there. The hooks
    of modules, and the lists, dictionaries, sets and deques of the job's variables and attributes, are measured at
    three steps. The finding names one that grows each time, and the line that extends it or registers the hooks. If
    no line is known and other processes used the CPU meanwhile, the finding is a note, because they may be what
    changed.

    What helps: Find out what the job does differently from that step on.

    When to ignore it: When the later steps have more to do by design (longer sequences, unfrozen layers).
    """
    filled = change.filled
    epoch = f" (epoch {change.epoch})" if change.epoch is not None else ""
    took = f"{format_duration(change.now)} instead of {format_duration(change.before)}"
    grown = f"{part_words(change.phase)} grew by {format_duration(change.growth)}"
    evidence: tuple[str, ...] = (f"Of {change.steps} steps; {grown}.",)
    if filled is not None:
        more = f"It gets longer at {format_source(filled)}: {filled.text}".rstrip(": ")
        evidence = (f"{more}.", *evidence)
    if change.line is not None:
        grown = f"{format_source(change.line)} grew by {format_duration(change.line_growth)}"
    summary = f"Since step {change.step}{epoch} a step takes {took}: {grown}"
    advice = "Look at what the job does differently from that step on."
    keeps = f": {change.carried} keeps its graph" if change.carried else ""
    if keeps:
        summary = f"Since step {change.step}{epoch} a step takes {took}{keeps}"
    gets = "get {} more" if change.longer.startswith(HOOKS_OF) else "grows by {}"
    longer = f"{change.longer} {gets.format(f'{change.entries:,.0f}')} with each step" if change.longer else ""
    if change.gradual:
        summary = _growing_summary(change, keeps, longer)
        evidence = (*evidence, f"A step takes {took}.") if longer else evidence
        advice = "Look for what grows with each step or epoch: hooks, callbacks, lists, graphs, buffers."
    elif longer:
        summary = f"Since step {change.step}{epoch} a step takes {took}; {longer}"
    if change.longer.startswith(HOOKS_OF):
        advice = "Remove all hooks after use (handle.remove() of each handle), or register them once."
    elif longer and change.gradual:
        advice = (
            f"Empty {change.longer} after use (at the end of each epoch), limit it, keep a sum of it, or "
            "process only the new entries. A deque is slow to index, a list slow to search: use a list by index, "
            "a set or a dictionary."
        )
    known = any(run.source == change.line for run in runs)  # else its text has to do
    if change.line is not None and not known and COPIES.search(change.line.text):
        copies = ", and the line copies what it reads"
        summary += copies if len(summary) + len(copies) <= LONGEST_SUMMARY else ""
        advice = (
            "Copy only the entries that are used (index first), take a view, or write into one preallocated array: a "
            "copy of everything that was stored so far grows with it."
        )
    if keeps:
        advice = f"Cut the graph between steps: {change.carried} = {change.carried}.detach() after the update."
    amount = change.growth * change.share
    saving = modelled(amount, 0.8 * amount, 1.2 * amount, step.steady)
    # Without a category: the hottest line of one was timed before the change.
    found = steps_changed.finding(summary, advice, saving, source=change.line, evidence=evidence)
    shared = contention is not None and others_took_cpus(contention)
    alone = change.growth >= ALONE * (change.now - change.before)
    surely = change.line is not None or bool(keeps) or (change.now >= SURELY * change.before and alone)
    if shared and step.device == "cpu" and not surely:
        return replace(found, weight=Weight.NOTE, advice=MEASURE_AGAIN)
    return found


def _growing_summary(change: LastingChange, keeps: str, longer: str) -> str:
    """Summary of gradual growth. keeps: what keeps its graph, as a clause; longer: the container that becomes longer,
    as a sentence."""
    part, each = part_words(change.phase), format_duration(change.by_step)
    place = f", at {format_source(change.line)}" if change.line is not None else ""
    if longer:
        return f"{longer[:1].upper()}{longer[1:]}, and {part} takes {each} longer{place}"
    grown = f"from {format_duration(change.before)} to {format_duration(change.now)}"
    return f"{part[:1].upper()}{part[1:]} grows by {each} every step, {grown}{keeps or place}"


SURELY, ALONE = 2, 0.8
"""Times the step before, where one phase has so much of the growth: other programs slow all of them."""
WHOLE_LINE = 0.9
"""Fraction of what the slow steps take longer: a line or a phase that takes so much is what makes them slow."""


@rule("ST905", "periodic-steps", supersedes=("unstable-steps",), by_line=True)
def periodic_steps(step: StepSummary, period: PeriodUse, loader: LoaderUse | None = None) -> Finding | None:
    """Every k-th step is slow

    What it means: Something runs every so many steps in the training thread: histograms, images for a tracker, a
    running evaluation, an update of a second network.

    How we know: Steps that are far longer than usual are examined. The rule fires if three in four of them are k
    steps apart, and three in four of the steps k apart are slow. Their extra time is divided among all steps. If
    lines were timed in slow steps and in others, the finding names the line with most of the extra time, and the
    savings are the line's part. Without such times, the line is the only one of the loop that takes a count modulo
    something, else the only one that calls anything but torch. The operators in the finding are those of profiled
    slow steps. If the slow steps become longer, the finding says so: the job may save everything that it has stored
    so far.

    What helps: Do it less often, on a part of the data, or in another thread or process. If it grows, handle only
    the new part.

    When to ignore it: When it is the point of the job. If workers of a loader deliver in bursts, the rule is
    silent, because then steps wait for input.
    """
    if period.cost.value < LEAST_PERIOD * step.duration.value:
        return None
    if period.phase == "input" and loader is not None and loader.workers:
        return None
    cost = scaled(period.cost, period.line_share)
    longer = f"Every {ordinal(period.every)} step takes {format_duration(period.extra)} longer"
    if period.growth is not None:
        first, last = map(format_duration, period.growth)
        longer = f"Every {ordinal(period.every)} step takes {first} more at first, {last} at the end"
    summary = f"{longer}, {in_step(cost.value, step)} on average"
    if period.line is not None and period.line_share < WHOLE_LINE:
        summary = f"{longer}; {format_source(period.line)} makes up {in_step(cost.value, step)} on average"
        if period.growth is not None:
            summary = f"{longer}; {format_source(period.line)}: {in_step(cost.value, step)} on average"
    where = part_words(period.phase)
    advice = f"Most of it is {where}: do it less often, on less, or outside of the training thread."
    evidence: tuple[str, ...] = ()
    if period.extras:
        names = " and ".join(short_name(use.name) for use in period.extras[:2])
        longest = [f"{summary}: {names}", f"{summary}: {short_name(period.extras[0].name)}"]
        summary = next((each for each in longest if len(each) <= LONGEST_SUMMARY), summary)
        advice = f"These steps alone run {names}: do it less often, on less, or outside of the training thread."
        evidence = tuple(
            f"{short_name(use.name)}: {format_duration(use.duration)} and {format_count(use.calls, 'call')} more in "
            "such a step."
            for use in period.extras
        )
    elif period.line is None and loader is not None and loader.batches == period.every:
        place = loader.iterated_at or loader.site
        at = f", at {format_source(place)}" if place is not None else ""
        advice = f"It is one step of each epoch: look at what starts or ends one{at}, such as a new loader or dataset."
    if period.growth is not None:
        saves = period.line is not None and SAVES.search(period.line.text)
        advice = SAVE_WHAT_IS_NEW if saves else f"Look for what {where} goes through that grows with the run."
    category = CATEGORY.get(period.phase, "")
    return periodic_steps.finding(summary, advice, cost, category=category, source=period.line, evidence=evidence)


LEAST_OUTLYING = 0.05
"""Fraction of the time of the steady steps: less is no matter."""


OF_THE_MODEL = ("forward", "backward", "optimizer")
"""Phases that take the same time in each step, unless somebody else used the CPUs."""


@rule("ST906", "outlier-steps", weight=Weight.NOTE)
def outlier_steps(
    outliers: OutlierUse, caught: CaughtUse | None = None, contention: Contention | None = None
) -> Finding | None:
    """A few steps take many times as long as the others

    What it means: A mean over the usual steps and these few describes neither. So the step, its categories and the
    findings are those of the usual steps, and this finding reports the few.

    How we know: An outlier takes at least ten interquartile ranges above the upper quartile, and twice the median.
    The rule fires if no more than a quarter of the steps are outliers. The cause is the phase (in a trace the
    category) with most extra time over the other steps. Three kinds of long steps are no outliers and stay in the
    mean: steps with a garbage collection; every k-th step (ST905); and steps that wait for input, if they are more
    than one in fifty, because late batches are then normal for the job. A long model phase may have shortened the
    wait for input, so that the step as a whole is no longer than others: the mean excludes this step, and it is not
    reported. An evaluation or a checkpoint in a step is not counted as its time. If outliers have many backward
    passes, the finding names the line that starts these (see ST510). Else it names the line with most of the time, if
    an outlier was timed by line. If outliers become longer, steadily and by half or more, they process something that
    grows.

    What helps: Look at what else the job does in these steps (a checkpoint, a log, a first batch of another shape).
    Look at what else ran on the machine then: if others used its CPUs, measure again.

    When to ignore it: When they are few in a long run, or another program caused them.
    """
    if (
        outliers.share < LEAST_OUTLYING or not outliers.longer or caught is not None
    ):  # ST907 shows them with their lines
        return None
    words = part_words(outliers.part)
    numbers = f"{'Step' if outliers.count == 1 else 'Steps'} {', '.join(map(str, outliers.numbers))}"
    more = f" and {outliers.count - len(outliers.numbers)} more" if outliers.count > len(outliers.numbers) else ""
    evidence: tuple[str, ...] = (
        f"{numbers}{more}; {words} takes {format_duration(outliers.growth)} more than in the others.",
    )
    held_up = contention is not None and others_took_cpus(contention) and outliers.part in OF_THE_MODEL
    advice, passes = MEASURE_AGAIN if held_up else f"Look at {words} in these steps.", outliers.passes
    if passes is not None and passes.shared:
        advice, evidence = AT_ONCE, (*evidence, "All of these passes go through the same graph.")
    elif outliers.line is not None:
        advice = f"Look at what {format_source(outliers.line)} does in these steps."
        evidence = (*evidence, f"{format_source(outliers.line)}: {outliers.line.text}")
        if outliers.rise is not None and SAVES.search(outliers.line.text):
            advice = SAVE_WHAT_IS_NEW
    source = passes.source if passes is not None else outliers.line
    return outlier_steps.finding(outliers_text(outliers), advice, source=source, evidence=evidence)


@rule("ST907", "caught-steps", weight=Weight.NOTE)
def caught_steps(caught: CaughtUse) -> Finding | None:
    """Slow steps, sampled while they ran

    What it means: You asked for certain steps (steptime run --catch): longer than n times the usual one, longer
    than a given time, or every n-th. The finding shows where the training thread was in them.

    How we know: When a step passes the limit, a thread of steptime's starts to sample the training thread's frames
    every five milliseconds. Every n-th step is sampled from its start. Shares are of the sampled time, by your lines.
    Steps in which steptime itself profiles are excluded, and at most a hundred steps are sampled. If three slow steps
    come at equal distances, steptime knows the next ones in advance and profiles up to three of them, the same on
    every rank.

    What helps: A line with most of the time shows what the step did: a checkpoint, an evaluation, a log, a wait for
    a batch or for another rank. Steps at equal distances have a cause in the job; others often one outside.

    When to ignore it: When the steps are few in a long run.
    """
    slow = caught.duration > NO_LONGER * caught.usual
    steps = format_count(caught.count, "step")
    lasted = f"{format_duration(caught.duration)}{' on average' if caught.count > 1 else ''}"
    summary = f"{steps} of {lasted}, usually {format_duration(caught.usual)}" if slow else steps
    summary += f", one in {caught.period}" if caught.period else ""
    if not caught.lines:
        return caught_steps.finding(f"{summary}: no line of your code ran", "Look at the numbers of these steps.")
    first, place = caught.lines[0], format_source(caught.lines[0].source)
    seen = [f"{format_share(each.share)} at {format_source(each.source)}" for each in caught.lines]
    seen[0] = f"{format_share(first.share)} of that at {place}"
    while len(f"{summary}: {', '.join(seen)}") > LONGEST_SUMMARY and len(seen) > 1:
        seen.pop()
    also = [f"{format_share(each.share)} at {format_source(each.source)}" for each in caught.lines[len(seen) :]]
    more = f" and {caught.count - len(caught.numbers)} more" if caught.count > len(caught.numbers) else ""
    reported = f"{'Step' if caught.count == 1 else 'Steps'} {', '.join(map(str, caught.numbers))}{more}"
    return caught_steps.finding(
        f"{summary}: {', '.join(seen)}",
        f"Look at what {place} does in these steps.",
        source=first.source,
        evidence=(reported, *_profiled(caught), *also),
    )


def _profiled(use: CaughtUse) -> Iterator[str]:
    """Outcome of the steps that were named in advance."""
    if use.profiled:
        yield f"{_named(use.profiled)} named in advance and profiled, on every rank that traces: see the trace files."
    if use.as_usual:
        yield f"{_named(use.as_usual)} next at that distance and profiled, and took no longer than others."


def _named(numbers: Sequence[int]) -> str:
    reported = ", ".join(map(str, numbers))
    return f"Step {reported} was" if len(numbers) == 1 else f"Steps {reported} were"


def ordinal(number: int) -> str:
    """ "2nd", "11th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


LEAST_COMPUTING = 0.5
"""Fraction of the step: from half on computing is what it is made of."""
LEAST_PART = 0.05
"""Fraction of the computing: a smaller part is not named."""
MOST_PARTS = 3
"""Parts that are named in the sentence."""
MODELLED = 0.5
"""Fraction of the kernels' time: where less has a model, nothing is reported of the roofline."""
CONVOLUTIONS = 0.2
"""Fraction of the computing: with fewer convolutions the layout does not matter."""
SINGLE = "float32"
LOWER = ("bfloat16", "float16")
"""Formats that autocast computes in, the one to be tried first before the other: it needs no scaled loss."""
IN_LOWER = re.compile(r"half|bf16|bfloat16|fp16|(?<![a-z])f16|[hs]884|16816|1688|_[HB][HB]S_", re.IGNORECASE)
"""How kernels of PyTorch, cuDNN, cuBLAS and Tensile name 16-bit dtypes and the units for them."""
LOWER_BY_NAME = 0.1
"""Fraction of the computing: from a tenth on in such kernels, the job uses a lower format already."""
LIBRARIES = ("cudnn_", "miopen_", "native_", "mkldnn_")
"""How ATen says whose kernel an operator is: the operator is the same."""


@rule("ST908", "compute-share", supersedes=("dominant-operator",), weight=Weight.NOTE, fallback=True)
def compute_share(step: StepSummary, categories: tuple[CategoryUse, ...], case: Case) -> Finding | None:
    """Compute is at least half of the step, and no finding shortens it much

    What it means: The device (on a CPU: the operators themselves) is busy for half of the step or more, and no
    finding would save a good part of that. The fixes below change how the whole model computes, and only a trial
    shows what they gain.

    How we know: Compute time is added up by operator: on a device the kernels that each launched, on a CPU the
    operators themselves. If the cost of the kernels is known, so is their share of the roofline: the time that the
    same work would take at the machine's peaks, over the time that it took.

    What helps: A lower precision (torch.autocast with bfloat16), the layout that the device's convolutions prefer
    (channels_last), torch.compile, other algorithms of cuDNN. steptime try runs the job with each and reports which
    help. Beyond these only less work helps: a smaller model, batch or resolution.

    When to ignore it: When the operators are near their roofline in the precision that the job needs.
    """
    compute = named(categories, "compute")
    if compute is None or ratio(compute.duration.value, step.duration.value) < LEAST_COMPUTING:
        return None
    parts = _on_device(categories, case.kernels) if case.kernels else _on_cpu(case)
    displayed = [part for part in parts if part[1] >= LEAST_PART * compute.duration.value][:MOST_PARTS]
    if not displayed:
        return None
    summary = f"Computing takes {in_step(compute.duration.value, step)}"
    for number, (name, spent, _) in enumerate(displayed):
        longer = f"{summary}{', ' if number else ': '}{name} {format_duration(spent)}"
        if len(longer) > LONGEST_SUMMARY:
            break
        summary = longer
    rows = tuple(
        f"{name}: {format_duration(spent)}, {format_share(spent / compute.duration.value)} of the computing"
        for name, spent, _ in parts[: 2 * MOST_PARTS]
        if spent >= LEAST_PART * compute.duration.value
    )
    advice = _how_it_runs(case.kernels, case.roofline) + _what_to_try(case, parts)
    return compute_share.finding(summary, advice, category="compute", source=displayed[0][2], evidence=rows)


_Part = tuple[str, float, SourceLine | None]
"""An operator's name, ns per step, and the line behind most of it."""
OUTSIDE_THE_MODEL = frozenset({"python", "input", "transfer", "evaluation", "optimizer"})
"""Roles of lines, of which one alone may be too much."""


@rule("ST909", "large-part", weight=Weight.NOTE)
def large_part(step: StepSummary, case: Case) -> Iterator[Finding]:
    """A line or an operator takes a good part of the step, without a finding

    What it means: steptime knows nothing that makes this part faster, or the part is needed. It is named anyway,
    with its place, because it takes at least a tenth of each step.

    How we know: Lines of the loop outside of the model, and operators, are reported if they take at least a tenth of
    the step, unless a finding names the line, its function or the operator. A category of the breakdown is reported,
    too, if a tenth of the step could be saved in it that no finding claims, and findings claim less than four fifths
    of all that could be saved.

    What helps: Ask what the line is for, and whether each step needs it.

    When to ignore it: When it is the work that the training consists of.
    """
    parts: list[tuple[str, float, SourceLine | None, float]] = [
        (_what(each.line, case), each.duration.value, each.line.source, each.line.checkpoint)
        for each in line_times(case.lines, case.phases)
        if each.line.role in OUTSIDE_THE_MODEL
    ]
    operators = _on_device(case.categories, case.kernels) if case.kernels else _on_cpu(case)
    parts += [(name, spent, source, 0.0) for name, spent, source in operators]
    for what, spent, source, saving in parts:
        if spent >= LARGE * step.duration.value:
            saved = f", {format_duration(saving)} of it in torch.save" if saving else ""
            yield large_part.finding(f"{what} takes {in_step(spent, step)}{saved}", ASK, source=source)


def _what(line: LineUse, case: Case) -> str:
    """The optimizer that steps in a line, as findings name it; else the line."""
    stepping = max(case.optimizers, key=lambda use: use.duration.value, default=None)
    return stepping.type if line.role == "optimizer" and stepping is not None else format_source(line.source)


def _on_device(categories: tuple[CategoryUse, ...], kernels: tuple[KernelUse, ...]) -> list[_Part]:
    """By the operator that launched the kernels, a kernel of no operator by its own name. Where kernels overlap, they
    are no longer together than the computing."""
    groups = defaultdict[str, list[KernelUse]](list)
    for use in kernels:
        if use.bound != "communication":
            groups[_operator(use.operator) or short_kernel(use.name)].append(use)
    whole = sum(use.duration for uses in groups.values() for use in uses)
    scale = min(1.0, ratio(spent_in(categories, "compute"), whole))
    parts = [(name, scale * time_in(uses), first_source(uses)) for name, uses in groups.items()]
    return sorted(parts, key=lambda part: -part[1])


def _on_cpu(case: Case) -> list[_Part]:
    """By the operator, at what it takes in a usual step."""
    if not case.operators:
        return []
    groups = defaultdict[str, list[OperatorUse]](list)
    for use in case.operators:
        groups[_operator(use.name)].append(use)
    parts = []
    for name, uses in groups.items():
        place = next((each.place for each in sorted(uses, key=lambda use: -use.duration) if each.place), None)
        spent = steady_time(uses, case.operators, case.categories, case.machine)
        parts.append((name, min(spent, spent_in(case.categories, "compute")), place))
    return sorted(parts, key=lambda part: -part[1])


def _operator(name: str) -> str:
    plain = plain_name(name)
    return next((plain.removeprefix(each) for each in LIBRARIES if plain.startswith(each)), plain)


def _how_it_runs(kernels: tuple[KernelUse, ...], roofline: RooflineUse | None) -> str:
    """ "It runs in float32, its convolutions in NCHW, at 45 % of the roofline. ", as far as that is known."""
    dtype, layout = _dtype(roofline), _layout(kernels)
    reported = [f"in {dtype}"] if dtype else []
    reported += [f"its convolutions in {layout}"] if layout else []
    computing = [use for use in kernels if use.bound != "communication"] if kernels else []
    known = [use for use in computing if use.at_roofline is not None]
    if known and time_in(known) >= MODELLED * time_in(computing):
        share = format_share(min(1.0, sum(use.at_roofline or 0.0 for use in known) / time_in(known)))
        reported.append(f"at {share} of the roofline")
    return f"It runs {', '.join(reported)}. " if reported else ""


def _dtype(roofline: RooflineUse | None) -> str:
    """The format with most of the arithmetic, "" where that is not known."""
    return roofline.dtype if roofline is not None else ""


def _layout(kernels: tuple[KernelUse, ...]) -> str:
    """Layout of convolutions, by the names of their kernels: "NCHW" where any is of it, "NHWC" (channels_last) where
    all are; "" where no name says."""
    names = [use.name.lower() for use in kernels] if kernels else []
    known = next((layout for layout in ("nchw", "nhwc") if any(layout in name for name in names)), "")
    return known.upper()


def _what_to_try(case: Case, parts: list[_Part]) -> str:
    """The fixes that steptime tries for it; where none is left, less work."""
    whole = sum(spent for _, spent, _ in parts)
    convolutions = sum(spent for name, spent, _ in parts if "conv" in name)
    tries = []
    if _dtype(case.roofline) in ("", SINGLE) and not _lower_by_name(case.kernels, case.roofline):
        tries += [f"{each} autocast" for each in _lower(case.machine, case.kernels)[:1]]
    if convolutions >= CONVOLUTIONS * whole and _layout(case.kernels) != "NHWC":
        tries.append("channels_last")
    if case.compilable:
        tries.append("torch.compile")
    if not tries:
        return "Only less work makes it faster: a smaller model, batch or resolution."
    reported = f"{', '.join(tries[:-1])} and {tries[-1]}" if len(tries) > 1 else tries[0]
    first = "Record the job with steptime run: then " if case.step.mode == "trace" else ""
    return f"{first}steptime try runs the job with {reported}, and says what pays."


def _lower_by_name(kernels: tuple[KernelUse, ...], roofline: RooflineUse | None) -> bool:
    """True if names of kernels say that a good part of the computing is in a lower format, where nothing else does."""
    uses = [use for use in kernels if use.bound != "communication"] if kernels else []
    lower = [use for use in uses if IN_LOWER.search(use.name)]
    return not _dtype(roofline) and time_in(lower) >= LOWER_BY_NAME * time_in(uses) > 0


def _lower(machine: MachineUse | None, kernels: tuple[KernelUse, ...]) -> list[str]:
    """Formats in which the machine multiplies faster; of a device whose rates nobody knows, the usual one."""
    if machine is None or not machine.rates:
        return [LOWER[0]] if kernels else []
    rates = dict(machine.rates)
    able = LOWER if kernels else LOWER[:1]
    return [each for each in able if rates.get(each, 0.0) > rates.get(SINGLE, 0.0)]
