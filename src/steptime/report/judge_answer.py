"""Answer of `steptime judge`: the verdict on each candidate, also as a document for programs; in documents, details
for the reviewer of a pull request: compared numbers, what was not seen, where the gain is, and on what machine.

The details are facts of the runs; verdicts come from `trials.judge`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import exp
from statistics import fmean, stdev
from typing import Any

from msgspec import to_builtins

from steptime.advice.fix import Goal
from steptime.analysis.timeline import Phase
from steptime.answer.answer import Answer, Item, Part, Section
from steptime.answer.tables import Table, table_of, word
from steptime.quantities import (
    Estimate,
    format_change,
    format_count,
    format_duration,
    format_samples,
    with_sign,
)
from steptime.report.trials import trial_report
from steptime.report.verdict_words import (
    WORDS,
    as_recorded,
    assumed_text,
    certainty,
    changes_text,
    gain_text,
    judged,
    may_go_on,
    memory_text,
    other_text,
    power_of,
    reason_text,
    seconds_needed,
    trial_headline,
    word_of,
)
from steptime.trials import parity
from steptime.trials.exact import EXACT, SINGLE, apart, exactness, other_options
from steptime.trials.judge import comparisons_of, usual_metric, usual_step
from steptime.trials.results import PatchResult, Results
from steptime.trials.same_work import precision_of, same_batch
from steptime.trials.trial import BASELINE, CONTROL, Judgement, Run, Variant, batch_of

VERSION = 1
"""Version of the document."""
HOPELESS = "More rounds would hardly decide it here. Use a quieter machine, or another --min-gain"
LONG_COMPILATION = 0.5
"""Least compilation time that is reported, s."""
NOT_SEEN = "not seen"
MEANS = "Means over the timed steps; the speed-up's interval covers all rounds."


def answer_of(results: Results, folder: str, next_command: str = "") -> Answer:
    """Answer of a judgement: the verdict on each candidate. folder: folder of the results."""
    trials = trial_report(results, folder)
    every = judged(results)
    return Answer(
        title=f"Judged: {trials.command}",
        headline=trial_headline(trials, trials.variants),
        badge=certainty(results, every),
        head=(f"Judged: {trials.command}", _as_it_is(results), *_quantity(results)),
        parts=(_table(results, every),),
        notes=(*assumed_text(results), *filter(None, (power_of(results),))),
        next_command=next_command,
        details=lambda: details_of(results, every),
        data=as_document(results),
    )


def _table(results: Results, every: Sequence[Judgement]) -> Table:
    def why(judgement: Judgement) -> str:
        reported = _sentences(judgement, results)
        further = seconds_needed(judgement, results)
        if further is not None:
            about = format_duration(further * 1e9)
            reported.append(
                f"About {about} more should decide it" if judgement.rounds else f"Its first rounds take about {about}"
            )
        elif may_go_on(judgement) and judgement.speed is not None:
            reported.append(HOPELESS)
        return ". ".join(reported)

    return table_of(
        "candidates", "", "", every,
        word("verdict", "verdict", lambda each: word_of(each, results.plan.min_gain)),
        word("speed-up", "speed", lambda each: gain_text(each, Goal.SPEED) or "–"),
        word("candidate", "candidate", lambda each: each.variant.label),
        word("why", "why", why, room="below"),
    )  # fmt: skip


def as_document(results: Results) -> dict[str, Any]:
    """Verdicts as a document for programs: speed-ups with 95 % intervals, steps in ns."""
    step = usual_step(results.runs)
    return {
        "version": VERSION,
        "command": list(results.plan.command),
        "step_ns": step.value if step is not None else None,
        "between_steps": to_builtins(results.plan.other) if results.plan.other.share else None,
        "metric": _metric(results),
        "until_loss": _until_loss(results),
        "power": power_of(results),
        "candidates": [
            {
                "name": each.variant.name,
                "label": each.variant.label,
                "verdict": word_of(each, results.plan.min_gain),
                "speed_up": _interval(each.speed),
                "speed_up_of_run": _interval(each.of_run),
                "peak_memory_ratio": _interval(each.memory),
                "training": each.agreement.value,
                "sentences": _sentences(each, results),
                "rounds": each.rounds,
                "seconds_to_decide": seconds_needed(each, results),
                **_items(each, step),
            }
            for each in judged(results)
        ],
        "patch": _patch(results.patch) if results.patch is not None else None,
    }


def _metric(results: Results) -> dict[str, Any] | None:
    metric, value = results.plan.metric, usual_metric(results.runs)
    if metric is None:
        return None
    better = {"pattern": metric.pattern, "lower_is_better": metric.lower_is_better}
    return {**better, "value": value.value if value is not None else None}


def _until_loss(results: Results) -> dict[str, Any] | None:
    target, value = results.plan.until_loss, usual_metric(results.runs)
    if target is None:
        return None
    return {"loss": target.loss, "seconds": value.value if value is not None else None}


def _quantity(results: Results) -> list[str]:
    """Sentence on the compared quantity, if that is not the step time."""
    if results.plan.until_loss is None:
        return []
    return [
        "Compared: the time from the import of torch until the mean training loss over the last tenth of the "
        f"steps is {results.plan.until_loss.loss:g} or less, without evaluations and checkpoints. Candidates "
        "may train differently."
    ]


def _patch(patch: PatchResult) -> dict[str, Any]:
    proved = patch.judgement
    return {
        "diff": patch.diff,
        "apply": patch.apply,
        "environment": dict(patch.environment),
        "yours": list(patch.snippets),
        "verdict": WORDS[proved.verdict] if proved is not None else None,
        "speed_up": _interval(proved.speed) if proved is not None else None,
        "speed_up_of_run": _interval(proved.of_run) if proved is not None else None,
    }


def _interval(estimate: Estimate | None) -> dict[str, float] | None:
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high} if estimate is not None else None


def _items(judgement: Judgement, step: Estimate | None) -> dict[str, Any]:
    """Fields of a batch size: its size, and its samples per second."""
    size, speed = batch_of(judgement.variant), judgement.speed
    if size is None:
        return {}
    rate = size / step.value * 1e9 if step is not None else None
    ends = {name: rate * each for name, each in (_interval(speed) or {}).items()} if rate is not None else {}
    reported = {"batch_size": size, "items_per_second": ends or None, "peak_bytes": judgement.peak_bytes}
    return {"verdict": "timed", **reported} if ends else reported  # a longer step says nothing of larger batches


def _as_it_is(results: Results) -> str:
    step, printed, metric = usual_step(results.runs), usual_metric(results.runs), results.plan.metric
    target = results.plan.until_loss
    if printed is None and (step is None or target is not None):
        return as_recorded(results)
    if metric is not None and printed is not None:
        better = "lower" if metric.lower_is_better else "higher"
        value = f"{printed.value:,.0f}" if printed.value >= 1000 else f"{printed.value:.4g}"
        what = f"{value} from {metric.pattern}, {better} is better"
    elif target is not None and printed is not None:
        what = f"{format_duration(printed.value * 1e9)} to a loss of {target.loss:g}"
    else:
        what = f"{format_duration(step.value)} per step" if step is not None else ""
    return f"Unchanged: {what}"


def _sentences(judgement: Judgement, results: Results) -> list[str]:
    runs = results.runs
    reported = [reason_text(judgement), *filter(None, (judgement.training,)), *other_text(judgement, results)]
    if judgement.memory is not None:
        reported.append(f"Peak memory {memory_text(judgement.memory)}")
    reported += changes_text(judgement, runs)
    compiling = max((run.compile_seconds for run in runs if run.variant == judgement.variant.name), default=0.0)
    step, speed = usual_step(runs), judgement.speed
    by_steps = not any(run.metric is not None for run in runs)
    if by_steps and compiling >= LONG_COMPILATION and step is not None and speed is not None and speed.low > 1:
        saved = step.value * (1 - 1 / speed.value)
        reported.append(f"It compiles for {compiling:.1f} s, which {compiling * 1e9 / saved:,.0f} steps pay back")
    return reported


def details_of(results: Results, judgements: Sequence[Judgement]) -> Iterator[Part]:
    """Parts that only documents (Markdown, page) show, without empty ones."""
    for number, each in enumerate(judgements, 1):
        label = each.variant.label or each.variant.name
        yield table_of(
            f"compared-{number}", f"What was compared: {label}", "", list(_compared(each.variant, results.runs)),
            word("compared", "compared", lambda row: row[0]),
            word("found", "found", lambda row: row[1]),
        )  # fmt: skip
        yield table_of(
            f"times-{number}", f"Where the time goes: {label}", MEANS, list(_times(each, results.runs)),
            word("part", "part", lambda row: row[0]),
            word("as it is", "as_it_is", lambda row: row[1]),
            word("with it", "with_it", lambda row: row[2]),
            word("change", "change", lambda row: row[3]),
        )  # fmt: skip
    yield Section("Measured on", tuple(Item(each) for each in _measured_on(results)))


# -- what was compared ------------------------------------------------------------------------------------------------


def _compared(variant: Variant, runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    own = [run for run in runs if run.variant == variant.name and run.stage == 0 and not run.failure]
    plain = [run for run in runs if run.variant in (BASELINE, CONTROL) and run.stage == 0 and not run.failure]
    mine, theirs = ([run for run in each if run.rehearsal and run.work and not run.exact] for each in (own, plain))
    pairs = [(mine[-1], theirs[0])] if mine and theirs else []
    # With each timed run, one of the unchanged job from the same seed.
    usual = {run.seed: run for run in reversed(plain) if not run.rehearsal and run.work}
    timed = [(run, usual[run.seed]) for run in own if not run.rehearsal and run.work and run.seed in usual]
    if not pairs and not timed:
        return
    yield "batches", _batches(variant, (*pairs, *timed))
    yield "options of the optimizer", _options((*pairs, *timed))
    for pair in pairs:
        yield "gradients of the first step", _gradients(*pair)
        yield "parameters in float32", _in_float32(*pair)
    yield "parameters in float64", _in_float64(own, plain)
    yield "evaluations", _evaluations(timed)
    yield "whole passes over the data", _passes(timed)
    yield "losses", _losses(variant, own, plain)


def _batches(variant: Variant, pairs: Sequence[tuple[Run, Run]]) -> str:
    precision = precision_of(variant)
    steps = [step for one, other in pairs for step in zip(one.work, other.work, strict=False)]
    looked = [pair for pair in steps if all(each.batches for each in pair)]
    equal = sum(same_batch(*pair, precision) for pair in looked)
    shapes = sum(one.inputs == other.inputs for one, other in steps)
    values = f"values equal in {equal} of {format_count(len(looked), 'checked step')}" if looked else ""
    return "; ".join(filter(None, (values, f"shapes equal in {shapes} of {len(steps)}"))) if steps else NOT_SEEN


def _options(pairs: Sequence[tuple[Run, Run]]) -> str:
    for pair in pairs:
        if differs := other_options(pair[0], [pair[1]]):
            return differs
    steps = sum(
        bool(one.options and other.options) for a, b in pairs for one, other in zip(a.work, b.work, strict=False)
    )
    return f"equal in {format_count(steps, 'step')}" if steps else NOT_SEEN


def _gradients(run: Run, before: Run) -> str:
    if not run.norms or not before.norms:
        return NOT_SEEN
    found = parity.compare_gradients(dict(before.norms[0]), dict(run.norms[0]))
    count = format_count(len(before.norms[0]), "parameter")
    if not found.largest and not found.dead:
        return f"norms of {count} are equal"
    dead = f", {len(found.dead)} are missing" if found.dead else ""
    return f"norms of {count} differ by {found.largest:.1g} at most, {found.median:.1g} in the median{dead}"


def _in_float32(run: Run, before: Run) -> str:
    found = apart(run, before)
    if found is None:
        return "different, or none that changed"
    return f"{_distance(found[0])} after {len(run.work)} steps; rounding explains {SINGLE:g}"


def _distance(share: float) -> str:
    return f"{share:.1g} of their total change apart" if share else "equal"


def _in_float64(own: Sequence[Run], plain: Sequence[Run]) -> str:
    found = exactness(own, plain)
    if found is not None:
        return f"{_distance(found.distance)} after {found.steps} steps; rounding explains {EXACT:g}"
    tried = any(run.exact for run in own)
    return "the job does not run in float64 throughout" if tried else "not rehearsed"


def _evaluations(pairs: Sequence[tuple[Run, Run]]) -> str:
    both = [
        sum(number for step in run.work[:count] for _, number in step.evaluated)
        for one, other in pairs
        for count in (min(len(one.work), len(other.work)),)
        for run in (one, other)
    ]
    own, usual = sum(both[::2]), sum(both[1::2])
    return f"{own:,} samples, {usual:,} in the unchanged job, over the same steps" if own or usual else "none seen"


def _passes(pairs: Sequence[tuple[Run, Run]]) -> str:
    seen = {(name, length) for one, other in pairs for name, length, _ in (*one.passes, *other.passes)}
    return ", ".join(f"{name} of {length:,}" for name, length in sorted(seen)) or "none seen"


def _losses(variant: Variant, own: Sequence[Run], plain: Sequence[Run]) -> str:
    """Mean losses over the last quarter of the steps, as text."""
    mine, theirs = ([run for run in runs if not run.rehearsal and parity.seen(run.losses)] for runs in (own, plain))
    if not mine or not theirs:
        return NOT_SEEN
    steps = min(len(run.losses) for run in (*mine, *theirs))
    ends, seeds = ({run.seed: parity.tail(run.losses, steps) for run in runs} for runs in (mine, theirs))
    spread = f", seeds differ by ±{stdev(seeds.values()):.2g}" if len(seeds) > 1 else ""
    common = sorted(ends.keys() & seeds.keys()) or [next(iter(seeds))]
    usual = f"{fmean(seeds[seed] for seed in common):.4g} in the unchanged job with the same seeds"
    return f"{fmean(ends.values()):.4g} after {steps} steps, {usual}{spread}"


# -- times ------------------------------------------------------------------------------------------------------------


def _times(judgement: Judgement, runs: Sequence[Run]) -> Iterator[tuple[str, str, str, str]]:
    timed = [run for run in runs if run.stage == 0 and not run.rehearsal and not run.failure and run.step_ns]
    own, plain = ([run for run in timed if run.variant in names] for names in ((judgement.variant.name,), _PLAIN))
    if not own or not plain:
        return
    steps = [fmean(fmean(run.step_ns) for run in each) for each in (plain, own)]
    yield "step", *_change(*steps)
    samples = [_samples(run) for run in (*own, *plain)]
    if samples[0] and len(set(samples)) == 1:
        rates = [samples[0] * 1e9 / step for step in steps]
        before, after = map(format_samples, rates)
        yield "samples", before, after, format_change(rates[1] / rates[0] - 1)
    if all(run.phases for run in (*own, *plain)):
        for phase in Phase:
            spent = [fmean(run.phases[phase] for run in each) for each in (plain, own)]
            if max(spent) >= SMALLEST * steps[0]:
                yield "everything else" if phase is Phase.REST else phase.name.lower(), *_change(*spent)
    for kind in dict.fromkeys(kind for run in plain for kind, _ in run.other_ns):
        sides = [[length for run in each for name, length in run.other_ns if name == kind] for each in (plain, own)]
        if all(sides):
            yield f"each {kind} between steps", *_change(*map(fmean, sides))


_PLAIN = (BASELINE, CONTROL)
SMALLEST = 0.01
"""Fraction of a step below which a part is not shown."""


def _change(before: float, after: float) -> tuple[str, str, str]:
    change = with_sign(after - before, format_duration(abs(after - before)))
    return format_duration(before), format_duration(after), change if after != before else "–"


def _samples(run: Run) -> int:
    """Samples per step by the first dimension of the model's inputs; 0 unless it is called as often as backward."""
    found = {
        sum(int(size) for call in step.inputs if (size := call.split("x")[0]).isdigit()) if len(step.inputs) == n else 0
        for step, n in zip(run.work, run.backwards, strict=False)
    }
    return found.pop() if len(found) == 1 else 0


# -- on what ----------------------------------------------------------------------------------------------------------


def _measured_on(results: Results) -> Iterator[str]:
    yield from results.plan.measured_on
    timed = [run for run in results.runs if not run.rehearsal and not run.failure and not run.stage]
    if not timed:
        return
    others = [run.load.other_cpu for run in timed]
    yield (f"Other processes used {fmean(others):.1f} CPUs on average during the timed runs, at most {max(others):.1f}")
    control = comparisons_of(CONTROL, results.runs) if results.plan.compared is None else ()
    if len(control) > 1:
        ratios = ", ".join(f"{exp(each.log_ratio()):.2f}" for each in control)
        yield f"Unchanged job against itself, per round: {ratios} times as fast (true value: 1)"
