"""ST11x: one cause takes most of the time in which batches are made."""

from __future__ import annotations

from steptime.advice.evidence import Case, PathUse
from steptime.advice.hottest_line import longest_line
from steptime.advice.line_ways import way_of_line
from steptime.advice.loader_model import production, supply
from steptime.advice.places import at_line, avoided_by, short_name
from steptime.advice.python_rounds import MANY_ROUNDS, rounds_in
from steptime.advice.repeat_evidence import READS
from steptime.advice.rule import Finding, rule
from steptime.advice.rules.input import slow_sampler
from steptime.advice.run_uses import LoaderUse, StepSummary
from steptime.advice.savings import modelled, ratio, share_of_step
from steptime.quantities import SourceLine, format_duration, format_share, format_source

MOST = 0.6
"""Fraction of the time in which batches are made: what takes so much is named, and not the number of workers."""
MOST_OF_A_LINE, GOOD_PART = 0.5, 0.25
"""Fractions of a line's time: of the calls that it is named for, together and each."""
LEAST = 0.1
"""Fraction of the step: what takes less may as well be what an item needs."""
LIKELY, SURE = 0.9, 0.5
"""Fractions of its time that another way to write it likely and surely saves: something of it is what it is for."""
AS_USUAL = 1 / (1 - MOST)
"""Times the wait: where steps waited longer before lines were timed, what took most of it may be done no more, as where
items are kept from the first epoch on."""
BY_ITEMS = 4
"""Rounds for each item, at least: fewer are the items' own, as of a collate_fn or a generator."""


@rule("ST111", "avoidable-item-work", supersedes=("input-wait", "too-few-workers", "slow-collate"), at_setting=True)
def avoidable_item_work(step: StepSummary, loader: LoaderUse, paths: tuple[PathUse, ...], case: Case) -> Finding | None:
    """One loop, or one call, takes most of the time to make a batch

    What it means: One piece of your own code is most of what the training waits for. It is a Python loop over
    single values (pixels, pairs, words, characters), or a small function that is called thousands of times. Or it
    is one call that not every item needs: a resampling of what is then cropped, a sort of everything, a copy, a
    save. Workers would only spread that time over CPUs; written another way, it is gone.

    How we know: The lines of your own code below the loader are timed and counted in a few steps, also in a worker;
    of a long call, only the first lines are timed and represent the rest. A loop counts from a thousand rounds per
    step and four rounds per item on, if a round takes at most twenty microseconds. A call counts if steps that were
    profiled with stacks show it. The rule fires if the loop or call takes 60 % of the time to make a batch, and if
    removing it would save a tenth of the step. Code that reads, decodes or waits is reported by ST101 and ST102,
    because each item needs it. The rule is silent if the steps before the timing waited two and a half times as long
    as the usual ones: the slow items may be cached by now.

    What helps: Array operations over all rounds at once. Or do it once for each sample, before training, if the
    result is the same in every epoch. Then set only as many workers as the rest needs.

    When to ignore it: When each round needs the result of the one before; numba compiles such a loop.
    """
    inside = [path for path in paths if path.part == "input" and path.lines]
    making = sum(path.duration for path in inside)
    kept = loader.early is not None and loader.early > AS_USUAL * loader.wait.value
    if not making or kept or slow_sampler(case):
        return None
    making, items = _whole(making, loader), (loader.batch_size or 1) * loader.demand
    rounds = rounds_in(inside, max(MANY_ROUNDS, BY_ITEMS * items))
    if rounds is not None and rounds.spent >= MOST * making:
        source, spent, what = rounds.source, rounds.spent, rounds.words
        better = way_of_line(source, case, ()) or f"{rounds.better[0].upper()}{rounds.better[1:]}"
    else:
        source, spent = longest_line(inside)
        what, better, share = _calls(source, case) if spent >= MOST * making else ("", "", 0.0)
        spent *= share
    part = min(1.0, ratio(spent, making))
    usual = step.duration.value if loader.workers else loader.wait.value  # a step lasts as long as its workers need
    saved = min(part * usual, loader.wait.value)
    if not better or ratio(saved, step.duration.value) < LEAST:
        return None
    waited = f"{format_duration(loader.wait.value)} ({share_of_step(loader.wait.value, step)})"
    return avoidable_item_work.finding(
        f"{format_source(source)}: {what}; steps wait {waited} for the loader",
        " ".join(filter(None, (better, _workers(case, loader)))),
        modelled(LIKELY * saved, SURE * saved, loader.wait.high, loader.wait.samples),
        category="input",
        source=source,
        evidence=(*filter(None, (source.text,)), f"That is {format_share(part)} of the time to make a batch."),
    )


def _whole(lines: float, loader: LoaderUse) -> float:
    """ns per step in which batches are made, where the user's lines take `lines` ns of it: torch's collating is in none
    of them."""
    if not loader.workers:
        return max(lines, loader.wait.value)
    of_torch = loader.collate is not None and loader.collate_name.startswith("torch.utils.data.")
    collating = loader.collate.value * loader.demand if loader.collate is not None and of_torch else 0.0
    return lines / max(0.01, 1 - ratio(collating, production(loader) or 0.0))


def _calls(line: SourceLine, case: Case) -> tuple[str, str, float]:
    """(calls, advice, fraction of the line's time) for a line that mostly makes one or two calls of which one need not
    be made for each item; ("", "", 0) for others."""
    runs = [run for run in at_line(line, case)[:2] if run.share >= GOOD_PART]
    better = next(filter(None, (avoided_by(run.name) for run in runs)), "")
    share = min(1.0, sum(run.share for run in runs))
    if not better or share < MOST_OF_A_LINE or READS.search(line.text):
        return "", "", 0.0
    often = f" {runs[0].calls:,.3g} times per step" if runs[0].calls else ""
    return (
        f"{' and '.join(short_name(run.name) for run in runs)} run{'s' if len(runs) == 1 else ''}{often}",
        better,
        share,
    )


def _workers(case: Case, loader: LoaderUse) -> str:
    """Sentence on what more workers would save, if they help."""
    model = supply(case, loader)
    if model is None or loader.in_memory_tensors or model.best <= loader.workers:
        return ""
    return f"Workers only spread it (num_workers={model.best}): add them for what is left."
