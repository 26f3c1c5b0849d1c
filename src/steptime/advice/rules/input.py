"""ST1xx: the step waits for its data."""

from __future__ import annotations

import re
from collections.abc import Iterable

from steptime.advice.device_uses import CopyUse
from steptime.advice.evidence import Case, LineUse, PathUse, SiteUse
from steptime.advice.hottest_line import main_line
from steptime.advice.kernels import plain_name
from steptime.advice.line_evidence import calls_function, line_times, own_times
from steptime.advice.loader_model import Supply, handover, production, supply, usable_text
from steptime.advice.models import staging_operators
from steptime.advice.rule import Finding, rule
from steptime.advice.run_uses import CategoryUse, LoaderUse, StepSummary
from steptime.advice.savings import (
    capped,
    in_step,
    largest,
    less,
    modelled,
    more,
    named,
    of_usual_steps,
    ratio,
    scaled,
    share_of_step,
    total,
)
from steptime.analysis.operators import OperatorUse
from steptime.quantities import (
    Estimate,
    SourceLine,
    format_bytes,
    format_count,
    format_duration,
    format_share,
    format_source,
)
from steptime.recording.rule_facts import PaddingFacts

AUGMENTING = re.compile(r"augment|transform|crop|flip|jitter|rotat|affine|blur|cutout|mixup|noise", re.IGNORECASE)
"""In a line or the name of its function: it changes an item at random."""
LEAST_AUGMENTING = 0.05
"""Fraction of the step: less is not worth another place."""
COLLECTOR_REPORTED = 0.1
"""Fraction of the wait: below that the garbage collector's part in it is left out."""
MOSTLY_WAITING = 0.5
"""Share of the making of a batch in which a CPU works: below, it is reported that the rest is spent waiting."""
LEAST_GAIN_OF_MORE = 0.05
"""Fraction of the step: workers cost memory and start-up, a smaller gain is not worth advising them."""
MOSTLY_HIDDEN = 0.1
"""Fraction of the wait: where the advised workers are predicted to leave less of it, nothing more is asked for."""
LEAST_GAIN_OF_NONE = 0.03
"""Fraction of the wait: below this the prediction without workers is no better than noise."""
BYTES_DOMINATE = 0.9
"""Collating over reading: from here on a sample is so large that copying it is the price, and one indexing copies as
much. On a CPU with torch 2.13 indexing whole batches left 0.03 to 0.2 of reading and collating where this ratio was
0.3 to 0.4, 0.6 at 0.5, and gained nothing at 0.95."""
FEWEST_SAMPLES = 4
"""Below this batch size a batched read has nothing to gain."""
COLLATE_SHARE = 0.5
"""Fraction of the making of a batch: from half on, collating is the first thing to mend."""
OWN = 0.5
"""Fraction of a line's time outside of the loader: what reads less waits for a DataLoader, or runs inside one."""
HOT_LINE = 0.6
"""Fraction of the loader's sampled time: from here on a single line is named next to the number of workers."""
SAMPLER_SHARE = 0.5
"""Fraction of the wait: from half on, drawing the indices is the first thing to mend."""
SENDS, FILLS = ("to", "cuda"), ("copy_",)
"""Tensor methods that copy from the CPU: called on the CPU's tensor, and on the device's."""
LEAST_PADDING = 0.25
"""Fraction of the tokens: what remains after sorting by length, as a rule."""
LIKELY_PADDING, SURE_PADDING = 0.8, 0.4
"""Fraction of the padding: what shorter batches leave out of it; at most all."""
PACKING = "_pack_padded_sequence"
"""The operator that takes the padding out of a batch, before a recurrent layer."""
SCALING = ("forward", "backward")
"""Phases whose work grows with the tokens."""


@rule("ST101", "input-wait")
def input_wait(step: StepSummary, categories: tuple[CategoryUse, ...], case: Case) -> Finding | None:
    """The training step waits for the next batch

    What it means: The training thread is in the loader's next() and does nothing else. No faster model, no lower
    precision and no better device shortens this time.

    How we know: Every step's wait inside the training loader's next() is timed. Items and collated batches are timed
    where they are made, also in workers, together with their CPU time; time without CPU is waiting (disk, network,
    sleep). The savings are the wait, less the time to receive a finished batch from a worker (measured once per
    machine, else a millisecond). Without workers, nothing is received, and the savings are the whole wait. The
    exception is a dataset that returns whole batches: only a worker can shorten its wait, so the time to receive is
    subtracted there as far as it exceeds the time of your own code. In a bare trace, the loader's next() is an
    annotation. There the savings are the breakdown's input category: on an accelerator, the time that the device
    idled meanwhile.

    What helps: Shorten the largest part first: reading an item, collating, or too few workers. Reading: decode
    less, cache what never changes, store the data in the form that training needs. `steptime bench-loader
    --formats` times your samples as files, tar, Parquet, Arrow, LMDB and mapped arrays. Collating: stack once, not
    item by item. Read remote data in long pieces: tarred or streaming sets (WebDataset, MosaicML Streaming), with a
    shard or more for each worker. Augmenting whole batches on the device (torchvision.transforms.v2, kornia) takes
    that work off the loader; the evidence says how long it takes. Rules ST102 to ST106 and ST110 fire instead of
    this one if a particular cause is certain.

    When to ignore it: When the data really arrives at this rate (a stream, a simulator), or if the job will run on
    a slower device.
    """
    if case.loader is None:
        return None if case.phases else _from_trace(case)
    wait = case.loader.wait
    share = share_of_step(wait.value, step)
    summary = f"Each step waits {format_duration(wait.value)} ({share}) for the loader{_parts(case.loader)}"
    received = handover(case.loader, case.contention) if case.loader.workers or _is_one_read(case.loader) else 0.0
    savings = capped(
        more(less(wait, received), 0.0 if case.loader.workers else min(received, _own(case.operators, case.paths))),
        wait,
    )
    source = case.loader.item_site or case.loader.site
    evidence = _augmenting(case)
    return input_wait.finding(
        summary, _advice_on_wait(case, case.loader), savings, category="input", source=source, evidence=evidence
    )


def _augmenting(case: Case) -> tuple[str, ...]:
    """Evidence on augmentation that could move from the loader to the device: lines of calls named so, in a job on a
    device."""
    if case.step.device == "cpu":
        return ()
    found = [path for path in case.paths if path.part == "input" and any(map(_augments, path.lines))]
    spent = sum(path.duration for path in found)
    if not found or spent < LEAST_AUGMENTING * case.step.duration.value:
        return ()
    line = next(filter(_augments, max(found, key=lambda path: path.duration).lines))
    where = "Applied to whole batches on the device (torchvision.transforms.v2, kornia), it costs the loader no time"
    return (f"Augmentation at {format_source(line)} takes {in_step(spent, case.step)}. {where}.",)


def _augments(line: SourceLine) -> bool:
    return AUGMENTING.search(f"{line.function} {line.text}") is not None


def _is_one_read(loader: LoaderUse) -> bool:
    """True if a batch is read at once already, so that only a worker could hide the reading."""
    return loader.batched_fetch or loader.in_memory_tensors or (loader.iterable and loader.batch_size is None)


def _own(operators: tuple[OperatorUse, ...], paths: tuple[PathUse, ...]) -> float:
    """ns per step of the user's own code in the loader, without the operators that copy the data."""
    copying = sum(use.duration for use in operators if use.phase == "input")
    return max(0.0, sum(path.duration for path in paths if path.part == "input") - copying)


def _from_trace(case: Case) -> Finding | None:
    """Findings from a trace alone: the category, and the annotation of the loader."""
    category = named(case.categories, "input")
    if category is None:
        return None
    waits = (gap for gap in case.gaps if gap.category == "input")
    gap = max(waits, key=lambda gap: gap.duration.value, default=None)
    wait = in_step(category.duration.value, case.step)
    what = f"The device idles {wait}" if case.step.device != "cpu" else f"Training waits {wait}"
    inside = f", mostly in {gap.inside}" if gap and gap.inside else ""
    evidence: tuple[str, ...] = ()
    if gap:
        gaps_a_step = f"{format_count(gap.count, 'gap')} per step, the longest {format_duration(gap.longest)}"
        evidence = (f"{gap.cause}: {gaps_a_step}",)
    return input_wait.finding(
        f"{what} for the next batch{inside}",
        _advice_on_trace(gap.cause if gap else ""),
        category.recoverable,
        category="input",
        source=gap.source if gap else None,
        evidence=evidence,
    )


def _advice_on_trace(cause: str) -> str:
    """By the class of the loader's iterator, which names whether there are workers."""
    measure = "`steptime run` measures each part of the loader"
    if "SingleProcess" in cause:
        return f"The loader has no workers: try two, unless its items are cheap or in memory. {measure}."
    if "MultiProcessing" in cause:
        return f"Its workers do not keep up: try more of them, or cheaper items. {measure}."
    return f"{measure}, and says how many workers would keep up."


def _parts(loader: LoaderUse) -> str:
    if loader.item is None:
        return ""
    text = f": {format_duration(loader.item.value)} per item"
    if loader.collate is not None:
        text += f", {format_duration(loader.collate.value)} to collate"
    if loader.busy is not None and loader.busy <= MOSTLY_WAITING:
        text += f", {format_share(1 - loader.busy)} of it waiting"
    if loader.collector * loader.demand >= COLLECTOR_REPORTED * loader.wait.value > 0:
        text += f", {format_duration(loader.collector)} in gc"
    return text


def _advice_on_wait(case: Case, loader: LoaderUse) -> str:
    model = supply(case, loader)
    if model is None:
        return "Find out what next() waits for: the items of this dataset were not timed."
    if 2 * loader.collector * loader.demand > loader.wait.value:
        return "Most of it is Python's garbage collector, not the items: see ST202."
    if loader.workers and (production(loader) or 0.0) / loader.workers < loader.wait.value / 2:
        return "The workers make batches faster than that: look at what moves them (their size, pinning, the queue)."
    if model.best <= loader.workers:
        text = f"More workers would not help here ({model.bounded_by}): make an item cheaper to read, or cache it"
    else:
        text = f"Make an item cheaper to read, or read with {_workers(model.best)}"
    return text + ("." if loader.in_memory_tensors else "; steptime bench-loader --formats times other formats.")


@rule("ST102", "too-few-workers", supersedes=("input-wait",))
def too_few_workers(step: StepSummary, loader: LoaderUse, case: Case) -> Finding | None:
    """The loader has too few workers for its items

    What it means: Making the batches of a step takes longer than the step itself, and there are idle CPUs that could
    make them at the same time.

    How we know: All times are measured. Workers needed = (time per item x batch size + collating) x batches per step
    / (step - wait). The predicted step is the largest of these times: the step without its wait; the time to make the
    batches, divided by the workers; the CPU time of the whole job, divided by the usable CPUs. If workers must share
    CPUs with the training's own threads, a fourth time counts: the step without its wait, plus the workers' time on a
    shared CPU. The number advised is the smallest within 3 % of the best prediction. A worker whose items wait (disk,
    network, sleep) needs only a part of a CPU. So the numbers considered end at the usable CPUs divided by that part,
    at 64 per host, and at eight batches of an epoch per worker. In recordings of older versions, which have no CPU
    times, each worker needs a whole CPU. The savings are the measured step minus the predicted one; their upper end
    is the whole wait.

    What helps: Set num_workers as advised, with persistent_workers=True if there are several epochs. If the dataset
    draws random numbers, its augmentation will differ from the run without workers (each worker has its own seed).
    `steptime bench-loader` times this loader alone with 0, 1, 2, 4 … workers, and with --formats other formats of
    its samples. An iterable or tarred set (WebDataset) needs a shard or more for each worker. torch warns if there
    are more workers than CPUs; for items that wait, ignore the warning.

    When to ignore it: When memory is short (each worker holds its own copy of what the dataset touches). When
    making the item itself cheaper is easy: that helps with any number of workers.
    """
    duration, model = step.duration.value, supply(case, loader)
    if model is None or loader.in_memory_tensors or model.best <= loader.workers:
        return None
    gain, wait = duration - model.step(model.best), loader.wait
    if gain < LEAST_GAIN_OF_MORE * duration:
        return None
    summary = f"With no worker, a step waits {format_duration(wait.value)} while its batches are made"
    if loader.workers:
        summary = f"With {_workers(loader.workers)}, a step waits {format_duration(wait.value)}: its batches take "
        summary += f"{format_duration(model.production)} to make"
    summary += f"; {_workers(model.needed)} would do" if model.needed == model.best else ""
    saved = capped(scaled(wait, ratio(gain, wait.value)), wait)
    saving, source = modelled(saved.value, saved.low, wait.high, wait.samples), loader.site or loader.item_site
    advice, evidence = _advice_on_more(loader, model) + _hot_line(case), _augmenting(case)
    return too_few_workers.finding(summary, advice, saving, category="input", source=source, evidence=evidence)


def _hot_line(case: Case) -> str:
    """Sentence on the line with most of the loader's time, if there is one; "" without it."""
    spent = own_times(path for path in case.paths if path.part == "input")
    line, most = largest(spent)
    share = ratio(most, sum(spent.values()))
    if line is None or share < HOT_LINE:
        return ""
    return f" {format_source(line)} takes {format_share(share)} of it: do once what is the same for each item."


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"


def _advice_on_more(loader: LoaderUse, model: Supply) -> str:
    text = f"Set num_workers={model.best}"
    if not loader.persistent_workers:
        text += " and persistent_workers=True"
    text += f" ({_room(loader, model)})"
    if (left := model.step(model.best) - model.consumption) > MOSTLY_HIDDEN * loader.wait.value:
        text += f"; that leaves {format_duration(left)} per step, which only a cheaper item saves"
    if loader.iterable and loader.workers == 0:
        text += ". The dataset is iterable: give each worker its own shards (torch.utils.data.get_worker_info())"
    return text + "."


def _room(loader: LoaderUse, model: Supply) -> str:
    """Reason for the advised number of workers."""
    if loader.busy is None:
        return f"at most the {usable_text(loader)}: this recording has no CPU times of the items"
    if model.best > loader.usable_cpus:
        return f"{usable_text(loader)}; making a batch is {format_share(1 - loader.busy)} waiting, which needs none"
    return usable_text(loader)


@rule("ST103", "too-many-workers", supersedes=("input-wait", "slow-collate", "too-few-workers"), at_setting=True)
def too_many_workers(step: StepSummary, loader: LoaderUse, case: Case) -> Finding | None:
    """The loader's workers cost more than they gain

    What it means: A batch from a worker is written to shared memory, announced through a queue and rebuilt. For
    cheap or in-memory items that takes longer than making the batch in the training process. Or there are more
    workers than CPUs, and they take turns with the training thread.

    How we know: The time to make a step's batches is measured inside the workers. If it is shorter than the training
    thread's wait, no worker at all would be faster. The savings are then the difference, plus a quarter of the time
    to receive a batch on this machine: workers slow the training (a thread feeds their queues) and their own
    collating (into shared memory) by about that much. The second case is more workers than the usable CPUs have room
    for, where the model of rule ST102 asks for fewer. The savings are then the wait. A worker whose items wait needs
    only a part of a CPU.

    What helps: num_workers=0 for in-memory and cheap items, or the smaller number that the advice names.

    When to ignore it: When the job will train on a device so fast that the items become the bottleneck.
    """
    model = supply(case, loader)
    if model is None or loader.workers == 0:
        return None
    dearer, crowded = _dearer_than_none(loader, model), _more_than_processors(loader, model)
    if loader.in_memory_tensors:  # their making was timed while the workers took turns, and would cost far less alone
        return crowded or dearer
    if dearer and dearer.savings and model.best > loader.workers:
        more_would_save = step.duration.value - model.step(model.best)
        dearer = dearer if more_would_save <= dearer.savings.value else None
    return dearer or crowded


def _dearer_than_none(loader: LoaderUse, model: Supply) -> Finding | None:
    spent = loader.wait.value
    gain = spent - model.production
    if gain < LEAST_GAIN_OF_NONE * spent or loader.wait.low <= model.production * 0.5:
        return None
    summary = (
        f"{_workers(loader.workers)} cost a step {format_duration(spent)}; "
        f"making its batches in the training process takes {format_duration(model.production)}"
    )
    saving = more(scaled(loader.wait, ratio(gain, spent)), model.unhidden)
    return too_many_workers.finding(summary, "Set num_workers=0.", saving, category="input", source=loader.site)


def _more_than_processors(loader: LoaderUse, model: Supply) -> Finding | None:
    if loader.workers < model.limit or model.best >= loader.workers:
        return None
    summary = (
        f"{loader.workers} workers share {usable_text(loader)} with the training thread; "
        f"by the model {model.best} would do"
    )
    advice = f"Set num_workers={model.best}."
    return too_many_workers.finding(summary, advice, loader.wait, category="input", source=loader.site)


@rule("ST104", "workers-restarted", supersedes=("input-wait",))
def workers_restarted(loader: LoaderUse) -> Finding | None:
    """Workers are started again for every epoch

    What it means: At the end of an epoch all workers of the DataLoader end. Its next iterator starts new ones,
    which import the program again or copy it, and the first batches come late. With short epochs that is a good
    part of the run.

    How we know: Three times are measured: ending a finished iterator; from making the next iterator to its first
    batch; and the extra time of the two steps after that. Those two steps are slow because forked workers share the
    training's memory, and each page that the training writes to is copied first. The savings are the sum of the
    three, divided by the steps between two starts.

    What helps: persistent_workers=True keeps the workers for the next epoch. The order of a shuffled dataset
    changes from the second epoch on (one random number less is drawn), which is another seed, not another training.
    The workers belong to one DataLoader: if the loop makes another for each epoch, make one before the loop. A
    sampler can choose what differs from epoch to epoch.

    When to ignore it: When an epoch takes minutes, or when the workers must make the dataset again in each epoch.
    """
    start, steps = loader.start, loader.steps_per_start
    kept = loader.persistent_workers and not loader.made_anew
    if not loader.workers or kept or start is None or not steps or not loader.starts:
        return None
    behind = f" and slows the next steps by {format_duration(loader.settling)}" if loader.settling else ""
    takes = f"takes {format_duration(start.value)}{behind}, again every {steps:.0f} steps"
    summary = f"Ending and starting {loader.workers} workers {takes}"
    saving = scaled(more(start, loader.settling), 1 / steps)
    advice = "Set persistent_workers=True."
    if loader.made_anew:
        advice = "Make the DataLoader once, before the loop, with persistent_workers=True: each epoch makes another."
    return workers_restarted.finding(summary, advice, saving, source=loader.site)


@rule("ST105", "per-sample-fetch", supersedes=("input-wait", "too-few-workers", "too-many-workers", "slow-collate"))
def per_sample_fetch(loader: LoaderUse) -> Finding | None:
    """Tensors that are already in memory are read one sample at a time

    What it means: The dataset is a tensor in memory, yet each batch is made by indexing it once per sample and
    stacking the pieces. That is hundreds of tiny operators instead of one.

    How we know: The dataset holds its data as tensors and has no __getitems__. The time per item and per collated
    batch is measured, without garbage collection. Indexing a whole batch at once still copies its bytes, which takes
    about as long as collating does now. The savings are the wait less that time; their lower end subtracts it twice.

    What helps: Index whole batches: give the dataset a __getitems__(indices), and a collate_fn that takes the batch
    as it is. Or drop the DataLoader: for index in torch.randperm(n).split(batch_size): x, y = data[index],
    labels[index]. Workers do not help: they add the transfer of each batch.

    When to ignore it: When each sample is transformed by Python code that cannot take a batch.
    """
    samples = loader.batch_size or 1
    produced = production(loader)
    if produced is None or loader.item is None or not loader.in_memory_tensors or loader.batched_fetch:
        return None
    collate = loader.collate.value if loader.collate is not None else 0.0
    if samples < FEWEST_SAMPLES or collate >= BYTES_DOMINATE * loader.item.value * samples:
        return None
    wait, copying = loader.wait, collate * loader.demand
    gain = wait.value - copying
    saving = capped(modelled(gain, max(0.1 * gain, wait.low - 2 * copying), wait.high, wait.samples), wait)
    summary = (
        f"{loader.dataset} in memory is indexed {loader.batch_size} times per batch: "
        f"{format_duration(produced)} to make what one indexing could, {format_duration(wait.value)} waited"
    )
    advice = "Index whole batches (__getitems__, or data[indices] without a DataLoader)"
    advice += " and set num_workers=0." if loader.workers else "; workers would make it slower."
    return per_sample_fetch.finding(summary, advice, saving, category="input", source=loader.site)


@rule("ST106", "slow-collate", supersedes=("input-wait", "too-few-workers"))
def slow_collate(loader: LoaderUse, case: Case) -> Finding | None:
    """Collating a batch takes longer than reading its items

    What it means: The function that puts items together (collate_fn) is the slow part of the input: padding in Python,
    lists of numbers, conversions item by item.

    How we know: Reading and collating are timed separately, in the process that does them. The rule fires if
    collating is at least half of their sum. The savings are collating's share of the wait, but never more than a
    step's collating takes.

    What helps: Make one array or tensor for the whole batch instead of one per item
    (torch.nn.utils.rnn.pad_sequence, np.stack, one torch.from_numpy). Pad into a preallocated tensor; sort by
    length so that there is less padding. Tokenise and convert once, before training.

    When to ignore it: When workers already hide it: then there is no wait, and the rule does not fire.
    """
    collate, produced = loader.collate, production(loader)
    if produced is None or collate is None:
        return None
    share = ratio(collate.value * loader.demand, produced)
    if share < COLLATE_SHARE:
        return None
    what = loader.collate_name.rsplit(".", 1)[-1]
    advice = (
        "Build each batch with one operation (pad_sequence, np.stack, a preallocated tensor), not item by item; what "
        "depends on a sample alone (tokenizing, parsing), do once, before training, and keep it."
    )
    if "default_collate" in loader.collate_name or not what:
        what = "default_collate"
        advice = "Return whole batches from the dataset (__getitems__), or larger items"
        advice += ": stacking many small ones is slow."
    taken = f"{format_duration(collate.value)} per batch, {format_share(share)} of the time to make it"
    summary = f"{what} takes {taken}; steps wait {format_duration(loader.wait.value)}"
    saving = capped(scaled(loader.wait, min(1.0, share)), scaled(collate, loader.demand))
    # The input's hottest line may be an item's; this is about the line below the function that collates.
    below = [path for path in case.paths if any(line.function.rsplit(".", 1)[-1] == what for line in path.lines)]
    hottest = main_line(below, case)[0] if below else loader.site
    return slow_collate.finding(summary, advice, saving, category="input", source=hottest)


@rule("ST107", "slow-transfer")
def slow_transfer(step: StepSummary, categories: tuple[CategoryUse, ...], case: Case) -> Finding | None:
    """Moving the batch to the device takes time

    What it means: The copy of each batch from CPU memory to the device delays training: it is blocking, it comes
    from pageable memory, or it carries more bytes than the model needs.

    How we know: The lines that move the batch are timed in the steps. With a device trace, the savings are the sum of
    two times: copies to the device that no kernel hides, and the device's idle time while the CPU stages pageable
    memory. A trace has few steps, so both are scaled to the usual step: the copies by the breakdown's copy category,
    the idle time by its sync category. Without a trace of copies, the savings are the breakdown's copy category, or
    the time of the lines if it has none. The finding's line is one that moves the batch, else one that was seen to
    move a tensor from the CPU. In a job on a CPU the rule is silent.

    What helps: Pinned memory in the loader together with non_blocking=True. Send bytes (uint8 pixels, int32 tokens)
    and convert on the device. Send one copy per batch in place of one per tensor.

    When to ignore it: When the copy overlaps with kernels of the step before: then it takes long, but nothing can
    be saved.
    """
    if step.device == "cpu":
        return None
    line = _moving_line(case.lines, case.sites)
    sent = [copy for copy in case.copies if copy.kind == "HtoD"]
    if sent:
        return _from_copies(case, sent, line)
    phase, copying = named(case.phases, "transfer"), named(categories, "copy")
    if phase is None:
        return None
    saving = capped(copying.duration, copying.recoverable) if copying is not None else phase.duration
    summary = f"Moving the batch to the device costs {in_step(saving.value, step)}"
    return slow_transfer.finding(summary, _advice_on_copies(case.loader, line), saving, category="copy", source=line)


def _moving_line(lines: tuple[LineUse, ...], sites: tuple[SiteUse, ...]) -> SourceLine | None:
    """The line that moves the batch to the device, the longest of several: by its role, else by the calls that it was
    seen to make on tensors of the CPU, else on those of the device that are filled from elsewhere; where nobody saw on
    which device a tensor lay, a line of the loop's own that calls such a method."""
    moving = [use for use in lines if use.role == "transfer"]
    if moving:
        return max(moving, key=lambda use: use.duration.value).source
    sending = [site for site in sites if site.name in SENDS and site.device == "cpu"]
    sending = sending or [site for site in sites if site.name in FILLS and site.device != "cpu"]
    places = {site.source.place for site in sending}
    moving = [use for use in lines if use.source.place in places]
    moving = moving or [use for use in lines if use.role == "python" and calls_function(use.calls, *SENDS)]
    if moving:
        return max(moving, key=lambda use: use.duration.value).source
    return max(sending, key=lambda site: site.calls).source if sending else None


def _from_copies(case: Case, sent: list[CopyUse], line: SourceLine | None) -> Finding | None:
    """By the copies of a trace: what they leave exposed, and what staging pageable memory keeps the device from. The
    device idles or copies, so that no instant is in both."""
    operators, waits = staging_operators(case.copies), [gap for gap in case.gaps if gap.category == "sync"]
    staging = [gap.duration for gap in waits if gap.cause in operators]
    exposed, waited = _sum(copy.exposed for copy in case.copies), _sum(gap.duration for gap in waits)
    parts = [of_usual_steps(total(each.exposed for each in sent), exposed, named(case.categories, "copy"))]
    if staging:
        parts.append(of_usual_steps(total(staging), waited, named(case.categories, "sync")))
    saving = total(parts)
    if not saving.value:
        return None
    top, moved = max(sent, key=lambda copy: copy.exposed.value), sum(copy.bytes for copy in sent)
    pageable = sum(copy.bytes for copy in sent if copy.memory == "pageable") > moved / 2
    pinned = top.memory == "pinned" and not pageable
    kind = "pageable " if pageable else "pinned " if pinned else ""
    costs = in_step(saving.value, case.step)
    advice = _advice_on_copies(case.loader, line)
    if pinned:
        advice = "The memory is pinned: copy the next batch on a stream of its own while this one computes"
        advice += ", or send fewer bytes."
    return slow_transfer.finding(
        f"Copying {format_bytes(moved)} from {kind}memory to the device costs {costs}",
        advice,
        saving,
        category="" if staging else "copy",
        source=line or top.source,
        evidence=tuple(map(_copy, sorted(sent, key=lambda copy: -copy.duration.value)[:3])),
    )


def _sum(estimates: Iterable[Estimate]) -> float:
    return sum(each.value for each in estimates)


def _copy(copy: CopyUse) -> str:
    """Copies of one kind, as evidence."""
    rate = f" at {format_bytes(ratio(copy.bytes, copy.duration.value) * 1e9)}/s" if copy.bytes else ""
    return (
        f"{copy.calls:.3g} {copy.memory} copies per step by {copy.operator or 'no operator'}: "
        f"{format_duration(copy.duration.value)}{rate}, {format_duration(copy.exposed.value)} exposed"
    )


def _advice_on_copies(loader: LoaderUse | None, line: SourceLine | None) -> str:
    if loader is None:
        return "Keep the batches in pinned memory that is reused, or keep the whole data set on the device if it fits."
    if not loader.pin_memory:
        return "Set pin_memory=True in the loader and non_blocking=True in the copy."
    if line is not None and "non_blocking=True" in line.text:
        return "It is pinned and non_blocking already: send smaller types (uint8, bf16) and convert on the device."
    return "The batches are pinned: add non_blocking=True to the copy."


@rule("ST108", "batch-preparation")
def batch_preparation(step: StepSummary, phases: tuple[CategoryUse, ...], case: Case) -> Finding | None:
    """The training loop prepares its batches itself

    What it means: Lines of the loop make the next batch (slicing, tokenising, augmenting, converting) while the model
    waits.

    How we know: The loop's lines that make the model's inputs are timed one by one, in a few steps. The savings are
    the sum of their times. If the loop uses no loader and these lines explain less than half of the step's input
    phase, the savings are the whole phase.

    What helps: Do once, before the loop, what is the same in every step. Prepare whole batches with one array
    operation. Move the work into a Dataset and let workers do it during the step. On a device, do it there.

    When to ignore it: When the batch depends on the model's last output (reinforcement learning, self-play).
    """
    times = [time for time in line_times(case.lines, phases) if time.line.role == "input"]
    making = [time for time in times if time.line.python.value >= OWN * time.line.duration.value]
    making.sort(key=lambda time: time.python.value, reverse=True)
    saving = total(time.python for time in making)
    phase = named(phases, "input")
    if phase is not None and case.loader is None and saving.value < OWN * phase.duration.value:
        saving = phase.duration
    if not saving.value:
        return None
    return batch_preparation.finding(
        f"The loop's own batch preparation takes {in_step(saving.value, step)}",
        "Prepare batches ahead of the step (once, with whole-array operations, or in a worker process).",
        saving,
        category="input",
        source=making[0].line.source if making else None,
        evidence=tuple(
            f"{format_duration(time.python.value)} per step: {time.line.source.text or time.line.source.line}"
            for time in making[:3]
        ),
    )


LEAST_BEYOND = 0.05
"""Fraction of the length behind the longest row of a batch: from there on rows are filled up to a fixed length."""


SIMILAR_LENGTHS = "Make batches of rows of similar length (bucketing): rows of a batch differ that much."


@rule("ST109", "padding", supersedes=("unstable-steps",), at_setting=True)
def padded_tokens(
    categories: tuple[CategoryUse, ...], phases: tuple[CategoryUse, ...], padding: PaddingFacts, case: Case
) -> Finding | None:
    """Much of a batch is padding

    What it means: Rows of tokens are padded to one length. The padding is embedded, multiplied and attended to like
    words, and its gradients are computed: all for nothing.

    How we know: Padding is counted in the first steps' batches: a number that repeats at the ends (or starts) of rows
    and appears nowhere else in them. If no batch has tokens, the calls of pad_sequence in profiled steps show which
    rows are padded. The rule fires if a quarter of the tokens or more are padding. The savings are the padding's
    share of the computing in forward and backward; the optimizer's update costs the same with or without padding. The
    interval is wide, because sorting by length leaves some of the padding, and attention grows with the square of the
    length. A packed batch (pack_padded_sequence) computes no padding, so the rule is silent. The finding's line is
    the one of the loader's code that pads the rows, if that code runs in this process.

    What helps: Pad to the longest row of the batch, not to a fixed length. Or make batches of rows of similar
    length: RM111, or in Hugging Face's Trainer group_by_length=True (from version 5 on
    train_sampling_strategy="group_by_length"). Or pack rows end to end, with a mask or position ids that separate
    them, or use nested tensors (torch.nested with the jagged layout).

    When to ignore it: When shapes must stay fixed: for a compiler without dynamic shapes, or CUDA graphs. A few fixed
    lengths keep most of the gain then.
    """
    use, compute = padding, named(categories, "compute")
    packed = any(plain_name(each.name) == PACKING for each in case.operators)
    if use.share < LEAST_PADDING or compute is None or packed:
        return None
    spent = {each.name: each.duration.value for each in phases}
    scaling = sum(spent.get(name, 0.0) for name in SCALING)
    bound = use.share * compute.duration.value * ratio(scaling, scaling + spent.get("optimizer", 0.0))
    saving = modelled(LIKELY_PADDING * bound, SURE_PADDING * bound, bound, compute.duration.samples)
    looked_at = "the one batch that was" if use.batches == 1 else f"the {use.batches} batches that were"
    summary = f"{format_share(use.share)} of the tokens are padding (in {looked_at} looked at)"
    loader = case.loader.site if case.loader is not None else None
    site, advice = loader or use.site, SIMILAR_LENGTHS
    if use.beyond >= LEAST_BEYOND:
        summary += f", {format_share(use.beyond)} of the length behind every row"
        site = use.site or loader
        advice = "Pad to the longest row of each batch, and make batches of rows of similar length (bucketing)."
    return padded_tokens.finding(summary, advice, saving, category="compute", source=site)


@rule("ST110", "slow-sampler", supersedes=("input-wait", "too-few-workers", "per-sample-fetch", "slow-collate"))
def slow_sampler(loader: LoaderUse) -> Finding | None:
    """Choosing which items make a batch takes longer than reading them

    What it means: The sampler (or batch_sampler) is the slow part of the input. For each batch it draws from all
    items, with weights and without replacement, or sorts them, or searches lists in Python. It runs in the training
    process, whatever num_workers is.

    How we know: Without workers, the training thread fetches each batch itself. Reading the items and collating them
    are timed; the sampler's time is the wait minus these two. The rule fires if the sampler's time is half of the
    wait or more. The savings are the sampler's time.

    What helps: Draw the indices of a whole epoch at once (torch.multinomial, rng.choice(size=batches * batch_size),
    torch.randperm) and return them batch by batch. Keep sorted or indexed data between batches, as arrays.

    When to ignore it: When each batch depends on the model's output for the last one.
    """
    wait, produced = loader.wait, production(loader)
    if produced is None or loader.workers or loader.iterable or loader.pin_memory:
        return None
    drawing = wait.value - produced
    if drawing < SAMPLER_SHARE * wait.value:
        return None
    rest = f"reading and collating {format_duration(produced)}"
    waited = f"{format_duration(drawing)} of the {format_duration(wait.value)} that a step waits"
    summary = f"The sampler takes {waited}, {rest}"
    advice = "Draw the indices of an epoch, or of many batches, at once. Workers do not help: it runs in the trainer."
    saving = scaled(wait, ratio(drawing, wait.value))
    return slow_sampler.finding(summary, advice, saving, category="input", source=loader.site)
