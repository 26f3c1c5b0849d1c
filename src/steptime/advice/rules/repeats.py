"""ST21x: work that is done again though its result is there, or whose result nobody reads."""

from __future__ import annotations

import re
from collections.abc import Iterator

from steptime.advice.evidence import Case, RepeatedForward
from steptime.advice.hottest_line import main_line
from steptime.advice.kernels import plain_name
from steptime.advice.loader_model import production
from steptime.advice.rule import Finding, rule
from steptime.advice.run_uses import LoaderUse, PeriodUse, RepeatUse, StepSummary, WorkUse
from steptime.advice.savings import in_step, less, modelled, ratio, total
from steptime.advice.seldom_read import lines_of_unread
from steptime.analysis.unused import ATTENTION, PickedUse, UnreadUse
from steptime.quantities import SourceLine, format_count, format_duration, format_share, format_source

TAKES_BATCH = re.compile(r"torch\.utils\.data\..*__next__")
"""Functions by which a line takes the next batch."""
LEAST_REPEATED = 0.03
"""Fraction of the step: less is no matter."""
TWICE = 1.5
"""Evaluations per step from which on a line runs more than once."""
LEAST_FROZEN, IN_EACH = 0.1, 0.9
"""Fraction of the step that a frozen model takes, and of the steps that it runs in; else it is an evaluation."""
SURE_FROZEN = 0.1
"""Fraction of its time: whether its weights change is not seen."""
LEAST_UNREAD_WORK = 0.03
"""Fraction of the step: less is no matter."""
OF_PASSES, SURE_PASSES, OF_PRODUCTS = 0.8, 0.3, 0.1
"""Fraction of attention's passes over its weights that is saved without them, and that surely is; of its matmuls, that
may be besides. Measured: 0.3 to 1.2 of the passes, nothing of 64 tokens (four shapes of 64 to 1024 tokens, one thread,
torch 2.13)."""
SURE_LINES = 0.8
"""Fraction of lines' time that is surely saved without them: they were timed in other steps than the savings are of."""
LEAST_UNUSED_ROWS, LIKELY_ROWS, SURE_ROWS = 0.05, 0.75, 0.5
"""Fraction of the step; of that time, what likely and what surely goes: picking costs a copy, few rows are computed
less well, and a weight's gradient is as large as before."""
EACH_STEP = 1.5
"""Steps from one iterator to the next, at most, for one to be started in each."""
LEAST_STARTS = 5
"""Iterators in a row that show that."""
LEAST_UNREAD = 0.5
"""Of the batches of an iterator that nobody reads: a loop over all of a small dataset in each step reads them all."""


GENERAL = (
    "input-wait", "too-few-workers", "avoidable-item-work", "slow-collate", "per-sample-fetch", "batch-preparation",
    "python-time", "dispatch-loop", "outside-model", "dominant-operator", "compute-share", "work-without-gradient",
    "large-part",
)  # fmt: skip
"""Rules that say where the time goes, and not why."""
LEAST_GONE_THROUGH = 0.1
"""Fraction of the step: what takes less may as well be what the step needs."""
LIKELY_SINGLE, SURE_SINGLE, MOST_SINGLE, MOST_LINES = 0.5, 0.1, 0.9, 4
"""Fractions of the time in double precision that single saves: of sums, products and exp 0.35 to 0.5, of sin 0.95, of
normal numbers 0.1, by torch 0.8, of exp of complex numbers nothing (1e4 and 1e5 numbers, numpy 2.4, torch 2.13, one
thread); lines that the evidence lists."""
SURE_GONE_THROUGH = 0.5
"""Fraction of the line's time that is saved at least: something of it is what the line is for."""


@rule(
    "ST210",
    "computed-again",
    supersedes=GENERAL,
    by_line=True,
    at_setting=True,
)  # fmt: skip
def computed_again(step: StepSummary, repeats: tuple[RepeatUse, ...], case: Case) -> Iterator[Finding]:
    """A line computes the same result again

    What it means: The line's result depends on nothing that changes: a filter, a mask, a position table, a
    permutation of the dataset, features of a frozen model. It computes the same numbers as the last time, and takes
    as long.

    How we know: In a few steps, the results of the loop's lines and of your most expensive functions are
    fingerprinted: each array that takes more than 20 microseconds to compute, by its bytes. A result with the
    fingerprint of an earlier one counts as repeated. The savings are the time to compute the repeated results. Arrays
    whose elements are all one number, copies that are changed afterwards, and results on a device do not count. The
    finding's line depends on the case. If lines call each other, it is the innermost one with nearly all of the time.
    If two lines of a function ask for the same result in a row, it is the second one. If the result comes from the
    loader, it is the line of the dataset that takes most of the time.

    What helps: Compute it once: before the loop, in __init__ (register_buffer), or per argument (functools.cache, a
    dictionary). Results per sample: once for each sample, kept or written to disk. Results that depend on the
    weights: once per step.

    When to ignore it: When it changes later, as by a schedule: then keep it until then. When it would not fit into
    memory.
    """
    for use in repeats:
        if step.device != "cpu" and use.part != "input":
            continue  # a device only waits for what the CPU cannot hide
        spent = use.duration.value
        if ratio(spent, step.duration.value) < LEAST_REPEATED:
            continue
        often = (
            f"{use.again:.3g} of {use.evaluations:.3g} times per step" if use.evaluations >= TWICE else "in each step"
        )
        as_before = f"as at {format_source(use.first)}" if use.first is not None else "as before"
        summary = f"Computed again with the same result {as_before}, {often}: {in_step(spent, step)}"
        made = _in_dataset(use, case)
        yield computed_again.finding(
            summary,
            _keep(use),
            use.duration,
            category="input" if use.part == "input" else "",
            source=use.asker or made or use.source,
            evidence=tuple(_evidence(use)),
            below=made or use.source,
        )


def _in_dataset(use: RepeatUse, case: Case) -> SourceLine | None:
    """For a line that takes batches of a loader, the line that takes most of the time of making them; None for
    others."""
    takes = any(line.source == use.source and any(map(TAKES_BATCH.fullmatch, line.calls)) for line in case.lines)
    inside = [path for path in case.paths if path.part == "input" and path.lines and path.lines[0] != use.source]
    return main_line(inside, case)[0] if takes and inside else None


def _keep(use: RepeatUse) -> str:
    """Advice on where to keep the result: a single result needs no key, and another line may have it already."""
    if use.first is not None:
        return f"Compute it once: keep what {format_source(use.first)} gave and use that, or leave one of the two out."
    if use.trained and use.evaluations >= TWICE:
        return "Compute it once per step and reuse it: it depends on weights, which each update changes."
    if use.results == 1:
        return "Compute it once, before the loop or in __init__ (register_buffer), and reuse it."
    return "Cache each result by its arguments (functools.cache, a dictionary)."


def _evidence(use: RepeatUse) -> Iterator[str]:
    if use.source.text:
        yield use.source.text
    if use.called:
        yield f"{use.called} gives it; where that reads a file, read it once and keep what it holds."
    results = "one result" if use.results == 1 else f"{use.results} different results"
    yield f"{results} in {use.evaluations * use.steps:.0f} evaluations of {use.steps} steps."
    if use.asker is not None:
        yield f"Computed at {format_source(use.source)}."
    elif use.outer is not None:
        yield f"Called from {format_source(use.outer)}."


GOES_THROUGH = {
    "container": ("goes through all of {what}", (
        "Its cost grows with that, not with what the line asks for. Keep it in the form that is needed: an array in "
        "place of a list that is converted, a set or a dictionary in place of a list that is searched, a list "
        "in place of a deque that is indexed in its middle; or pass over the new entries only."
    )),
    "folder": ("searches a folder ({what})", (
        "Its cost grows with the files in the folder. List the folder once, before the loop or in __init__, and look "
        "the names up in a dictionary."
    )),
    "copy": ("copies a whole object ({what})", (
        "Copy only what is changed afterwards: a shallow copy (dict(item)), or the crop or view that is used; without "
        "a change in place, no copy is needed."
    )),
    "file": ("reads the same file again ({what})", (
        "Read or open it once, in __init__ or at the first use, and keep it; or store it in a form of which a part can "
        "be read (np.load(…, mmap_mode=\"r\") of an .npy file, HDF5)."
    )),
    "list": ("converts a list number by number ({what})", (
        "Join the arrays first: torch.from_numpy(np.stack(rows)), which copies them whole; keep plain numbers in one "
        "preallocated array from the start."
    )),
    "view": ("loads whole tensors and uses a part ({what})", (
        "torch.save writes all of the tensor that a view belongs to: save view.clone(), and write these files again."
    )),
    "rows": ("makes rows that nobody uses ({what})", (
        "Decide before a row is made whether it is taken: from an index of the good ones, which is made once; each "
        "worker reads only its own files or lines (torch.utils.data.get_worker_info()), and skips the others unparsed."
    )),
    "stack": ("looks through Python's stack and its source ({what})", (
        "Read the one frame that is needed: sys._getframe(1) has its file and line in a microsecond."
    )),
}  # fmt: skip
"""By kind: what the line does, and what helps."""


@rule("ST215", "goes-through-all", supersedes=(*GENERAL, "computed-again"), by_line=True, at_setting=True)
def goes_through_all(step: StepSummary, works: tuple[WorkUse, ...]) -> Iterator[Finding]:
    """A line reads all of something for a small part of it

    What it means: An item lists its folder, reads the file of all items, or copies the whole sample for a crop of
    it. A draw converts a list of everything; a search walks a list. The cost grows with the dataset, the buffer or
    the program, not with the batch.

    How we know: In a few steps, the lines of the loop and of your most expensive functions are timed, with the
    package and library functions that each calls directly. The called function shows what the line reads as a whole:
    a folder, an object and all that it refers to, Python's stack, a file of the same name each time. Four other cases
    count. A container: it has a thousand entries or more, each evaluation of the line reads the same one as a whole
    (neither by an index nor by a method), and that takes at least three nanoseconds per entry. Generated rows:
    nothing reads them before the next ones are bound, or something between generator and loader drops them
    (itertools.islice). Items: their arrays are not in the batch that collate_fn makes. A tensor from torch.load: its
    storage has at least twice its bytes, because it was saved as a view. The times of lines of one kind in one
    function are added; the rule fires from a tenth of the step on. The savings are nine tenths of that time; the
    interval starts at half of it. A worker's lines are seen in a few batches, and count with their share of the wait
    for the worker.

    What helps: Do once what does not depend on the item: list the folder, open the file, make the array, the set or
    the dictionary. Join a list of arrays with numpy. More workers come second: they only repeat the same work in
    parallel.

    When to ignore it: When it is another folder, list or object each time, and all of it is needed.
    """
    groups: dict[tuple[str, str, str], list[WorkUse]] = {}
    for use in works:
        hidden = step.device != "cpu" and use.part != "input"  # a device only waits for what the CPU cannot hide
        if use.kind in GOES_THROUGH and not hidden:
            place = "" if use.kind != "container" else use.what
            groups.setdefault((use.kind, place, use.source.function), []).append(use)
    for (kind, *_), uses in groups.items():
        spent = total(use.duration for use in uses)
        if ratio(spent.value, step.duration.value) < LEAST_GONE_THROUGH:
            continue
        first, (does, advice) = uses[0], GOES_THROUGH[kind]
        often = f", {first.evaluations:.3g} times" if first.evaluations >= TWICE else ""
        reported = f"{does.format(what=first.what)}{often}: {in_step(spent.value, step)}"
        loads = first.part == "input"
        yield goes_through_all.finding(
            f"{format_source(first.source)} {reported}",
            f"{advice} Only then add workers." if loads else advice,
            modelled(0.9 * spent.value, SURE_GONE_THROUGH * spent.value, spent.high, spent.samples),
            category="input" if loads else "",
            source=first.source,
            evidence=tuple(use.source.text for use in uses if use.source.text),
        )


@rule("ST216", "double-precision-items", supersedes=GENERAL, at_setting=True)
def double_precision_items(step: StepSummary, works: tuple[WorkUse, ...]) -> Finding | None:
    """Samples are computed in double precision and trained in single

    What it means: numpy makes float64 by default (np.random, np.linspace, Python's numbers in arrays). One such
    array turns everything computed with it into float64 or complex128. At the end the sample is converted to
    float32 again.

    How we know: In a few steps the results of your most expensive functions are examined, also in workers of the
    loader. A line counts if it returns arrays of more than a thousand numbers in double precision, while other lines
    return single precision. Its own time is added up. Single precision usually saves half of that time; the interval
    is a tenth to nine tenths.

    What helps: Make the constants float32 (dtype=np.float32), draw by torch.randn or torch.rand, and compare the
    dtypes that your transforms return.

    When to ignore it: Where the precision is needed, as in long sums.
    """
    lines = [use for use in works if use.kind == "double" and (step.device == "cpu" or use.part == "input")]
    spent = total(use.duration for use in lines)
    if ratio(spent.value, step.duration.value) < LEAST_GONE_THROUGH:
        return None
    first, others = lines[0], f" and {format_count(len(lines) - 1, 'other line')}" if len(lines) > 1 else ""
    return double_precision_items.finding(
        f"{format_source(first.source)}{others}: float64 arrays of data that is trained in float32, "
        f"{in_step(spent.value, step)}",
        "Keep single precision throughout: dtype=np.float32 for constants and arrays, random numbers by torch.randn or "
        "torch.rand in place of numpy's.",
        modelled(LIKELY_SINGLE * spent.value, SURE_SINGLE * spent.value, MOST_SINGLE * spent.high, spent.samples),
        category="input" if first.part == "input" else "",
        source=first.source,
        evidence=tuple(f"{format_source(use.source)} {use.source.text}" for use in lines[:MOST_LINES]),
    )


@rule("ST212", "frozen-forward", supersedes=("outside-model",), by_line=True, at_setting=True)
def frozen_forward(step: StepSummary, frozen: RepeatedForward) -> Finding | None:
    """A model that is not trained runs forward in every step

    What it means: A reference, a teacher or a frozen encoder returns the same output for the same sample in each
    epoch, and computes it again each time.

    How we know: Each forward is timed, with whether gradients were on. A model counts as frozen if it never runs with
    gradients, and runs in nearly every step. Models whose weights changed in the run are excluded: an average of the
    trained one, or a target network that is copied every n-th step. The savings are the time of the frozen model's
    forward. Samples may differ in each epoch, so the interval starts at a tenth.

    What helps: Run it once over the dataset before training, store its output with each sample, and read that.

    When to ignore it: When its weights follow those of the trained model, when samples are augmented or generated
    by the trained model, or when its outputs are too large to store.
    """
    spent = frozen.duration.value
    if step.device != "cpu" or frozen.steps < IN_EACH or ratio(spent, step.duration.value) < LEAST_FROZEN:
        return None  # a device only waits for what the host cannot hide
    where = f"{format_source(frozen.source)} runs" if frozen.source is not None else "Each step runs"
    return frozen_forward.finding(
        f"{where} a frozen model without gradients: {in_step(spent, step)}",
        "If its weights stay as they are, and the samples, too (no random augmentation): compute its outputs once per "
        "sample, and keep them.",
        modelled(spent, SURE_FROZEN * spent, frozen.duration.high, step.steady),
        source=frozen.source,
        evidence=(frozen.source.text,) if frozen.source is not None and frozen.source.text else (),
    )


DROPPING = ("bernoulli", "dropout", "native_dropout")
"""Operators of dropout: torch's fused attention for CPUs has none, and falls back to the passes (torch 2.13)."""


@rule(
    "ST213",
    "unread-result",
    supersedes=(
        "dominant-operator", "memory-bound-pointwise", "unflashed-attention", "compute-share", "work-without-gradient",
    ),
    at_setting=True,
)  # fmt: skip
def unread_result(step: StepSummary, unread: tuple[UnreadUse, ...], case: Case) -> Iterator[Finding]:
    """A module computes a result that nobody reads

    What it means: The module returns several results, and the line that calls it binds one to a name that it never
    reads, or takes only the first. torch's attention returns its weights unless you pass need_weights=False, and
    computes them in several passes. Without them it uses a fused kernel (on a CPU only if it drops nothing).

    How we know: In a few steps, steptime reads the instructions after each call of a module: which names take the
    results, and whether any path through the function loads these names before they are bound again. Modules with
    forward hooks are excluded. For attention, the savings are most of the time of its passes over the weights. For
    other modules, the savings are the time of operators whose graph no backward reaches. On a CPU, lines of forward
    count instead if they make nothing but unread results, and if what they call is known to change nothing else.

    What helps: need_weights=False for torch.nn.MultiheadAttention; an argument of your own that omits the result,
    or `if not self.training` around a score that only the evaluation reads.

    When to ignore it: When another caller of the same module reads it.
    """
    for use in unread:
        facts, attention = use.facts, use.facts.type == ATTENTION
        if (found := _lines_unread(use, case)) is not None:
            yield found
            continue
        spent = (OF_PASSES if attention else 1.0) * use.spent * step.duration.value
        if not facts.results or ratio(spent, step.duration.value) < LEAST_UNREAD_WORK:
            continue
        what = "its weights" if attention else f"result {facts.results[0] + 1}"
        summary = f"{facts.type} computes {what}, which nobody reads: {in_step(spent, step)}"
        advice = (
            "Pass need_weights=False: then the attention is fused (scaled_dot_product_attention)."
            if attention
            else "Leave the result out where nobody reads it: an argument of the module, or a method of its own."
        )
        drops = step.device == "cpu" and any(plain_name(each.name).startswith(DROPPING) for each in case.operators)
        if attention and drops:
            advice += " On a CPU only with a dropout of 0: else it saves nothing."
        low, high = SURE_PASSES * use.spent, use.spent + OF_PRODUCTS * use.around
        saving = modelled(spent, low * step.duration.value, high * step.duration.value, step.steady)
        evidence = (f"{facts.path} and others like it run {facts.calls:.3g} times per step there.", facts.site.text)
        yield unread_result.finding(summary, advice, saving, category="compute", source=facts.site, evidence=evidence)


def _lines_unread(use: UnreadUse, case: Case) -> Finding | None:
    """Finding about lines of a module's forward that make nothing but unread results, where they take longer than the
    operators do that are known to."""
    step, facts = case.step, use.facts
    lines = lines_of_unread(facts, case) if facts.type != ATTENTION and step.device == "cpu" else []
    spent = min(sum(taken for _, taken in lines), step.duration.value)
    if ratio(spent, step.duration.value) < max(LEAST_UNREAD_WORK, use.spent):
        return None
    source, count = lines[0][0], len(facts.results)
    what = " and ".join(str(place + 1) for place in facts.results)
    return unread_result.finding(
        f"Nobody reads result{'s' * (count > 1)} {what} of {facts.type} in training: {in_step(spent, step)}",
        f"Compute {'them' if count > 1 else 'it'} only where {'they are' if count > 1 else 'it is'} read: under "
        "`if not self.training`, or by an argument of the module.",
        modelled(spent, SURE_LINES * spent, spent, step.steady),
        source=source,
        evidence=(*(line.text for line, _ in lines), f"Called at {format_source(facts.site)}: {facts.site.text}"),
    )


@rule(
    "ST214",
    "unused-rows",
    supersedes=("dominant-operator", "memory-bound-pointwise", "compute-share"),
    at_setting=True,
)
def unused_rows(step: StepSummary, picked: tuple[PickedUse, ...]) -> Iterator[Finding]:
    """Rows are computed that the loss does not use

    What it means: A head computes all positions of a sequence, or all nodes of a graph, and the loss uses only
    some: the masked tokens, the last position, the nodes of the batch. The others are computed in forward, and
    their gradients, which are zeros, go through backward.

    How we know: In a few steps steptime walks the graph of each backward. A slice, an index, or labels that the loss
    ignores show which fraction of the rows is used. The nodes before it count if they compute each row independently
    and nothing else uses their result; the profile has their time. The savings are the unused rows' share of that
    time. Three quarters of it are likely, half is the lower end, because picking rows costs a copy.

    What helps: Pick the rows first: head(hidden[mask]) in place of head(hidden)[mask], hidden[:, -1] before the head,
    only labels that count.

    When to ignore it: When the other rows are read without gradients, as for a metric, in each step.
    """
    for use in picked:
        facts = use.facts
        whole = (1 - facts.kept) * use.spent * step.duration.value
        spent = LIKELY_ROWS * whole
        if ratio(spent, step.duration.value) < LEAST_UNUSED_ROWS:
            continue
        summary = f"The loss uses {format_share(facts.kept)} of the rows that {facts.path or 'forward'} computes"
        advice = f"Pick the rows before {facts.path or 'that'} computes them, in place of its result's."
        saving = modelled(spent, SURE_ROWS * whole, whole, step.steady)
        yield unused_rows.finding(
            f"{summary}: the rest takes {in_step(whole, step)}",
            advice,
            saving,
            category="compute",
            source=facts.made,
            evidence=(facts.made.text,) if facts.made is not None and facts.made.text else (),
        )


KEEP = "Keep the iterator: make it before the loop, take next() of it, and make another when it is used up."


@rule(
    "ST211",
    "iterator-in-step",
    supersedes=(
        "slow-sampler",
        "input-wait",
        "too-few-workers",
        "too-many-workers",
        "workers-restarted",
        "slow-collate",
        "per-sample-fetch",
        "periodic-steps",
    ),
)
def iterator_in_step(step: StepSummary, loader: LoaderUse, period: PeriodUse | None = None) -> Finding | None:
    """A new iterator of the loader is made in every step, or every few steps

    What it means: `next(iter(loader))` starts the dataset again for a single batch, `islice(loader, 4)` for four.
    The sampler draws an order of the whole dataset (a permutation if it shuffles), workers start, and the rest is
    thrown away.

    How we know: steptime sees when an iterator of the loader is made, and how many of its batches are read. The rule
    fires in two cases. In the first, several steps in a row make an iterator, though each has more batches than the
    step reads. The savings are the wait for the loader, less the time to read and collate the items if there are no
    workers. In the second, an iterator is made every few steps, less than half of its batches are read, and input
    takes longer in just these steps. The savings are that extra time, divided among all steps.

    What helps: Keep one iterator and take the next batch from it: `stream = iter(loader)` before the loop,
    `next(stream)` in it, and a new one when it is used up. Or use a generator: `while True: yield from loader`.

    When to ignore it: When the dataset changes from step to step.
    """
    steps = loader.steps_per_start
    if steps is None or loader.starts < LEAST_STARTS:
        return None
    often, read = steps <= EACH_STEP, loader.demand * max(steps, EACH_STEP)
    if loader.batches is not None and read > (1 - LEAST_UNREAD) * loader.batches:
        return None
    if not often:
        return _every_few_steps(step, loader, period, steps)
    produced = production(loader) or 0.0
    saving = less(loader.wait, produced) if not loader.workers else loader.wait
    rest = f", for one batch of {loader.batches}" if loader.batches is not None else ""
    summary = f"A new iterator of the loader in each step{rest}: {in_step(saving.value, step)}"
    evidence = (f"Reading and collating a batch takes {format_duration(produced)}.",) if produced else ()
    return iterator_in_step.finding(
        summary,
        KEEP,
        saving,
        category="input",
        source=loader.iterated_at or loader.site,
        evidence=evidence,
    )


def _every_few_steps(step: StepSummary, loader: LoaderUse, period: PeriodUse | None, steps: float) -> Finding | None:
    """Finding about iterators of which each gives a few batches, of steps that are longer where one is made."""
    if (
        period is None
        or (period.every, period.phase) != (round(steps), "input")
        or loader.workers
        or not loader.batches
    ):
        return None
    rest = f"for {loader.demand * steps:.0f} of its {loader.batches:,} batches"
    return iterator_in_step.finding(
        f"A new iterator of the loader every {period.every} steps, {rest}: {in_step(period.cost.value, step)}",
        KEEP,
        period.cost,
        category="input",
        source=loader.iterated_at or period.line or loader.site,
        evidence=(f"Each draws an order of all {loader.length:,} items.",) if loader.length else (),
    )
