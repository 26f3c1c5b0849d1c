"""RM1xx: fixes of the data loading."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from steptime.advice.evidence import Case, CompilationUse, LineUse, SiteUse
from steptime.advice.fix import (
    CallEdit,
    CopyEdit,
    DeferEdit,
    Edit,
    JointEdit,
    LoopEdit,
    Option,
    Promise,
    Snippet,
    StatementEdit,
    fix,
    training_lines,
)
from steptime.advice.loader_model import Supply, opening, supply
from steptime.advice.run_uses import CategoryUse, GarbageUse, LoaderUse, StepSummary
from steptime.advice.savings import less, more, named, partly, scaled
from steptime.changes import Change, Scalar
from steptime.quantities import Estimate, format_share

SURE_FITTING_WORKERS = 0.6
"""Fraction of the predicted saving: what is left of it where items vary and the CPUs are not idle (the lower bound)."""
AS_GOOD = 1.15
"""A predicted step so much longer than the best one is within the model's error of it (it was 6 to 19 % off in trials,
benchmarks/results/fixes-epyc-2cpu.md); another number of workers that is predicted to be worse costs the trial a
quarter of its rounds."""
NEIGHBOUR = 4
"""One of so many workers: the step to the other number that is tried."""
Arguments = tuple[tuple[str, Scalar], ...]
WITHOUT_WORKERS: Arguments = (
    ("num_workers", 0),
    ("persistent_workers", False),
    ("prefetch_factor", None),
    ("timeout", 0),
    ("multiprocessing_context", None),
)
"""The options that need workers are taken back."""
STREAMS, ORDER = "the workers' random numbers", "the order from the second epoch on"
USUAL = 2
"""Batches that each worker keeps ready where the job says nothing (torch.utils.data.DataLoader)."""
FACTOR = 4
"""Times as many: a batch that takes four times the mean then delays no step."""
DEEPEST = 16
"""Batches of a worker in store, beyond which memory is all that grows."""
ENOUGH = 0.95
"""Fraction of the step: workers whose mean production takes longer are too few, and a store runs empty whatever its
size."""
LIKELY_DEEPER_PREFETCH = 0.5
EXAMPLE_PINNED_MEMORY = "DataLoader(…, pin_memory=True), and batch.to(device, non_blocking=True)"
LIKELY_PINNED_MEMORY = 0.7
"""Fraction of the exposed copies: the first one of a step cannot be hidden behind anything."""
EXAMPLE_BATCHED_FETCH = """def __getitems__(self, indices: list[int]):
    return [(self.images[i], self.labels[i]) for i in indices]  # one vectorised read for the whole batch"""
SUM = re.compile(r"\w+ \+= .*\.item\(\)")
"""A line that adds up what it reads from the device."""
EXAMPLE_DEFERRED_ITEM = """total = torch.zeros((), device=device)
for step, (images, labels) in enumerate(loader):
    ...
    total += loss.detach()          # stays on the device
    if step % 50 == 0:
        print(total.item() / 50)    # one wait in 50 steps
        total.zero_()"""
LIKELY_FROZEN_OBJECTS, SURE_FROZEN_OBJECTS = 1.0, 0.2
"""Fraction of the collector's time. Objects that live on are passed over, and young ones are looked at seventy times
less often (700 to 50 000): in seven trials of the planted job, which spends nine tenths of a step on them, 96 to 103 %
went, as the training finds its caches warm, too (benchmarks/results/). Only a job whose every step makes cycles keeps
most of it: they have to be taken apart all the same."""
STATEMENTS = ("gc.collect()", "gc.freeze()", "gc.set_threshold(50_000)")
"""As the change does it, which waits for the first steps."""
EXAMPLE_FROZEN_OBJECTS = "\n".join(("import gc", "", *STATEMENTS)) + "  # before the training loop"
EXAMPLE_WHOLE_TENSOR = """# for i in range(len(x)): y[i] = x[i] @ w          ->  y = x @ w
# for t in range(T): h = cell(x[:, t], h)          ->  y, h = gru(x)  # a torch.nn.GRU(…, batch_first=True)
# sum(int(p[i] == t[i]) for i in range(n))         ->  (p == t).sum()
# for t in range(T): h = step(x[:, t], h)          ->  for part in x.unbind(1): h = step(part, h)
# torch.tensor([row.tolist() for row in rows])     ->  torch.stack(rows), torch.from_numpy(numpy.stack(rows))
# [[table[c] for c in text] for text in batch]     ->  table_tensor[codes]  (an index of a whole batch)"""
STRATEGY = "file_system"
LIKELY_FILE_SYSTEM_SHARING = 0.5
"""Fraction of the wait that the making of batches does not explain. By hand, on two CPUs, with one worker, items of 20
ms in pure Python and 18 ms of training next to them, a wait of 10.5 ms became one of 4.3 ms; with items that let the
lock go (zlib), 2.5 to 3.5 ms became 1.1 to 1.5 ms."""

EXAMPLE_SIMILAR_LENGTHS = '''class LengthSampler(torch.utils.data.Sampler):
    """Batches of rows of similar length. lengths: of all rows of the dataset."""

    def __init__(self, lengths, batch_size, batches=50):
        self.lengths, self.batch_size, self.window = lengths, batch_size, batches * batch_size

    def __len__(self):
        return len(self.lengths)

    def __iter__(self):
        for window in torch.randperm(len(self.lengths)).split(self.window):
            whole = len(window) - len(window) % self.batch_size
            ordered = sorted(window[:whole].tolist(), key=self.lengths.__getitem__)
            groups = torch.tensor(ordered, dtype=torch.long).view(-1, self.batch_size)
            yield from groups[torch.randperm(len(groups))].flatten().tolist() + window[whole:].tolist()

DataLoader(…, sampler=LengthSampler([len(row) for row in rows], batch_size))   # in place of shuffle=True
# transformers: TrainingArguments(group_by_length=True); from version 5 train_sampling_strategy="group_by_length"'''


EXAMPLE_BUCKETS = """BOUNDS = {bounds}                    # {padding} padding, of the sizes that were seen

def to_bucket(tensor, filler=0):        # labels: filler=-100, so that the loss leaves them out
    size = tensor.shape[{dimension}]
    more = next((bound for bound in BOUNDS if bound >= size), size) - size
    return torch.nn.functional.pad(tensor, [0, 0] * (tensor.dim() - 1 - {dimension}) + [0, more], value=filler)

# in collate_fn, behind the usual padding: tokens, mask and labels = to_bucket(tokens, pad), to_bucket(mask), …"""
FEWEST_SIZES, FEWEST_BUCKETS, MOST_BUCKETS, MULTIPLE = 4, 3, 6, 8
"""Sizes that were seen, and bounds that are tried; they are multiples of eight, which matmuls in 16 bits like."""
LITTLE_PADDING = 0.1
SIZE_GUARD = re.compile(r"size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
"""A guard of TorchDynamo's that failed on a tensor's size."""
LIKELY_WHOLE_BATCHES = 0.8
"""Fraction of the compilations behind the warm-up whose guard is about the size of the batch."""


@fix(
    "RM101",
    "fitting-workers",
    addresses={"ST101", "ST102", "ST103", "ST106", "ST111"},
    promise=Promise.SAME_BITS,
    risk=2,
)
def fitting_workers(step: StepSummary, loader: LoaderUse, case: Case) -> Iterator[Option]:
    """As many loader workers as the items need

    What it changes: num_workers of the training DataLoader, up or down, and persistent_workers=True where there are
    any. An iterable dataset without workers is left alone: each worker would yield all of it.

    What it promises: Equal losses: indices are drawn in the training process, whatever the number of workers. If
    the dataset draws random numbers (augmentation), each worker draws its own, and persistent workers draw one
    number less per epoch. Losses are then compared with the range that other seeds span.

    What it should gain: The gain is the measured step minus the predicted one. The predicted step is the longest of
    three times, all measured: the step with the time to receive a batch in place of the wait; the time to make its
    batches, divided by the workers; the CPU time of the whole job, divided by the usable CPUs. Three things lengthen
    it. The first batch of each epoch is always waited for. A job that trains with a thread on each CPU waits for the
    slowest thread, so a worker's time on one of these CPUs is added to the step. A worker that is already making its
    next batch sends the last one late: it is assumed to hold the interpreter's lock, as pure Python does. If it
    releases the lock, expect a little more. The trial takes the smallest number within 3 % of the best prediction,
    and a neighbour that is nearly as good. If items wait (disk, network, sleep), each worker counts with its share of
    CPU time, and there may be more workers than CPUs: at most 64 per host, and at least eight batches per epoch for
    each. With num_workers=0, a quarter of the time to receive a batch is saved, too, because workers slow the
    training and their own collating by that much. Expect less if an item's operators use several threads: a worker
    has one.

    When to leave it: When memory is short: each worker holds its own copy of what the dataset touches, and at least
    25 MB of its own. When making the item itself cheaper is easy. When the job turns warnings into errors: torch
    warns if there are more workers than CPUs, and the job must allow that warning.
    """
    model = supply(case, loader)
    if model is None or model.best == loader.workers:
        return
    if (loader.iterable and not loader.workers) or (model.best > loader.workers and loader.in_memory_tensors):
        return
    for workers in _worth_trying(loader, model):
        most = _waited(step, case.categories, loader) + (0.0 if workers else model.unhidden)
        gain = min(step.duration.value - model.step(workers), most)
        saving = partly(gain, 1.0, SURE_FITTING_WORKERS, step)
        if not workers:
            yield _option(loader, (("num_workers", 0),), saving, STREAMS, WITHOUT_WORKERS)
            continue
        kept = loader.workers and loader.persistent_workers
        streams = STREAMS if kept else f"{STREAMS} (augmentation), and {ORDER}"
        yield _option(loader, (("num_workers", workers), ("persistent_workers", True)), saving, streams)


def _waited(step: StepSummary, categories: tuple[CategoryUse, ...], loader: LoaderUse) -> float:
    """ns that a step is longer for its input: what the training thread waits; on a device, no more than it idles for
    input, as it works on while the CPU waits."""
    idle = named(categories, "input") if step.device != "cpu" else None
    return loader.wait.value if idle is None else min(loader.wait.value, idle.recoverable.value)


def worker_option(case: Case, workers: int) -> Option | None:
    """So many workers, whatever the model says of them; None where there is no training loader, it has that many, or
    several would each yield every sample."""
    loader = case.loader
    if loader is None or workers == loader.workers or (loader.iterable and not loader.workers):
        return None
    if not workers:
        return _option(loader, (("num_workers", 0),), None, STREAMS, WITHOUT_WORKERS)
    model = supply(case, loader)
    saving = None
    if model is not None:
        gain = min(case.step.duration.value - model.step(workers), _waited(case.step, case.categories, loader))
        saving = partly(gain, 1.0, SURE_FITTING_WORKERS, case.step) if gain > 0 else None
    streams = STREAMS if loader.workers and loader.persistent_workers else f"{STREAMS} (augmentation), and {ORDER}"
    return _option(loader, (("num_workers", workers), ("persistent_workers", True)), saving, streams)


def _option(
    loader: LoaderUse, arguments: Arguments, saving: Estimate | None, streams: str = "", keywords: Arguments = ()
) -> Option:
    """Arguments of that loader, changed. streams: see `Option`; they decide the batches. keywords: the arguments as the
    source has them, where they are more."""
    label = ", ".join(f"{name}={value}" for name, value in arguments)
    source = tuple((name, str(value)) for name, value in keywords or arguments)
    edit = CallEdit("DataLoader", source, loader.site) if loader.site else Snippet(f"DataLoader(…, {label})")
    return Option(label, (_change(loader, arguments),), saving, edit, streams, other_data=bool(streams))


def _change(loader: LoaderUse, arguments: Arguments, kind: str = "loader") -> Change:
    """A change of that loader: shuffled ones are known to train, others by their line only."""
    site = loader.site
    place = (("site", f"{site.file}:{site.line}"),) if site is not None else ()
    return Change(kind, arguments=(*arguments, *place))


def _worth_trying(loader: LoaderUse, model: Supply) -> tuple[int, ...]:
    """The model's best and, where it asks for more, the number above or below it: the model may err by a worker."""
    if model.best < loader.workers:
        return (model.best,)
    far = max(1, model.best // NEIGHBOUR)
    near = min(model.best + far, model.limit) if model.best < model.limit else model.best - far
    as_good = near > loader.workers and model.step(near) <= AS_GOOD * model.step(model.best)
    return (model.best, near) if as_good else (model.best,)


@fix("RM102", "persistent-workers", addresses={"ST104"}, promise=Promise.SAME_BITS, risk=1)
def persistent_workers(loader: LoaderUse) -> Option | None:
    """Workers that outlive an epoch

    What it changes: persistent_workers=True of the training DataLoader, if it has workers.

    What it promises: Equal losses in the first epoch. From the second on, a shuffled dataset comes in another
    order, because one random number less is drawn per epoch: another seed, not another training.

    What it should gain: The sum of three measured times, divided by the steps between two starts: ending the workers;
    from making an iterator to its first batch; and the extra time of the two steps after that. The time to make the
    first batch itself is subtracted, because persistent workers start it no sooner.

    When to leave it: When the workers must make the dataset again for each epoch, or when their memory is needed
    between epochs. The fix is not tried if each epoch makes another DataLoader, because the workers end with
    theirs.
    """
    if not loader.workers or loader.persistent_workers or loader.made_anew:
        return None
    if loader.start is None or not loader.steps_per_start or not loader.starts:
        return None
    restart = less(more(loader.start, loader.settling), opening(loader))
    saving = scaled(restart, 1 / loader.steps_per_start)
    return _option(loader, (("persistent_workers", True),), saving, ORDER)


@fix("RM103", "deeper-prefetch", addresses={"ST101", "ST102"}, promise=Promise.SAME_BITS, risk=1)
def deeper_prefetch(step: StepSummary, loader: LoaderUse, case: Case) -> Option | None:
    """More prefetched batches

    What it changes: prefetch_factor of the training DataLoader, if it has workers: each worker keeps four times as
    many batches ready.

    What it promises: Equal losses: the batches and their order stay.

    What it should gain: Part of the wait that remains although the workers are fast enough on average: the time per
    item varies, and a slow batch finds the queue empty. Half of that wait is likely. The fix is not proposed if the
    workers are too slow on average.

    When to leave it: When memory is short: every prefetched batch takes its size in shared memory.
    """
    if not loader.workers:
        return None
    now, duration = loader.prefetch_factor or USUAL, step.duration.value
    deeper = min(DEEPEST, FACTOR * now)
    model = supply(case, loader)
    if deeper <= now or model is None or max(model.production / loader.workers, model.processor) > ENOUGH * duration:
        return None
    gain = min(duration - model.step(loader.workers), loader.wait.value)
    return _option(loader, (("prefetch_factor", deeper),), partly(gain, LIKELY_DEEPER_PREFETCH, 0.0, step))


@fix("RM104", "pinned-memory", addresses={"ST107", "ST406"}, promise=Promise.SAME_BITS, risk=1)
def pinned_memory(step: StepSummary, loader: LoaderUse, case: Case) -> Option | None:
    """Batches in pinned memory, copied while the device computes

    What it changes: pin_memory=True of the training DataLoader, and non_blocking=True of copies of pinned tensors
    to the device. Only with an accelerator.

    What it promises: Equal losses: the same numbers arrive, in the order of the stream.

    What it should gain: At most the exposed time of copies, the breakdown's copy category; seven tenths of it are
    likely. The CPU's wait while a copy is staged goes, too; it is not predicted.

    When to leave it: When the host's memory is short: pinned memory is never swapped out.
    """
    if loader.pin_memory or step.device == "cpu":
        return None
    copies = named(case.categories, "copy")
    exposed = copies.recoverable.value if copies is not None else 0.0
    saving = partly(exposed, LIKELY_PINNED_MEMORY, 0.0, step) if exposed else None
    change = _change(loader, (("pin_memory", True), ("non_blocking", True)))
    return Option("pin_memory=True, non_blocking=True", (change,), saving, _edit(case.lines, loader))


def _edit(lines: tuple[LineUse, ...], loader: LoaderUse) -> Edit:
    """The loader and the lines that copy its batches; an example where those are not known."""
    copies = {use.source.place: use.source for use in lines if use.role == "transfer"}
    waiting = [CopyEdit(each) for each in copies.values() if "non_blocking=True" not in each.text]
    if loader.site is None or not copies:
        return Snippet(EXAMPLE_PINNED_MEMORY)
    pinned = CallEdit("DataLoader", (("pin_memory", "True"),), loader.site)
    return JointEdit((pinned, *waiting), Snippet(EXAMPLE_PINNED_MEMORY, loader.site))


@fix("RM105", "batched-fetch", addresses={"ST105"}, promise=Promise.SAME_BITS, risk=3)
def batched_fetch(loader: LoaderUse) -> Option | None:
    """A batch that is fetched at once

    What it changes: Nothing by itself: only you know how your dataset reads many items together. torch calls a
    dataset's `__getitems__(indices)` once for a batch where there is one, instead of `__getitem__` for every item.

    What it promises: Equal losses, as long as `__getitems__` returns the items that `__getitem__` would.

    What it should gain: At most the finding's savings: the time per item, without the time to copy its bytes.

    When to leave it: When items are files of their own and reading them dominates: workers help there.
    """
    if loader.batched_fetch:
        return None
    advice = "Give the dataset a __getitems__ that reads the whole batch."
    return Option("__getitems__", edit=Snippet(EXAMPLE_BATCHED_FETCH, loader.item_site), advice=advice)


@fix("RM106", "deferred-item", addresses={"ST303"}, promise=Promise.SAME_BITS, risk=2)
def deferred_item(sites: tuple[SiteUse, ...]) -> Option | None:
    """Values read from the device less often

    What it changes: A sum of such values in the loop (total += loss.item()) is taken on the device, in float64 as
    Python does. It is read where it is used: after the loop, or under a condition such as step % 50. Its output
    stays the same. The trial runs the edited source. Where a value is printed or decides something in every step,
    only you know what it is needed for: read it every few steps.

    What it promises: Equal losses.

    What it should gain: At most the device's idle time that the call caused; the finding states it. Nothing, if
    another call in the same step waits for the device, too.

    When to leave it: When a decision of the next step depends on the value (skipping a step, a search).
    """
    waiting = [site for site in sites if site.device != "cpu"]
    if not waiting:
        return None
    sums = [each for each in waiting if SUM.match(each.source.text)]
    site = max(sums or waiting, key=lambda each: each.calls)
    advice = f"Keep the value of {site.name}() on the device and read it every n-th step."
    snippet = Snippet(EXAMPLE_DEFERRED_ITEM, site.source)
    if not sums or site.device == "mps":  # which has no float64
        return Option(f"{site.name}() deferred", edit=snippet, advice=advice)
    edit = JointEdit(tuple(map(DeferEdit, dict.fromkeys(each.source for each in sums))), snippet)
    return Option(f"{site.name}() deferred", edit=edit, advice=advice, as_written=True)


@fix("RM107", "frozen-objects", addresses={"ST202"}, promise=Promise.SAME_BITS, risk=2)
def frozen_objects(step: StepSummary, garbage: GarbageUse, lines: tuple[LineUse, ...] = ()) -> Option | None:
    """Long-lived objects hidden from the garbage collector

    What it changes: gc.freeze() after the first steps: later collections skip all objects that are alive then. The
    youngest generation is collected less often.

    What it promises: Equal losses: no result of the training depends on garbage collection.

    What it should gain: Most of the collector's measured time. A gc.collect() that the loop calls itself stays.

    When to leave it: When cycles hold large tensors and memory is short.
    """
    if not garbage.duration.value:
        return None
    spent = garbage.duration.value
    saving = partly(spent, LIKELY_FROZEN_OBJECTS, SURE_FROZEN_OBJECTS, step)
    (forward, _), example = training_lines(lines), EXAMPLE_FROZEN_OBJECTS
    edit = LoopEdit(STATEMENTS, "gc", forward, example) if forward is not None else Snippet(example)
    return Option("gc.freeze()", (Change("gc-freeze"),), saving, edit)


@fix(
    "RM108", "whole-tensor", addresses={"ST108", "ST205", "ST206", "ST301", "ST307"}, promise=Promise.SAME_CURVE, risk=3
)
def whole_tensor() -> Option:
    """One operator on the whole tensor instead of a loop over its elements

    What it changes: Nothing by itself: only you know what the loop means. Each round of a Python loop costs
    microseconds, whatever it computes. One operator on the whole tensor pays them once: a matmul, an index, a
    comparison and a sum, torch.stack, or torch.nn.GRU in place of a loop over cells.

        # for i in range(len(x)): y[i] = x[i] @ w      ->  y = x @ w
        # for t in range(T): h = cell(x[:, t], h)      ->  y, h = torch.nn.GRU(…, batch_first=True)(x)
        # sum(int(p[i] == t[i]) for i in range(n))     ->  (p == t).sum()
        # for t in range(T): h = step(x[:, t], h)      ->  for part in x.unbind(1): h = step(part, h)

    What it promises: A loss curve like that of another seed: sums may be taken in another order.

    What it should gain: At most the finding's savings, which are reported with the advice.

    When to leave it: When each round needs a decision that Python made on the result of the last.
    """
    return Option(
        "one operator for the loop", edit=Snippet(EXAMPLE_WHOLE_TENSOR), advice="Replace the loop by one operator."
    )


@fix("RM109", "file-system-sharing", addresses={"ST101", "ST102"}, promise=Promise.SAME_BITS, risk=2)
def file_system_sharing(step: StepSummary, loader: LoaderUse, case: Case) -> Option | None:
    """Batches shared by file name

    What it changes: torch.multiprocessing.set_sharing_strategy("file_system") is called before training: a loader's
    worker then sends the training process the name of each tensor's shared memory. By default, on Linux, a thread of
    the worker sends an open file for each tensor when the training process asks for it. If the worker meanwhile makes
    the next item in pure Python, it holds the interpreter's lock, and the thread answers late, five milliseconds at a
    time (sys.getswitchinterval).

    What it promises: Equal losses: the batches are the same.

    What it should gain: About half of the wait that remains although the workers make batches quickly enough. Less if
    making an item releases the interpreter's lock.

    When to leave it: When jobs are often killed: torch's manager process (torch_shm_manager) frees what a dead
    process shared. If that process is killed, too, the memory stays in /dev/shm.
    """
    model = supply(case, loader)
    if model is None or not loader.workers:
        return None
    at_once = replace(model, handover=0.0, delay=0.0).step(loader.workers)
    unexplained = min(step.duration.value - at_once, loader.wait.value)
    if unexplained <= 0:
        return None
    statement = f'torch.multiprocessing.set_sharing_strategy("{STRATEGY}")'
    change = _change(loader, (("strategy", STRATEGY),), "sharing-strategy")
    saving = partly(unexplained, LIKELY_FILE_SYSTEM_SHARING, 0.0, step)
    return Option(
        statement.removeprefix("torch.multiprocessing."), (change,), saving, StatementEdit(statement, "torch")
    )


@fix("RM111", "similar-lengths", addresses={"ST109"}, promise=Promise.SAME_CURVE, risk=3)
def similar_lengths(compiled: bool, loader: LoaderUse) -> Option | None:
    """Rows of similar length in one batch

    What it changes: The sampler of the training DataLoader draws as before. Among its draws for up to fifty batches in
    a row, rows of similar length come into one batch, and these batches come in random order.

    What it promises: A loss curve like that of another seed: each row is trained on as often as before, in other
    batches.

    What it should gain: Less padding, if rows of one batch differ in length. How much less depends on the lengths,
    which are unknown before the trial. Nothing is gained if the dataset itself pads all rows to one length; the trial
    says so.

    When to leave it: When items are expensive to make: each is made once more in the training process, by a copy of
    the dataset, to learn its length. When the code is compiled for fixed shapes. When the loss of a batch is a mean
    over its tokens and short rows must not weigh more.
    """
    if loader.iterable or loader.in_memory_tensors or not loader.batch_size or loader.batch_size < 2:
        return None
    if compiled:
        return None
    place = (("site", f"{loader.site.file}:{loader.site.line}"),) if loader.site is not None else ()
    snippet = Snippet(EXAMPLE_SIMILAR_LENGTHS, loader.site)
    change = Change("similar-lengths", arguments=place)
    return Option("rows of similar length in a batch", (change,), None, snippet, "which rows share a batch", True)


@fix("RM112", "whole-batches", addresses={"ST304", "ST309"}, promise=Promise.SAME_CURVE, risk=2)
def whole_batches(step: StepSummary, loader: LoaderUse, compilations: tuple[CompilationUse, ...]) -> Option | None:
    """No smaller batch at the end of an epoch

    What it changes: drop_last=True of the training DataLoader: the last batch of an epoch, if smaller than the
    others, is left out. Nothing is compiled or captured for its size.

    What it promises: A loss curve like that of another seed: with shuffling, other rows are left out of each epoch.

    What it should gain: Most of the measured time of compilations after the warm-up whose failed guard is about the
    batch size.

    When to leave it: When the data is small or is not shuffled, so that some rows are never trained on; in evaluations.
    """
    rows, size = loader.length, loader.batch_size
    if not rows or not size or not rows % size or loader.batches != -(-rows // size):
        return None
    late = [each for each in compilations if each.after_warm_up and _size_in(each.reason, 0)]
    if not late:
        return None
    saving = partly(sum(each.duration for each in late) / max(1, step.steady), LIKELY_WHOLE_BATCHES, 0.0, step)
    edit = CallEdit("DataLoader", (("drop_last", "True"),), loader.site)
    return Option("drop_last=True", (), saving, edit, "which rows are left out", True, as_written=True)


@fix("RM113", "few-lengths", addresses={"ST304", "ST309"}, promise=Promise.SAME_CURVE, risk=3)
def few_lengths(compilations: tuple[CompilationUse, ...]) -> Option | None:
    """Padding to a few lengths

    What it changes: Nothing by itself: only you know how tokens, masks and labels are padded. The code to paste
    pads a batch to the next of three to six lengths, so that compiled code and CUDA graphs see few shapes.

    What it promises: Equal losses up to rounding, where masks and ignored labels leave the padding out.

    What it should gain: The time of compilations after the warm-up. The cost is padding. It is reported for each
    number of lengths, from the sizes that failed guards have shown. For each number, the lengths are those that pad
    least. The code to paste has the smallest number of lengths with a tenth of padding or less.

    When to leave it: When code that is compiled for all sizes is as fast (RM309). When rows of similar length already
    share batches (RM111).
    """
    for dimension in (1, 2):
        sizes = sorted({size for each in compilations for size in _size_in(each.reason, dimension)})
        most = min(MOST_BUCKETS, len({-(-size // MULTIPLE) for size in sizes}))
        tried = [_buckets(sizes, count) for count in range(FEWEST_BUCKETS, most + 1) if len(sizes) >= FEWEST_SIZES]
        if not tried:
            continue
        bounds, padding = next((each for each in tried if each[1] <= LITTLE_PADDING), tried[-1])
        each = ", ".join(f"{len(found)} lengths pad {format_share(share)}" for found, share in tried)
        advice = f"Pad batches to few lengths: {each}, in place of {len(sizes)} compiled shapes."
        text = EXAMPLE_BUCKETS.format(bounds=list(bounds), padding=format_share(padding), dimension=dimension)
        return Option(f"{len(bounds)} lengths", edit=Snippet(text), advice=advice)
    return None


def _size_in(reason: str, dimension: int) -> tuple[int, ...]:
    """Sizes of a dimension that a failed guard names."""
    found = [match.groups() for match in SIZE_GUARD.finditer(reason)]
    return tuple(int(size) for index, *sizes in found if int(index) == dimension for size in sizes)


def _buckets(sizes: Sequence[int], count: int) -> tuple[tuple[int, ...], float]:
    """So many bounds for sizes in ascending order that pad least, as a share of the padded size; each size counts
    alike."""
    ends = [-(-size // MULTIPLE) * MULTIPLE for size in sizes]
    best: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {(0, 0): (0, ())}
    for buckets in range(1, count + 1):
        for end in range(1, len(sizes) + 1):
            made = [
                (best[buckets - 1, start][0] + ends[end - 1] * (end - start), best[buckets - 1, start][1])
                for start in range(end)
                if (buckets - 1, start) in best
            ]
            if made:
                padded, before = min(made)
                best[buckets, end] = padded, (*before, ends[end - 1])
    padded, bounds = best[count, len(sizes)]
    return tuple(dict.fromkeys(bounds)), 1 - sum(sizes) / padded
